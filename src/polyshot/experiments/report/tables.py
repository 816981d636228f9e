"""Results as one long table, and what is made of it: pivoted, paired, averaged, formatted.

A row of the long table is a `Result`: one method on one target, of one training. Every table of a
report is a group of these rows, pivoted.
"""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from polyshot.data.shapes import VariableShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import BASELINE, Cell, Interval, Row, average, label
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined, interval, paired
from polyshot.experiments.protocols import ADDED, PARTS, PROTOCOLS
from polyshot.methods.method import find_methods

METHODS = (
    *("base", "finetune", "finetune-all", "protonet", "simple-avg", "feat", "protomaml", "tadam"),
    *("select", "average", "select-channel", "average-channel"),
)
"""Order of the columns; others follow."""
UNKNOWN = "not measured"
ABOUT_SEEDS = (
    "Cells are means over the seeds of the training. Their intervals cover the choice of episodes, "
    "each averaged over the seeds; what another training would change is the spread between seeds. "
    "Standard deviation between seeds of the average over targets, in points"
)

Runs = Mapping[int | None, Result]
"""One method on one target: results by the seed of the training."""
K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Hashable)
C = TypeVar("C", bound=Hashable)


# --- the long table


def group(results: Iterable[Result], key: Callable[[Result], K]) -> dict[K, list[Result]]:
    """Sort results into groups, in the order in which they come."""
    found: dict[K, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found


def pivot(
    results: Iterable[Result], row: Callable[[Result], R], column: Callable[[Result], C]
) -> dict[R, dict[C, dict[int | None, Result]]]:
    """Spread results over rows and columns; a place holds one result a training seed.

    Of several results of the same place and seed, the one with the most episodes stays.
    """
    found: dict[R, dict[C, dict[int | None, Result]]] = {}
    for result in results:
        runs = found.setdefault(row(result), {}).setdefault(column(result), {})
        known = runs.get(result.train_seed)
        if known is None or result.episodes > known.episodes:
            runs[result.train_seed] = result
    return found


def accuracy(runs: Runs) -> Interval | None:
    """Return the mean over seeds and episodes, and its half-width; None where there is nothing."""
    if not runs:
        return None
    if len(runs) == 1:  # as it was measured; episodes' accuracies are kept rounded
        (only,) = runs.values()
        return only.mean, only.half_width
    return interval(_over_seeds(runs, list(runs)))


def difference(one: Runs | None, other: Runs | None) -> Interval | None:
    """Pair two methods on the seeds and episodes that both have; None where there are none."""
    shared = [seed for seed in one or {} if other and seed in other]
    if not one or not other or not shared:
        return None
    mine, its = _over_seeds(one, shared), _over_seeds(other, shared)
    common = min(len(mine), len(its))
    return paired(mine[:common], its[:common])


def _over_seeds(runs: Runs, seeds: Sequence[int | None]) -> list[float]:
    """Average each episode over trainings: they share their episodes, so these are the sample."""
    columns = zip(*(runs[seed].per_episode for seed in seeds), strict=False)
    return [statistics.fmean(values) for values in columns]


def combined_if_all(cells: Iterable[Interval | None]) -> Interval | None:
    """Average over targets; None where there are none, or one of them is not known."""
    every = list(cells)
    known = [cell for cell in every if cell is not None]
    return combined(known) if known and len(known) == len(every) else None


def may_pair(one: Result, other: Result) -> bool:
    """Tell whether two results share their first episodes."""

    def shape(r: Result) -> tuple[object, ...]:
        return r.target, r.way, r.shot, r.queries, r.part, r.group_disjoint

    if shape(one) != shape(other):
        return False
    if one.draw and other.draw:
        return one.draw == other.draw
    return one.fingerprint == other.fingerprint


def check_same_episodes(results: Sequence[Result]) -> None:
    """Refuse results of one table that cannot be paired, target by target."""
    first: dict[str, Result] = {}
    for result in results:
        other = first.setdefault(result.target, result)
        if not may_pair(result, other):
            raise PolyshotError(
                f"{result.target}, {result.protocol or 'no protocol'}, {result.shot}-shot: "
                f"'{label(other)}' and '{label(result)}' were measured on different episodes; a "
                "paired comparison needs the same seed and shape: measure one of them again, with "
                "the other's."
            )


# --- text


def percent(value: Interval | None) -> str:
    """Format a mean with its interval: ``81.2 ± 0.4``."""
    return UNKNOWN if value is None else f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"


def points(value: Interval | None) -> str:
    """Format a difference with its interval, in points: ``+1.2 ± 0.4``."""
    return UNKNOWN if value is None else f"{signed(value[0])} ± {100 * value[1]:.1f}"


def signed(share: float) -> str:
    """Format a difference in points; a negative zero would be read as a loss."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\u2212")


def is_clear(gap: Interval | None) -> bool:
    """Tell whether a difference is more than chance."""
    return gap is not None and abs(gap[0]) > gap[1]


def listed(*parts: str) -> str:
    """Join those of some texts that say anything."""
    return ", ".join(filter(None, parts))


def ways(results: Iterable[Result]) -> str:
    """Say how many ways tasks had: ``5``, or ``4 or 5``."""
    return " or ".join(str(way) for way in sorted({r.way for r in results}))


def shape_in_words(ways: str, shot: int) -> str:
    """Name tasks: ``5-way 1-shot``; where ways and shots vary, results have 0 of both."""
    return f"{ways}-way {shot}-shot" if shot else str(VariableShape())


def classes_in_words(part: str) -> str:
    """Name the classes that were measured on; nothing for test classes, the usual ones."""
    return "" if part == "test" else PARTS.get(part, f"classes '{part}'")


@dataclass(frozen=True)
class TextTable:
    """A table of text; a line break in a cell makes a small second line."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: bool = False
    """Whether cells hold text of any length: such a table stays out of the LaTeX."""


# --- order


def _place_in(known: Sequence[str], name: str) -> tuple[int, str]:
    return known.index(name) if name in known else len(known), name


def protocol_order(protocol: str) -> tuple[int, str]:
    """Sort protocols: the paper's first, in its order."""
    return _place_in(list(PROTOCOLS), protocol)


def part_order(part: str) -> tuple[int, str]:
    """Sort parts of classes: test classes first."""
    return _place_in(list(PARTS), part)


def method_order(column: str) -> tuple[int, str, str]:
    """Sort columns: known methods first, a method before its adapted form."""
    method, _, adaptation = column.partition(" + ")
    return *_place_in(METHODS, method), adaptation


def ranking(cells: Mapping[str, Cell]) -> list[str]:
    """List columns from the best mean to the worst."""
    return sorted(cells, key=lambda column: -cells[column].mean)


# --- tables of accuracies


def average_row(rows: Sequence[Row]) -> Row:
    """Average the methods that were measured on every one of some seen, or unseen, targets."""
    first = rows[0]
    shared = [method for method in first.cells if all(method in row.cells for row in rows)]
    cells = {method: average([row.cells[method] for row in rows]) for method in shared}
    return Row("average", first.seen, cells)


@dataclass(frozen=True)
class AccuracyTable:
    """One preset, protocol, part of the classes, shot, with or without further adaptation."""

    preset: str
    protocol: str
    part: str
    """Of the targets' class splits: ``test``, or another, which the title then names."""
    way: str
    shot: int
    adapted: bool
    methods: list[str]
    """Columns: a method, or ``method + adaptation``."""
    rows: list[Row]
    averages: dict[bool, Row]
    """Seen and unseen targets, where there is more than one."""
    runs: Mapping[str, Mapping[str, Runs]]
    """Target -> column -> results."""

    @property
    def title(self) -> str:
        """Name the table in one line."""
        known = PROTOCOLS.get(self.protocol)
        protocol = f"{self.protocol} ({known.about})" if known else self.protocol
        adaptation = f"{'with' if self.adapted else 'without'} further adaptation"
        classes = classes_in_words(self.part)
        return listed(self.preset, protocol, classes, self.shape, adaptation)

    @property
    def shape(self) -> str:
        """Name the tasks."""
        return shape_in_words(self.way, self.shot)

    @property
    def chance(self) -> float | None:
        """Accuracy of guessing, where all tasks have the same number of ways."""
        return 1 / int(self.way) if self.way.isdigit() and self.shot else None

    @property
    def about(self) -> str:
        """Say what was measured: episodes, seeds, and how far these lie apart."""
        lines = [f"{self.episodes()} episodes a target."]
        if seeds := self.seeds():
            lines.append(f"Training seeds: {', '.join(map(str, seeds))}.")
        if spread := self.seed_spread():
            said = ", ".join(f"{name} {100 * value:.2f}" for name, value in spread.items())
            lines.append(f"{ABOUT_SEEDS}: {said}.")
        return " ".join(lines)

    def targets(self, seen: bool) -> list[str]:
        """List the seen or the unseen targets."""
        return [row.target for row in self.rows if row.seen == seen]

    def gap(self, one: str, other: str, targets: Sequence[str]) -> Interval | None:
        """Return the average paired difference over targets; None where a pair is missing."""
        return combined_if_all(
            difference(self.runs[t].get(one), self.runs[t].get(other)) for t in targets
        )

    def episodes(self) -> str:
        """Say how many episodes were measured, ``600`` or ``200 to 600``."""
        counts = {r.episodes for r in self._results()}
        least, most = min(counts), max(counts)
        return f"{most}" if least == most else f"{least} to {most}"

    def seeds(self) -> list[int]:
        """List the seeds of the trainings."""
        return sorted({r.train_seed for r in self._results() if r.train_seed is not None})

    def sources(self) -> list[str]:
        """List the domains that were trained on, for any target."""
        return sorted({name for r in self._results() for name in r.sources})

    def seed_spread(self) -> dict[str, float]:
        """Return each column's standard deviation, between seeds, of the average over targets."""
        spread = {}
        for method in self.methods:
            runs = [self.runs[row.target].get(method, {}) for row in self.rows]
            shared = set.intersection(*(set(one) for one in runs))
            if len(shared) > 1:
                means = [statistics.fmean(one[seed].mean for one in runs) for seed in shared]
                spread[method] = statistics.stdev(means)
        return spread

    def lines(self) -> list[tuple[str, Row]]:
        """List the rows with their names, each group followed by its average."""
        found = []
        for seen, word in ((True, "seen"), (False, "unseen")):
            found += [(f"{row.target}, {word}", row) for row in self.rows if row.seen == seen]
            if seen in self.averages:
                found.append((f"average, {word}", self.averages[seen]))
        return found

    def best(self, cells: Mapping[str, Cell], targets: Sequence[str]) -> str | None:
        """Return the best column, if it is ahead of the runner-up by more than chance."""
        if len(cells) < 2:
            return None
        first, second = ranking(cells)[:2]
        gap = self.gap(first, second, targets)
        return first if gap is not None and gap[0] > gap[1] else None

    def _results(self) -> list[Result]:
        return [
            r for columns in self.runs.values() for runs in columns.values() for r in runs.values()
        ]


def accuracy_tables(results: Iterable[Result]) -> list[AccuracyTable]:
    """Sort results into tables: presets, then test classes, protocols, many shots, unadapted."""
    blocks = group(results, lambda r: (r.preset, r.part, r.protocol, r.shot))
    one_form = {method.name for method in find_methods() if len(method.adaptations) == 1}
    tables = []
    for key in sorted(
        blocks, key=lambda key: (key[0], part_order(key[1]), protocol_order(key[2]), -key[3])
    ):
        check_same_episodes(blocks[key])
        plain = [r for r in blocks[key] if r.adaptation == "none"]
        # The baseline, and methods without a further adaptation, stand in both tables.
        always = [r for r in plain if r.method in (*one_form, BASELINE)]
        further = [r for r in blocks[key] if r.adaptation != "none"]
        if plain:
            tables.append(_table(plain, adapted=False))
        if further:
            tables.append(_table([*always, *further], adapted=True))
    return tables


def on_added_domains(results: Iterable[Result]) -> list[Result]:
    """Leave out, of the protocol `added`, what is no row of its tables of accuracies.

    These have one row a domain: the pools that it was added to, and the base without it. How other
    domains fare is in `growth.growth_tables`.
    """
    every = list(results)
    grown = {(r.preset, r.part, r.added, old_sources(r)) for r in every if r.added}

    def belongs(r: Result) -> bool:
        if r.protocol != ADDED:
            return True
        if r.added:
            return r.target == r.added
        return r.method == BASELINE and (r.preset, r.part, r.target, old_sources(r)) in grown

    return [r for r in every if belongs(r)]


def old_sources(result: Result) -> tuple[str, ...]:
    """Return the sources without what was added, sorted: members may come in another order."""
    return tuple(sorted(name for name in result.sources if name != result.added))


def _table(results: Sequence[Result], adapted: bool) -> AccuracyTable:
    runs = pivot(sorted(results, key=lambda r: r.target), lambda r: r.target, label)
    methods = sorted({column for found in runs.values() for column in found}, key=method_order)
    first = results[0]
    place = (first.preset, first.protocol, first.part, ways(results), first.shot, adapted)
    table = AccuracyTable(*place, methods, [], {}, runs)
    # A domain that was added is known to the pool, not to the base beside it.
    seen = {r.target for r in results if r.seen}
    for target, found in runs.items():
        cells = {m: _cell(found[m], found.get(BASELINE), m) for m in methods if m in found}
        table.rows.append(Row(target, target in seen, cells, table.best(cells, [target])))
    for kind in (True, False):
        rows = [row for row in table.rows if row.seen == kind]
        if len(rows) > 1:
            mean = average_row(rows)
            best = table.best(mean.cells, [row.target for row in rows])
            table.averages[kind] = replace(mean, best=best)
    return table


def _cell(runs: Runs, baseline: Runs | None, column: str) -> Cell:
    mean = accuracy(runs)
    assert mean is not None, "a column without results"
    gap = None if column == BASELINE else difference(runs, baseline)
    return Cell(*mean) if gap is None else Cell(*mean, *gap)
