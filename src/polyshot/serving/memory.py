"""How much memory the service takes, and who may take more of it.

Whoever is about to take much (the body of a request, a fit) reserves it first, and is refused
where it would not fit: the service answers with a sentence instead of being ended by the system.
"""

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from polyshot.serving.limits import GIB, MIB, RefusedError

CALM = 2.0
"""Seconds between two attempts to make room."""


class Memory:
    """The memory of this process and what is reserved of it; threads may share it."""

    def __init__(self, limit: int, resident: Callable[[], int] | None = None) -> None:
        """Let the process have `limit` bytes; `resident` tells how many it has."""
        self.limit = limit
        self._resident = resident or resident_bytes
        self._reserved = 0
        self._lock = threading.Lock()
        self._tried = -CALM
        self.give_up: Callable[[], None] | None = None
        """Drops what can be had again, where memory is short."""

    def reserve(self, size: int) -> "Reservation":
        """Take memory, to be released; RefusedError where there is not so much left."""
        made = Reservation(self)
        made.grow(size)
        return made

    def taken(self) -> int:
        """Return what the process has, and what is reserved.

        Some of the latter may be in the former already: better refused once too often.
        """
        return self._resident() + self._reserved

    def _take(self, size: int) -> None:
        if size > self.limit:
            raise RefusedError(
                413,
                f"This needs about {_shown(size)} of memory, and the service may have "
                f"{_shown(self.limit)}: send less, or start it with more --memory.",
            )
        if self.taken() + size > self.limit:
            self._make_room()
        with self._lock:
            if self.taken() + size > self.limit:
                raise RefusedError(
                    429,
                    f"The memory is full ({_shown(self.limit)}): ask again later, or start the "
                    "service with more --memory.",
                )
            self._reserved += size

    def _make_room(self) -> None:
        """Drop what can be had again, and return to the system what nobody uses."""
        with self._lock:
            if time.monotonic() - self._tried < CALM:
                return
            self._tried = time.monotonic()
        if self.give_up is not None:
            self.give_up()
        gc.collect()
        trim()

    def _release(self, size: int) -> None:
        with self._lock:
            self._reserved -= size


class Reservation:
    """What one request or fit has reserved; released at the end of a `with`."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self.size = memory, 0

    def grow(self, size: int) -> None:
        """Reserve so much more."""
        self._memory._take(size)
        self.size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        size, self.size = self.size, 0
        self._memory._release(size)


def resident_bytes(process: int | None = None) -> int:
    """Return what a process has in memory, or this one; 0 where Linux does not say."""
    try:
        pages = Path(f"/proc/{process or 'self'}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Return freed memory to the system, which glibc keeps for itself otherwise."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # another C library, which does so by itself
            return


def _shown(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
