"""Results as one long table: grouped, averaged, and compared on the episodes that they share.

A row of the long table is a `Result`: one method on one target, of one training. Every table that
anybody sees is a group of these rows, pivoted, and `difference` is the one paired comparison:
pages, reports and the tables of the docs ask it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import Estimate, combined, estimate

BASELINE = "base"
"""Base + nearest prototypes: the rival that every table shows."""
Key = TypeVar("Key", bound=Hashable)
Place = TypeVar("Place", bound=Hashable)
"""What pairs results: a target, and the seed of a training where there are several."""


@dataclass(frozen=True)
class Cell:
    """One method on one target; all numbers are shares, 0.5 is 50 %."""

    accuracy: Estimate
    gap: Estimate | None = None
    """The difference to the baseline, over the same episodes; None for the baseline itself."""

    @property
    def mean(self) -> float:
        """The accuracy itself."""
        return self.accuracy.value

    @property
    def half_width(self) -> float:
        """Of its 95 % interval for new episodes."""
        return self.accuracy.episodes

    @property
    def verdict(self) -> int:
        """1 above the baseline, -1 below, 0 where the interval of the difference holds 0."""
        if self.gap is None or not is_clear(self.gap):
            return 0
        return 1 if self.gap.value > 0 else -1


@dataclass(frozen=True)
class Row:
    """One target of the table."""

    target: str
    seen: bool
    cells: Mapping[str, Cell]
    """By method."""
    best: str | None = None
    """Method to mark: the best, where that is more than chance."""


# --- the long table


def label(result: Result) -> str:
    """Name a method with its adaptation: ``select + head``."""
    further = "" if result.adaptation == "none" else f" + {result.adaptation}"
    return result.method + further


def group(results: Iterable[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    """Sort results into groups, in the order in which they come."""
    found: dict[Key, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found


def by_place(results: Iterable[Result]) -> dict[tuple[str, int | None], Result]:
    """Sort results of one method by target and training seed; of several the longest stays."""
    found: dict[tuple[str, int | None], Result] = {}
    for result in results:
        known = found.setdefault((result.target, result.train_seed), result)
        if result.episodes > known.episodes:
            found[result.target, result.train_seed] = result
    return found


def may_pair(one: Result, other: Result) -> bool:
    """Tell whether two results share their first episodes."""

    def shape(r: Result) -> tuple[object, ...]:
        return r.target, r.way, r.shot, r.queries, r.part, r.group_disjoint

    if shape(one) != shape(other):
        return False
    if one.draw and other.draw:
        return one.draw == other.draw
    return one.fingerprint == other.fingerprint


def check_pair(one: Result, other: Result) -> None:
    """Refuse two results that have no episodes in common."""
    if not may_pair(one, other):
        where = ", ".join(filter(None, (one.target, one.protocol, f"{one.shot}-shot")))
        raise PolyshotError(
            f"{where}: '{label(one)}' and '{label(other)}' were measured on different episodes; a "
            "paired comparison needs the same seed and shape: measure one of them again, with the "
            "other's."
        )


# --- comparing


def accuracy(results: Mapping[Place, Result]) -> Estimate:
    """Average accuracies over targets, each counting the same."""
    return _averaged(
        results, {place: np.array(result.per_episode) for place, result in results.items()}
    )


def difference(one: Mapping[Place, Result], other: Mapping[Place, Result]) -> Estimate | None:
    """Average the differences one - other over the targets of one, on the episodes that both have.

    Of two results at a place the longer one begins with the episodes of the shorter one. Places
    that only one of them has are left out; None where a target has no other.
    """
    shared = {place: result for place, result in one.items() if place in other}
    if not shared or {r.target for r in shared.values()} != {r.target for r in one.values()}:
        return None
    gaps = {}
    for place, result in shared.items():
        check_pair(result, other[place])
        mine, its = (np.array(r.per_episode) for r in (result, other[place]))
        count = min(len(mine), len(its))
        gaps[place] = mine[:count] - its[:count]
    return _averaged(shared, gaps)


def _averaged(
    results: Mapping[Place, Result], values: Mapping[Place, NDArray[np.float64]]
) -> Estimate:
    """Average a number for each episode of results over trainings and targets.

    Results that share their episodes are no independent samples of these (`stats.Estimate`), be
    they of several trainings, or of several methods of one.
    """
    episodes: dict[Hashable, dict[Hashable, list[NDArray[np.float64]]]] = {}
    for place, r in results.items():
        row = (r.target, r.way, r.shot, r.queries, r.part, r.seed, r.shape)
        training = r.pool if r.train_seed is None else r.train_seed
        episodes.setdefault(row, {}).setdefault(training, []).append(values[place])
    return combined([estimate({s: _mean(v) for s, v in own.items()}) for own in episodes.values()])


def _mean(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Average over rows the episodes that all of them have."""
    shared = min(map(len, rows))
    mean: NDArray[np.float64] = np.mean([row[:shared] for row in rows], axis=0)
    return mean


def is_clear(gap: Estimate | None) -> bool:
    """Tell whether a difference is more than the chance of episodes."""
    return gap is not None and abs(gap.value) > gap.episodes


def combined_if_all(cells: Iterable[Estimate | None]) -> Estimate | None:
    """Average over targets; None where there are none, or one of them is not known."""
    every = list(cells)
    known = [cell for cell in every if cell is not None]
    return combined(known) if known and len(known) == len(every) else None


# --- rows of tables


def rows(results: Iterable[Result]) -> list[Row]:
    """One row a target; differences are to the baseline, over the same episodes."""
    found = []
    for target, own in group(results, lambda r: r.target).items():
        runs = {name: by_place(those) for name, those in group(own, label).items()}
        cells = {}
        for name, those in runs.items():
            gap = None if name == BASELINE else difference(those, runs.get(BASELINE, {}))
            cells[name] = Cell(accuracy(those), gap)
        # A domain that was added is known to the pool, not to the base beside it.
        found.append(Row(target, any(result.seen for result in own), cells))
    return found


def average(cells: Sequence[Cell]) -> Cell:
    """Average over targets, each counting the same; their episodes are independent."""
    gap = combined_if_all(cell.gap for cell in cells)
    return Cell(combined([cell.accuracy for cell in cells]), gap)


def averages(found: Sequence[Row], least: int = 2) -> dict[bool, Row]:
    """Average seen and unseen targets, of which there are at least so many, each kind apart.

    The average has the methods that were measured on all of these targets.
    """
    made = {}
    for seen, name in ((True, "average, seen"), (False, "average, unseen")):
        kind = [row.cells for row in found if row.seen == seen]
        if len(kind) >= least:
            shared = [method for method in kind[0] if all(method in cells for cells in kind)]
            means = {method: average([cells[method] for cells in kind]) for method in shared}
            made[seen] = Row(name, seen, means)
    return made


def as_text(row: Row, methods: Sequence[str]) -> list[str]:
    """Format a row for the terminal: ``81.2 ±0.4``, below it the difference where there is one.

    Where there are several trainings, what new ones may change stands beside.
    """
    texts = []
    for method in methods:
        cell = row.cells.get(method)
        if cell is None:
            texts.append("")
            continue
        text = f"{100 * cell.mean:.1f} {half_widths(cell.accuracy)}"
        if cell.gap is not None:
            change = round(100 * cell.gap.value, 1) + 0.0  # of -0.0, which reads as a loss, 0.0
            text += f"\n{change:+.1f} {half_widths(cell.gap)}"
        texts.append(text)
    return texts


def half_widths(of: Estimate, digits: int = 1, space: str = "") -> str:
    """Format both intervals, in points: ``±0.1``, with several trainings ``±0.1, seeds ±0.4``."""
    text = f"±{space}{100 * of.episodes:.{digits}f}"
    if of.trainings is not None:
        text += f", seeds ±{space}{100 * of.trainings:.{digits}f}"
    return text


SEEDS_LEGEND = (
    "±: half-width of the 95 % interval for new episodes with these trainings (clustered by "
    "episode); seeds ±: for new trainings (Student's t over the seeds)."
)
"""Stands beside tables of several trainings."""
