"""A process's own view of a grid: it trains and measures what it is told to.

A `Plan` says what is asked for. It is small, and every process makes the same jobs of it: what
travels to another machine is the plan, a job's name and its cells. What one job leaves in memory,
the world's networks and the targets' embeddings, the next one of the same world finds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyshot import engines
from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.evaluation.targets import Target
from polyshot.experiments.grid_folder import Cell, GridFolder
from polyshot.experiments.jobs import Job, Measure, jobs_of
from polyshot.experiments.request import Request
from polyshot.models.views import Views
from polyshot.training.training_run import Training, TrainingRun
from polyshot.util.device import forget, free_memory
from polyshot.util.progress import Progress


@dataclass(eq=False)
class Plan:
    """What is asked of a grid, and of which data."""

    request: Request
    sources: Sequence[Pack]
    others: Sequence[Pack]
    config: Config

    def __getstate__(self) -> dict[str, Any]:
        """Travel with hashes instead of images, which are inputs of the jobs."""
        packs = {
            name: [pack.hash for pack in getattr(self, name)] for name in ("sources", "others")
        }
        return {**self.__dict__, **packs}

    def inputs(self) -> dict[str, Path]:
        """Return the packs by their content hashes."""
        return {pack.hash: pack.path for pack in (*self.sources, *self.others)}

    def opened(self, inputs: Mapping[str, Path]) -> "Plan":
        """Open the packs of a plan that has travelled."""

        def opened(packs: Sequence[Pack | str]) -> list[Pack]:
            return [
                Pack.open(inputs[each], verify=False) if isinstance(each, str) else each
                for each in packs
            ]

        return replace(self, sources=opened(self.sources), others=opened(self.others))

    def jobs(self, grid: GridFolder) -> list[Job]:
        """List the jobs of all seeds, world by world."""
        trials = self.request.trials(self.sources, self.others)
        seeds = (self.config.seed + seed for seed in range(self.request.seeds))
        return [
            job
            for seed in seeds
            for job in jobs_of(self.request, trials, replace(self.config, seed=seed), grid)
        ]


def training_job(
    training: Training,
    call: Callable[..., Iterator[None]],
    arguments: tuple[Any, ...],
    plan: Plan,
    resources: engines.Resources,
) -> engines.Job:
    """Make the job of a training that several others need."""
    return engines.Job(
        training.key,
        call,
        arguments,
        plan.inputs(),
        reads=tuple(f"worlds/{pattern}" for pattern in training.reads()),
        outputs=tuple(f"worlds/{pattern}" for pattern in training.outputs),
        needs=tuple(each.key for each in training.needs),
        resources=resources,
    )


def fitting_job(
    key: str,
    call: Callable[..., Iterator[Any]],
    arguments: tuple[Any, ...],
    plan: Plan,
    world: str,
    shared: Sequence[Training],
    resources: engines.Resources,
    files: tuple[str, ...] = (),
) -> engines.Job:
    """Make the job of what is fitted in a world after the trainings that it shares with others.

    Patterns of `files` are those that it leaves beside the world.
    """
    own = (f"worlds/{world}/world.json", f"worlds/{world}/rivals/**")
    needed = [f"worlds/{pattern}" for each in shared for pattern in each.reads()]
    return engines.Job(
        key,
        call,
        arguments,
        plan.inputs(),
        reads=tuple(dict.fromkeys((*own, *needed, *files))),
        outputs=(*own, *files),
        needs=tuple(each.key for each in shared),
        resources=resources,
    )


class Told(NamedTuple):
    """What became of a cell."""

    cell: str
    """Its name."""
    how: str
    """``measured``; ``there``: others have done it meanwhile; ``known``: taken from elsewhere."""
    failed: engines.Failed | None = None


class Bench:
    """Where one process works on a grid."""

    def __init__(self, jobs: Sequence[Job], device: torch.device):
        self.device = device
        self.report: Progress | None = None
        self.jobs = {(job.world, job.name): job for job in jobs}
        cells = [cell for job in jobs for cell in job.cells]
        self._shapes = list(dict.fromkeys(cell.shape for cell in cells))
        self._episodes = max((cell.episodes for cell in cells), default=2)
        self._views: Views = jobs[0].plan.config.views if jobs else "one"  # no protocol changes it
        self._targets: dict[tuple[str, str], Target] = {}
        self._world: tuple[str, TrainingRun] | None = None

    def world(self, job: Job) -> TrainingRun:
        """Return the world of a job, the same as long as jobs of the same one follow."""
        if self._world is None or self._world[0] != job.world:
            self.leave_world()
            self._world = job.world, replace(job.plan, device=self.device, report=self.report)
        return self._world[1]

    def leave_world(self) -> None:
        """Forget a world's networks, and with them the embeddings that targets keep of them."""
        if self._world is not None:
            self._world = None
            free_memory()

    def train(self, job: Job, training: str) -> None:
        """Do one of the trainings that a job shares with others."""
        (found,) = (each for each in job.shared(self.world(job)) if each.key == training)
        found.do()

    def measure(self, job: Job, cells: Sequence[str]) -> Iterator[Told]:
        """Measure some cells of a job; a cell that fails does not stop the others."""
        fitted: Future[Measure] = Future()
        wanted = set(cells)
        for cell in [cell for cell in job.cells if cell.name in wanted]:
            yield self._measured(job, cell, fitted)

    def _measured(self, job: Job, cell: Cell, fitted: "Future[Measure]") -> Told:
        try:
            if job.is_done(cell):
                return Told(cell.name, "there")
            if job.is_known(cell):
                return Told(cell.name, "known")
            target = self._target(cell)
            target.tasks(cell.shape)  # a shape that it cannot serve needs no training
            self._fit(job, fitted)(cell, target)
            return Told(cell.name, "measured")
        except Exception as error:  # whatever it is, the other cells go on
            failed = engines.Failed.of(error)
            forget(error)
            return Told(cell.name, "failed", failed)

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


def train(
    place: engines.Place, plan: Plan, key: str, job: tuple[str, str], training: str
) -> Iterator[None]:
    """Train something for a grid, wherever this process is."""
    bench = _bench(place, plan, key)
    bench.train(bench.jobs[job], training)
    yield None


def measure(
    place: engines.Place, plan: Plan, key: str, job: tuple[str, str], cells: Sequence[str]
) -> Iterator[Told]:
    """Measure cells of a grid, wherever this process is."""
    bench = _bench(place, plan, key)
    return bench.measure(bench.jobs[job], cells)


_BENCHES: dict[str, Bench] = {}
"""The one that this process works at, by the name of its grid."""


def set_up(key: str, bench: Bench) -> None:
    """Let this process work at a bench, and leave the one before."""
    leave()
    _BENCHES[key] = bench


def leave() -> None:
    """Forget what this process holds of a grid."""
    if _BENCHES:
        _BENCHES.clear()
        free_memory()


def _bench(place: engines.Place, plan: Plan, key: str) -> Bench:
    if key not in _BENCHES:
        jobs = plan.opened(place.inputs).jobs(GridFolder(place.folder))
        set_up(key, Bench(jobs, place.device))
    bench = _BENCHES[key]
    bench.report = place.report
    return bench
