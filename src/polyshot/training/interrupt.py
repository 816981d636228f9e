"""Ctrl-C and SIGTERM between updates, never inside one."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[Callable[[], int]]:
    """Hold signals back; yields a function that returns the signal that came, or 0.

    A second signal acts at once, for those who cannot wait. Only the main thread can do this;
    elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    came = 0

    def note(number: int, _: FrameType | None) -> None:
        nonlocal came
        came = number
        restore()

    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        restore()


def stop(number: int) -> None:
    """Do now what the signal asked for."""
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt
