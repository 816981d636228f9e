"""An hour of load with flat memory: `make slow`. POLYSHOT_LOAD_MINUTES shortens it.

Clients ask, teach, correct, learn, export, look, go away in the middle, and send what cannot be
read; projects come and go. What the service and its decoders have in memory is looked at every few
seconds.
"""

import io
import os
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from PIL import Image

from polyshot.serving.limits import resident_bytes
from tests.helpers import coloured

from .conftest import encoded, note, process

MINUTES = float(os.environ.get("POLYSHOT_LOAD_MINUTES", "60"))
COLOURS = ("red", "green", "blue")
Work = Callable[[httpx.Client, random.Random], None]


def photo(draw: random.Random) -> bytes:
    """An image of its own, of any size: some as large as a phone's."""
    size = draw.choice([(23, 19), (300, 200), (300, 400), (1600, 1200)])
    file = io.BytesIO()
    coloured(draw.choice(COLOURS), draw.randrange(10**9)).resize(size).save(file, "JPEG")
    return file.getvalue()


def files_of(*data: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{i}.jpg", one)) for i, one in enumerate(data)]


class Load:
    """Clients in threads, each with its way to use the service."""

    def __init__(self, address: str) -> None:
        self.address, self.stop = address, threading.Event()
        self.answers: Counter[str] = Counter()
        self.errors: list[str] = []
        self.project = self.taught("main")
        ways = [self.ask] * 6 + [self.ask_many, self.teach, self.look, self.come_and_go, self.spoil]
        self.threads = [
            threading.Thread(target=self.run, args=(way, i)) for i, way in enumerate(ways)
        ]

    def taught(self, name: str) -> str:
        """Make a project that has learned three classes."""
        with httpx.Client(base_url=self.address, timeout=120) as client:
            project = client.post("/api/projects", json={"name": name}).json()["id"]
            path = f"/api/projects/{project}"
            for c, label in enumerate(COLOURS):
                own = [encoded(coloured(label, 100 * c + i)) for i in range(5)]
                client.post(f"{path}/images", params={"label": label}, files=files_of(*own))
            self.fit(client, path)
        return path

    def fit(self, client: httpx.Client, path: str) -> None:
        """Learn, and listen to it until it has ended."""
        client.post(f"{path}/fit")
        with client.stream("GET", f"{path}/fit/events") as events:
            for _ in events.iter_lines():
                pass

    def run(self, way: Work, number: int) -> None:
        draw = random.Random(number)
        # Connections that nobody used for a while are closed from here: else the service might do
        # so in the moment in which it is asked.
        idle = httpx.Limits(keepalive_expiry=3)
        with httpx.Client(base_url=self.address, timeout=120, limits=idle) as client:
            client.event_hooks["response"] = [lambda one: self.count(way.__name__, one)]
            while not self.stop.is_set():
                try:
                    way(client, draw)
                except Exception as error:  # told at the end: there must be none
                    self.errors.append(f"{way.__name__}: {error!r}")
                    time.sleep(1)

    def count(self, way: str, answer: httpx.Response) -> None:
        self.answers[f"{way} {answer.status_code}"] += 1
        if answer.status_code >= 500:
            answer.read()
            self.errors.append(f"{way}: {answer.status_code} {answer.text}")

    def ask(self, client: httpx.Client, draw: random.Random) -> None:
        found = client.post(f"{self.project}/predict", files=files_of(photo(draw)))
        assert found.status_code in (200, 429), found.text

    def ask_many(self, client: httpx.Client, draw: random.Random) -> None:
        many = files_of(*(photo(draw) for _ in range(24)))
        client.post(f"{self.project}/predict", files=many, params={"none_rate": 0.1})
        time.sleep(0.5)

    def teach(self, client: httpx.Client, draw: random.Random) -> None:
        """Add photos with and without labels, correct some, delete as many, learn."""
        path = self.project
        own = files_of(*(photo(draw) for _ in range(8)))
        client.post(f"{path}/images", files=own[:4], params={"label": draw.choice(COLOURS)})
        client.post(f"{path}/images", files=own[4:])
        client.get(f"{path}/answers")
        for image in client.get(f"{path}/next", params={"count": 2}).json():
            client.patch(f"{path}/images/{image}", json={"label": draw.choice(COLOURS)})
        rows = client.get(f"{path}/images", params={"count": 20_000}).json()
        for row in rows[: max(0, len(rows) - 120)]:
            client.delete(f"{path}/images/{row['id']}")
        self.fit(client, path)

    def look(self, client: httpx.Client, draw: random.Random) -> None:
        """Open the page, and look at photos as it does."""
        for path in ("/", "/page/app.js", "/api/projects", self.project, "/metrics"):
            client.get(path)
        rows = client.get(f"{self.project}/images").json()
        for row in draw.sample(rows, min(20, len(rows))):
            client.get(f"{self.project}/images/{row['id']}/thumbnail")  # 404 where it is gone
        for what in ("labels.csv", "classifier.polyshot"):
            client.get(f"{self.project}/export/{what}")
        time.sleep(0.5)

    def come_and_go(self, client: httpx.Client, draw: random.Random) -> None:
        path = self.taught("another")
        client.post(f"{path}/predict", files=files_of(photo(draw)))
        client.delete(path)
        time.sleep(0.5)

    def spoil(self, client: httpx.Client, draw: random.Random) -> None:
        """Send what cannot be read, too much of it, and go away in the middle."""
        whole = encoded(Image.effect_noise((300, 300), 60), "JPEG")
        for bad in (b"", b"no image", whole[: draw.randrange(100, len(whole) // 2)]):
            client.post(f"{self.project}/images", files=files_of(bad))
        client.post(f"{self.project}/predict", files=files_of(*[whole] * 300))
        host, port = httpx.URL(self.address).host, httpx.URL(self.address).port
        with socket.create_connection((host, port or 80), 60) as gone:
            head = f"POST {self.project}/images HTTP/1.1\r\nHost: {host}\r\n"
            gone.sendall(f"{head}Content-Length: 9999\r\n\r\nnot all of it".encode())
        time.sleep(1)


def memory_of(process: int) -> tuple[int, int]:
    """The resident bytes of a process, and of those that it has started."""
    others = Path(f"/proc/{process}/task/{process}").parent.glob("*/children")
    children = [int(one) for file in others for one in file.read_text().split()]
    return resident_bytes(process), sum(resident_bytes(one) for one in children)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_stays_flat_under_load(tmp_path: Path) -> None:
    curve: list[dict[str, float]] = []
    with process(tmp_path / "folder") as (child, address):
        load = Load(address)
        for thread in load.threads:
            thread.start()
        began = time.monotonic()
        while time.monotonic() - began < 60 * MINUTES and len(load.errors) < 100:
            time.sleep(min(5.0, 3 * MINUTES))
            own, others = memory_of(child.pid)
            seconds = time.monotonic() - began
            curve.append({"s": round(seconds), "mib": own >> 20, "decoders_mib": others >> 20})
        load.stop.set()
        for thread in load.threads:
            thread.join()
        answers = dict(sorted(load.answers.items()))
        shown = curve[:: max(1, len(curve) // 60)]
        figures = {"minutes": MINUTES, "answers": answers, "errors": load.errors, "curve": shown}
        note("load", figures)
        assert not load.errors
        left = httpx.get(f"{address}{load.project[1:]}/images", params={"count": 20_000}).json()
    images = list((tmp_path / "folder" / load.project.replace("/api/", "")).glob("images/*"))
    assert len(images) == len(left)
    check_flat([row["mib"] for row in curve], "the service")
    check_flat([row["decoders_mib"] for row in curve], "its decoders")


def check_flat(curve: list[float], what: str) -> None:
    """The last quarter has no more than the second one, when all has been loaded."""
    quarter = len(curve) // 4
    second, last = (statistics.median(curve[i * quarter : (i + 1) * quarter]) for i in (1, 3))
    assert last <= 1.05 * second + 16, f"{what} grew from {second} to {last} MiB"
