"""How smooth the page stays with a hundred classes and ten thousand thumbnails, in Chromium.

    python benchmarks/page.py

Fills a folder with drawn photos, serves it in this process and opens it. Frames are counted while
the mouse wheel scrolls through all classes and all new photos; a long task is what keeps the page
from answering for more than 50 ms. Learning is kept off: it is measured elsewhere.
"""

import argparse
import io
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from polyshot.classifier import FewShotClassifier
from polyshot.serving.app import make_app
from polyshot.serving.limits import Limits
from polyshot.serving.run import listen_on
from polyshot.serving.service import Service
from polyshot.serving.store import Store

WATCH = """() => {
  window.watched = { frames: [], tasks: [] };
  const note = (list) => watched.tasks.push(...list.getEntries().map((one) => one.duration));
  new PerformanceObserver(note).observe({ entryTypes: ["longtask"] });
  let last = performance.now();
  const tick = (now) => {
    watched.frames.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


CHANGE = """async (wanted) => {
  const began = performance.now();
  document.querySelector("#answers .correct button").click();
  const counts = [...document.querySelectorAll("h3 small")];
  const there = () => counts.some((one) => one.textContent === wanted);
  while (!there()) await new Promise((done) => requestAnimationFrame(done));
  return performance.now() - began;
}"""


def filled(folder: Path, classes: int, examples: int, new: int) -> None:
    """Write a project as the service would, but without waiting for the disk each time."""
    store = Store(folder, Limits())
    project = store.add_project("many").id
    for c in range(classes):
        store.add_class(project, f"class {c:03}")
    place = store.folder_of(project)
    for kind in ("images", "thumbnails"):
        (place / kind).mkdir(parents=True)
    draw = np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        coarse = draw.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((192, 192), Image.Resampling.BICUBIC).save(file, "JPEG")
        drawn.append(file.getvalue())
    numbers = [row["id"] for row in store._rows("SELECT id FROM classes ORDER BY id")]
    with store._change() as run:
        for i in range(examples + new):
            name, data = secrets.token_hex(32), drawn[i % len(drawn)]
            for kind in ("images", "thumbnails"):
                (place / kind / name).write_bytes(data)
            label = numbers[i % classes] if i < examples else None
            run(
                "INSERT INTO images (project, sha256, file, bytes, class) VALUES (?, ?, ?, ?, ?)",
                *(project, name, f"{i}.jpg", 2 * len(data), label),
            )
    store.close()


def scrolled(page: Any, at: tuple[int, int], turns: int) -> None:
    """Turn the mouse wheel, as fast as a hand does, and say how the page went along."""
    page.evaluate("watched.frames.length = watched.tasks.length = 0")
    page.mouse.move(*at)
    for _ in range(turns):
        page.mouse.wheel(0, 400)
        page.wait_for_timeout(30)
    found = page.evaluate("watched")
    frames, tasks = np.array(found["frames"]), found["tasks"]
    p50, p95 = np.quantile(frames, [0.5, 0.95])
    print(
        f"  {len(frames)} frames: p50 {p50:.0f} ms, p95 {p95:.0f} ms, worst {frames.max():.0f} ms; "
        f"{len(tasks)} long tasks{f', worst {max(tasks):.0f} ms' if tasks else ''}"
    )


def look(page: Any, address: str, classes: int, each: int) -> None:
    """Open the page, scroll, and change something."""
    began = time.perf_counter()
    page.goto(address)
    page.locator(".class img").first.wait_for()
    while page.locator(".class").count() < classes:
        page.wait_for_timeout(10)
    print(f"opened in {time.perf_counter() - began:.1f} s")
    page.evaluate(WATCH)
    for what, at, turns in (("classes", (300, 500), 120), ("new photos", (900, 700), 120)):
        print(f"scrolling through {what}")
        scrolled(page, at, turns)
    took = page.evaluate(CHANGE, f"{each + 1} examples")
    print(f"a new photo became an example in {took:.0f} ms")
    nodes = page.evaluate("document.querySelectorAll('*').length")
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    print(f"{nodes:,} elements, {heap:.0f} MiB of JavaScript")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--new", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "projects"
        filled(folder, options.classes, options.examples, options.new)
        bound = listen_on("127.0.0.1", 0)
        app = make_app(Service(folder, lambda: FewShotClassifier("default")))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            with sync_playwright() as running:
                browser = running.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = browser.new_page(viewport={"width": 1180, "height": 820})
                each = options.examples // options.classes
                page.route("**/fit", lambda route: route.abort())
                look(page, f"http://127.0.0.1:{bound.getsockname()[1]}/", options.classes, each)
                browser.close()
        finally:
            server.should_exit = True
            thread.join()
            bound.close()


if __name__ == "__main__":
    main()
