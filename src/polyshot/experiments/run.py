"""Running a grid: what is missing, and nothing twice; a cell that fails does not stop the others.

Trainings that several methods share, and the cells of each method, are jobs of an engine
(`polyshot.engines`): here is what they are, in which order, and what is counted of them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from polyshot import engines
from polyshot.config import Config
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.engines.local import Local
from polyshot.errors import PolyshotError, join_names
from polyshot.experiments import bench
from polyshot.experiments.bench import Bench, Plan, Told, fitting_job, training_job
from polyshot.experiments.grid_folder import Cell, GridFolder
from polyshot.experiments.jobs import Job
from polyshot.experiments.request import Request
from polyshot.util.progress import Progress

BAR = "cells"
"""Name of the progress of the whole grid."""
LOOK = 5
"""Seconds between looks at what other processes have done."""


@dataclass
class Summary:
    """What a run did."""

    cells: int
    before: int
    """Cells that were there already."""
    measured: int = 0
    elsewhere: int = 0
    """Cells that another process measured meanwhile."""
    failed: list[str] = field(default_factory=list)
    """One line a cell."""
    seconds: float = 0.0

    def __str__(self) -> str:
        text = (
            f"{self.cells} cells: {self.before} were there, {self.measured} measured "
            f"in {self.seconds / 60:.1f} minutes"
        )
        if self.elsewhere:
            text += f", {self.elsewhere} by other processes"
        if self.failed:
            text += f", {len(self.failed)} failed: {join_names(self.failed, 1)}"
        return text + ("" if text.endswith(".") else ".")


def reproduce(
    request: Request,
    sources: Sequence[Pack],
    others: Sequence[Pack],
    config: Config,
    out: Path,
    engine: engines.Engine | None = None,
    report: Progress | None = None,
    command: str = "",
    offset: float = 0.0,
    resources: engines.Resources | None = None,
) -> Summary:
    """Run the cells of some protocols that a folder lacks.

    `sources` can be trained on, `others` are tested on and never trained on. Several protocols,
    presets and seeds may share the folder `out`; failures are noted in it, and tried again next
    time. `engine` runs the jobs, this process by default; each takes `resources`. `report` is told
    of the progress of the grid (`BAR`) and of trainings; `command` is for the record. `offset` is
    the share of the worlds to leave for the end: processes that start at different ones do not wait
    for each other's trainings.
    """
    start = time.perf_counter()
    request.check(sources, others, config)
    plan, engine = Plan(request, sources, others, config), engine or Local()
    request.trials(sources, others)  # refuses, before there is a folder
    grid = GridFolder(out)
    jobs = from_world(plan.jobs(grid), offset)
    run = _Run(grid, plan, jobs, engine, resources or engines.Resources(), report)
    grid.note(command, [*sources, *others], engine.device)
    run.all()
    run.summary.seconds = time.perf_counter() - start
    return run.summary


def from_world(jobs: Sequence[Job], offset: float) -> list[Job]:
    """Put the jobs of the first worlds last, so many that their share of all is `offset`."""
    worlds = list(dict.fromkeys(job.world for job in jobs))
    first = int(offset * len(worlds))
    return sorted(jobs, key=lambda job: (worlds.index(job.world) - first) % len(worlds))


class _Run:
    def __init__(
        self,
        grid: GridFolder,
        plan: Plan,
        jobs: Sequence[Job],
        engine: engines.Engine,
        resources: engines.Resources,
        report: Progress | None,
    ):
        self.grid, self.plan, self.jobs, self.engine = grid, plan, jobs, engine
        self.resources, self.report, self.key = resources, report, uuid4().hex
        cells = [cell for job in jobs for cell in job.cells]
        self.open = {job: [cell for cell in job.cells if not job.is_done(cell)] for job in jobs}
        left = sum(map(len, self.open.values()))
        self.summary = Summary(cells=len(cells), before=len(cells) - left)
        self._missing = [(job, cell) for job, cells_of in self.open.items() for cell in cells_of]
        self._looked = time.monotonic()

    def all(self) -> None:
        """Hand every job with open cells to the engine, and count what comes back."""
        self._tell()
        for job in self.jobs:
            for cell in list(self.open[job]):
                self._complete(job, cell)
        bench.set_up(self.key, Bench(self.jobs, self.engine.device))
        work = list(self._work())
        measured = {one.key: job for job, one in work if job is not None}
        every = [one for _, one in work]
        try:
            with closing(self.engine.run(every, self.grid.path, self.report)) as events:
                for event in events:
                    self._hear(measured.get(event.job.key), event)
        finally:
            bench.leave()

    def _hear(self, job: Job | None, event: engines.Event) -> None:
        if job is None:  # a training: what becomes of it shows in the cells that need it
            return
        if event.failed:
            for cell in list(self.open[job]):
                self._fail(job, cell, event.failed)
        elif not event.ended:
            self._count(job, event.value)

    def _complete(self, job: Job, cell: Cell) -> None:
        """Settle a cell that needs no measuring: it is known, or its target cannot serve it."""
        try:
            if job.is_known(cell):
                self._count(job, Told(cell.name, "known"))
            else:
                # A shape that the target cannot serve needs no training to be refused.
                EpisodeSampler(cell.target.domain, cell.shape, part=cell.part, seed=cell.seed)
        except PolyshotError as error:
            self._fail(job, cell, engines.Failed.of(error))

    def _work(self) -> Iterator[tuple[Job | None, engines.Job]]:
        """List the engine's jobs: before those of a world's cells, what they are trained on."""
        known: set[str] = set()
        for job in self.jobs:
            if not self.open[job]:
                continue
            shared = job.shared(job.plan)
            for training in shared:
                if training.key not in known:
                    known.add(training.key)
                    how = (bench.train, (*self._who(job), training.key))
                    yield None, training_job(training, *how, self.plan, self.resources)
            asked = (*self._who(job), [cell.name for cell in self.open[job]])
            where = (self.plan, job.plan.before.name, shared, self.resources, job.outputs())
            yield job, fitting_job(job.lock, bench.measure, asked, *where)

    def _who(self, job: Job) -> tuple[Plan, str, tuple[str, str]]:
        return self.plan, self.key, (job.world, job.name)

    def _count(self, job: Job, told: Told) -> None:
        (cell,) = (cell for cell in self.open[job] if cell.name == told.cell)
        if told.failed:
            self._fail(job, cell, told.failed)
            return
        self.open[job].remove(cell)
        if told.how != "there":
            self.grid.succeed(job.label(cell))
        self.summary.before += told.how == "known"
        self.summary.elsewhere += told.how == "there"
        self.summary.measured += told.how == "measured"
        self._tell()

    def _fail(self, job: Job, cell: Cell, failed: engines.Failed) -> None:
        self.open[job].remove(cell)
        what = job.describe(cell)
        self.grid.fail(job.label(cell), what, failed)
        self.summary.failed.append(f"{what}: {failed.message}")
        self._tell()

    def _tell(self) -> None:
        if self.report:
            done = self.summary
            own = done.before + done.measured + done.elsewhere + len(done.failed)
            self.report(BAR, max(own, done.cells - self._still_missing()), done.cells)

    def _still_missing(self) -> int:
        """Count the cells that no process has measured, as of some seconds ago."""
        if time.monotonic() - self._looked > LOOK:
            self._missing = [(job, cell) for job, cell in self._missing if not job.is_done(cell)]
            self._looked = time.monotonic()
        return len(self._missing)
