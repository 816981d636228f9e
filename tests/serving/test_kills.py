"""``kill -9`` at any moment loses nothing that was acknowledged; SIGTERM finishes what runs."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from polyshot.errors import PolyshotError
from polyshot.serving.run import serve
from tests.helpers import coloured

from .conftest import encoded, forked, make, note, process

GONE = "gone"
COLOURS = ("red", "green", "blue")


class Writer(threading.Thread):
    """A client that uploads, relabels and deletes images until the service is killed.

    `may` says what each image of its own may be after a restart: its label, or that it is gone. One
    thing where that was acknowledged, two where the service was killed meanwhile.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.count, self.path = number, 0, ""
        self.draw, self.error = random.Random(number), None
        self.may: dict[str, set[str]] = {}
        self.ids: dict[str, int] = {}
        self.acknowledged = {"uploads": 0, "labels": 0, "deletions": 0}

    def again(self, path: str) -> "Writer":
        """Start anew, on a service that was started anew."""
        made = Writer(self.number)
        made.__dict__.update({name: vars(self)[name] for name in ("count", "draw", "may", "ids")})
        made.acknowledged, made.path = self.acknowledged, path
        made.start()
        return made

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            try:
                while True:
                    self.write(client)
            except httpx.HTTPError:  # it was killed
                return
            except BaseException as error:
                self.error = error
                raise

    def write(self, client: httpx.Client) -> None:
        """Change one thing; noted before as possible, and as sure when it is acknowledged."""
        kind = self.draw.choices(("uploads", "labels", "deletions", "fit"), (70, 20, 8, 2))[0]
        here = [name for name, may in self.may.items() if GONE not in may]
        if kind == "fit":
            assert client.post(f"{self.path}/fit").status_code in (202, 409)
            return
        label = self.draw.choice(COLOURS)
        if kind == "uploads" or not here:
            name = f"{self.number}-{self.count}.png"
            data = encoded(coloured(label, 100_000 * self.number + self.count))
            self.count += 1
            self.may[name] = {GONE, label}
            files = [("images", (name, data))]
            found = client.post(f"{self.path}/images", files=files, params={"label": label})
            assert found.status_code == 201
            self.ids[name] = found.json()["images"][0]["id"]
            kind = "uploads"
        else:
            name = self.draw.choice(here)
            image = f"{self.path}/images/{self.ids[name]}"
            if kind == "labels":
                self.may[name] |= {label}
                assert client.patch(image, json={"label": label}).status_code == 200
            else:
                self.may[name] |= {GONE}
                assert client.delete(image).status_code == 204
                label = GONE
        self.may[name] = {label}
        self.acknowledged[kind] += 1

    def check(self, rows: list[dict[str, object]]) -> int:
        """Compare with what is there after a restart; returns how many things were left open."""
        there = {str(row["file"]): row for row in rows}
        left_open = 0
        for name, may in self.may.items():
            found = str(there[name]["label"]) if name in there else GONE
            assert found in may, f"{name} is {found}, not {may}"
            left_open += len(may) > 1
            self.may[name] = {found}
            if name in there:
                self.ids[name] = int(str(there[name]["id"]))
        assert not {name for name in there if name.startswith(f"{self.number}-")} - set(self.may)
        return left_open


def acknowledged(writers: list[Writer]) -> int:
    return sum(sum(each.acknowledged.values()) for each in writers)


def learn(path: str) -> None:
    """Let the project learn, and wait until it has; it may have too little to learn from yet."""
    if httpx.post(f"{path}/fit", timeout=60).status_code == 202:
        events = httpx.get(f"{path}/fit/events", timeout=120).text
        assert '"state": "done"' in events, events


def write_until_killed(folder: Path, kills: int, clients: int = 3) -> dict[str, int]:
    """Let clients write while the service is killed again and again; count what was kept."""
    draw = random.Random(kills)
    writers = [Writer(number) for number in range(clients)]
    project, seen, left_open, fitted = "", 0, 0, 0
    for kill in range(kills + 1):
        with forked(folder) as (child, address):
            if not project:
                project = httpx.post(f"{address}api/projects", json={"name": "p"}).json()["id"]
            path = f"{address}api/projects/{project}"
            with httpx.Client(timeout=60) as client:
                rows = client.get(f"{path}/images?count=20000").json()
                left_open += sum(each.check(rows) for each in writers)
                for one in rows if kill == kills else [row for row in rows if row["id"] > seen]:
                    image = client.get(f"{path}/images/{one['id']}/thumbnail")
                    assert image.content[:2] == b"\xff\xd8"
                seen = max([seen, *(row["id"] for row in rows)])
                if client.get(path).json()["fitted"]:  # and the classifier's file is whole
                    fitted += 1
                    files = [("images", ("x.png", encoded(coloured("red", kill))))]
                    answer = client.post(f"{path}/predict", files=files)
                    assert answer.status_code == 200, answer.text
            if kill == kills:
                break
            if kill % 10 == 1:  # a classifier that later ones must find, and replace
                learn(path)
            writers = [each.again(path) for each in writers]
            # At any moment: before the first answer, or after so many.
            before, some = acknowledged(writers), draw.randrange(8)
            patience = time.monotonic() + 20
            while acknowledged(writers) < before + some and time.monotonic() < patience:
                time.sleep(0.005)
            time.sleep(draw.uniform(0, 0.3))
            os.kill(child, signal.SIGKILL)
            for each in writers:
                each.join()
                assert each.error is None
    images = list((folder / "projects" / project / "images").iterdir())
    assert len(images) == len(rows)  # and nothing else is left
    total = {
        kind: sum(each.acknowledged[kind] for each in writers) for kind in writers[0].acknowledged
    }
    return {**total, "left_open": left_open, "images": len(rows), "fitted": fitted}


def test_kills_lose_nothing(tmp_path: Path) -> None:
    assert write_until_killed(tmp_path / "folder", 2)["images"] >= 1


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    found = write_until_killed(tmp_path / "folder", 200)
    note("kills", found)
    assert found["images"] >= 200 and found["fitted"] >= 150


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
    with forked(tmp_path / "folder") as (_, address):
        about = httpx.get(f"{address}api/projects/{project}").json()
        assert about["fitted"]["version"] == about["version"]
        with pytest.raises(PolyshotError, match="Another polyshot serve uses"):
            serve(tmp_path / "folder", make, "127.0.0.1", 0, None, None, print)
