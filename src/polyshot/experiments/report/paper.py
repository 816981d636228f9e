"""The numbers that the paper prints, in our names (``paper.json``), beside ours.

*Domain-Agnostic Few-Shot Classification by Learning Disparate Modulators* (Choi et al., 2019). Its
results with further adaptation and with one shot are bar charts without numbers.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from polyshot.evaluation.compare import combined_if_all, is_clear
from polyshot.evaluation.stats import Estimate
from polyshot.experiments.protocols import PROTOCOLS, shipped
from polyshot.experiments.report.pages import percent
from polyshot.experiments.report.tables import AccuracyTable, TextTable
from polyshot.models.backbone import parameter_count, sites_of
from polyshot.models.modulators import Modulator
from polyshot.models.resnet import ResNet
from polyshot.models.selector import Selector

PAPER_SHAPE = "5-way 5-shot"
"""Of the paper's printed tables."""
PAPER_SOURCES = 8


def numbers() -> dict[str, Any]:
    """Read the file: accuracies, datasets, parameters, claims, and how our data differ."""
    return shipped("paper.json")


def data_differs() -> dict[str, str]:
    """Return our domains that are also the paper's, and how the project's images differ."""
    return dict(numbers()["data_differs"])


@dataclass(frozen=True)
class PaperTable:
    """One block of a table of accuracies, as printed, with its average; shares, 0.5 is 50 %."""

    table: str
    """``seen`` or ``unseen``."""
    sources: tuple[str, ...] | None
    """Domains trained on; None: all eight for seen targets, the seven others for unseen ones."""
    targets: Mapping[str, Mapping[str, float]]
    """Target -> method -> accuracy."""
    average: Mapping[str, float]
    """The printed one."""


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """Return all tables of accuracies."""

    def line(methods: list[str], percents: list[float]) -> dict[str, float]:
        return {m: p / 100 for m, p in zip(methods, percents, strict=True)}

    return tuple(
        PaperTable(
            table=block["table"],
            sources=None if block["sources"] is None else tuple(block["sources"]),
            targets={name: line(block["methods"], p) for name, p in block["targets"].items()},
            average=line(block["methods"], block["average"]),
        )
        for block in numbers()["accuracies"]
    )


def paper_table(table: str, sources: int | None = None) -> PaperTable | None:
    """Find a table: ``seen`` or ``unseen``, of the experiment with so many sources (2, 4, 6)."""
    for block in paper_tables():
        count = None if block.sources is None else len(block.sources)
        if (block.table, count) == (table, sources):
            return block
    return None


# --- accuracies


class Agreement(NamedTuple):
    """How far the order of our averages is the paper's, over pairs of methods."""

    pairs: int
    same: int
    clear: int
    """Pairs whose difference, in ours, is more than chance."""
    clear_same: int


@dataclass(frozen=True)
class PaperComparison:
    """One of our tables beside the paper's: seen or unseen targets that both have."""

    table: AccuracyTable
    seen: bool
    targets: list[str]
    methods: list[str]
    block: PaperTable

    def paper(self, method: str, target: str) -> float:
        """Return the paper's accuracy."""
        return self.block.targets[target][method]

    def paper_average(self, method: str) -> float:
        """Average the paper's accuracies over the targets that both have."""
        return statistics.fmean(self.paper(method, target) for target in self.targets)

    def agreement(self) -> Agreement:
        """Compare the order of each two methods, on the average of the targets."""
        pairs = []
        for one, other in itertools.combinations(self.methods, 2):
            gap = self.table.gap(one, other, self.targets)
            theirs = self.paper_average(one) - self.paper_average(other)
            if gap is not None and theirs:
                pairs.append((gap.value * theirs > 0, is_clear(gap)))
        clear = [same for same, is_clear_pair in pairs if is_clear_pair]
        return Agreement(len(pairs), sum(same for same, _ in pairs), len(clear), sum(clear))

    def as_text(self) -> TextTable:
        """Make the table: ours, below it the paper's."""

        def cell(ours: Estimate | None, paper: float) -> str:
            return f"{percent(ours)}\npaper {100 * paper:.1f}"

        rows = [
            [target, *(cell(self._ours(m, [target]), self.paper(m, target)) for m in self.methods)]
            for target in self.targets
        ]
        if len(rows) > 1:
            both = [(self._ours(m, self.targets), self.paper_average(m)) for m in self.methods]
            rows.append(["average of these", *(cell(*pair) for pair in both)])
        return TextTable(
            f"{self.table.title}, {self.block.table} domains",
            ["Domain", *self.methods],
            rows,
            f"Data and scale differ from the paper's: compare orders only.{self._sources()}",
        )

    def _ours(self, method: str, targets: Sequence[str]) -> Estimate | None:
        cells = [row.cells.get(method) for row in self.table.rows if row.target in targets]
        return combined_if_all(None if cell is None else cell.accuracy for cell in cells)

    def _sources(self) -> str:
        if self.block.sources is None:
            return ""
        ours = ", ".join(self.table.sources()) or "unknown"
        return (
            f" The paper's sources: {', '.join(self.block.sources)}; ours: {ours}. It does not say "
            "whether these numbers are with further adaptation."
        )


def paper_comparisons(tables: Iterable[AccuracyTable]) -> list[PaperComparison]:
    """Find our tables, and their targets and methods, for which the paper prints numbers."""
    found = []
    for table in tables:
        if table.adapted or table.part != "test" or table.shape != PAPER_SHAPE:
            continue
        if table.protocol not in PROTOCOLS or not PROTOCOLS[table.protocol].paper:
            continue
        digits = table.protocol.removeprefix("sources-")
        sources = int(digits) if digits.isdigit() else None
        for seen in (True, False):
            block = paper_table("seen" if seen else "unseen", sources)
            if block is None:
                continue
            ours = [target for target in table.targets(seen) if target in data_differs()]
            targets = [target for target in ours if target in block.targets]
            rows = [row for row in table.rows if row.target in targets]
            measured = [m for m in table.methods if any(m in row.cells for row in rows)]
            methods = [method for method in measured if method in block.average]
            if targets and methods:
                found.append(PaperComparison(table, seen, targets, methods, block))
    return found


# --- parameters


def paper_sizes() -> list[tuple[str, int]]:
    """Count the parameters of the paper's system with its eight sources."""
    with torch.device("meta"):  # no memory, no random weights
        base = ResNet()
        sizes = [("base (ResNet-18)", parameter_count(base))]
        for kind in ("conv1x1", "channel"):
            one, eight = f"one {kind} modulator", f"eight {kind} modulators"
            count = parameter_count(Modulator(sites_of(base), kind))
            sizes += [(one, count), (eight, PAPER_SOURCES * count)]
        for outputs, whose in ((PAPER_SOURCES, "its table"), (PAPER_SOURCES + 1, "its text, ours")):
            count = parameter_count(Selector(base.config.dim, outputs))
            sizes.append((f"selector, {outputs} outputs ({whose})", count))
    return sizes


def size_table() -> TextTable:
    """Count parameters as the paper does, for eight sources."""
    ours, paper = dict(paper_sizes()), dict(numbers()["parameters"])
    base, selector = "base (ResNet-18)", "selector, 8 outputs (its table)"
    names = {base: "base", selector: "selector"}
    for kind in ("conv1x1", "channel"):
        parts = (base, f"eight {kind} modulators", selector)
        ours[f"sum with {kind} modulators"] = sum(ours[part] for part in parts)

    def printed(name: str) -> str:
        count = paper.get(names.get(name, name))
        return "not given" if count is None else f"{count:,}"

    rows = [(name, f"{count:,}", printed(name)) for name, count in ours.items()]
    return TextTable("Parameters with eight sources", ("what", "ours", "paper"), rows)
