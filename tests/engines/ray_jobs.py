"""Jobs for tests of the engine that runs on Ray; its processes import them from here."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from polyshot.engines.job import Place
from polyshot.errors import PolyshotError


def write(place: Place, name: str, text: str) -> Iterator[str]:
    """Write two files, and tell of each."""
    for part in ("one", "two"):
        file = place.folder / "made" / f"{name}-{part}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        yield part


def add_up(place: Place, names: list[str]) -> Iterator[int]:
    """Tell how many letters files have that other jobs have written, and the inputs."""
    files = [place.folder / "made" / name for name in names]
    yield sum(len(path.read_text()) for path in (*files, *place.inputs.values()))


def die_once(place: Place, mark: str) -> Iterator[str]:
    """Be killed the first time, in the middle of writing."""
    file = place.folder / "made" / "after.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not Path(mark).exists():
        Path(mark).write_text("")
        (place.folder / "made" / ".after.txt.partial").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    file.write_text("whole")
    yield "done"


def die(_: Place) -> Iterator[None]:
    """Be killed whenever it is tried."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield None


def refuse(_: Place) -> Iterator[None]:
    """Fail in a way that a user can mend."""
    raise PolyshotError("It is too small.")
    yield None


def who(_: Place) -> Iterator[int]:
    """Tell the number of the process."""
    yield os.getpid()
