"""What a trial is, the processes that run them and are watched, and the table in the end."""

import faulthandler
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

HANG = 60.0
"""Seconds after which whatever is tried counts as a hang."""

FAILURES = {
    "traceback": "an error of Python instead of one line and exit code 2, or a crash",
    "hang": f"no end within {HANG:.0f} s",
    "different": "another answer than the right one, in silence",
    "lost": "what was there before, or was acknowledged, is gone or damaged",
    "left": "files that nobody asked for stay behind",
}


@dataclass(frozen=True)
class Verdict:
    """How a trial ended: `right`, `refused` (one line, exit code 2), `crashed`, or a failure.

    `crashed` is no failure where memory was taken away: a library of C died of it, and the same
    command did all afterwards, as after a kill.
    """

    kind: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES


RIGHT, REFUSED = Verdict("right"), Verdict("refused")


Run = Callable[[random.Random, Path], Verdict]
"""Runs a trial, given its random numbers and an empty folder, in which it is."""


@dataclass(frozen=True)
class Part:
    """A row of the table: trials of one kind."""

    name: str
    about: str
    trials: int
    """How many a whole campaign has."""
    run: Run
    patience: float = HANG
    """Seconds that a trial may take in all; the commands that it starts have their own limit."""
    memory: int = 0
    """Bytes of address space of the process that runs it; 0 does not limit it."""


@dataclass(frozen=True)
class Done:
    """A trial that ended."""

    part: Part
    number: int
    verdict: Verdict
    seconds: float


def run_trial(part: Part, number: int, seed: int, folder: Path) -> Verdict:
    """Run one trial here, in a folder of its own, which stays where the trial failed."""
    place = folder / f"{part.name}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(place)
    try:
        # Whatever ran before it, a trial has the same random numbers.
        verdict = part.run(random.Random(f"{seed} {part.name} {number}"), place)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{Path(last.filename).name}:{last.lineno}"
        verdict = Verdict("traceback", f"{type(error).__name__}: {str(error)[:200]} ({at})")
        (place / "traceback.txt").write_text(traceback.format_exc(), errors="replace")
    finally:
        os.chdir(before)
    if not verdict.failed:
        shutil.rmtree(place, ignore_errors=True)
    return verdict


def run_all(
    wanted: Sequence[tuple[Part, int]], seed: int, folder: Path, jobs: int
) -> Iterator[Done]:
    """Run trials in forked processes; yields how each ended, as they end.

    A process that dies or hangs takes one trial along, and another goes on with the next.
    """
    waiting = list(range(len(wanted)))[::-1]
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(wanted, seed, folder))
                workers[-1].begin(waiting.pop())
            ready = wait([worker.pipe for worker in workers], timeout=1.0)
            for worker in list(workers):
                done = worker.news() if worker.pipe in ready else worker.overdue()
                if done is None:
                    continue
                yield done
                next_one = waiting[-1] if waiting else None
                if worker.pid and next_one is not None and worker.fits(next_one):
                    worker.begin(waiting.pop())
                else:
                    worker.end()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A forked process that runs one trial after the other."""

    def __init__(self, wanted: Sequence[tuple[Part, int]], seed: int, folder: Path):
        self.wanted = wanted
        self.index = -1
        self.since = 0.0
        self.pipe, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setpgid(0, 0)
                self.pipe.close()
                _work(theirs, wanted, seed, folder)
            finally:
                os._exit(0)
        theirs.close()

    def fits(self, index: int) -> bool:
        """Whether it may go on: a part begins in a process that has nothing of the one before."""
        return self.wanted[index][0].name == self.wanted[self.index][0].name

    def begin(self, index: int) -> None:
        self.index, self.since = index, time.monotonic()
        self.pipe.send(index)

    def news(self) -> Done:
        try:
            return self._done(self.pipe.recv())
        except (EOFError, OSError):
            _, status = os.waitpid(self.pid, 0)
            self.pid = 0
            code = os.waitstatus_to_exitcode(status)
            return self._done(Verdict("traceback", f"the process ended with {code}"))

    def overdue(self) -> Done | None:
        part, _ = self.wanted[self.index]
        if time.monotonic() - self.since < part.patience:
            return None
        self.end()
        return self._done(Verdict("hang", f"no end after {part.patience:.0f} s"))

    def end(self) -> None:
        self.pipe.close()
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def _done(self, verdict: Verdict) -> Done:
        part, number = self.wanted[self.index]
        return Done(part, number, verdict, time.monotonic() - self.since)


def _work(orders: Connection, wanted: Sequence[tuple[Part, int]], seed: int, folder: Path) -> None:
    log = (folder / f"worker-{os.getpid()}.log").open("w")  # C libraries talk on their own
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(log)
    limited = False
    while True:
        try:
            part, number = wanted[orders.recv()]
        except EOFError:
            return
        if part.memory and not limited:
            resource.setrlimit(resource.RLIMIT_AS, (part.memory, part.memory))
            limited = True
        orders.send(run_trial(part, number, seed, folder))


def table(done: Sequence[Done], parts: Sequence[Part]) -> str:
    """Lay out trials and failures as a Markdown table."""
    head = ("what", "trials", "right answer", "refused in one line", "crashed", *FAILURES)
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    totals: Counter[str] = Counter()
    for part in parts:
        counts = Counter(each.verdict.kind for each in done if each.part.name == part.name)
        if counts:
            lines.append([f"{part.name}: {part.about}", *_numbers(counts)])
            totals += counts
    lines.append(["**all**", *_numbers(totals)])
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _numbers(counts: "Counter[str]") -> list[str]:
    kinds = ("right", "refused", "crashed", *FAILURES)
    return [f"{number:,}" for number in (counts.total(), *(counts[kind] for kind in kinds))]
