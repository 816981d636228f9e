"""Locks between processes; the system frees them when a process ends, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from polyshot.errors import PolyshotError


@contextmanager
def locked(path: Path, of: Path | None = None) -> Iterator[None]:
    """Hold a lock; waits for a process that has it.

    Args:
        path: of the lock's file, which stays afterwards: a new one would be another lock.
        of: what it guards, for messages; the lock itself where it is not said.
    """
    with _held(path, of or path, wait=True):
        yield


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold a lock, or yield False at once where another process has it."""
    with _held(path, path, wait=False) as mine:
        yield mine


@contextmanager
def _held(path: Path, what: Path, wait: bool) -> Iterator[bool]:
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise PolyshotError(f"{what} cannot be written: {error.strerror or error}.") from None
    try:
        yield True
    finally:
        lock.release()
