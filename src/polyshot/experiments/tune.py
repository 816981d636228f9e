"""Tuning: the points of a method's declared grid, compared on validation classes of the sources.

Test classes are never looked at. What was tried is kept, so that an interrupted run goes on.
"""

import itertools
import json
from collections.abc import Sequence
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
from polyshot.util.files import write_json
from polyshot.util.progress import Progress

BAR = "points"
"""Name of the progress of the whole tuning."""
SLOW_EPISODES = 20
"""Of each source, for methods that learn a whole network an episode."""


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
    """Try the declared grid of methods, all that have one by default, in the world of all sources.

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
    wanted = [(method, settings) for method in methods for settings in points(method)]
    values: list[float] = []
    tasks: list[Tasks] = []
    for number, (method, settings) in enumerate(wanted):
        if report:
            report(BAR, number, len(wanted))
        with grid.lock(f"tune-{world.name}-{method.name}"):  # no point is tried by two processes
            value = outcome.known(method, settings)
            if value is None:
                tasks = tasks or world.validation_tasks()
                fitted = method.fit(world, settings)
                few = SLOW_EPISODES if "none" in method.slow else None
                own = [each.part(slice(0, few)) for each in tasks]
                measured = [answer(fitted, each, "none", config.model.dim) for each in own]
                means = torch.stack([each.accuracies.mean() for each in measured])
                value = round(float(means.mean()), 5)
                outcome.add(method, settings, value)
        values.append(value)
    if report:
        report(BAR, len(wanted), len(wanted))
    found = []
    for method in methods:
        places = [i for i, (each, _) in enumerate(wanted) if each is method]
        best = max(places, key=lambda i: values[i])  # the first of equal ones
        found += [Point(method.name, wanted[i][1], values[i], i == best) for i in places]
    return found


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
        try:
            return dict(json.loads(self.file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise PolyshotError(
                f"{self.file} cannot be read ({error}): delete it, and points are tried again."
            ) from None
