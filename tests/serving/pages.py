"""The page in a real browser: serves it, and does what a user's hands do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from PIL import Image

from polyshot.serving.app import make_app
from polyshot.serving.run import listen_on
from polyshot.serving.service import Service
from tests.helpers import coloured

from .conftest import CHROMIUM, make

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium on this machine: make browser"
)


@contextmanager
def served(
    folder: Path, port: int = 0, maker: Any = make, token: str | None = None
) -> Iterator[int]:
    """Serve in a thread; yields the port."""
    bound = listen_on("127.0.0.1", port)
    app = make_app(Service(folder, maker), "127.0.0.1", token)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


@contextmanager
def opened(browser: Any, folder: Path, **options: Any) -> Iterator[Any]:
    """The page of an empty folder, on which nothing may go wrong."""
    errors: list[str] = []
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(12_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    with served(folder) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("#main").wait_for()
        yield page
        assert not errors
        context.close()


def saved(folder: Path, *images: Image.Image) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, image in enumerate(images):
        paths.append(str(folder / f"{i}.png"))
        image.save(paths[-1])
    return paths


def choose(page: Any, button: Any, files: Any) -> None:
    with page.expect_file_chooser() as asked:
        button.click()
    asked.value.set_files(files)


def add_class(page: Any, name: str) -> Any:
    page.get_by_label("New class").fill(name)
    page.keyboard.press("Enter")
    card = page.get_by_role("region", name=f"Class {name}", exact=True)
    card.wait_for()
    return card


def teach(page: Any, folder: Path, **photos: int) -> None:
    """Add classes with so many photos each."""
    for c, (name, count) in enumerate(photos.items()):
        card = add_class(page, name)
        own = [coloured(name, 10 * c + i) for i in range(count)]
        button = card.get_by_role("button", name=f"Add photos of {name}")
        choose(page, button, saved(folder / name, *own))
        card.get_by_text(f"{count} example").wait_for()


def answers(page: Any) -> Any:
    return page.locator("#answers > li[data-image]")


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait as Playwright does: its own way would need eval, which the page forbids."""
    for _ in range(240):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it does not come")


def region(page: Any, name: str) -> Any:
    return page.get_by_role("region", name=f"Class {name}", exact=True)


def focused(page: Any) -> str:
    """What has the focus, as a screen reader would name it."""
    said = "e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText || e.id"
    return str(page.evaluate(f"({said})(document.activeElement)"))
