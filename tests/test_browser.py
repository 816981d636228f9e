"""The page of examples/browser in a real browser: an exported classifier answers as here.

Skipped without Chromium or onnxruntime-web: `apt-get install chromium`, and `npm install` in
examples/browser, which `make browser-check` does.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.predict.none_of_these import NONE
from tests.helpers import COLOURS, colour_pool, coloured, examples, picture

FOLDER = Path(__file__).parents[1] / "examples" / "browser"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
RUNTIME = FOLDER / "node_modules" / "onnxruntime-web"


class Quiet(SimpleHTTPRequestHandler):
    """Serves the example's folder without a word."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(FOLDER)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/index.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    if not RUNTIME.is_dir():
        pytest.skip("onnxruntime-web is not there: npm install in examples/browser")
    playwright = pytest.importorskip("playwright.sync_api")
    with served() as address, playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.goto(address)
        yield opened
        browser.close()


def answers(page: Any, model: Path, files: list[Path]) -> list[dict[str, str]]:
    """What the page says about some files."""
    page.set_input_files("#model", model)
    page.wait_for_selector("#pictures:enabled")
    page.set_input_files("#pictures", [str(file) for file in files])
    page.wait_for_function(f"document.querySelectorAll('figure').length === {len(files)}")
    assert page.inner_text("#error") == ""
    shown: list[dict[str, str]] = page.eval_on_selector_all(
        "figure", "all => all.map(one => ({...one.dataset}))"
    )
    return shown


def test_the_page_answers_as_polyshot(page: Any, tmp_path: Path) -> None:
    pools = [colour_pool(), colour_pool(choice=2).with_views("three")]
    pools[1].size = 24
    classifier = FewShotClassifier(pools, adaptation="ridge", none_rate=0.2)
    classifier.fit(*examples(4, 4, 3))
    classifier.export(tmp_path / "colours.onnx")
    files = []
    for i, label in enumerate([*COLOURS, *COLOURS]):
        files.append(tmp_path / f"{i}.{'png' if i % 2 else 'webp'}")
        image = coloured(label, 40 + i, size=(61 + i, 40 + 9 * i))
        image.save(files[-1], **({} if i % 2 else {"lossless": True}))
    files.append(tmp_path / "other.png")
    picture(3).save(files[-1])
    transparent = np.zeros((30, 30, 4), dtype=np.uint8)
    transparent[5:25, 5:25] = (*COLOURS["red"], 255)
    files.append(tmp_path / "transparent.png")
    Image.fromarray(transparent).save(files[-1])
    chances, none = classifier.answer(files)
    assert none is not None and none.any() and not none.all()
    shown = answers(page, tmp_path / "colours.onnx", files)
    assert [Path(one["file"]).name for one in shown] == [file.name for file in files]
    for one, row, is_none in zip(shown, chances, none, strict=True):
        assert one["label"] == (NONE if is_none else classifier.classes_[row.argmax()])
        if not is_none:
            assert float(one["probability"]) == pytest.approx(float(row.max()), abs=2e-3)


def test_the_page_shrinks_images_as_pillow_does(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "noise.png"
    noise = np.random.default_rng(0).integers(0, 256, (91, 133, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    from polyshot.data.images import load_images

    script = """async ([bytes, side]) => {
        const { decode, fit } = await import("./polyshot.js");
        return Array.from(fit(await decode(new Blob([new Uint8Array(bytes)])), side));
    }"""
    for side in (16, 72, 110):
        made = page.evaluate(script, [list(file.read_bytes()), side])
        ours = np.array(made).reshape(side, side, 3).transpose(2, 0, 1)
        theirs = load_images(str(file), side)[0].astype(int)
        assert np.abs(ours - theirs).max() <= 1, "but for rounding"
        assert (ours != theirs).mean() < 0.01


def test_what_is_no_classifier_is_said(page: Any, tmp_path: Path) -> None:
    for name, content, said in (
        ("other.onnx", b"\xff" * 40, "This is no ONNX file."),
        ("empty.onnx", b"", "This is no classifier that polyshot export wrote."),
    ):
        (tmp_path / name).write_bytes(content)
        page.set_input_files("#model", tmp_path / name)
        page.wait_for_function(f"document.querySelector('#error').textContent === {said!r}")
