"""What the C library does with memory that was freed (glibc; elsewhere nothing is changed)."""

import ctypes
import os
import sys
from typing import Any

KEPT = 1 << 30
"""Bytes that are kept at most, and up to which a block comes from what is kept."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h."""
OWN = ("MALLOC_", "GLIBC_TUNABLES")
"""How variables of the environment begin by which a user has chosen already."""


def keep_freed() -> None:
    """Keep freed memory for what comes next, instead of returning it to the system at once.

    A pass through a network frees what the next one asks for. Pages that come anew from the system
    are cleared first: on a CPU that is a third of the time (`benchmarks/malloc.py`). It is for the
    whole process, so the program asks for it, and the library does not.
    """
    if any(name.startswith(OWN) for name in os.environ):
        return
    c_library = _c_library()
    if hasattr(c_library, "mallopt"):
        c_library.mallopt(TRIM_THRESHOLD, KEPT)
        c_library.mallopt(MMAP_THRESHOLD, KEPT)


def give_back() -> None:
    """Return to the system what was kept."""
    c_library = _c_library()
    if hasattr(c_library, "malloc_trim"):
        c_library.malloc_trim(0)


def _c_library() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
