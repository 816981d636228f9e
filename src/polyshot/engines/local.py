"""The engine of one machine: jobs one after the other in this process, and others beside it.

Other processes run the same command on the same folder, each on a share of the cores: a small
network keeps two cores less busy than two networks on one core each do. Who works on a job holds
its lock; the others take other jobs first, then wait for it and look again.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyshot.engines.job import Engine, Event, Failed, Job, Place, Resources, Waiting
from polyshot.errors import PolyshotError
from polyshot.util.device import forget
from polyshot.util.files import locked_if_free
from polyshot.util.progress import Progress

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


class Local(Engine):
    """Runs jobs in this process; files need not travel."""

    def __init__(self, device: torch.device | None = None):
        self.device = device or torch.device("cpu")

    def run(
        self, jobs: Sequence[Job], folder: Path, report: Progress | None = None
    ) -> Generator[Event, None, None]:
        """Run jobs in their order; those that another process works on come last."""
        waiting, patient = Waiting(jobs), False
        while waiting.jobs:
            begun = False
            for job in waiting.ready():
                with locked_if_free(folder / "locks" / f"{job.key}.lock", patient) as mine:
                    if mine:
                        begun, patient = True, False
                        waiting.jobs.remove(job)
                        wrong = yield from self._do(job, folder, report)
                        yield waiting.end(job, wrong)
                if begun:
                    break  # what has waited for it comes next, in the order of the jobs
            yield from waiting.give_up()
            patient = not begun  # nothing but what others are at: wait for the first

    def stream(
        self,
        make: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        items: Iterable[Any],
        resources: Resources,  # noqa: ARG002 (all that this process has)
    ) -> Iterator[Any]:
        """Work on one item after the other, in this process."""
        yield from map(make(self.device, *arguments), items)

    def _do(
        self, job: Job, folder: Path, report: Progress | None
    ) -> Generator[Event, None, Failed | None]:
        place = Place(folder, self.device, job.inputs, report)
        try:
            for value in job.call(place, *job.arguments):
                yield Event(job, value)
        except Exception as error:  # whatever it is, the other jobs go on
            wrong = Failed.of(error)
            forget(error)
            return wrong
        return None
