"""Running a grid: what is missing, and nothing twice; a cell that fails does not stop the others.

Several processes may run on one folder. Who works on a job holds its lock; the others take other
jobs first, then wait for it and look again.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.errors import join_names
from polyshot.evaluation.targets import Target
from polyshot.experiments.grid_folder import Cell, GridFolder
from polyshot.experiments.jobs import Job, Measure, Request, jobs_of
from polyshot.models.views import Views
from polyshot.training.training_run import TrainingRun
from polyshot.util.device import forget, free_memory
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
    device: torch.device | None = None,
    report: Progress | None = None,
    command: str = "",
    offset: float = 0.0,
) -> Summary:
    """Run the cells of some protocols that a folder lacks.

    `sources` can be trained on, `others` are tested on and never trained on. Several protocols,
    presets and seeds may share the folder `out`; failures are noted in it, and tried again next
    time. `report` is told of the progress of the grid (`BAR`) and of every training; `command` is
    for the record. `offset` is the share of the worlds to leave for the end: processes that start
    at different ones do not wait for each other's trainings.
    """
    start = time.perf_counter()
    request.check(sources, others, config)
    trials = request.trials(sources, others)
    grid = GridFolder(out)
    device = device or torch.device("cpu")
    jobs = [
        job
        for seed in range(request.seeds)
        for job in jobs_of(request, trials, replace(config, seed=config.seed + seed), grid)
    ]
    run = _Run(grid, from_world(jobs, offset), device, report)
    grid.note(command, [*sources, *others], device)
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
        self, grid: GridFolder, jobs: Sequence[Job], device: torch.device, report: Progress | None
    ):
        self.grid, self.jobs, self.device, self.report = grid, jobs, device, report
        cells = [cell for job in jobs for cell in job.cells]
        self.open = {job: [cell for cell in job.cells if not job.is_done(cell)] for job in jobs}
        left = sum(map(len, self.open.values()))
        self.summary = Summary(cells=len(cells), before=len(cells) - left)
        self._shapes = list(dict.fromkeys(cell.shape for cell in cells))
        self._episodes = max((cell.episodes for cell in cells), default=2)
        self._views: Views = jobs[0].plan.config.views if jobs else "one"  # no protocol changes it
        self._targets: dict[tuple[str, str], Target] = {}
        self._world: tuple[str, TrainingRun] | None = None
        self._missing = [(job, cell) for job, cells_of in self.open.items() for cell in cells_of]
        self._looked = time.monotonic()

    def all(self) -> None:
        """Work on every job with open cells; on those of other processes last."""
        self._tell()
        busy = []
        for job in self.jobs:
            if not self.open[job]:
                continue
            with self.grid.lock_if_free(job.lock) as free:
                if free:
                    self._work(job)
                else:
                    busy.append(job)
        for job in busy:
            with self.grid.lock(job.lock):
                self._work(job)
        self._leave_world()

    def _work(self, job: Job) -> None:
        """Measure the open cells of a job whose lock is held; some may be done by now."""
        fitted: Future[Measure] = Future()
        for cell in self.open[job]:
            if job.is_done(cell):
                self.summary.elsewhere += 1
            else:
                self._measure(job, cell, fitted)
            self._tell()

    def _measure(self, job: Job, cell: Cell, fitted: "Future[Measure]") -> None:
        try:
            if job.is_known(cell):
                self.summary.before += 1
            else:
                target = self._target(cell)
                target.tasks(cell.shape)  # a shape that it cannot serve needs no training
                self._fit(job, fitted)(cell, target)
                self.summary.measured += 1
            self.grid.succeed(job.label(cell))
            return
        except Exception as error:  # whatever it is, the other cells go on
            what = job.describe(cell)
            self.summary.failed.append(f"{what}: {self.grid.fail(job.label(cell), what, error)}")
            forget(error)

    def _fit(self, job: Job, fitted: "Future[Measure]") -> Measure:
        """Train a job's method when the first cell needs it; a failure counts for all its cells."""
        if not fitted.done():
            try:
                fitted.set_result(job.fit(self.world(job)))
            except Exception as error:
                fitted.set_exception(error)
        return fitted.result()

    def _target(self, cell: Cell) -> Target:
        key = cell.target.domain.name, cell.part
        if key not in self._targets:
            episodes = (self._shapes, self._episodes, cell.seed, cell.part)
            self._targets[key] = Target(cell.target, self.device, *episodes, views=self._views)
        return self._targets[key]

    def world(self, job: Job) -> TrainingRun:
        """Return the world of a job, the same as long as jobs of the same one follow."""
        if self._world is None or self._world[0] != job.world:
            self._leave_world()
            self._world = job.world, replace(job.plan, device=self.device, report=self.report)
        return self._world[1]

    def _leave_world(self) -> None:
        if self._world is not None:
            self._world = None  # with its networks go the embeddings that targets keep of them
            free_memory()

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
