"""What the service accepts at most, how it refuses the rest, and what it counts.

A refusal is a status and a sentence. Counters are as Prometheus reads them at /metrics.

Memory is one of the limits: whoever is about to take much (the body of a request, a fit) reserves
it first, and is refused where it would not fit, so that the service answers with a sentence instead
of being ended by the system.
"""

import gc
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from polyshot.util.memory import give_back

MIB = 1 << 20
GIB = 1 << 30


class RefusedError(Exception):
    """A request that is not done: an HTTP status, and a sentence that says what to do."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def usual_memory() -> int:
    """Return 8 GiB, or three quarters of what the machine or the container has."""
    has = [8 * GIB]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        has.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4)
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # else "max"
            has.append(int(text) * 3 // 4)
    return min(has)


@dataclass(frozen=True)
class Limits:
    """Of one service; docs/serve.md has the table."""

    request_bytes: int = 128 * MIB
    """Of the body of a request."""
    image_bytes: int = 32 * MIB
    """Of one uploaded file."""
    pixels: int = 50_000_000
    """Of one uploaded image."""
    images_a_request: int = 256
    images: int = 20_000
    """Of one project."""
    classes: int = 1_000
    """Of one project."""
    projects: int = 100
    disk_bytes: int = 10 * 1024 * MIB
    """Of the images of all projects, as they are kept."""
    memory_bytes: int = field(default_factory=usual_memory)
    """Of the service's process; past it uploads and fits are refused."""
    queue: int = 512
    """Images that wait to be classified."""
    queue_bytes: int = 512 * MIB
    """Of their pixels."""
    connections: int = 512
    """Of all clients."""
    uploads: int = 64
    """Requests with a body that are worked on at once."""
    jobs: int = 16
    """Fits that wait or run."""
    models: int = 8
    """Classifiers that are held in memory; the others are loaded from their files."""
    streams: int = 64
    """Listeners to events."""
    name_letters: int = 100
    """Of a project's or class's name."""
    decode_seconds: float = 20.0
    decode_bytes: int = 1024 * MIB
    """Memory of a process that decodes."""
    head_seconds: float = 20.0
    """Until a client has said what it wants."""
    body_seconds: float = 30.0
    """Between two pieces of a body."""
    answer_seconds: float = 120.0
    """Until an image is classified."""


def check_name(name: str, what: str, limits: Limits) -> str:
    """Return a name for people without space around it; refuses what cannot be shown.

    Names lead nowhere: files are called by numbers and hashes.
    """
    short = " ".join(name.split())
    # Addresses with a step . or .. in them are shortened by browsers.
    if not 0 < len(short) <= limits.name_letters or not short.isprintable() or short in (".", ".."):
        raise RefusedError(
            422,
            f"The name of a {what} has 1 to {limits.name_letters} letters that can be shown: give "
            "it another one.",
        )
    return short


# --- memory

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
        give_back()

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


def _shown(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


# --- counters

HELP = {
    "requests_total": "Requests answered, by status.",
    "images_total": "Images classified.",
    "batches_total": "Batches in which they were.",
    "refused_images_total": "Uploads that could not be decoded.",
    "fits_total": "Fits that ended, by outcome.",
    "request_seconds_total": "Time spent on requests.",
    "queue": "Images that wait to be classified.",
    "projects": "Projects that are kept.",
    "disk_bytes": "What the images of all projects take.",
    "memory_bytes": "What the service has in memory, and what running requests may still take.",
}


class Metrics:
    """Named numbers that only grow; threads may share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Count something; `label` as ``status="200"``."""
        with self._lock:
            self._counts[name, label] += amount

    def text(self, **gauges: float) -> str:
        """Return all of them, and gauges that are read now, in Prometheus' text format."""
        with self._lock:
            known = dict(self._counts)
        known |= {(name, ""): value for name, value in gauges.items()}
        lines = []
        for name, about in HELP.items():
            kind = "gauge" if name in gauges else "counter"
            lines += [f"# HELP polyshot_{name} {about}", f"# TYPE polyshot_{name} {kind}"]
            found = {label: value for (own, label), value in sorted(known.items()) if own == name}
            for label, value in (found or {"": 0}).items():
                lines.append(f"polyshot_{name}{'{' + label + '}' if label else ''} {value:g}")
        return "\n".join(lines) + "\n"
