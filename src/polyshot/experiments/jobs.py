"""The jobs that a grid makes: cells that share a training.

A job is what is trained together: the cells of one method in one world. Cells of several protocols
that are the same measurement are one cell.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from polyshot.config import Config
from polyshot.errors import PolyshotError
from polyshot.evaluation.meter import Meter
from polyshot.evaluation.results import Result, read_results
from polyshot.evaluation.targets import Target
from polyshot.experiments.grid_folder import Cell, GridFolder
from polyshot.experiments.protocols import (
    ADDED,
    CONTRIBUTION_EPISODES,
    CONTRIBUTORS,
    PROTOCOLS,
    SHAPES,
    Protocol,
    Trial,
    settings_of,
)
from polyshot.experiments.request import EPISODE_SEED, Request, methods_of
from polyshot.methods.method import Method, find_methods
from polyshot.training.training_run import Training, TrainingRun, settings_mark
from polyshot.util.files import write_json, write_text

Measure = Callable[[Cell, Target], None]
"""Measures a cell and writes what came out."""


@dataclass(eq=False)
class Job(ABC):
    """Cells that share a training."""

    grid: GridFolder
    plan: TrainingRun
    """What it is trained on. It is asked for names alone: who works on the job trains a copy."""
    what: str
    """Name of what is measured: a method, or a figure."""
    settings: Mapping[str, Any]
    """Of the method; of several, by method."""
    cells: dict[Cell, list[str]]
    """The protocols that each belongs to."""

    @property
    def world(self) -> str:
        """Name of the training's folder."""
        return self.plan.name

    @cached_property
    def name(self) -> str:
        """Name of its files: other settings, other files."""
        return f"{self.what}-{settings_mark(self.settings)}"

    @property
    def lock(self) -> str:
        """Name of the lock that who works on it holds."""
        return f"{self.world}-{self.name}"

    def label(self, cell: Cell) -> str:
        """Name a cell's failure."""
        return f"{self.lock}-{cell.name}"

    def describe(self, cell: Cell) -> str:
        """Say for people what a cell is."""
        plan = self.plan
        added = "" if plan.added is None else f", {plan.added.domain.name} added"
        where = f"{plan.config.preset}, {len(plan.packs)} sources{added}, seed {plan.config.seed}"
        return f"{self.what} on {cell} ({'/'.join(self.cells[cell])}; {where})"

    @abstractmethod
    def is_done(self, cell: Cell) -> bool:
        """Tell whether a cell has all its files."""

    def is_known(self, cell: Cell) -> bool:
        """Complete a cell from what is there already, if that is possible."""
        return self.is_done(cell)

    @abstractmethod
    def shared(self, run: TrainingRun) -> list[Training]:
        """List the trainings that other jobs need as well."""

    @abstractmethod
    def fit(self, run: TrainingRun) -> Measure:
        """Train what is missing; returns what measures cells."""

    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """List patterns of the files that its cells leave in the grid's folder."""


@dataclass(eq=False)
class AccuracyJob(Job):
    """A method's accuracies."""

    method: Method

    def is_done(self, cell: Cell) -> bool:
        """Look for the results of all protocols."""
        return all(self._read(protocol, cell) for protocol in self.cells[cell])

    def is_known(self, cell: Cell) -> bool:
        """Hand the result of one protocol, maybe of another command, to the others."""
        every = (self._read(protocol, cell) for protocol in PROTOCOLS)
        known = next((result for result in every if result), None)
        if known is None:
            return False
        missing = [each for each in self.cells[cell] if not self._file(each, cell).exists()]
        for protocol in missing:
            if self._shows_shares(protocol, cell):
                name = self._shares_name(cell)
                self.grid.copy_shares(name, known.protocol, protocol, known.target)
        self._write(known, cell, missing)
        return True

    def shared(self, run: TrainingRun) -> list[Training]:
        """List the method's."""
        return self.method.shared(run, self.settings)

    def outputs(self) -> tuple[str, ...]:
        """Name results and shares."""
        results = f"results/{self.world}/{self.name}/*.jsonl"
        return results, f"shares/*-{self.lock}.json", f"shares/*-{self.lock}-*.json"

    def fit(self, run: TrainingRun) -> Measure:
        """Train the method."""
        meter = Meter(run, self.method, self.settings, self.method.fit(run, self.settings))

        def measure(cell: Cell, target: Target) -> None:
            result = meter.measure(target, cell.shape, cell.adaptation, cell.episodes)
            self._add_shares(meter, cell, target)  # before the result: with it, the cell is done
            self._write(result, cell, self.cells[cell])

        return measure

    def _write(self, result: Result, cell: Cell, protocols: Sequence[str]) -> None:
        for protocol in protocols:
            line = replace(result, protocol=protocol).to_json()
            write_text(self._file(protocol, cell), f"{line}\n")

    def _read(self, protocol: str, cell: Cell) -> Result | None:
        file = self._file(protocol, cell)
        if not file.exists():
            return None
        try:
            (result,) = read_results(file)
        except (PolyshotError, ValueError) as error:
            reason = error if isinstance(error, PolyshotError) else f"{file} is not one line."
            raise PolyshotError(f"{reason} Delete this file and run again.") from None
        if result.pack != cell.target.hash:  # the world's name tells only of sources
            raise PolyshotError(
                f"{file} was measured on other images of {result.target}: delete this file, or "
                "take another folder."
            )
        return result

    def _file(self, protocol: str, cell: Cell) -> Path:
        folder = self.grid.path / "results" / self.world / self.name
        return folder / f"{protocol}-{cell.name}.jsonl"

    def _shows_shares(self, protocol: str, cell: Cell) -> bool:
        """Tell whether shares are kept: of pools that grow, only of the domain that was added."""
        added = self.plan.added.domain.name if self.plan.added else ""
        return protocol != ADDED or cell.target.domain.name == added

    def _add_shares(self, meter: Meter, cell: Cell, target: Target) -> None:
        if cell.adaptation != "none" or cell.shape != SHAPES[0]:
            return
        selected = meter.fitted.selections(target.tasks(cell.shape, cell.episodes))
        if selected is None:
            return
        about = {
            "preset": self.plan.config.preset,
            "sources": self.plan.sources,
            "method": self.method.name,
            "members": meter.fitted.member_names(),
            "part": cell.part,
        }
        name, domain = self._shares_name(cell), cell.target.domain.name
        row = [round(share, 4) for share in selected.mean(0).tolist()]
        for protocol in self.cells[cell]:
            if self._shows_shares(protocol, cell):
                self.grid.add_shares(name, {**about, "protocol": protocol}, domain, row)

    def _shares_name(self, cell: Cell) -> str:
        return "-".join((self.lock, *cell.mark))


@dataclass(eq=False)
class ContributionJob(Job):
    """Right predictions of the members of the averaging methods, in every episode.

    The paper's figure 'Contributions of individual models': Simple-Avg's networks against DoA's.
    """

    def is_done(self, cell: Cell) -> bool:
        """Look for the counts."""
        return self._file(cell).exists()

    def shared(self, run: TrainingRun) -> list[Training]:
        """List those of the methods."""
        methods = find_methods(CONTRIBUTORS)
        found = [each for one in methods for each in one.shared(run, self.settings[one.name])]
        return list({each.key: each for each in found}.values())

    def outputs(self) -> tuple[str, ...]:
        """Name the counts."""
        return (f"contributions/{self.lock}-*.json",)

    def fit(self, run: TrainingRun) -> Measure:
        """Train the methods."""
        methods = find_methods(CONTRIBUTORS)
        fitted = {each.name: each.fit(run, self.settings[each.name]) for each in methods}

        def measure(cell: Cell, target: Target) -> None:
            tasks = target.tasks(cell.shape, cell.episodes)
            counts = {}
            for name, each in fitted.items():
                predicted = each.member_probabilities(tasks).argmax(-1)  # [M, E, W * Q]
                correct = (predicted == tasks.truth).sum(-1).T.tolist()  # [E][M]
                counts[name] = {"members": list(each.member_names()), "correct": correct}
            about = {
                "protocol": "contributions",
                "preset": run.config.preset,
                "target": cell.target.domain.name,
                "sources": run.sources,
                "train_seed": run.config.seed,
                "queries": tasks.query.shape[1],
                "methods": counts,
            }
            write_json(self._file(cell), about)

        return measure

    def _file(self, cell: Cell) -> Path:
        return self.grid.path / "contributions" / f"{self.lock}-{cell.name}.json"


def jobs_of(
    request: Request, trials: Sequence[tuple[Protocol, Trial]], config: Config, grid: GridFolder
) -> list[Job]:
    """List the jobs of some trials, world by world, methods in their order.

    The config is every protocol's, but for the options that belong to it.
    """
    worlds: dict[str, dict[str, Job]] = {}
    cpu = torch.device("cpu")
    for protocol, trial in trials:
        chosen = protocol.config(config, request.options)
        plan = TrainingRun(trial.sources, chosen, grid.worlds, cpu, added=trial.added)
        own = worlds.setdefault(plan.name, {})
        for job, cells in _measured(request, protocol, trial, plan, grid):
            for cell in cells:
                own.setdefault(job.name, job).cells.setdefault(cell, []).append(protocol.name)
    return [job for own in worlds.values() for job in own.values()]


def _measured(
    request: Request, protocol: Protocol, trial: Trial, plan: TrainingRun, grid: GridFolder
) -> Iterator[tuple[Job, list[Cell]]]:
    """List a trial's jobs, empty yet, each with its cells."""
    preset = plan.config.preset
    if protocol.kind == "contributions":
        methods = find_methods(CONTRIBUTORS)
        every = {each.name: settings_of(each, preset, request.overrides) for each in methods}
        how = (SHAPES[0], "none", CONTRIBUTION_EPISODES, EPISODE_SEED)
        cells = [Cell(target, *how) for target in trial.targets]
        yield ContributionJob(grid, plan, protocol.name, every, {}), cells
        return
    for method in methods_of(protocol, request.found_methods(), grown=trial.grown):
        settings = settings_of(method, preset, request.overrides)
        job = AccuracyJob(grid, plan, method.name, settings, {}, method)
        yield job, request.cells(method, trial.targets)
