"""Temporary folders: gone afterwards, and after a kill at the latest when the next one is made."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polyshot.errors import PolyshotError
from polyshot.util.scratch import scratch_folder

KILLED = """
import os
from polyshot.util.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "large").write_bytes(bytes(1000))
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_goes_with_its_context(temporary: Path) -> None:
    with scratch_folder() as one, scratch_folder() as other:
        assert one != other and one.is_dir() and other.is_dir()  # one is in use, and stays
        (one / "x").touch()
    assert list(temporary.iterdir()) == []
    with pytest.raises(ZeroDivisionError), scratch_folder():
        1 / 0  # noqa: B018
    assert list(temporary.iterdir()) == []


def test_what_a_kill_left_goes_with_the_next(temporary: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert len(list(temporary.glob("polyshot-*/files/large"))) == 1
    with scratch_folder() as folder:
        assert list(temporary.iterdir()) == [folder.parent]
    assert list(temporary.iterdir()) == []


def test_what_is_not_its_own_stays(temporary: Path, tmp_path: Path) -> None:
    (temporary / "polyshot-of-another").mkdir()  # no lock: not made by it
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "lock").touch()
    (temporary / "polyshot-link").symlink_to(target)
    with scratch_folder():
        pass
    left = {path.name for path in temporary.iterdir()}
    assert left == {"polyshot-of-another", "elsewhere", "polyshot-link"}


def test_errors_inside_are_those_of_the_work(temporary: Path) -> None:
    with pytest.raises(FileNotFoundError), scratch_folder() as folder:
        (folder / "none").read_bytes()
    temporary.rmdir()
    with pytest.raises(PolyshotError, match="cannot be written"), scratch_folder():
        pass
