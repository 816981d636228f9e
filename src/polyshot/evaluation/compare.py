"""Results as one long table: grouped, averaged, and compared on the episodes that they share.

A row of the long table is a `Result`: one method on one target, of one training. Every table that
anybody sees is a group of these rows, pivoted, and `difference` is the one paired comparison:
pages, reports and the tables of the docs ask it.
"""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined, interval, paired

BASELINE = "base"
"""Base + nearest prototypes: the rival that every table shows."""
Interval = tuple[float, float]
"""A mean or a difference, and the half-width of its 95 % interval."""
Trainings = Literal["averaged", "apart"]
"""Trainings on one target share its episodes. `averaged`: these are the sample, each is averaged
over the trainings. `apart`: every training counts as a sample of its own."""
Key = TypeVar("Key", bound=Hashable)
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
    def accuracy(self) -> Interval:
        """The mean with its half-width."""
        return self.mean, self.half_width

    @property
    def gap(self) -> Interval | None:
        """The difference with its half-width."""
        return None if self.difference is None else (self.difference, self.difference_half_width)

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


def accuracy(results: Mapping[Place, Result], trainings: Trainings = "averaged") -> Interval:
    """Average accuracies over targets, each counting the same."""
    every = []
    for places in _clusters(results, trainings).values():
        first, *more = (results[place] for place in places)
        # Alone, as it was measured: episodes' accuracies are kept rounded.
        alone = (first.mean, first.half_width)
        every.append(interval(_mean_episodes([first, *more])) if more else alone)
    return combined(every)


def difference(
    one: Mapping[Place, Result], other: Mapping[Place, Result], trainings: Trainings = "averaged"
) -> Interval | None:
    """Average the differences one - other over the targets of one, on the episodes that both have.

    Of two results at a place the longer one begins with the episodes of the shorter one. Places
    that only one of them has are left out; None where a target has no other.
    """
    gaps = []
    for places in _clusters(one, trainings).values():
        shared = [place for place in places if place in other]
        if not shared:
            return None
        for place in shared:
            check_pair(one[place], other[place])
        mine, its = (_mean_episodes([side[place] for place in shared]) for side in (one, other))
        count = min(len(mine), len(its))
        gaps.append(paired(mine[:count], its[:count]))
    return combined(gaps) if gaps else None


def _clusters(results: Mapping[Place, Result], trainings: Trainings) -> dict[Hashable, list[Place]]:
    """Group places whose results share their episodes."""
    found: dict[Hashable, list[Place]] = {}
    for place, result in results.items():
        found.setdefault(result.target if trainings == "averaged" else place, []).append(place)
    return found


def _mean_episodes(runs: Sequence[Result]) -> list[float]:
    """Average each of the episodes that all trainings have over these."""
    if len(runs) == 1:
        return runs[0].per_episode
    columns = zip(*(run.per_episode for run in runs), strict=False)
    return [statistics.fmean(values) for values in columns]


def combined_if_all(cells: Iterable[Interval | None]) -> Interval | None:
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
            cells[name] = Cell(*accuracy(those), *(gap or ()))
        # A domain that was added is known to the pool, not to the base beside it.
        found.append(Row(target, any(result.seen for result in own), cells))
    return found


def average(cells: Sequence[Cell]) -> Cell:
    """Average over targets, each counting the same; their episodes are independent."""
    gap = combined_if_all(cell.gap for cell in cells)
    return Cell(*combined([cell.accuracy for cell in cells]), *(gap or ()))


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
