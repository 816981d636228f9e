"""What the numbers of a report say, in words: who is best, and where the paper's order holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyshot.experiments.page_tables import Cell, signed
from polyshot.experiments.paper_numbers import paper_table
from polyshot.experiments.report_plain import UNKNOWN, Beside, PlainTable
from polyshot.experiments.report_tables import (
    AccuracyTable,
    Interval,
    classes_in_words,
    ranking,
)

POOL = ("select", "average", "select-channel", "average-channel")
"""The paper's own methods; all others but the base are its rivals."""
CLAIMS = (
    ("seen", "select", "average", "selecting beats averaging"),
    ("unseen", "average", "select", "averaging beats selecting"),
    ("seen", "select", "simple-avg", "selecting beats averaging networks trained apart"),
    ("unseen", "average", "simple-avg", "averaging members beats averaging networks trained apart"),
)
"""The paper's order of its averages: protocol, better, worse, in words."""
PLACE = ("experiment", "domains", "tasks")
"""Columns that say which table a line is about."""


@dataclass(frozen=True)
class Winner:
    """The best of an average over targets, and how far it is ahead of the next."""

    method: str
    cell: Cell
    second: str = ""
    gap: Interval | None = None

    @property
    def is_clear(self) -> bool:
        """Tell whether it is ahead by more than chance."""
        return self.gap is not None and self.gap[0] > self.gap[1]


def summary(tables: Sequence[AccuracyTable]) -> list[str]:
    """Say in a few lines what the main tables show: most shots, without further adaptation."""
    most = max(table.shot for table in tables)
    main = [table for table in tables if table.shot == most and not table.adapted]
    lines = []
    for table in main:
        for seen in (True, False):
            found = winner(table, seen)
            if found is not None and table.protocol == ("seen" if seen else "unseen"):
                lines.append(" ".join([_winner_line(table, found), *_against(table, seen)]))
    return [*lines, *_claims([table for table in main if table.part == "test"])]


def winner(table: AccuracyTable, seen: bool) -> Winner | None:
    """Find the best of the methods that were measured on every seen, or unseen, target."""
    row = table.averages.get(seen)
    order = ranking(row.cells) if row else []
    if row is None or not order:
        return None
    best = row.cells[order[0]]
    if len(order) < 2:
        return Winner(order[0], best)
    gap = table.gap(order[0], order[1], table.targets(seen))
    return Winner(order[0], best, order[1], gap)


def winner_table(tables: Sequence[AccuracyTable]) -> PlainTable:
    """Show the best on average of every table, a line for each experiment and kind of target."""
    kinds = dict.fromkeys((table.shot, table.adapted) for table in tables)
    lines: dict[tuple[str, str], dict[tuple[int, bool], str]] = {}
    for table in tables:
        for seen in table.averages:
            found = winner(table, seen)
            if found is not None:
                experiment, domains, _ = _place(table, seen)
                kind = (table.shot, table.adapted)
                lines.setdefault((experiment, domains), {})[kind] = _winner_cell(found)
    names = [f"{shot}-shot, adapted" if adapted else f"{shot}-shot" for shot, adapted in kinds]
    rows = [
        [*place, *(cells.get(kind, UNKNOWN) for kind in kinds)] for place, cells in lines.items()
    ]
    note = "Accuracy on average over the domains; below it the lead over the next method."
    return PlainTable("Best on average", ("experiment", "domains", *names), rows, note)


def _winner_cell(found: Winner) -> str:
    text = f"{found.method} {100 * found.cell.mean:.1f} ± {100 * found.cell.half_width:.1f}"
    if found.gap is None:
        return text
    doubt = "" if found.is_clear else ", may be chance"
    return f"{text}\n{_interval(found.gap)} to {found.second}{doubt}"


def agreement_table(besides: Iterable[Beside]) -> PlainTable:
    """Count the pairs of methods whose order, on average, is the paper's."""
    rows = []
    for beside in besides:
        found = beside.agreement()
        if found.pairs:
            rows.append(
                (
                    *_place(beside.table, beside.seen),
                    f"{found.same} of {found.pairs}",
                    f"{found.clear_same} of {found.clear}",
                )
            )
    return PlainTable(
        "Where the paper's order holds",
        (*PLACE, "all pairs", "beyond chance in ours"),
        rows,
        "Pairs of methods that, on the average of the domains that both have, stand in the "
        "paper's order: of all pairs, and of those whose difference in ours is more than chance.",
    )


def _place(table: AccuracyTable, seen: bool) -> tuple[str, str, str]:
    parts = (table.preset, table.protocol, classes_in_words(table.part))
    name = ", ".join(filter(None, parts))
    return name, "seen" if seen else "unseen", f"{table.way}-way {table.shot}-shot"


def _winner_line(table: AccuracyTable, found: Winner) -> str:
    cell = found.cell
    text = (
        f"{_where(table)}: {found.method} is best on average, {100 * cell.mean:.1f} ± "
        f"{100 * cell.half_width:.1f} %"
    )
    if found.gap is None:
        return f"{text}; there is no other to pair it with."
    verdict = "more than chance" if found.is_clear else "which may be chance"
    return f"{text}, {points(found.gap)} to the next, {found.second}: {verdict}."


def _against(table: AccuracyTable, seen: bool) -> list[str]:
    """Compare the best of the pool's methods with the best rival, and with the base alone."""
    cells = table.averages[seen].cells
    order = ranking(cells)
    ours = next((m for m in order if m in POOL), None)
    rival = next((m for m in order if m not in (*POOL, "base")), None)
    lines = []
    for other, words in ((rival, f"the best rival, {rival}"), ("base", "the base alone")):
        if ours is None or other is None or other not in cells:
            continue
        gap = table.gap(ours, other, table.targets(seen))
        if gap is not None:
            lines.append(
                f"The pool's best rule, {ours}, against {words}: {points(gap)}, {_side(gap)}."
            )
    return lines


def _claims(tables: Sequence[AccuracyTable]) -> list[str]:
    lines = []
    for protocol, better, worse, words in CLAIMS:
        found = []
        for table in tables:
            targets = table.targets(seen=protocol == "seen")
            gap = table.gap(better, worse, targets) if table.protocol == protocol else None
            if gap is not None:
                found.append(f"{_preset(table) or 'Ours'}: {_holds(gap)}, {points(gap)}")
        block = paper_table(protocol)
        if found and block is not None:
            printed = f"{100 * block.average[better]:.1f} against {100 * block.average[worse]:.1f}"
            lines.append(
                f"The paper finds that {words} on {protocol} domains, {printed} %. "
                f"{'. '.join(found)}."
            )
    return lines


def _where(table: AccuracyTable) -> str:
    shape, classes = f"{table.way}-way {table.shot}-shot", classes_in_words(table.part)
    parts = (_preset(table), f"{table.protocol} domains", classes, shape)
    return ", ".join(filter(None, parts))


def _preset(table: AccuracyTable) -> str:
    return f"Preset {table.preset}" if table.preset else ""


def _holds(gap: Interval) -> str:
    if abs(gap[0]) <= gap[1]:
        return "undecided"
    return "holds" if gap[0] > 0 else "the other way round"


def _side(gap: Interval) -> str:
    if abs(gap[0]) <= gap[1]:
        return "which may be chance"
    return "more than chance"


def points(gap: Interval) -> str:
    """Format a difference with its interval."""
    return f"{_interval(gap)} points"


def _interval(gap: Interval) -> str:
    return f"{signed(gap[0])} ± {100 * gap[1]:.1f}"
