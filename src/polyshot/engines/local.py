"""Other processes that run the same command beside this one, each on a share of the cores.

A small network keeps two cores less busy than two networks on one core each do.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from polyshot.errors import PolyshotError

MOST = 4
"""Processes if nobody says how many: each holds networks and images of its own."""


class Helper(NamedTuple):
    """What a helper knows of itself."""

    number: int
    processes: int
    parent: int
    """Number of the process that started it, in the system."""

    @classmethod
    def of(cls, text: str) -> "Helper":
        """Read what `str` has written."""
        try:
            return cls(*map(int, text.split(",")))
        except (TypeError, ValueError):
            raise PolyshotError(
                f"--helper {text} is for processes that Polyshot starts: leave it out."
            ) from None

    def __str__(self) -> str:
        return ",".join(map(str, self))

    @property
    def offset(self) -> float:
        """Share of the worlds that it leaves to the others at first."""
        return self.number / self.processes

    def report(self, _name: str, _done: int, _total: int) -> None:
        """Stop where the parent is gone without having ended its helpers; show nothing."""
        if os.getppid() != self.parent:
            raise KeyboardInterrupt


def process_count(wanted: int | None, device: torch.device) -> int:
    """Return how many processes to share the work: as wanted, else one a core on a CPU."""
    if wanted is None:
        return min(MOST, torch.get_num_threads()) if device.type == "cpu" else 1
    if wanted < 1:
        raise PolyshotError(f"{wanted} processes do nothing: 1 is the least.")
    return wanted


@contextmanager
def helped(count: int, command: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Have `count - 1` helpers, which it yields, while this process works; they end when it does.

    They run the command, given without the program's name; a `Helper` is added to each.
    """
    if count == 1:
        yield []
        return
    threads = torch.get_num_threads()
    each = max(1, threads // count)
    shared = {**os.environ, "OMP_NUM_THREADS": str(each)}
    program = [sys.executable, "-m", "polyshot", *command]
    helpers = [
        subprocess.Popen(  # noqa: S603 (this program, with the words that it was given)
            [*program, "--helper", str(Helper(number, count, os.getpid()))],
            env=shared,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what fails is tried again, and reported, by this process
        )
        for number in range(1, count)
    ]
    torch.set_num_threads(each)
    try:
        yield helpers
    finally:
        torch.set_num_threads(threads)
        for helper in helpers:
            helper.terminate()  # what it trains is kept
        for helper in helpers:
            helper.wait()


def lost(helpers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Count the helpers that have ended in another way than with all or some cells measured."""
    return sum(helper.poll() not in (None, 0, 1) for helper in helpers)
