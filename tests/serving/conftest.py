"""A service on a tiny pool, asked as a browser would ask it."""

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

import httpx
from fastapi.testclient import TestClient

from polyshot.classifier import FewShotClassifier
from polyshot.serving.app import make_app
from polyshot.serving.limits import Limits
from polyshot.serving.run import serve
from polyshot.serving.service import Service
from polyshot.util.files import append_text
from tests.helpers import colour_pool, coloured

POOL = cache(colour_pool)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
"""A camera that shows a test picture, and that nobody has to allow."""
ROOT = Path(__file__).parents[2]


def make() -> FewShotClassifier:
    """A classifier that learns at once."""
    return FewShotClassifier(POOL(), "average", "ridge")


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def red(seed: int) -> bytes:
    return encoded(coloured("red", seed))


class Api:
    """The API's verbs, each of which must succeed."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def __call__(self, method: str, path: str, **options: Any) -> Any:
        found = self.client.request(method, path, **options)
        assert found.status_code < 300, found.text
        return found.json() if found.content else None

    def refused(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        found = self.client.request(method, path, **options)
        assert found.status_code >= 400
        return found.status_code, found.json()["detail"]

    def project(self, name: str = "colours") -> str:
        return str(self("POST", "/api/projects", json={"name": name})["id"])

    def add(self, project: str, label: str | None, *images: bytes) -> Any:
        files = [("images", (f"{i}.png", data, "image/png")) for i, data in enumerate(images)]
        params = {} if label is None else {"label": label}
        return self("POST", f"/api/projects/{project}/images", files=files, params=params)

    def teach(self, project: str, shots: int = 4, first: int = 0) -> None:
        for c, label in enumerate(("red", "green", "blue")):
            seeds = range(first + 100 * c, first + 100 * c + shots)
            self.add(project, label, *(encoded(coloured(label, seed)) for seed in seeds))

    def fit(self, project: str) -> Any:
        self("POST", f"/api/projects/{project}/fit")
        return self.until_ended(project)

    def until_ended(self, project: str) -> Any:
        for _ in range(600):
            job = self("GET", f"/api/projects/{project}/fit")
            if job["state"] not in ("waiting", "running"):
                return job
            time.sleep(0.05)
        raise AssertionError("it does not end")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Opens services on the same folder, one after the other."""
    clients: list[TestClient] = []

    def open_one(host: str = "127.0.0.1", token: str | None = None, **limits: Any) -> Api:
        for client in clients:
            client.__exit__(None, None, None)
        clients.clear()
        service = Service(tmp_path / "folder", make, replace(Limits(), **limits))
        client = TestClient(make_app(service, host, token), base_url="http://127.0.0.1:8000")
        client.app_state["service"] = service
        clients.append(client)
        client.__enter__()
        return Api(client)

    yield open_one
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def api(opened: Callable[..., Api]) -> Api:
    return opened()


SERVER = """
import sys
from pathlib import Path
from tests.serving.conftest import make
from polyshot.serving.run import serve
serve(Path(sys.argv[1]), make, "127.0.0.1", 0, None, None, lambda line: print(line, flush=True))
"""


@contextmanager
def process(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A service in a process of its own, and its address."""
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None
    try:
        found = re.search(r"http://\S+/", child.stdout.readline())
        assert found is not None
        yield child, found.group()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def note(what: str, found: object) -> None:
    """Keep what a long test has measured, where POLYSHOT_FIGURES names a file."""
    if file := os.environ.get("POLYSHOT_FIGURES"):
        append_text(Path(file), json.dumps({what: found}) + "\n")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        made = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *CAMERA])
        yield made
        made.close()


@contextmanager
def forked(folder: Path) -> Iterator[tuple[int, str]]:
    """The same without the seconds that importing torch takes; yields the number of its process."""
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        try:
            here.close()
            serve(folder, make, "127.0.0.1", 0, None, None, lambda line: there.send(line.encode()))
        finally:
            os._exit(0)
    there.close()
    try:
        found = re.search(r"http://\S+/", here.recv(1000).decode())
        assert found is not None
        yield child, found.group()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        here.close()
