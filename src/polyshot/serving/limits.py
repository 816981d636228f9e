"""What the service accepts at most, and how it refuses the rest: a status and a sentence."""

import os
from dataclasses import dataclass, field
from pathlib import Path

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
