"""The cells of a grid: each is one number of a table, or one panel of a figure.

A job is what is trained together: the cells of one method in one world. Cells of several protocols
that are the same measurement are one cell.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.targets import Target
from polyshot.experiments.protocols import PARTS
from polyshot.training.training_run import TrainingRun


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    target: Pack
    shape: EpisodeShape
    adaptation: str
    episodes: int
    seed: int
    """Of the episodes."""
    part: str = "test"
    """Of the target's class split."""

    @property
    def name(self) -> str:
        """Name of its files."""
        shape = f"{self.shape.way}w{self.shape.shot}s{self.shape.queries}q"
        parts = (self.target.domain.name, shape, self.adaptation, f"{self.episodes}e")
        # Folders made before there were other parts name none.
        return "-".join((*parts, f"seed{self.seed}", *self.mark))

    @property
    def mark(self) -> tuple[str, ...]:
        """The part for names of files, where it is not the usual one."""
        return () if self.part == "test" else (self.part,)

    def __str__(self) -> str:
        adapted = "" if self.adaptation == "none" else f", {self.adaptation}"
        shape = f"{self.shape.way}-way {self.shape.shot}-shot"
        part = f", {PARTS[self.part]}" if self.mark else ""
        return f"{self.target.domain.name}{part}, {shape}{adapted}"


Measure = Callable[[Cell, Target], None]
"""Measures a cell and writes what came out."""


@dataclass(eq=False)
class Job(ABC):
    """Cells that share a training."""

    world: str
    """Name of the world's folder."""
    sources: tuple[Pack, ...]
    added: Pack | None
    """The domain that was added to the world's pool, if any."""
    config: Config
    name: str
    """A method with the mark of its settings."""
    cells: dict[Cell, list[str]]
    """The protocols that each belongs to."""

    @property
    def lock(self) -> str:
        """Name of the lock that who works on it holds."""
        return f"{self.world}-{self.name}"

    def label(self, cell: Cell) -> str:
        """Name a cell's failure."""
        return f"{self.lock}-{cell.name}"

    def describe(self, cell: Cell) -> str:
        """Say for people what a cell is."""
        added = "" if self.added is None else f", {self.added.domain.name} added"
        where = f"{self.config.preset}, {len(self.sources)} sources{added}"
        where += f", seed {self.config.seed}"
        return f"{self.what} on {cell} ({'/'.join(self.cells[cell])}; {where})"

    @property
    @abstractmethod
    def what(self) -> str:
        """Name for people what is measured."""

    @abstractmethod
    def is_done(self, cell: Cell) -> bool:
        """Tell whether a cell has all its files."""

    def is_known(self, cell: Cell) -> bool:
        """Complete a cell from what is there already, if that is possible."""
        return self.is_done(cell)

    @abstractmethod
    def fit(self, world: TrainingRun) -> Measure:
        """Train what is missing; returns what measures cells."""
