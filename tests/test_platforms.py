"""What holds on Windows and macOS, as far as it can be told on another system."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyshot.data import importer
from polyshot.errors import PolyshotError
from polyshot.util import files

SOURCE = Path(importer.__file__).parents[1]
UNIX = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules that are not everywhere."""
FORKS = {"fork", "forkpty", "posix_spawn", "killpg", "setsid", "mkfifo", "geteuid", "uname"}
"""Functions of `os` that are not everywhere."""


def handles_import(node: ast.AST) -> bool:
    """Whether code does without what cannot be imported."""
    return isinstance(node, ast.Try) and any(
        isinstance(handler.type, ast.Name) and handler.type.id == "ImportError"
        for handler in node.handlers
    )


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: file.stem)
def test_nothing_of_one_system_is_used(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    handled = {each for node in ast.walk(tree) if handles_import(node) for each in ast.walk(node)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert node in handled or not UNIX & {name.partition(".")[0] for name in names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert not (node.value.id == "os" and node.attr in FORKS)


def squares(numbers: list[int]) -> tuple[int, list[int]]:
    """Work for other processes, which find it by its name."""
    return os.getpid(), [number**2 for number in numbers]


def test_processes_that_are_spawned_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows, where nothing may be forked."""
    monkeypatch.setattr(importer, "sys", SimpleNamespace(platform="darwin"))
    made = list(importer.map_in_order(squares, [([n, n + 1],) for n in range(4)], workers=2))
    assert [answer for _, answer in made] == [[n**2, (n + 1) ** 2] for n in range(4)]
    assert os.getpid() not in {worker for worker, _ in made}


def test_a_file_that_another_program_holds_open_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows does not replace such a file; the old one stays, and nothing beside it."""
    file = tmp_path / "labels.csv"
    file.write_text("old")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PolyshotError, match=r"labels\.csv cannot be written: Access is denied"):
        files.write_text(file, "new")
    assert file.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["labels.csv"]


def test_a_lock_that_cannot_be_deleted_while_it_is_held_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is on Windows; the next writer takes it again."""
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(".lock"):
            raise PermissionError(13, "it is open")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    for text in ("one", "two"):
        files.write_text(tmp_path / "file", text)
        assert (tmp_path / "file").read_text() == text


@pytest.mark.parametrize(("system", "told"), [("darwin", "1"), ("linux", "None")])
def test_pytorch_is_told_to_fall_back_on_a_mac_before_it_is_imported(
    system: str, told: str
) -> None:
    code = (
        f"import os, sys; sys.platform = {system!r}; import polyshot; "
        "print('torch' in sys.modules, os.environ.get('PYTORCH_ENABLE_MPS_FALLBACK'))"
    )
    clean = {k: v for k, v in os.environ.items() if k != "PYTORCH_ENABLE_MPS_FALLBACK"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == ["False", told]
