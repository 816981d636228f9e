"""The page in a real browser: from nothing over two classes and a correction to the export.

Skipped without Chromium: `make browser` installs it.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from polyshot.classifier import FewShotClassifier
from polyshot.data.toy import draw_example
from polyshot.pool.forms import load_pools
from tests.helpers import coloured, picture

from .pages import (
    add_class,
    answers,
    choose,
    needs_chromium,
    saved,
    served,
    teach,
    until,
)

pytestmark = needs_chromium
SHOTS = os.environ.get("POLYSHOT_SCREENSHOTS")
"""A folder, if the page is to be looked at."""


def learned(page: Any, address: str) -> list[str] | None:
    """The classes that were learned; None where examples have changed since."""
    [about] = page.request.get(f"{address}api/projects").json()
    up_to_date = about["fitted"]["version"] == about["version"]
    return about["fitted"]["classes"] if up_to_date else None


def test_from_the_empty_page_to_the_export(browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(accept_downloads=True)
    page = context.new_page()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    with served(tmp_path / "folder") as port:
        address = f"http://127.0.0.1:{port}/"
        page.set_default_timeout(12_000)
        page.goto(address)
        page.get_by_text("Nothing yet.").wait_for()
        teach(page, tmp_path, red=3, green=3)
        page.locator("#accuracy").wait_for()  # learning started by itself
        assert page.locator("#accuracy").text_content() == "100 %"
        new = saved(tmp_path / "new", coloured("red", 80), picture(7))
        choose(page, page.get_by_role("button", name="Choose photos"), new)
        sure = page.locator("#answers > li", has_text="0.png")
        sure.get_by_role("strong").get_by_text("red", exact=True).wait_for()
        until(page, lambda: answers(page).count() == 2 and sure.locator("meter").count() == 2)
        assert "Answered by" in page.locator("#members").text_content()

        # A class of its own, and the wrong answer is dragged to it.
        card = add_class(page, "odd")
        odd = page.locator("#answers > li", has_text="1.png")
        odd.locator("img").drag_to(card)
        card.get_by_text("1 example").wait_for()
        until(page, lambda: answers(page).count() == 1)
        # The other one by keyboard: its class is chosen already.
        sure.locator("select").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_role("region", name="Class red").get_by_text("4 examples").wait_for()
        until(page, lambda: learned(page, address) == ["green", "odd", "red"])
        assert not errors

    with served(tmp_path / "folder", port):  # restarted: all of it is there
        page.reload()
        page.get_by_role("region", name="Class red").get_by_text("4 examples").wait_for()
        page.locator("#accuracy").wait_for()
        errors.clear()  # of what was asked while nobody answered
        with page.expect_download() as download:
            page.get_by_role("link", name="the classifier", exact=True).click()
        file = tmp_path / "c.polyshot"
        download.value.save_as(file)
        assert FewShotClassifier.load(file).predict(picture(7)).tolist() == ["odd"]
        with page.expect_download() as download:
            page.get_by_role("link", name="labels (CSV)").click()
        table = tmp_path / "labels.csv"
        download.value.save_as(table)
        assert table.read_text().count("you") == 8
        assert not errors
    context.close()
    assert all(url.startswith((address, f"blob:{address}")) for url in asked)


def test_a_mislabelled_example_and_a_narrow_page(browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    with served(tmp_path / "folder") as port:
        page.goto(f"http://127.0.0.1:{port}/")
        photos = {
            name: [coloured(name, 10 * c + i) for i in range(4)]
            for c, name in enumerate(("red", "green"))
        }
        photos["red"].append(coloured("green", 77))
        for name, own in photos.items():
            card = add_class(page, name)
            button = card.get_by_role("button", name=f"Add photos of {name}")
            choose(page, button, saved(tmp_path / name, *own))
            card.get_by_text(f"{len(own)} examples").wait_for()
        page.get_by_text("One example looks mislabelled").click()
        page.get_by_role("button", name="It is green").click()
        page.get_by_role("region", name="Class green").get_by_text("5 examples").wait_for()
        page.locator("#suspects").wait_for(state="hidden")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        bad = tmp_path / "bad.png"
        bad.write_bytes(b"no image")
        choose(page, page.get_by_role("button", name="Choose photos"), str(bad))
        page.get_by_role("alert").get_by_text("'bad.png' cannot be read").wait_for()
    context.close()


@pytest.mark.skipif(SHOTS is None, reason="nobody asked for POLYSHOT_SCREENSHOTS=folder")
def test_screenshots(browser: Any, tmp_path: Path) -> None:
    """The page as a user sees it, on drawn images and the default pool."""
    assert SHOTS is not None
    made = draw_example(tmp_path / "example", "flowers", 4, 5, 3, 1)
    pools, _ = load_pools("default")
    drawn = sorted(folder for folder in made.support.iterdir() if folder.is_dir())
    names = ("aster", "campion", "poppy", "squill")
    folders = [each.rename(each.with_name(new)) for each, new in zip(drawn, names, strict=True)]
    odd = sorted(folders[1].iterdir())[0]
    odd.rename(folders[0] / f"odd{odd.suffix}")
    with served(tmp_path / "folder", maker=lambda: FewShotClassifier(pools)) as port:
        page = browser.new_page(viewport={"width": 1180, "height": 820})

        def shot(name: str) -> None:
            page.screenshot(path=f"{SHOTS}/{name}.png")

        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_text("Nothing yet.").wait_for()
        shot("empty")
        for folder in folders:
            card = add_class(page, folder.name)
            button = card.get_by_role("button", name=f"Add photos of {folder.name}")
            choose(page, button, [str(file) for file in sorted(folder.iterdir())])
            card.locator("img").first.wait_for()
        page.locator("#job").wait_for()
        shot("learning")
        page.locator("#accuracy").wait_for(timeout=300_000)
        queries = [str(file) for file in sorted(made.query.iterdir())]
        choose(page, page.get_by_role("button", name="Choose photos"), queries)
        until(page, lambda: answers(page).count() == 12)
        until(page, lambda: page.get_by_text("label next", exact=True).count() == 4)  # and the hint
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(300)
        shot("answering")
        page.emulate_media(color_scheme="dark")
        shot("dark")
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(300)
        shot("narrow-dark")
        page.emulate_media(color_scheme="light")
        page.locator("#answering .none").evaluate("one => one.scrollIntoView()")
        page.wait_for_timeout(300)
        shot("narrow")
        page.evaluate("scrollTo(0, 0)")
        bad = tmp_path / "bad.png"
        bad.write_bytes(b"no image")
        page.set_viewport_size({"width": 1280, "height": 860})
        choose(page, page.get_by_role("button", name="Choose photos"), str(bad))
        page.get_by_role("alert").get_by_text("cannot be read").wait_for()
        page.evaluate("scrollTo(0, 0)")
        shot("failing")
