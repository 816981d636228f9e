"""Results of several methods on the same episodes, as rows of a table with paired differences.

`difference` is the one paired comparison: pages, reports and tables ask it.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined, interval, paired

BASELINE = "base"
"""Base + nearest prototypes: the rival that every table shows."""
Interval = tuple[float, float]
"""A mean or a difference, and the half-width of its 95 % interval."""
Place = TypeVar("Place", bound=Hashable)
"""What pairs results: a target, and the seed of a training where there are several."""


@dataclass(frozen=True)
class Cell:
    """One method on one target; all numbers are shares, 0.5 is 50 %."""

    mean: float
    half_width: float
    """Of the 95 % interval."""
    difference: float | None = None
    """To the baseline, over the same episodes; None for the baseline itself."""
    difference_half_width: float = 0.0

    @property
    def verdict(self) -> int:
        """1 above the baseline, -1 below, 0 where the interval of the difference holds 0."""
        if self.difference is None or abs(self.difference) <= self.difference_half_width:
            return 0
        return 1 if self.difference > 0 else -1


@dataclass(frozen=True)
class Row:
    """One target of the table."""

    target: str
    seen: bool
    cells: Mapping[str, Cell]
    """By method."""
    best: str | None = None
    """Method to mark: the best, where that is more than chance."""


def average(cells: Sequence[Cell]) -> Cell:
    """Average over targets, each counting the same; their episodes are independent."""
    mean, half_width = combined([(cell.mean, cell.half_width) for cell in cells])
    gaps = [(c.difference, c.difference_half_width) for c in cells if c.difference is not None]
    if len(gaps) < len(cells):
        return Cell(mean, half_width)
    return Cell(mean, half_width, *combined(gaps))


def accuracy(results: Mapping[Place, Result]) -> Interval:
    """Average accuracies over places, each counting the same."""
    return combined([interval(result.per_episode) for result in results.values()])


def difference(one: Mapping[Place, Result], other: Mapping[Place, Result]) -> Interval:
    """Average the differences one - other over the places of one, on the episodes that both have.

    Of two results at a place the longer one begins with the episodes of the shorter one.
    """
    gaps = []
    for place, result in one.items():
        if place not in other:
            raise PolyshotError(
                f"{result.target}: there is nothing to compare '{label(result)}' with."
            )
        check_pair(result, other[place])
        count = min(result.episodes, other[place].episodes)
        gaps.append(paired(result.per_episode[:count], other[place].per_episode[:count]))
    return combined(gaps)


def check_pair(one: Result, other: Result) -> None:
    """Refuse two results that have no episodes in common."""
    same_draw = one.draw == other.draw != ""
    if not same_draw and one.fingerprint != other.fingerprint:
        raise PolyshotError(
            f"{one.target}: '{label(one)}' and '{label(other)}' were measured on "
            "different episodes and cannot be compared: evaluate them with the same shape and seed."
        )


def label(result: Result) -> str:
    """Name a method with its adaptation: ``select + head``."""
    return (
        result.method if result.adaptation == "none" else f"{result.method} + {result.adaptation}"
    )


def rows(results: Sequence[Result]) -> list[Row]:
    """One row a target; differences are to the baseline, over the same episodes."""
    by_target: dict[str, dict[str, Result]] = {}
    for result in results:
        by_target.setdefault(result.target, {})[label(result)] = result
    return [
        Row(
            target=target,
            seen=bool(next(iter(found.values())).seen),
            cells={name: _cell(one, found.get(BASELINE)) for name, one in found.items()},
        )
        for target, found in by_target.items()
    ]


def _cell(result: Result, baseline: Result | None) -> Cell:
    if baseline is None or result is baseline:
        return Cell(result.mean, result.half_width)
    gap = difference({result.target: result}, {result.target: baseline})
    return Cell(result.mean, result.half_width, *gap)


def as_text(row: Row, methods: Sequence[str]) -> list[str]:
    """Format a row for the terminal: ``81.2 ±0.4``, below it the difference where there is one."""
    texts = []
    for method in methods:
        cell = row.cells.get(method)
        if cell is None:
            texts.append("")
            continue
        text = f"{100 * cell.mean:.1f} ±{100 * cell.half_width:.1f}"
        if cell.difference is not None:
            points = round(100 * cell.difference, 1) + 0.0  # of -0.0, which reads as a loss, 0.0
            text += f"\n{points:+.1f} ±{100 * cell.difference_half_width:.1f}"
        texts.append(text)
    return texts


def with_averages(found: Sequence[Row]) -> list[Row]:
    """Add the averages of seen and of unseen targets, each target counting the same."""
    extended = list(found)
    for seen, name in ((True, "average, seen"), (False, "average, unseen")):
        group = [row for row in found if row.seen == seen]
        if len(group) > 1:
            shared = [m for m in group[0].cells if all(m in row.cells for row in group)]
            cells = {method: average([row.cells[method] for row in group]) for method in shared}
            extended.append(Row(name, seen, cells))
    return extended
