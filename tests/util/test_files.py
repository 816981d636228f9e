import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from polyshot.errors import PolyshotError
from polyshot.util.files import (
    append_text,
    clear_leftovers,
    digest,
    locked,
    new_file,
    new_folder,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from polyshot.util.tensors import (
    read_checkpoint,
    read_weights,
    write_array,
    write_checkpoint,
    write_weights,
)
from tests.helpers import full_disk

TENSORS = {"a": torch.arange(40_000.0), "b": torch.ones(3, 2)}


def put_array(path: Path) -> None:
    with new_file(path) as file:
        write_array(file, np.arange(40_000))


def put_folder(path: Path) -> None:
    with new_folder(path) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_bytes(bytes(100_000))


WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: write_bytes(path, bytes(100_000)),
    "text": lambda path: write_text(path, "ä" * 100_000),
    "json": lambda path: write_json(path, {"a": "x" * 100_000}),
    "checkpoint": lambda path: write_checkpoint(path, {"state": TENSORS}),
    "weights": lambda path: write_weights(path, TENSORS, {}),
    "array": put_array,
    "folder": put_folder,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("limit", [0, 50_000])
def test_a_full_disk_is_one_line_and_the_old_stays(tmp_path: Path, writer: str, limit: int) -> None:
    path = tmp_path / "x"
    with full_disk(limit), pytest.raises(PolyshotError, match="the disk is full") as refused:
        WRITERS[writer](path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []

    WRITERS[writer](path)
    before = sorted(tmp_path.rglob("*"))
    whole = [file.read_bytes() for file in before if file.is_file()]
    with full_disk(limit), pytest.raises(PolyshotError, match="the disk is full"):
        WRITERS[writer](path)
    assert sorted(tmp_path.rglob("*")) == before
    assert [file.read_bytes() for file in before if file.is_file()] == whole


@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_is_named(tmp_path: Path, writer: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PolyshotError, match=f"{tmp_path}/file/x cannot be written: "):
        WRITERS[writer](tmp_path / "file" / "x")
    with pytest.raises(PolyshotError, match="cannot be written: File name too long"):
        WRITERS[writer](tmp_path / ("x" * 300))
    with pytest.raises(PolyshotError, match="cannot be written"):
        WRITERS[writer](Path("/"))
    if writer != "folder":
        (tmp_path / "folder").mkdir()
        with pytest.raises(PolyshotError, match="folder cannot be written: Is a directory"):
            WRITERS[writer](tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "folder"}


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a read-only disk needs root")
    try:
        for write in (*WRITERS.values(), lambda path: append_text(path, "line\n")):
            with pytest.raises(PolyshotError, match=f"{tmp_path}/x cannot be written: Read-only"):
                write(tmp_path / "x")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    write_text(Path("/dev/null"), "text")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(PolyshotError, match="no room to write /dev/full"):
        write_text(Path("/dev/full"), "text")
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "through")
    reader.join()
    assert got == ["through"] and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    for writer, name in (("text", "file"), ("folder", "folder")):
        WRITERS[writer](tmp_path / "away" / name)
        (tmp_path / name).symlink_to(tmp_path / "away" / name)
        WRITERS[writer](tmp_path / name)
        assert (tmp_path / name).is_symlink() and (tmp_path / "away" / name).exists()
    assert len(list((tmp_path / "away").iterdir())) == 2


def test_an_error_inside_leaves_what_was_there(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    put_folder(tmp_path / "folder")
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "file") as file:
        file.write(b"new")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "folder") as folder:
        (folder / "new").mkdir()
        raise ZeroDivisionError
    assert (tmp_path / "file").read_text() == "old"
    assert (tmp_path / "folder" / "deep" / "file").is_file()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("step", ["rename", "unlink"])
def test_ctrl_c_while_a_folder_gets_its_name_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    done = getattr(Path, step)

    def interrupted(*arguments: object, **options: object) -> object:
        result = done(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "x") as folder:
        (folder / "a").write_text("whole")
        monkeypatch.setattr(Path, step, interrupted)
    monkeypatch.undo()
    assert [each.name for each in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "a").read_text() == "whole"


def test_a_check_sees_what_would_be_replaced_and_can_refuse(tmp_path: Path) -> None:
    put_folder(tmp_path / "folder")
    (tmp_path / "folder").rename(tmp_path / ".folder.old")  # killed between two renames

    def refuse(path: Path) -> None:
        assert (path / "deep" / "file").is_file()
        raise PolyshotError("taken")

    with pytest.raises(PolyshotError, match="taken"), new_folder(tmp_path / "folder", refuse):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


CHILD = """
import os, sys, time
from pathlib import Path
from polyshot.util import files
path = Path(sys.argv[1])
if sys.argv[2] == "file":
    with files.new_file(path) as file:
        file.write(b"half")
        file.flush()
        print("writing", flush=True)
        time.sleep(60)
else:
    with files.new_folder(path) as folder:
        (folder / "half").mkdir()
        print("writing", flush=True)
        time.sleep(60)
"""


def test_in_a_container_where_every_process_has_one_number(tmp_path: Path) -> None:
    space = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*space, "true"], check=False).returncode:
        pytest.skip("a space of process numbers of its own needs root")
    path = tmp_path / "x"
    for again in (False, True):  # the second has the number of the first, which was killed
        with subprocess.Popen(
            [*space, sys.executable, "-c", CHILD, str(path), "folder"],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == "writing\n", again
            child.kill()
    WRITERS["folder"](path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_of_a_killed_process_go_and_a_running_one_is_waited_for(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "x"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), kind], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "writing\n"
        assert (tmp_path / ".x.partial").exists() and not path.exists()
        write = WRITERS["text" if kind == "file" else "folder"]
        other = threading.Thread(target=write, args=(path,))
        other.start()
        time.sleep(0.3)
        assert other.is_alive() and not path.exists(), "it must wait"
        assert (tmp_path / ".x.partial").exists(), "a running process keeps what it writes"
        child.kill()
        other.join(10)
        assert not other.is_alive()
    finally:
        child.kill()
        child.communicate()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    if kind == "file":
        assert path.read_text() == "ä" * 100_000
    else:
        assert [entry.name for entry in path.iterdir()] == ["deep"]


def test_many_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    texts = [str(number) * 50_000 for number in range(8)]
    threads = [threading.Thread(target=write_text, args=(tmp_path / "x", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_text() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lines"
    append_text(path, "one\n")
    append_text(path, "two\n")
    with full_disk(10), pytest.raises(PolyshotError, match=r"disk is full\. What was in it before"):
        append_text(path, "three is too long\n")
    assert path.read_text() == "one\ntwo\n"
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for other in ("new", "link"):
        with full_disk(10), pytest.raises(PolyshotError, match="Nothing of it was left behind"):
            append_text(tmp_path / other, "this is too long\n")
        assert not (tmp_path / "new").exists() and (tmp_path / "link").is_symlink()
    with pytest.raises(PolyshotError, match="no room to write /dev/full"):
        append_text(Path("/dev/full"), "text")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "é", "value": 0.1})
    assert read_json(tmp_path / "a.json") == {"name": "é", "value": 0.1}
    write_weights(tmp_path / "a.safetensors", TENSORS, {"best": 3})
    weights, about = read_weights(tmp_path / "a.safetensors")
    assert about == {"best": 3} and all(torch.equal(weights[k], TENSORS[k]) for k in TENSORS)
    write_checkpoint(tmp_path / "a.pt", {"state": TENSORS, "step": 2})
    state = read_checkpoint(tmp_path / "a.pt", torch.device("cpu"))
    assert state["step"] == 2 and torch.equal(state["state"]["a"], TENSORS["a"])
    put_array(tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(40_000))
    for file in tmp_path.iterdir():  # whoever may read other new files may read these
        assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("text", ["{", "3", "[" * 100_000, "[1, 2]", "\udcff"])
def test_json_that_is_no_object_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PolyshotError, match=r"a\.json cannot be read"):
        read_json(tmp_path / "a.json")
    with pytest.raises(json.JSONDecodeError):
        json.loads("{")


def test_names_of_any_bytes_are_written_as_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode("é\u2028".encode() + b"\xff")
    write_text(tmp_path / "a.txt", name)
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "é\u2028\\xff"
    write_json(tmp_path / "a.json", {"name": name})
    (tmp_path / "a.json").read_text(encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"name": name}
    assert len({digest(name), digest("é\u2028\\xff"), digest("é\u2028")}) == 3


def test_locks_of_what_is_whole_are_cleared_away_unless_held(tmp_path: Path) -> None:
    (tmp_path / "run" / "pool").mkdir(parents=True)
    left, other = tmp_path / "run" / ".pool.lock", tmp_path / "run" / ".base.lock"
    for lock in (left, other):
        lock.touch()
    with locked(left):
        clear_leftovers(tmp_path)
        assert left.exists()
    clear_leftovers(tmp_path)
    assert not left.exists() and other.exists()  # of a file that is not there: its writer comes
