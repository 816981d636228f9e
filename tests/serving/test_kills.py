"""``kill -9`` at any moment loses nothing that was acknowledged; SIGTERM finishes what runs."""

import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.helpers import coloured

from .conftest import encoded

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
        cwd=Path(__file__).parents[2],
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


def write_until_killed(folder: Path, kills: int, draw: random.Random) -> int:
    """Let clients write while the service is killed again and again; count what was kept."""
    acknowledged: list[tuple[str, int, str]] = []
    count, project, stop = iter(range(10**9)), "", threading.Event()

    def write(address: str) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while not stop.is_set():
                number = next(count)
                files = [("images", (f"{number}.png", encoded(coloured("red", number))))]
                label = f"class {number % 3}"
                path = f"/api/projects/{project}/images"
                try:
                    found = client.post(path, files=files, params={"label": label})
                except httpx.HTTPError:  # it was killed
                    return
                assert found.status_code == 201
                acknowledged.append((f"{number}.png", found.json()["images"][0]["id"], label))

    for kill in range(kills + 1):
        with process(folder) as (child, address):
            if not project:
                project = httpx.post(f"{address}api/projects", json={"name": "p"}).json()["id"]
            path = f"{address}api/projects/{project}"
            rows = httpx.get(f"{path}/images?count=20000").json()
            there = {(one["file"], one["id"], one["label"]) for one in rows}
            assert not set(acknowledged) - there
            for one in rows:
                image = httpx.get(f"{path}/images/{one['id']}/thumbnail")
                assert image.content[:2] == b"\xff\xd8"
            if kill == kills:
                break
            stop.clear()
            clients = [threading.Thread(target=write, args=(address,)) for _ in range(3)]
            for client in clients:
                client.start()
            before = len(acknowledged)
            while len(acknowledged) == before and any(each.is_alive() for each in clients):
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.3))
            child.kill()
            stop.set()
            for client in clients:
                client.join()
    images = list((folder / "projects" / project / "images").iterdir())
    assert len(images) == len(rows)  # and nothing else is left
    return len(acknowledged)


def test_kills_lose_nothing(tmp_path: Path) -> None:
    assert write_until_killed(tmp_path / "folder", 2, random.Random(0)) >= 2


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    assert write_until_killed(tmp_path / "folder", 200, random.Random(1)) >= 200


def test_sigterm_finishes_what_runs(tmp_path: Path) -> None:
    with process(tmp_path / "folder") as (child, address):
        project = httpx.post(f"{address}api/projects", json={"name": "p"}).json()["id"]
        path = f"{address}api/projects/{project}"
        for c, label in enumerate(("red", "green")):
            for i in range(3):
                files = [("images", ("x.png", encoded(coloured(label, 10 * c + i))))]
                httpx.post(f"{path}/images", files=files, params={"label": label})
        assert httpx.post(f"{path}/fit").status_code == 202
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) in (0, -signal.SIGTERM)
    with process(tmp_path / "folder") as (_, address):
        about = httpx.get(f"{address}api/projects/{project}").json()
        assert about["fitted"]["version"] == about["version"]
        second = subprocess.run(
            [sys.executable, "-c", SERVER, str(tmp_path / "folder")],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        assert "Another polyshot serve uses" in second.stderr
