"""The tables of a report: accuracies, a group of rows of the long table each, and plain text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from polyshot.data.shapes import VariableShape
from polyshot.evaluation import compare
from polyshot.evaluation.compare import BASELINE, Cell, Row, is_clear, label
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import Estimate
from polyshot.experiments.protocols import ADDED, PARTS, PROTOCOLS
from polyshot.experiments.report.pages import render
from polyshot.methods.method import find_methods

METHODS = (
    *("base", "finetune", "finetune-all", "protonet", "simple-avg", "feat", "protomaml", "tadam"),
    *("select", "average", "select-channel", "average-channel"),
)
"""Order of the columns; others follow."""


# --- text


def listed(*parts: str) -> str:
    """Join those of some texts that say anything."""
    return ", ".join(filter(None, parts))


def shape_in_words(results: Sequence[Result]) -> str:
    """Name tasks of one shot: ``4 or 5-way 1-shot``; where they vary, results have 0 of both."""
    ways = " or ".join(str(way) for way in sorted({r.way for r in results}))
    return f"{ways}-way {results[0].shot}-shot" if results[0].shot else str(VariableShape())


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


def place_in(known: Iterable[str], name: str) -> tuple[int, str]:
    """Sort names as `PROTOCOLS`, `PARTS` or `METHODS` have them; others follow."""
    names = list(known)
    return names.index(name) if name in names else len(names), name


def method_order(column: str) -> tuple[int, str, str]:
    """Sort columns: known methods first, a method before its adapted form."""
    method, _, adaptation = column.partition(" + ")
    return *place_in(METHODS, method), adaptation


def ranking(cells: Mapping[str, Cell]) -> list[str]:
    """List columns from the best mean to the worst."""
    return sorted(cells, key=lambda column: -cells[column].mean)


# --- tables of accuracies


@dataclass(frozen=True)
class AccuracyTable:
    """One preset, part of the classes, protocol, shot, with or without further adaptation."""

    preset: str
    part: str
    """Of the targets' class splits: ``test``, or another, which the title then names."""
    protocol: str
    shot: int
    adapted: bool
    results: Sequence[Result]

    @cached_property
    def columns(self) -> dict[str, dict[tuple[str, int | None], Result]]:
        """Method, or ``method + adaptation`` -> target and training seed -> result."""
        ordered = sorted(self.results, key=lambda r: method_order(label(r)))
        return {name: compare.by_place(own) for name, own in compare.group(ordered, label).items()}

    @cached_property
    def rows(self) -> list[Row]:
        """One a target."""
        found = sorted(compare.rows(self._shown), key=lambda row: row.target)
        return [replace(row, best=self._best(row, [row.target])) for row in found]

    @cached_property
    def averages(self) -> dict[bool, Row]:
        """Seen and unseen targets, where there is more than one."""
        return {
            seen: replace(row, best=self._best(row, self.targets(seen)))
            for seen, row in compare.averages(self.rows).items()
        }

    @property
    def methods(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

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
        return shape_in_words(self.results)

    @property
    def chance(self) -> float | None:
        """Accuracy of guessing, where all tasks have the same number of ways."""
        ways = {r.way for r in self.results}
        return 1 / ways.pop() if len(ways) == 1 and self.shot else None

    @property
    def about(self) -> str:
        """Say what was measured: episodes, seeds, and how far these lie apart."""
        return render("about.txt", table=self)

    def targets(self, seen: bool) -> list[str]:
        """List the seen or the unseen targets."""
        return [row.target for row in self.rows if row.seen == seen]

    def gap(self, one: str, other: str, targets: Sequence[str]) -> Estimate | None:
        """Return the average paired difference over targets; None where a pair is missing."""
        column = self.columns.get(one, {})
        wanted = {place: result for place, result in column.items() if place[0] in targets}
        if {target for target, _ in wanted} != set(targets):
            return None
        return compare.difference(wanted, self.columns.get(other, {}))

    def episodes(self) -> str:
        """Say how many episodes were measured, ``600`` or ``200 to 600``."""
        counts = {r.episodes for r in self._shown}
        least, most = min(counts), max(counts)
        return f"{most}" if least == most else f"{least} to {most}"

    def seeds(self) -> list[int]:
        """List the seeds of the trainings."""
        return sorted({r.train_seed for r in self._shown if r.train_seed is not None})

    def sources(self) -> list[str]:
        """List the domains that were trained on, for any target."""
        return sorted({name for r in self._shown for name in r.sources})

    def has_several_trainings(self) -> bool:
        """Tell whether any cell is a mean over trainings."""
        cells = (cell for row in self.rows for cell in row.cells.values())
        return any(cell.accuracy.trainings is not None for cell in cells)

    def _best(self, row: Row, targets: Sequence[str]) -> str | None:
        """Return the best column, if it is ahead of the runner-up by more than chance."""
        if len(row.cells) < 2:
            return None
        first, second = ranking(row.cells)[:2]
        gap = self.gap(first, second, targets)
        return first if gap is not None and gap.value > 0 and is_clear(gap) else None

    @property
    def _shown(self) -> list[Result]:
        return [r for column in self.columns.values() for r in column.values()]


def accuracy_tables(results: Iterable[Result]) -> list[AccuracyTable]:
    """Sort results into tables: presets, then test classes, protocols, many shots, unadapted."""
    one_form = {method.name for method in find_methods() if len(method.adaptations) == 1}
    tables = []
    for key, block in blocks(results):
        first: dict[str, Result] = {}
        for result in block:
            compare.check_pair(first.setdefault(result.target, result), result)
        plain = [r for r in block if r.adaptation == "none"]
        # The baseline, and methods without a further adaptation, stand in both tables.
        always = [r for r in plain if r.method in (*one_form, BASELINE)]
        further = [r for r in block if r.adaptation != "none"]
        if plain:
            tables.append(AccuracyTable(*key, adapted=False, results=plain))
        if further:
            tables.append(AccuracyTable(*key, adapted=True, results=[*always, *further]))
    return tables


def blocks(results: Iterable[Result]) -> list[tuple[tuple[str, str, str, int], list[Result]]]:
    """Group results by preset, part of the classes, protocol and shot, and put these in order."""
    found = compare.group(results, lambda r: (r.preset, r.part, r.protocol, r.shot))

    def order(key: tuple[str, str, str, int]) -> tuple[object, ...]:
        preset, part, protocol, shot = key
        return preset, place_in(PARTS, part), place_in(PROTOCOLS, protocol), -shot

    return [(key, found[key]) for key in sorted(found, key=order)]


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
