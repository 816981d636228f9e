"""Tuning: the points of a method's declared grid, compared on validation classes of the sources.

Test classes are never looked at. What was tried is kept, so that an interrupted run goes on. Where
the best point lies at an end of the grid, the next one beyond it is tried, until the best lies
inside (or `MOST_BEYOND` were tried).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError, join_names
from polyshot.evaluation.meter import answer
from polyshot.experiments.grid_folder import GridFolder
from polyshot.methods.method import Method, Settings, find_methods
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun
from polyshot.util.files import read_json, write_json
from polyshot.util.progress import Progress

BAR = "points"
"""Name of the progress of the whole tuning."""
SLOW_EPISODES = 20
"""Of each source, for methods that learn a whole network an episode."""
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
    device: torch.device | None = None,
    report: Progress | None = None,
    command: str = "",
) -> list[Point]:
    """Try the grid of methods, all that have one by default, in the world of all sources.

    Trainings are shared with `reproduce`, whose folder `out` may be; the outcome is in its
    ``tuned.json``. `report` is told of the progress (`BAR`) and of every training; `command` is for
    the record. Returns all points of these methods, in their order.
    """
    methods = find_methods(names)
    if names and (fixed := [method.name for method in methods if not method.grid]):
        tunable = [method.name for method in find_methods() if method.grid]
        raise PolyshotError(
            f"There is nothing to tune in {join_names(fixed)}, only in {join_names(tunable, 20)}."
        )
    methods = [method for method in methods if method.grid]
    grid = GridFolder(out)
    device = device or torch.device("cpu")
    world = TrainingRun(packs, config, grid.worlds, device, report)
    outcome = _Outcome(grid, world)
    grid.note(command, packs, device)
    search = _Search(world, outcome, report, sum(len(points(method)) for method in methods))
    return [point for method in methods for point in search.of(method)]


class _Search:
    """Tries points one after the other."""

    def __init__(
        self, world: TrainingRun, outcome: "_Outcome", report: Progress | None, total: int
    ):
        self.world, self.outcome, self.report, self.total = world, outcome, report, total
        self.done, self._tasks = 0, list[Tasks]()

    def of(self, method: Method) -> list[Point]:
        """Try the points of a method's grid, then those beyond its ends where the best is."""
        tried: list[tuple[dict[str, float], float]] = []
        for settings in points(method):
            tried.append((settings, self._value(method, settings)))
        for settings in itertools.islice(_beyond(method, tried), MOST_BEYOND):
            self.total += 1
            tried.append((settings, self._value(method, settings)))
        if self.report:
            self.report(BAR, self.done, self.total)
        best = max(tried, key=lambda each: each[1])  # the first of equal ones
        return [Point(method.name, *each, each is best) for each in tried]

    def _value(self, method: Method, settings: Settings) -> float:
        """Look a point up, or try it."""
        if self.report:
            self.report(BAR, self.done, self.total)
        self.done += 1
        outcome = self.outcome
        name = f"tune-{self.world.name}-{method.name}"
        with outcome.grid.lock(name):  # no point is tried by two processes
            value = outcome.known(method, settings)
            if value is None:
                value = self._measured(method, settings)
                outcome.add(method, settings, value)
        return value

    def _measured(self, method: Method, settings: Settings) -> float:
        self._tasks = self._tasks or self.world.validation_tasks()
        fitted, how = method.fit(self.world, settings), method.tuned_with
        few = SLOW_EPISODES if how in method.slow else None
        own = [each.part(slice(0, few)) for each in self._tasks]
        dim = self.world.config.model.dim
        means = [answer(fitted, each, how, dim).accuracies.mean() for each in own]
        return round(float(torch.stack(means).mean()), 5)


def _beyond(
    method: Method, tried: list[tuple[dict[str, float], float]]
) -> Iterator[dict[str, float]]:
    """Yield points next to the best of `tried`, which grows meanwhile, where it is at an end."""
    while True:
        best = max(tried, key=lambda each: each[1])[0]
        known = [settings for settings, _ in tried]
        ways = (_next(method, name, best, known) for name in method.grid)
        found = next((settings for settings in ways if settings is not None), None)
        if found is None:
            return
        yield found


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
        self.file = grid.path / "tuned.json"
        self._read()  # a damaged file shows before any work

    def known(self, method: Method, settings: Settings) -> float | None:
        """Look a point up."""
        tried = self._tried(self._read(), method)
        return next((each["validation"] for each in tried if each["settings"] == settings), None)

    def add(self, method: Method, settings: Settings, validation: float) -> None:
        """Keep a point, and choose again."""
        with self.grid.lock("tuned"):
            everything = self._read()
            new = {"settings": dict(settings), "validation": validation}
            tried = [*self._tried(everything, method), new]
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
