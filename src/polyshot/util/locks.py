"""Locks between processes on one folder; the system frees them when a process ends, however."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyshot.errors import PolyshotError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock; waits for a process that has it."""
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold a lock, or yield False at once where another process has it."""
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise PolyshotError(f"{path} cannot be written: {error.strerror}.") from None
    try:
        yield file
    finally:
        os.close(file)  # frees the lock
