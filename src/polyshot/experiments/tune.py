"""Tuning: the points of a method's declared grid, compared on validation classes of the sources.

Test classes are never looked at. What was tried is kept, so that an interrupted run goes on. Where
the best point lies at an end of the grid, the next one beyond it is tried, until the best lies
inside (or `MOST_BEYOND` were tried).
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from polyshot import engines
from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.engines.local import Local
from polyshot.errors import PolyshotError, join_names
from polyshot.evaluation.meter import answer
from polyshot.experiments.bench import Plan, fitting_job, training_job
from polyshot.experiments.grid_folder import GridFolder
from polyshot.experiments.request import Request
from polyshot.methods.method import Method, Settings, find_methods
from polyshot.training.training_run import TrainingRun, settings_mark
from polyshot.util.files import read_json, write_json
from polyshot.util.progress import Progress

BAR = "points"
"""Name of the progress of the whole tuning."""
SLOW_EPISODES = 20
"""Of each source, for methods that learn a whole network an episode."""
TUNED = "tuned.json"
"""The file of the outcome, in the grid's folder."""
MOST_BEYOND = 4
"""Points of a method that are tried beyond the ends of its grid, at most."""


@dataclass(frozen=True)
class Point:
    """Settings that were tried."""

    method: str
    settings: Settings
    validation: float
    """Mean over sources of the accuracy on episodes of validation classes."""
    best: bool


def tune(
    names: Sequence[str],
    packs: Sequence[Pack],
    config: Config,
    out: Path,
    engine: engines.Engine | None = None,
    report: Progress | None = None,
    command: str = "",
    resources: engines.Resources | None = None,
) -> list[Point]:
    """Try the grid of methods, all that have one by default, in the world of all sources.

    Trainings are shared with `reproduce`, whose folder `out` may be; the outcome is in its
    ``tuned.json``. Points are jobs of `engine`, this process by default, and each takes
    `resources`. `report` is told of the progress (`BAR`) and of trainings; `command` is for the
    record. Returns all points of these methods, in their order. Where points fail, the others are
    tried before that is an error.
    """
    methods = tunable(names)
    plan, engine = Plan(Request(()), packs, [], config), engine or Local()
    grid = GridFolder(out)
    search = _Search(plan, grid, engine, resources or engines.Resources(), report)
    grid.note(command, packs, engine.device)
    return search.all(methods)


def tunable(names: Sequence[str]) -> list[Method]:
    """Look methods up, all by default, and refuse those that have no grid."""
    methods = find_methods(names)
    if names and (fixed := [method.name for method in methods if not method.grid]):
        known = [method.name for method in find_methods() if method.grid]
        raise PolyshotError(
            f"There is nothing to tune in {join_names(fixed)}, only in {join_names(known, 20)}."
        )
    return [method for method in methods if method.grid]


class _Search:
    """Hands points to the engine, in rounds: the declared ones first, then those beyond."""

    def __init__(
        self,
        plan: Plan,
        grid: GridFolder,
        engine: engines.Engine,
        resources: engines.Resources,
        report: Progress | None,
    ):
        self.plan, self.grid, self.engine, self.resources = plan, grid, engine, resources
        self.report, self.key = report, uuid4().hex
        cpu = torch.device("cpu")
        self.world = TrainingRun(plan.sources, plan.config, grid.worlds, cpu)
        self.outcome = _Outcome(grid, self.world)
        self.done = self.total = 0
        self.tried: dict[str, list[tuple[dict[str, float], float]]] = {}

    def all(self, methods: Sequence[Method]) -> list[Point]:
        """Try the points of all methods, then those beyond the ends where the best is."""
        wanted = [(method, points(method)) for method in methods]
        self.total = sum(len(every) for _, every in wanted)
        self._tell()
        _set_up(self.key, replace(self.world, device=self.engine.device))
        try:
            for turn in range(1 + MOST_BEYOND):
                if turn:
                    self.total += len(wanted)
                self._try(wanted)
                further = [
                    (method, _beyond(method, self.tried[method.name])) for method, _ in wanted
                ]
                wanted = [(method, [one]) for method, one in further if one is not None]
        finally:
            _RUNS.clear()
        found = []
        for method in methods:
            tried = self.tried[method.name]
            best = max(tried, key=lambda each: each[1])  # the first of equal ones
            found += [Point(method.name, *each, each is best) for each in tried]
        return found

    def _try(self, wanted: Sequence[tuple[Method, list[dict[str, float]]]]) -> None:
        """Look points up, or have them tried."""
        jobs: dict[str, engines.Job] = {}
        asked: dict[str, tuple[Method, dict[str, float]]] = {}
        for method, settings in [(method, each) for method, every in wanted for each in every]:
            if self.outcome.known(method, settings) is not None:
                self._count()
                continue
            *trainings, job = self._jobs(method, settings)
            jobs |= {each.key: each for each in trainings if each.key not in jobs}
            jobs[job.key], asked[job.key] = job, (method, settings)
        failed = ""
        with closing(self.engine.run([*jobs.values()], self.grid.path, self.report)) as events:
            for event in events:
                if event.job.key in asked and not event.ended:
                    self.outcome.add(*asked[event.job.key], event.value)
                    self._count()
                failed = failed or (event.failed.message if event.failed else "")
        if failed:
            raise PolyshotError(failed)
        for method, every in wanted:
            values = [(each, self.outcome.known(method, each)) for each in every]
            known = [(each, value) for each, value in values if value is not None]
            self.tried.setdefault(method.name, []).extend(known)

    def _jobs(self, method: Method, settings: dict[str, float]) -> Iterator[engines.Job]:
        """List the trainings that a point shares with others, and the point, last."""
        who = (self.plan, self.key, method.name, settings)
        shared = method.shared(self.world, settings)
        for training in shared:
            yield training_job(training, _train, (*who, training.key), self.plan, self.resources)
        key = f"tune-{self.world.name}-{method.name}-{settings_mark(settings)}"
        made = fitting_job(key, _try, who, self.plan, self.world.name, shared, self.resources)
        yield replace(made, reads=(*made.reads, TUNED))

    def _count(self) -> None:
        self.done += 1
        self._tell()

    def _tell(self) -> None:
        if self.report:
            self.report(BAR, self.done, self.total)


# --- wherever a point is tried


_RUNS: dict[str, TrainingRun] = {}
"""The one that this process works on, of all sources, by the name of its search."""


def _set_up(key: str, run: TrainingRun) -> None:
    _RUNS.clear()
    _RUNS[key] = run


def _run(place: engines.Place, plan: Plan, key: str) -> TrainingRun:
    if key not in _RUNS:
        opened, folder = plan.opened(place.inputs), GridFolder(place.folder).worlds
        _set_up(key, TrainingRun(opened.sources, plan.config, folder, place.device))
    _RUNS[key].report = place.report
    return _RUNS[key]


def _train(
    place: engines.Place, plan: Plan, key: str, name: str, settings: Settings, training: str
) -> Iterator[None]:
    """Do a training that points share."""
    (method,) = find_methods([name])
    every = method.shared(_run(place, plan, key), settings)
    (found,) = (each for each in every if each.key == training)
    found.do()
    yield None


def _try(
    place: engines.Place, plan: Plan, key: str, name: str, settings: Settings
) -> Iterator[float]:
    """Measure a point on validation classes, unless another process has just done it."""
    run, (method,) = _run(place, plan, key), find_methods([name])
    known = _Outcome(GridFolder(place.folder), run).known(method, settings)
    if known is not None:
        yield known
        return
    fitted, how = method.fit(run, settings), method.tuned_with
    few = SLOW_EPISODES if how in method.slow else None
    own = [each.part(slice(0, few)) for each in run.tuning_tasks]
    dim = run.config.model.dim
    means = [answer(fitted, each, how, dim).accuracies.mean() for each in own]
    yield round(float(torch.stack(means).mean()), 5)


# --- which points


def _beyond(
    method: Method, tried: Sequence[tuple[dict[str, float], float]]
) -> dict[str, float] | None:
    """Return a point next to the best of those that were tried, where it is at an end."""
    best = max(tried, key=lambda each: each[1])[0]
    known = [settings for settings, _ in tried]
    ways = (_next(method, name, best, known) for name in method.grid)
    return next((settings for settings in ways if settings is not None), None)


def _next(
    method: Method, name: str, best: Settings, known: Sequence[Settings]
) -> dict[str, float] | None:
    """Return the best point with one setting moved beyond the ends of all that was tried of it.

    None where it lies inside. Only what grows by a factor can go on: each value of the grid at
    least twice the one before.
    """
    grid = sorted(method.grid[name])
    if grid[0] <= 0 or any(high < 2 * low for low, high in itertools.pairwise(grid)):
        return None
    values = sorted({point[name] for point in known})
    whole = isinstance(grid[0], int)
    for end, inner in ((0, 1), (-1, -2)):
        if len(values) > 1 and best[name] == values[end]:
            moved = values[end] ** 2 / values[inner]
            new = max(1, round(moved)) if whole else float(f"{moved:.4g}")
            return {**best, name: new} if new != values[end] else None
    return None


def points(method: Method) -> list[dict[str, float]]:
    """List the settings that a method's grid stands for."""
    values = itertools.product(*method.grid.values())
    return [{**method.settings, **dict(zip(method.grid, each, strict=True))} for each in values]


class _Outcome:
    """The file ``tuned.json``: preset -> method -> chosen settings and all that were tried."""

    def __init__(self, grid: GridFolder, world: TrainingRun):
        self.grid, self.world = grid, world
        self.file = grid.path / TUNED
        self._read()  # a damaged file shows before any work

    def known(self, method: Method, settings: Settings) -> float | None:
        """Look a point up."""
        tried = self._tried(self._read(), method)
        return next((each["validation"] for each in tried if each["settings"] == settings), None)

    def add(self, method: Method, settings: Settings, validation: float) -> None:
        """Keep a point, unless it is there, and choose again: the first of equal ones."""
        declared = points(method)

        def place(each: dict[str, Any]) -> int:
            """Points come in any order, and stay in that of the grid; what is beyond is last."""
            known = each["settings"] in declared
            return declared.index(each["settings"]) if known else len(declared)

        with self.grid.lock("tuned"):
            everything = self._read()
            new = {"settings": dict(settings), "validation": validation}
            tried = self._tried(everything, method)
            if any(each["settings"] == new["settings"] for each in tried):
                return
            tried = sorted([*tried, new], key=place)
            everything.setdefault(self.world.config.preset, {})[method.name] = {
                **max(tried, key=lambda each: each["validation"]),  # the first of equal ones
                "world": self.world.name,
                "tried": tried,
            }
            write_json(self.file, everything)

    def _tried(self, everything: dict[str, Any], method: Method) -> list[dict[str, Any]]:
        """Return what was tried of a method in this world; other data or configs do not count."""
        entry = everything.get(self.world.config.preset, {}).get(method.name, {})
        return list(entry["tried"]) if entry.get("world") == self.world.name else []

    def _read(self) -> dict[str, Any]:
        if not self.file.exists():
            return {}
        return read_json(self.file, "delete it, and points are tried again")
