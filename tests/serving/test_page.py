"""Each part of the page in a real browser: camera, clipboard, folders, slider, projects, keys.

Skipped without Chromium: `make browser` installs it.
"""

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from tests.helpers import coloured, picture

from .conftest import encoded
from .pages import (
    add_class,
    answers,
    choose,
    needs_chromium,
    opened,
    saved,
    served,
    teach,
    until,
)

pytestmark = needs_chromium
TOKEN = "abcdefgh12345678"
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
"""Checks accessibility; from npm, since it is large and under another licence."""


def region(page: Any, name: str) -> Any:
    return page.get_by_role("region", name=f"Class {name}", exact=True)


def drop(page: Any, place: Any, *paths: Path) -> None:
    """Drop files or folders from the desktop."""
    box = place.bounding_box()
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **at, "data": data})


def add_project(page: Any, name: str) -> None:
    page.locator("#new-project").click()
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    until(page, lambda: page.title().startswith(f"{name} "))


def focused(page: Any) -> str:
    """What has the focus, as a screen reader would name it."""
    said = "e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText || e.id"
    return str(page.evaluate(f"({said})(document.activeElement)"))


def test_the_camera(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        card = add_class(page, "pattern")
        card.get_by_role("button", name="Camera for pattern").click()
        dialog = page.get_by_role("dialog", name="Photos of pattern")
        take = dialog.get_by_role("button", name="Take photo")
        take.click()
        dialog.get_by_text("1 photo taken").wait_for()
        page.keyboard.press("Enter")  # it has the focus
        dialog.get_by_text("2 photos taken").wait_for()
        dialog.get_by_role("button", name="Close").click()
        card.get_by_text("2 examples").wait_for()
        assert page.evaluate("document.getElementById('video').srcObject") is None  # it is off
        add_project(page, "another")  # the camera may show the same again, which is known here
        page.locator("#ask-camera").click()
        page.get_by_role("dialog", name="New photos").get_by_role("button", name="Take").click()
        page.get_by_text("1 photo taken").wait_for()
        page.keyboard.press("Escape")
        answers(page).get_by_text("not answered yet").wait_for()


def test_the_clipboard(browser: Any, tmp_path: Path) -> None:
    write = """async (data) => {
        const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
        const item = new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) });
        await navigator.clipboard.write([item]);
    }"""
    allowed = ["clipboard-read", "clipboard-write"]
    with opened(browser, tmp_path / "folder", permissions=allowed) as page:
        for name in ("red", "green"):
            card = add_class(page, name)
            page.evaluate(write, base64.b64encode(encoded(coloured(name, 5))).decode())
            card.locator("h3").click()  # the class that was touched last
            page.keyboard.press("Control+V")
            card.get_by_text("1 example").wait_for()
        page.evaluate(write, base64.b64encode(encoded(coloured("red", 6))).decode())
        page.get_by_text("Drop new photos here").click()
        page.keyboard.press("Control+V")
        answers(page).get_by_role("strong").get_by_text("red", exact=True).wait_for()
        assert page.locator(".class").get_by_text("1 example").count() == 2


def test_folders(browser: Any, tmp_path: Path) -> None:
    for name in ("red", "green", "blue"):
        saved(tmp_path / "photos" / name, *(coloured(name, i) for i in range(2)))
    (tmp_path / "photos" / "red" / "notes.txt").write_text("no photo")
    with opened(browser, tmp_path / "folder") as page:
        place = page.locator("#folders")
        drop(page, place, tmp_path / "photos" / "red", tmp_path / "photos" / "green")
        for name in ("red", "green"):
            region(page, name).get_by_text("2 examples").wait_for()
        drop(page, region(page, "red"), tmp_path / "photos" / "blue" / "1.png")
        region(page, "red").get_by_text("3 examples").wait_for()
        drop(page, place, tmp_path / "photos" / "blue" / "0.png")
        page.get_by_role("alert").get_by_text("Single photos are dropped on a class").wait_for()
        page.get_by_role("button", name="Dismiss").click()
        choose(page, page.get_by_role("button", name="Choose a folder"), tmp_path / "photos")
        region(page, "blue").get_by_text("2 examples").wait_for()
        region(page, "red").get_by_text("2 examples").wait_for()  # one of them was blue's
        assert not page.get_by_role("alert").inner_text()
        drop(page, page.locator("#ask"), tmp_path / "photos" / "blue")
        page.get_by_role("alert").get_by_text("2 of these photos are examples already").wait_for()
        assert answers(page).count() == 0


def test_none_of_these_and_back(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        teach(page, tmp_path, red=4, green=4)
        new = saved(tmp_path / "new", coloured("red", 80), picture(7))
        choose(page, page.get_by_role("button", name="Choose photos"), new)
        odd = page.locator("#answers > li", has_text="1.png").get_by_role("strong")
        slider = page.get_by_role("slider", name="None of these")
        until(page, slider.is_enabled)
        assert odd.inner_text() in ("red", "green")
        slider.focus()
        for _ in range(15):
            page.keyboard.press("ArrowRight")
        odd.get_by_text("none of these").wait_for()
        assert "1 of 2 photos, at 15 % false alarms" in slider.get_attribute("aria-valuetext")
        page.keyboard.press("Home")
        until(page, lambda: odd.inner_text() in ("red", "green"))
        assert slider.get_attribute("aria-valuetext") == "off"
        # An example that is dragged back is none any more.
        region(page, "red").locator("li[data-image]").first.drag_to(page.locator("#ask"))
        region(page, "red").get_by_text("3 examples").wait_for()
        until(page, lambda: answers(page).count() == 3)


def test_several_projects(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        teach(page, tmp_path, red=1, green=1)
        page.get_by_role("button", name="Rename red").click()
        page.keyboard.type("crimson")
        page.keyboard.press("Enter")
        region(page, "crimson").get_by_text("1 example").wait_for()
        names = [each.get_attribute("data-name") for each in page.locator(".class").all()]
        assert names == ["crimson", "green"]  # it stays where it was
        assert focused(page) == "Add photos of crimson"
        add_project(page, "second")
        assert page.locator(".class").count() == 0
        page.locator("#rename-project").click()
        page.keyboard.type("third")
        page.keyboard.press("Enter")
        until(page, lambda: page.title().startswith("third "))
        page.get_by_label("Project", exact=True).select_option("My first project")
        region(page, "green").get_by_text("1 example").wait_for()
        page.get_by_label("Project", exact=True).select_option("third")
        until(page, lambda: page.locator(".class").count() == 0)
        page.locator("#delete-project").click()
        page.get_by_role("dialog").get_by_role("button", name="OK").click()
        region(page, "crimson").wait_for()
        assert page.locator("#project option").all_inner_texts() == ["My first project"]
        page.get_by_role("button", name="Delete the class green").click()
        page.keyboard.press("Escape")
        assert region(page, "green").count() == 1
        page.get_by_role("button", name="Delete the class green").click()
        page.get_by_role("dialog").get_by_role("button", name="OK").click()
        until(page, lambda: region(page, "green").count() == 0)


def test_the_link_with_a_token(browser: Any, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    with served(tmp_path / "folder", token=TOKEN) as port:
        address = f"http://127.0.0.1:{port}/"
        page.goto(address)
        page.get_by_role("alert").get_by_text("A token is needed").wait_for()
        page.goto(f"{address}#token={TOKEN[::-1]}")
        page.reload()
        page.get_by_role("alert").get_by_text("This is not the token").wait_for()
        page.goto("about:blank")
        page.goto(f"{address}#token={TOKEN}")
        teach(page, tmp_path, red=1)
        assert page.url == address  # it is in no history and no bookmark
        page.reload()
        image = region(page, "red").get_by_role("img")
        image.wait_for()
        until(page, lambda: image.evaluate("one => one.naturalWidth") == 192)
        assert page.evaluate("document.cookie") == ""  # scripts cannot read it
    context.close()


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
            assert focused(page) == "New class"
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
        assert focused(page).startswith("Class of ")  # the next one


def test_what_a_screen_reader_hears(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        heard: list[str] = []

        def hear(said: str) -> None:
            heard.append(said)

        page.expose_function("hear", hear)
        page.evaluate(
            "new MutationObserver(() => hear(document.getElementById('said').textContent))"
            ".observe(document.getElementById('said'), { childList: true })"
        )
        teach(page, tmp_path, red=2, green=2)
        new = saved(tmp_path / "new", coloured("red", 80), coloured("green", 81))
        choose(page, page.get_by_role("button", name="Choose photos"), new)
        until(page, lambda: "2 photos answered" in heard)
        for said in ("Class red added", "2 of 2 photos sent"):
            assert said in heard
        assert any(said.startswith("Learned. Expected accuracy") for said in heard)
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
