"""The tables of a report as numbers: results of a grid, paired on their common episodes."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import BASELINE, label
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined, interval, paired
from polyshot.experiments.page_tables import Cell, Row, average
from polyshot.experiments.protocols import PARTS, PROTOCOLS
from polyshot.methods.method import find_methods

METHODS = (
    *("base", "finetune", "finetune-all", "protonet", "simple-avg", "feat", "protomaml", "tadam"),
    *("select", "average", "select-channel", "average-channel"),
)
"""Order of the columns; others follow."""

Runs = Mapping[int | None, Result]
"""One method on one target: results by the seed of the training."""
Interval = tuple[float, float]
"""A mean or a difference, and the half-width of its 95 % interval."""


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
        adaptation = "with" if self.adapted else "without"
        shape = f"{self.way}-way {self.shot}-shot"
        known = PROTOCOLS.get(self.protocol)
        protocol = f"{self.protocol} ({known.about})" if known else self.protocol
        classes = classes_in_words(self.part)
        parts = (self.preset, protocol, classes, shape, f"{adaptation} further adaptation")
        return ", ".join(filter(None, parts))

    def targets(self, seen: bool) -> list[str]:
        """List the seen or the unseen targets."""
        return [row.target for row in self.rows if row.seen == seen]

    def gap(self, one: str, other: str, targets: Sequence[str]) -> Interval | None:
        """Return the average paired difference over targets; None where a pair is missing."""
        found = [difference(self.runs[t].get(one), self.runs[t].get(other)) for t in targets]
        known = [gap for gap in found if gap is not None]
        return combined(known) if known and len(known) == len(found) else None

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

    def _results(self) -> list[Result]:
        return [
            result
            for row in self.rows
            for method in self.methods
            for result in self.runs[row.target].get(method, {}).values()
        ]


def accuracy_tables(results: Iterable[Result]) -> list[AccuracyTable]:
    """Sort results into tables: presets, then test classes, protocols, many shots, unadapted."""
    blocks: dict[tuple[str, str, str, int], list[Result]] = {}
    for result in results:
        key = (result.preset, result.part, result.protocol, result.shot)
        blocks.setdefault(key, []).append(result)
    tables = []
    for key in sorted(
        blocks, key=lambda key: (key[0], part_order(key[1]), protocol_order(key[2]), -key[3])
    ):
        check_same_episodes(blocks[key])
        plain = [r for r in blocks[key] if r.adaptation == "none"]
        always = [r for r in plain if r.method in (*_of_one_form(), BASELINE)]
        further = [r for r in blocks[key] if r.adaptation != "none"]
        if plain:
            tables.append(_table(plain, adapted=False))
        if further:
            tables.append(_table([*always, *further], adapted=True))
    return tables


def _of_one_form() -> set[str]:
    """Name the methods without a further adaptation: they stand in both tables."""
    return {method.name for method in find_methods() if len(method.adaptations) == 1}


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


def may_pair(one: Result, other: Result) -> bool:
    """Tell whether two results share their first episodes."""

    def shape(r: Result) -> tuple[object, ...]:
        return r.target, r.way, r.shot, r.queries, r.part, r.group_disjoint

    if shape(one) != shape(other):
        return False
    if one.draw and other.draw:
        return one.draw == other.draw
    return one.fingerprint == other.fingerprint


def protocol_order(protocol: str) -> tuple[int, str]:
    """Sort protocols: the paper's first, in its order."""
    known = list(PROTOCOLS)
    return known.index(protocol) if protocol in known else len(known), protocol


def part_order(part: str) -> tuple[int, str]:
    """Sort parts of classes: test classes first."""
    known = list(PARTS)
    return known.index(part) if part in known else len(known), part


def classes_in_words(part: str) -> str:
    """Name the classes that were measured on; nothing for test classes, the usual ones."""
    return "" if part == "test" else PARTS.get(part, f"classes '{part}'")


def method_order(column: str) -> tuple[int, str, str]:
    """Sort columns: known methods first, a method before its adapted form."""
    method, _, adaptation = column.partition(" + ")
    return METHODS.index(method) if method in METHODS else len(METHODS), method, adaptation


def _table(results: Sequence[Result], adapted: bool) -> AccuracyTable:
    runs: dict[str, dict[str, dict[int | None, Result]]] = {}
    for r in sorted(results, key=lambda r: r.target):
        runs.setdefault(r.target, {}).setdefault(label(r), {})[r.train_seed] = r
    methods = sorted({column for found in runs.values() for column in found}, key=method_order)
    # A domain that was added is known to the pool, not to the base beside it.
    seen = {target: any(r.seen for r in results if r.target == target) for target in runs}
    table = AccuracyTable(
        results[0].preset,
        results[0].protocol,
        results[0].part,
        " or ".join(str(way) for way in sorted({r.way for r in results})),
        results[0].shot,
        adapted,
        methods,
        [],
        {},
        runs,
    )
    for target, found in runs.items():
        cells = {m: _cell(found[m], found.get(BASELINE), m) for m in methods if m in found}
        table.rows.append(Row(target, seen[target], cells))
    for i, row in enumerate(table.rows):
        table.rows[i] = Row(row.target, row.seen, row.cells, _best(table, row.cells, [row.target]))
    for group in (True, False):
        rows = [row for row in table.rows if row.seen == group]
        if len(rows) > 1:
            shared = [m for m in methods if all(m in row.cells for row in rows)]
            cells = {m: average([row.cells[m] for row in rows]) for m in shared}
            best = _best(table, cells, [row.target for row in rows])
            table.averages[group] = Row("average", group, cells, best)
    return table


def _cell(runs: Runs, baseline: Runs | None, column: str) -> Cell:
    mean, half_width = accuracy(runs)
    gap = None if column == BASELINE else difference(runs, baseline)
    return Cell(mean, half_width) if gap is None else Cell(mean, half_width, *gap)


def accuracy(runs: Runs) -> Interval:
    """Return the mean over seeds and episodes, and its half-width."""
    if len(runs) == 1:  # as it was measured; episodes' accuracies are kept rounded
        (only,) = runs.values()
        return only.mean, only.half_width
    return interval(over_seeds(runs, list(runs)))


def difference(one: Runs | None, other: Runs | None) -> Interval | None:
    """Pair two methods on the seeds and episodes that both have."""
    shared = [seed for seed in one or {} if other and seed in other]
    if not one or not other or not shared:
        return None
    mine, its = over_seeds(one, shared), over_seeds(other, shared)
    common = min(len(mine), len(its))
    return paired(mine[:common], its[:common])


def over_seeds(runs: Runs, seeds: Sequence[int | None]) -> list[float]:
    """Average each episode over trainings: they share their episodes, so these are the sample."""
    columns = zip(*(runs[seed].per_episode for seed in seeds), strict=False)
    return [statistics.fmean(values) for values in columns]


def ranking(cells: Mapping[str, Cell]) -> list[str]:
    """List columns from the best mean to the worst."""
    return sorted(cells, key=lambda column: -cells[column].mean)


def _best(table: AccuracyTable, cells: Mapping[str, Cell], targets: Sequence[str]) -> str | None:
    """Return the best column, if it is ahead of the runner-up by more than chance."""
    if len(cells) < 2:
        return None
    first, second = ranking(cells)[:2]
    gap = table.gap(first, second, targets)
    return first if gap is not None and gap[0] > gap[1] else None
