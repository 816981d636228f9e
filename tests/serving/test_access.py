"""The page for everybody, in a real browser: by keyboard, by ear, and what it says when it fails.

Skipped without Chromium: `make browser` installs it.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from tests.helpers import coloured

from .pages import (
    answers,
    choose,
    focused,
    needs_chromium,
    opened,
    region,
    saved,
    teach,
    until,
)

pytestmark = needs_chromium
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
"""Checks accessibility; from npm, since it is large and under another licence."""


def test_by_keyboard_alone(browser: Any, tmp_path: Path) -> None:
    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    def reach(name: str) -> None:
        for _ in range(60):
            if focused(page) == name:
                return
            press("Tab")
        raise AssertionError(f"{name} cannot be reached")

    with opened(browser, tmp_path / "folder") as page:
        press("Tab")
        assert focused(page) == "Skip to using the classifier"
        for name in ("red", "green"):
            reach("New class")
            page.keyboard.type(name)
            press("Enter")
            region(page, name).wait_for()
            until(page, lambda: focused(page) == "New class")
            files = saved(tmp_path / name, *(coloured(name, i) for i in range(3)))
            with page.expect_file_chooser() as asked:
                reach(f"Add photos of {name}")
                press("Enter")
            asked.value.set_files(files)
            region(page, name).get_by_text("3 examples").wait_for()
            page.locator("h1").click()  # from the top again
        page.locator("#accuracy").wait_for()
        # The first photo of red to green, by the dialog.
        region(page, "red").locator("li button").first.focus()
        press("Enter")
        page.get_by_role("dialog").wait_for()
        reach("Class")
        press("g")
        reach("Move")
        press("Enter")
        region(page, "green").get_by_text("4 examples").wait_for()
        until(page, lambda: focused(page) == "Add photos of red")  # not lost
        with page.expect_file_chooser() as asked:
            reach("Choose photos …")
            press("Enter")
        asked.value.set_files(saved(tmp_path / "new", *(coloured("red", i) for i in (50, 51))))
        answers(page).nth(1).get_by_role("strong").get_by_text("red", exact=True).wait_for()
        answers(page).first.get_by_role("combobox").focus()
        press("g", "Tab", "Enter")
        region(page, "green").get_by_text("5 examples").wait_for()
        until(page, lambda: answers(page).count() == 1)
        until(page, lambda: focused(page).startswith("Class of "))  # the next one


def test_what_a_screen_reader_hears(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        heard: list[str] = []

        def hear(said: str) -> None:
            heard.append(said)

        page.expose_function("hear", hear)
        page.evaluate(
            "new MutationObserver((all) => all.forEach((each) => each.addedNodes.forEach("
            "(text) => hear(text.textContent)))).observe("
            "document.getElementById('said'), { childList: true })"
        )
        teach(page, tmp_path, red=2, green=2)
        new = saved(tmp_path / "new", coloured("red", 80), coloured("green", 81))
        choose(page, page.get_by_role("button", name="Choose photos"), new)
        until(page, lambda: "2 photos answered" in heard)
        for said in ("Class red added", "2 of 2 photos sent"):
            assert said in heard
        until(page, lambda: any(said.startswith("Learned. Expected accuracy") for said in heard))
        tree = page.locator("body").aria_snapshot()
        for part in (
            "- banner:",
            '- heading "Polyshot" [level=1]',
            '- combobox "Project":',
            "- main:",
            '- region "Teach":',
            '- textbox "New class":',
            '- region "Class red":',
            '- heading "red 2 examples" [level=3]',
            '- list "Examples of red":',
            '- button "0.png, red"',
            '- region "What it has learned":',
            '- region "Use it":',
            '- slider "None of these:"',
            '- list "Answers":',
            '- list "Probabilities":',
            '- combobox "Class of 0.png":',
            '- button "Teach it, 0.png"',
            '- button "Remove 0.png"',
            '- link "ONNX":',
            "- status:",
        ):
            assert part in tree, f"{part} is not in\n{tree}"
        # Nothing that can be used is without a name, and every picture has a text.
        assert "- button\n" not in tree and "- combobox\n" not in tree and "- img\n" not in tree


def test_what_the_service_refuses(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        teach(page, tmp_path, red=2, green=2)
        page.locator("#accuracy").wait_for()
        asked: list[str] = []

        def full(route: Any) -> None:
            asked.append(route.request.url)
            route.fulfill(status=429, json={"detail": "The project is full."})

        page.route("**/images?label=red", full)
        many = saved(tmp_path / "many", *(coloured("red", 30 + i) for i in range(26)))
        choose(page, page.get_by_role("button", name="Add photos of red"), many)
        sentence = "The last 2 photos were not sent. The project is full."
        page.get_by_role("alert").get_by_text(sentence).wait_for()
        assert len(asked) == 3 and region(page, "red").get_by_text("2 examples").is_visible()
        page.route(
            "**/export/classifier.onnx",
            lambda route: route.fulfill(
                status=409, content_type="application/json", body='{"detail": "It needs onnx."}'
            ),
        )
        page.get_by_role("link", name="ONNX").click()
        page.get_by_role("alert").get_by_text("It needs onnx.").wait_for()
        page.route("**/fit", lambda route: route.abort())
        region(page, "red").locator("li button").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Delete photo").click()
        page.get_by_role("alert").get_by_text("is polyshot serve still running?").wait_for()


def test_learning_is_shown_cancelled_and_fails_in_words(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(self: FewShotClassifier, images: object, labels: object, report: Any) -> None:
        for i in range(3000):
            report("learning", i, 3000)
            time.sleep(0.01)
        raise AssertionError("it goes on")

    def fails(self: FewShotClassifier, *_: object) -> None:
        raise PolyshotError("These examples are all alike.")

    with opened(browser, tmp_path / "folder") as page:
        monkeypatch.setattr(FewShotClassifier, "fit", slow)
        teach(page, tmp_path, red=1, green=1)
        progress = page.get_by_role("progressbar", name="Learning")
        until(page, lambda: progress.is_visible() and int(progress.get_attribute("value") or 0) > 0)
        page.reload()  # who comes later sees it as well
        progress.wait_for()
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_text("Nothing yet.").wait_for()
        monkeypatch.setattr(FewShotClassifier, "fit", fails)
        page.reload()
        page.get_by_role("alert").get_by_text("These examples are all alike.").wait_for()
        page.get_by_text("Nothing yet.").wait_for()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: make browser-check")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1180), ("dark", 390)])
def test_axe_finds_nothing(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 820}}

    def check() -> None:
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run()")["violations"]
        assert not [(one["id"], one["nodes"][0]["html"]) for one in found]

    with opened(browser, tmp_path / "folder", bypass_csp=True, **look) as page:
        check()
        teach(page, tmp_path, red=4, green=4)
        odd = saved(tmp_path / "odd", coloured("green", 77))
        choose(page, page.get_by_role("button", name="Add photos of red"), odd)
        page.get_by_text("One example looks mislabelled").click()
        new = saved(tmp_path / "new", *(coloured("red", 80 + i) for i in range(4)))
        choose(page, page.get_by_role("button", name="Choose photos"), new)
        until(page, lambda: page.get_by_text("label next", exact=True).count() > 1)
        check()
        for opens in (page.locator(".class li button").first, page.locator("#rename-project")):
            opens.click()
            page.get_by_role("dialog").wait_for()
            check()
            page.keyboard.press("Escape")
