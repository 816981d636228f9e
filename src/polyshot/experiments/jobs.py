"""The jobs of a grid: what a protocol measures, method by method in each world."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import BASELINE
from polyshot.evaluation.meter import Meter
from polyshot.evaluation.results import Result
from polyshot.evaluation.targets import Target
from polyshot.experiments.cells import Cell, Job, Measure
from polyshot.experiments.contributions import contributions
from polyshot.experiments.grid import GridFolder
from polyshot.experiments.protocols import (
    ADDED,
    CONTRIBUTION_EPISODES,
    CONTRIBUTORS,
    PROTOCOLS,
    SHAPES,
    Protocol,
    Trial,
)
from polyshot.experiments.settings import Overrides, settings_of
from polyshot.methods.method import Fitted, Method, find_methods
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.training.training_run import TrainingRun, settings_mark
from polyshot.util.files import write_json
from polyshot.util.hashing import digest


@dataclass(eq=False)
class AccuracyJob(Job):
    """A method's accuracies."""

    grid: GridFolder
    method: Method
    settings: dict[str, float]

    @property
    def what(self) -> str:
        """The method."""
        return self.method.name

    def is_done(self, cell: Cell) -> bool:
        """Look for the results of all protocols."""
        return all(self._read(protocol, cell) for protocol in self.cells[cell])

    def is_known(self, cell: Cell) -> bool:
        """Hand the result of one protocol, maybe of another command, to the others."""
        every = (self._read(protocol, cell) for protocol in PROTOCOLS)
        known = next((result for result in every if result), None)
        if known is None:
            return False
        for protocol in self.cells[cell]:
            if not self._file(protocol, cell).exists():
                if self._shows_shares(protocol, cell):
                    name = self._shares_name(cell)
                    self.grid.copy_shares(name, known.protocol, protocol, known.target)
                self.grid.write(self._file(protocol, cell), replace(known, protocol=protocol))
        return True

    def fit(self, world: TrainingRun) -> Measure:
        """Train the method."""
        meter = Meter(world, self.method, self.settings, self.method.fit(world, self.settings))
        growth = self._growth(world)

        def measure(cell: Cell, target: Target) -> None:
            result = meter.measure(target, cell.shape, cell.adaptation, cell.episodes)
            result = replace(result, **growth, note=self._note(result.note, meter.fitted))
            if self._is_added(cell):
                result = replace(result, seen=True)
            self._add_shares(meter, cell, target)  # before the result: with it, the cell is done
            for protocol in self.cells[cell]:
                self.grid.write(self._file(protocol, cell), replace(result, protocol=protocol))

        return measure

    def _growth(self, world: TrainingRun) -> dict[str, Any]:
        """Return what a result says of the domain that was added, if one was."""
        took = world.addition(self.method.pool) if self.method.pool else None
        if took is None or world.added is None:
            return {}
        name = world.added.domain.name
        return {"added": name, "added_seconds": took.seconds, "added_on": took.device}

    def _note(self, note: str, fitted: Fitted) -> str:
        """Add to what is known of a result, where classes are in clusters, how many there are."""
        if self.config.modulator.members == 1 or not isinstance(fitted, PoolWithRule):
            return note
        count, sources = len(fitted.pool.modulators), len(self.sources)
        one = "source" if sources == 1 else "sources"
        members = f"modulators for {sources} {one}: {count}" if count else ""
        return "; ".join(filter(None, (note, members)))

    def _is_added(self, cell: Cell) -> bool:
        return self.added is not None and self.added.domain.name == cell.target.domain.name

    def _shows_shares(self, protocol: str, cell: Cell) -> bool:
        """Tell whether shares are kept: of pools that grow, only of the domain that was added."""
        return protocol != ADDED or self._is_added(cell)

    def _add_shares(self, meter: Meter, cell: Cell, target: Target) -> None:
        fitted = meter.fitted
        if not isinstance(fitted, PoolWithRule) or fitted.rule != "select":
            return
        if cell.adaptation != "none" or cell.shape != SHAPES[0]:
            return
        shares = fitted.weights(target.tasks(cell.shape, cell.episodes)).mean(0).tolist()
        for protocol in self.cells[cell]:
            if not self._shows_shares(protocol, cell):
                continue
            about: dict[str, Any] = {
                "preset": self.config.preset,
                "sources": meter.world.sources,
                "method": self.method.name,
                "members": fitted.pool.members,
                "part": cell.part,
            }
            name = self._shares_name(cell)
            self.grid.add_shares(name, protocol, about, cell.target.domain.name, shares)

    def _shares_name(self, cell: Cell) -> str:
        return "-".join((self.lock, *cell.mark))

    def _read(self, protocol: str, cell: Cell) -> Result | None:
        file = self._file(protocol, cell)
        result = self.grid.read(file)
        if result and result.pack != cell.target.hash:  # the world's name tells only of sources
            raise PolyshotError(
                f"{file} was measured on other images of {result.target}: delete this file, or "
                "take another folder."
            )
        return result

    def _file(self, protocol: str, cell: Cell) -> Path:
        folder = self.grid.path / "results" / self.world / self.name
        return folder / f"{protocol}-{cell.name}.jsonl"


@dataclass(eq=False)
class ContributionJob(Job):
    """Right predictions of the members of the averaging methods."""

    grid: GridFolder
    settings: dict[str, dict[str, float]]
    """By method."""

    @property
    def what(self) -> str:
        """The figure."""
        return "contributions"

    def is_done(self, cell: Cell) -> bool:
        """Look for the counts."""
        return self._file(cell).exists()

    def fit(self, world: TrainingRun) -> Measure:
        """Train the methods."""
        fitted = {
            method.name: method.fit(world, self.settings[method.name])
            for method in find_methods(CONTRIBUTORS)
        }

        def measure(cell: Cell, target: Target) -> None:
            counts = contributions(fitted, target.tasks(cell.shape, cell.episodes))
            about = {
                "protocol": "contributions",
                "preset": self.config.preset,
                "target": cell.target.domain.name,
                "sources": world.sources,
                "train_seed": self.config.seed,
            }
            write_json(self._file(cell), {**about, **counts})

        return measure

    def _file(self, cell: Cell) -> Path:
        folder = self.grid.path / "contributions"
        return folder / f"{self.world}-{self.name}-{cell.name}.json"


@dataclass(frozen=True)
class Wanted:
    """What of a protocol is wanted."""

    methods: Sequence[Method]
    shapes: Sequence[EpisodeShape]
    adapt: bool
    """Whether with further adaptation, too."""
    episodes: int
    slow_episodes: int
    """Of adaptations that learn whole networks."""
    episode_seed: int
    overrides: Overrides
    beyond: bool = False
    """Whether adaptations count that the paper does not have."""
    part: str = "test"
    """Of the targets' class splits; contributions are always of test classes."""
    options: Sequence[str] = ()
    """Options of the config that were chosen on purpose: no protocol's own override them."""
    only: Sequence[str] = ()
    """Adaptations that were named, ``none`` maybe among them: then no others count."""

    def adaptations(self, method: Method) -> tuple[str, ...]:
        """List what is measured of a method."""
        if self.only:
            return tuple(name for name in method.adaptations if name in self.only)
        every = method.adaptations if self.beyond else method.adaptations_of_paper()
        return every if self.adapt else every[:1]


def jobs_of(
    trials: Sequence[tuple[Protocol, Trial]], config: Config, wanted: Wanted, grid: GridFolder
) -> list[Job]:
    """List the jobs of some trials, world by world, methods in their order.

    The config is every protocol's, but for the options that belong to it.
    """
    worlds: dict[str, dict[str, Job]] = {}
    for protocol, trial in trials:
        chosen = protocol.config(config, wanted.options)
        world = TrainingRun(
            trial.sources, chosen, grid.worlds, torch.device("cpu"), added=trial.added
        ).name
        own = worlds.setdefault(world, {})
        place = (world, trial.sources, trial.added, chosen)
        if protocol.kind == "contributions":
            _add_contributions(own, place, protocol, trial, wanted, grid)
            continue
        for method in methods_of(protocol, wanted.methods, grown=trial.grown):
            settings = settings_of(method, config.preset, wanted.overrides)
            name = f"{method.name}-{settings_mark(settings)}"
            job = own.setdefault(name, AccuracyJob(*place, name, {}, grid, method, settings))
            for cell in _cells(method, trial.targets, wanted):
                job.cells.setdefault(cell, []).append(protocol.name)
    return [job for own in worlds.values() for job in own.values()]


def methods_of(protocol: Protocol, methods: Sequence[Method], grown: bool = False) -> list[Method]:
    """List the methods that a protocol measures; the base is the same when its pool has grown."""
    if not protocol.pools_only:
        return list(methods)
    return [
        method
        for method in methods
        if method.pool is not None or (method.name == BASELINE and not grown)
    ]


def _cells(method: Method, targets: Sequence[Pack], wanted: Wanted) -> list[Cell]:
    cells = []
    for target in targets:
        for shape in wanted.shapes:
            for adaptation in wanted.adaptations(method):
                slow = adaptation in method.slow
                count = min(wanted.slow_episodes, wanted.episodes) if slow else wanted.episodes
                how = (target, shape, adaptation, count, wanted.episode_seed, wanted.part)
                cells.append(Cell(*how))
    return cells


def _add_contributions(
    own: dict[str, Job],
    place: tuple[str, tuple[Pack, ...], Pack | None, Config],
    protocol: Protocol,
    trial: Trial,
    wanted: Wanted,
    grid: GridFolder,
) -> None:
    settings = {
        method.name: settings_of(method, place[-1].preset, wanted.overrides)
        for method in find_methods(CONTRIBUTORS)
    }
    mark = digest(json.dumps(settings, sort_keys=True))[:6]
    cells = {
        Cell(target, SHAPES[0], "none", CONTRIBUTION_EPISODES, wanted.episode_seed): [protocol.name]
        for target in trial.targets
    }
    if cells:
        own[f"contributions-{mark}"] = ContributionJob(
            *place, f"contributions-{mark}", cells, grid, settings
        )
