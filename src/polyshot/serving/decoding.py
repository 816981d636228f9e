"""Decodes what users upload in other processes: one that dies or hangs takes only its image along.

What is kept of an image is what such a process made of it, so that nothing else ever reads the
bytes that came from outside.
"""

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyshot.serving.decoder import READY
from polyshot.serving.limits import Limits, RefusedError
from polyshot.serving.records import Picture

SOURCES = Path(__file__).parents[2]
STARTS = 120.0
"""Seconds until a process that decodes has begun: 0.3 where nobody else wants the machine."""


class Decoder:
    """Some processes that decode; any thread may ask."""

    def __init__(self, limits: Limits, processes: int | None = None) -> None:
        self.limits = limits
        self._free: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(processes or min(4, os.cpu_count() or 1)):
            self._free.put(None)  # started when it is needed

    def pixels(self, data: bytes, name: str) -> NDArray[np.uint8]:
        """Decode a file to RGB ``[h, w, 3]``; RefusedError, which names it, where it cannot be."""
        head, parts = self._decode(data, name, keep=False)
        shape = (head["height"], head["width"], 3)
        return np.frombuffer(parts[0], np.uint8).reshape(shape)

    def picture(self, data: bytes, name: str) -> Picture:
        """Decode a file that is to be kept."""
        _, parts = self._decode(data, name, keep=True)
        return Picture(hashlib.sha256(data).hexdigest(), parts[1], parts[2])

    def _decode(self, data: bytes, name: str, keep: bool) -> tuple[dict[str, int], list[bytes]]:
        shown = f"'{name[:60]}'" if name else "An image"
        if len(data) > self.limits.image_bytes:
            most = self.limits.image_bytes >> 20
            raise RefusedError(413, f"{shown} is too large: an image has at most {most} MiB.")
        child = self._free.get()
        try:
            if child is None or child.poll() is not None:
                child = self._start()
            head, parts = self._ask(child, data, keep)
        except (OSError, ValueError, EOFError):
            if child is not None:
                _end(child)
            child = None
            raise RefusedError(
                422, f"{shown} cannot be read: decoding it took too long, or too much memory."
            ) from None
        finally:
            self._free.put(child)
        if head["status"] != 200:
            raise RefusedError(head["status"], f"{shown} cannot be read: {head['reason']}.")
        return head, parts

    def close(self) -> None:
        """End the processes; each finishes its image first."""
        for _ in range(self._free.qsize()):
            if (child := self._free.get()) is not None:
                _end(child)
            self._free.put(None)

    def _start(self) -> "subprocess.Popen[bytes]":
        # Nothing of the environment but where our own sources are.
        known = {k: os.environ[k] for k in ("PATH", "SYSTEMROOT", "TMPDIR") if k in os.environ}
        options = [str(self.limits.pixels), str(self.limits.decode_bytes)]
        busy = RefusedError(503, "The machine is too busy to read images: ask again later.")
        try:
            child = subprocess.Popen(  # noqa: S603 (a module of ours)
                [sys.executable, "-m", "polyshot.serving.decoder", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**known, "PYTHONPATH": str(SOURCES), "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError:  # no memory, or no process more
            raise busy from None
        assert child.stdout is not None
        late = threading.Timer(STARTS, child.kill)
        late.start()
        try:
            if child.stdout.readline() == READY:
                return child
        finally:
            late.cancel()
        _end(child)
        raise busy

    def _ask(
        self, child: "subprocess.Popen[bytes]", data: bytes, keep: bool
    ) -> tuple[dict[str, int], list[bytes]]:
        assert child.stdin is not None and child.stdout is not None
        late = threading.Timer(self.limits.decode_seconds, child.kill)
        late.start()
        try:
            child.stdin.write(len(data).to_bytes(8, "little") + bytes([keep]))
            child.stdin.write(data)
            child.stdin.flush()
            head = json.loads(child.stdout.readline())
            parts = [child.stdout.read(length) for length in head["lengths"]]
        finally:
            late.cancel()
        if [len(part) for part in parts] != head["lengths"]:
            raise EOFError
        return head, parts


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a process for good."""
    assert child.stdin is not None and child.stdout is not None
    child.kill()
    child.wait()
    try:
        child.stdin.close()
    except OSError:  # what it did not read any more
        child.stdin = None
    child.stdout.close()
