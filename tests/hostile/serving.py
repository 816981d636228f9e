"""`polyshot serve`, killed while a user teaches it."""

import io
import json
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.helpers import coloured

from .processes import Running
from .trials import HANG, RIGHT, Part, Verdict
from .world import World

UPLOADS = [(label, i) for i in range(4) for label in ("red", "green", "blue")]


class Client:
    """Uploads images to a project of a service, one after the other, and asks it."""

    def __init__(self, world: World, folder: Path):
        self.words = ["serve", "--folder", "out", "--pool", world.colours, "--port", 0]
        self.folder = folder
        self.running: Running | None = None
        self.http: httpx.Client | None = None
        self.project = ""

    def start(self) -> None:
        """Start the service, and wait until it says where it is."""
        said = self.folder.parent / f"{self.folder.name}.log.out"
        said.unlink(missing_ok=True)
        self.running = Running(*self.words, "--device", "cpu", folder=self.folder)
        until, found = time.monotonic() + HANG, None
        while found is None:
            if self.running.ended() or time.monotonic() > until:
                raise RuntimeError(f"serve does not start: {self.running.outcome(1)}")
            time.sleep(0.01)
            found = re.search(r"http://\S+?:\d+/", said.read_text() if said.exists() else "")
        self.http = httpx.Client(base_url=found.group(), timeout=HANG)

    def stop(self) -> None:
        """Kill it."""
        assert self.running is not None and self.http is not None
        self.running.kill()
        self.running.sweep()
        self.http.close()

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request that must succeed."""
        assert self.http is not None
        found = self.http.request(method, f"/api/projects{path}", **options)
        if found.status_code >= 300:
            raise RuntimeError(f"{method} {path}: {found.status_code} {found.text[:200]}")
        return found.json() if found.content else None

    def begin(self) -> None:
        """Make a project."""
        self.project = self.ask("POST", "", json={"name": "colours"})["id"]

    def upload(self, there: list[str]) -> None:
        """Upload what is not there yet; what is acknowledged is added."""
        for label, i in UPLOADS:
            name = f"{label}{i}.png"
            if name not in there:
                files, params = [("images", (name, _png(label, i)))], {"label": label}
                self.ask("POST", f"/{self.project}/images", files=files, params=params)
                there.append(name)

    def answers(self) -> list[dict[str, float]]:
        """Learn, and answer to two images."""
        self.ask("POST", f"/{self.project}/fit")
        until = time.monotonic() + HANG
        while self.ask("GET", f"/{self.project}/fit")["state"] in ("waiting", "running"):
            if time.monotonic() > until:
                raise TimeoutError("the fit does not end")
            time.sleep(0.02)
        files = [("images", ("q.png", _png("green", 77))), ("images", ("r.png", _png("red", 78)))]
        found = self.ask("POST", f"/{self.project}/predict", files=files)["answers"]
        return [each["probabilities"] for each in found]


def _uninterrupted(world: World, place: Path) -> None:
    folder = place.parent / "service"
    folder.mkdir()
    client = Client(world, folder)
    client.start()
    try:
        since = time.monotonic()
        client.begin()
        client.upload([])
        found = client.answers()
        seconds = time.monotonic() - since
    finally:
        client.stop()
    place.write_text(json.dumps({"seconds": seconds, "answers": found}))


def _killed(client: Client, seconds: float) -> list[str]:
    """Kill a service while a user teaches it; returns what it had acknowledged."""
    client.start()
    client.begin()
    acknowledged: list[str] = []

    def use() -> None:
        try:
            client.upload(acknowledged)
            client.answers()
        except (httpx.HTTPError, RuntimeError):  # it was killed
            return

    user = threading.Thread(target=use)
    user.start()
    time.sleep(seconds)
    client.stop()
    user.join()
    return acknowledged


def part(world: World) -> Part:
    """Make its row of the table."""

    def run(draw: random.Random, folder: Path) -> Verdict:
        made = world.made("reference-serve", lambda place: _uninterrupted(world, place))
        reference = json.loads(made.read_text())
        place = folder / "here"
        place.mkdir()
        client = Client(world, place)
        kept = _killed(client, draw.uniform(0, reference["seconds"]))
        client.start()
        try:
            rows = client.ask("GET", f"/{client.project}/images?count=1000")
            there = [row["file"] for row in rows]
            if gone := [name for name in kept if name not in there]:
                return Verdict("lost", ", ".join(gone))
            client.upload(there)
            found = client.answers()
        finally:
            client.stop()
        if not _alike(found, reference["answers"]):
            return Verdict("different", f"{found} instead of {reference['answers']}")
        stray = [str(f) for f in place.rglob("*") if f.name.endswith((".partial", ".old"))]
        images = list((place / "out" / "projects" / client.project / "images").iterdir())
        if stray or len(images) != len(UPLOADS):
            return Verdict("left", f"{stray}, {len(images)} images")
        return RIGHT

    about = "`serve` killed while a user teaches, and started again"
    return Part("kill-serve", about, 20, run, patience=4 * HANG)


def _alike(found: list[dict[str, float]], wanted: list[dict[str, float]]) -> bool:
    """Whether probabilities agree; which images are asked together moves the last digits."""
    return all(
        one.keys() == other.keys() and all(abs(one[name] - other[name]) < 1e-5 for name in one)
        for one, other in zip(found, wanted, strict=True)
    )


def _png(label: str, seed: int) -> bytes:
    file = io.BytesIO()
    coloured(label, seed).save(file, "PNG")
    return file.getvalue()
