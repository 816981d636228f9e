"""Each part of the page in a real browser: camera, clipboard, folders, slider, projects, keys.

Skipped without Chromium: `make browser` installs it.
"""

import base64
from pathlib import Path
from typing import Any

from tests.helpers import coloured, picture

from .conftest import encoded
from .pages import (
    add_class,
    answers,
    choose,
    focused,
    needs_chromium,
    opened,
    region,
    saved,
    served,
    teach,
    until,
)

pytestmark = needs_chromium
TOKEN = "abcdefgh12345678"


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


def test_the_camera(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path / "folder") as page:
        card = add_class(page, "pattern")
        card.get_by_role("button", name="Camera for pattern").click()
        dialog = page.get_by_role("dialog", name="Photos of pattern")
        take = dialog.get_by_role("button", name="Take photo")
        take.click()
        dialog.get_by_text("1 photo taken").wait_for()
        shown = "document.getElementById('video').currentTime"
        first = page.evaluate(shown)
        # The same frame again would be a photo that is known.
        until(page, lambda: page.evaluate(shown) > first + 0.5)
        page.keyboard.press("Enter")  # it has the focus
        dialog.get_by_text("2 photos taken").wait_for()
        dialog.get_by_role("button", name="Close").click()
        card.get_by_text("2 examples").wait_for()
        source = "document.getElementById('video').srcObject"
        until(page, lambda: page.evaluate(source) is None)  # it is off
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
        until(page, lambda: page.locator(".class").get_by_text("1 example").count() == 2)


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
        assert not page.get_by_role("alert").text_content()
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
        # text_content, here and below: inner_text is empty where the page does not paint.
        until(page, lambda: odd.text_content() in ("red", "green"))
        slider.focus()
        for _ in range(15):
            page.keyboard.press("ArrowRight")
        odd.get_by_text("none of these").wait_for()
        said = "1 of 2 photos, at 15 % false alarms"
        until(page, lambda: slider.get_attribute("aria-valuetext") == said)
        page.keyboard.press("Home")
        until(page, lambda: odd.text_content() in ("red", "green"))
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
        until(page, lambda: focused(page) == "Add photos of crimson")
        add_project(page, "second")
        until(page, lambda: page.locator(".class").count() == 0)
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
        projects = page.locator("#project option")
        until(page, lambda: projects.all_text_contents() == ["My first project"])
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
