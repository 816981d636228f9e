"""Write the tables of README.md and docs/ from the rows in results/.

    python tools/tables.py            # writes them into the pages
    python tools/tables.py --check    # says which page differs from its rows, and exits with 1

A table stands between `<!-- table: NAME -->` and `<!-- /table -->`; `table_specs.py` says what it
is made of. The accuracies of the card of the pool that ships are written likewise.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from paper_tables import PAPER_TABLES
from table_specs import CARD, OPTIONAL, TABLES, Added, Filter, Grid, Tried
from table_text import gap_text, markdown, percent, signed

from polyshot.errors import PolyshotError
from polyshot.evaluation import compare
from polyshot.evaluation.compare import SEEDS_LEGEND, half_widths, label
from polyshot.evaluation.results import Result, Run, read_results, read_runs, read_table
from polyshot.evaluation.stats import Estimate

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- /table -->", re.S)
LEARN_ANYWAY = ("finetune", "finetune-all")
"""Methods that learn on the support set without being told an adaptation."""
Results = Mapping[tuple[Any, ...], Result]
"""By what pairs them."""
EVERY: Mapping[str, Any] = {**TABLES, **PAPER_TABLES}

DERIVED: Mapping[str, Callable[[Result], object]] = {
    "adapted": lambda r: r.adaptation != "none" or r.method in LEARN_ANYWAY,
    "grown_by_target": lambda r: r.added == r.target,
}
"""What a filter may ask for besides the fields of a result."""


@dataclass
class Store:
    """The folder of results, read as it is asked for."""

    folder: Path
    tables: dict[str, list[Result]] = field(default_factory=dict)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    having: dict[tuple[str, str, str], frozenset[int]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    """Runs whose rows were taken since it was emptied."""

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Where rows come from."""
        return read_runs(self.folder / "runs.json")

    def find(self, wanted: Filter) -> list[Result]:
        """Return the results that a filter lets through."""
        name = str(wanted["table"])
        file = self.folder / f"{name}.parquet"
        if name not in self.tables:
            there = file.exists() or name not in OPTIONAL
            self.tables[name] = read_results(file) if there else []
        rows = self.tables[name]
        places = [self._places(name, key, wanted[key]) for key in wanted if key != "table"]
        kept = frozenset(range(len(rows))).intersection(*sorted(places, key=len))
        return [rows[i] for i in sorted(kept)]

    def _places(self, table: str, key: str, value: object) -> frozenset[int]:
        """Return where in a table a field has a value: looked up once, since filters repeat."""
        asked = table, key, repr(value)
        if asked not in self.having:
            rows = self.tables[table]
            there = frozenset(i for i, row in enumerate(rows) if _has(row, key, value))
            self.having[asked] = there
        return self.having[asked]

    def other(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table of other things than results."""
        if table not in self.others:
            self.others[table] = read_table(self.folder / f"{table}.parquet")
        return self.others[table]

    def tried(self, question: str) -> list[dict[str, Any]]:
        """Return what was tried to answer a question."""
        found = [row for row in self.other("tried") if row["question"] == question]
        self.used.update(row["run"] for row in found)
        return found

    def remarks(self) -> list[str]:
        """Say which of the runs used since the last time were of no clean commit."""
        used, self.used = sorted(self.used), set()
        dirty = [name for name in used if self.runs[name].clean is False]
        unknown = [name for name in used if self.runs[name].clean is None]
        lines = []
        if dirty:
            lines.append(f"*Measured on checkouts with uncommitted changes: {_runs(dirty)}.*")
        if unknown:
            lines.append(f"*Measured on a commit that nobody noted: {_runs(unknown)}.*")
        return lines


def _runs(names: Sequence[str]) -> str:
    return f"run{'s' if len(names) > 1 else ''} " + ", ".join(f"`{name}`" for name in names)


def _has(result: Result, name: str, wanted: object) -> bool:
    value = DERIVED[name](result) if name in DERIVED else getattr(result, name)
    if isinstance(wanted, tuple):
        return value in wanted
    if isinstance(wanted, dict):  # some of the settings
        return all(key in value and value[key] == own for key, own in wanted.items())
    return bool(value == wanted)


def keyed(results: Sequence[Result], pair: Sequence[str]) -> Results:
    """Sort results by what pairs them; there must be one for each."""
    found: dict[tuple[Any, ...], Result] = {}
    for result in results:
        key = tuple(getattr(result, name) for name in pair)
        if key in found:
            raise PolyshotError(f"There are two rows of {result.method} at {key}: narrow the spec.")
        found[key] = result
    return found


@dataclass(frozen=True)
class Shown:
    """A cell of a grid: its rows, and those they are compared with."""

    own: Results
    base: Results
    """The base at the places of `own`."""

    @property
    def is_base(self) -> bool:
        """Whether there is nothing to compare."""
        return all(self.base[key] is result for key, result in self.own.items())

    @property
    def targets(self) -> set[str]:
        """Names of its targets."""
        return {result.target for result in self.own.values()}


def grid(spec: Grid, store: Store) -> list[str]:
    """Make a table of lines and columns that are filters."""
    texts: dict[tuple[str, str], str] = {}
    cells: dict[tuple[str, str], Shown] = {}
    for line, own in spec.lines.items():
        for column, asked in spec.columns.items():
            wanted = {**spec.rows, **asked, **own, **spec.but.get((line, column), {})}
            show = wanted.pop("show", spec.show)
            against = {**spec.against, **wanted.pop("against", {})}
            results = store.find(wanted)
            if not results:
                continue
            store.used.update(result.run for result in results)
            if show in PLAIN:
                texts[line, column] = PLAIN[show](results)
                continue
            found = keyed(results, spec.pair)
            base = _baselines(store, wanted, against, found, spec.pair)
            store.used.update(result.run for result in base)
            cells[line, column] = Shown(found, keyed(base, spec.pair))
            texts[line, column] = show
    marked = _marks(spec, cells)
    for place, cell in cells.items():
        texts[place] = cell_text(cell, texts[place], spec.digits, marked.get(place))
    rows = [
        [line, *(texts.get((line, column), spec.missing) for column in spec.columns)]
        for line in spec.lines
    ]
    return markdown([spec.corner, *spec.columns], rows)


def _baselines(
    store: Store, wanted: Filter, against: Filter, found: Results, pair: Sequence[str]
) -> list[Result]:
    """Return the rows at the places of `found` that they are compared with."""
    targets = tuple({result.target for result in found.values()})
    there = store.find({"table": wanted["table"], **against, "target": targets})
    return [r for r in there if tuple(getattr(r, name) for name in pair) in found]


def _marks(spec: Grid, cells: Mapping[tuple[str, str], Shown]) -> dict[tuple[str, str], bool]:
    """Tell what is shown (all targets of its group are there), and whether it is set in bold.

    Bold: what no other of its group is ahead of by more than the chance of episodes, on those that
    both have.
    """
    if not spec.bold:
        return dict.fromkeys(cells, False)
    marks = {}
    side = 0 if spec.bold == "lines" else 1
    for _, group in groupby(sorted(cells, key=lambda place: place[side]), lambda p: p[side]):
        places = list(group)
        every = set().union(*(cells[place].targets for place in places))
        whole = [place for place in places if cells[place].targets == every]
        for place in whole:
            ahead = (_gap(cells[other].own, cells[place].own) for other in whole if other != place)
            marks[place] = not any(gap.value > gap.episodes for gap in ahead)
    return marks


def difference(one: Results, other: Results) -> Estimate:
    """Average the paired differences over the targets of one, each counting the same."""
    for place, result in one.items():
        if place not in other:
            raise PolyshotError(
                f"{result.target}: there is nothing to compare '{label(result)}' with."
            )
    gap = compare.difference(one, other)
    assert gap is not None, "there are pairs"
    return gap


def _gap(one: Results, other: Results) -> Estimate:
    """Compare what may be of different trainings: then by target, on the mean of the trainings."""
    if set(one) == set(other):
        return difference(one, other)
    return difference(_by_target(one), _by_target(other))


def _by_target(results: Results) -> dict[str, Result]:
    merged: dict[str, list[Result]] = {}
    for result in results.values():
        merged.setdefault(result.target, []).append(result)
    return {
        target: replace(
            found[0], per_episode=np.mean([r.per_episode for r in found], axis=0).tolist()
        )
        for target, found in merged.items()
    }


def cell_text(cell: Shown, show: str, digits: int, bold: bool | None) -> str:
    """Write a cell: `gain` is 81.2 (+0.4 ±0.1); see `table_specs.Grid` for the others."""
    if bold is None:
        return ""
    own = compare.accuracy(cell.own)
    value = percent(own.value, digits)
    value = f"**{value}**" if bold else value
    gain = "" if cell.is_base else gap_text(difference(cell.own, cell.base), digits)
    plain = f"{value} {half_widths(own, digits)}"
    if show == "value":
        return value
    if show == "difference":
        return gain
    if show == "plain gain":
        return f"{value} ({gain})" if gain else value
    if show == "both":
        return f"{plain} ({gain})" if gain else plain
    return f"{value} ({gain})" if gain else plain


def calibration(results: Sequence[Result]) -> str:
    """Average calibration errors, in points."""
    errors = [r.calibration_error for r in results if r.calibration_error is not None]
    return percent(sum(errors) / len(errors))


def cost(results: Sequence[Result]) -> str:
    """Write multiply-adds and time of a task, or from where to where they go."""
    work = {f"{(r.multiply_adds or 0) / 1e9:,.0f} G" for r in results}
    times = sorted({r.seconds or 0.0 for r in results})
    shown = list(dict.fromkeys(f"{1000 * s:.{0 if s >= 0.01 else 1}f}" for s in times))
    span = shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"
    return f"{', '.join(sorted(work))}, {span} ms"


def sameness(results: Sequence[Result]) -> str:
    """Say whether all results of a target are one and the same."""
    answers = {(r.target, tuple(r.per_episode)) for r in results}
    return "the same" if len(answers) == len({r.target for r in results}) else "differ"


def budget(results: Sequence[Result]) -> str:
    """Write how many episodes a method was trained with, after the base."""
    counts = sorted({result.training_episodes or 0 for result in results})
    if counts == [0]:
        return "none"
    return " to ".join(dict.fromkeys(f"{count:,}" for count in (counts[0], counts[-1])))


PLAIN: Mapping[str, Callable[[Sequence[Result]], str]] = {
    "budget": budget,
    "calibration": calibration,
    "cost": cost,
    "sameness": sameness,
}
"""Cells in which nothing is compared."""


def tried(spec: Tried, store: Store) -> list[str]:
    """Make a table of what was tried to answer a question."""
    rows = store.tried(spec.question)
    values: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row["variant"], row["target"]), []).append(row["value"])
    best = {t: max(max(v) for (_, u), v in values.items() if u == t) for t in spec.columns.values()}
    first = next(iter(spec.lines.values()))
    lines = []
    for line, variant in spec.lines.items():
        texts = [line]
        for target in spec.columns.values():
            found = values.get((variant, target), [])
            text = ", ".join(percent(value) for value in found)
            texts.append(f"**{text}**" if spec.bold and found == [best[target]] else text)
            if spec.gain:
                gap = found[0] - values[first, target][0]
                texts.append("" if variant == first else signed(gap))
        lines.append(texts)
    return markdown([spec.corner, *spec.columns, *([""] if spec.gain else [])], lines)


def added(spec: Added, store: Store) -> list[str]:
    """Make the table of domains that were added to a pool."""
    lines, every = (
        [],
        {rule: [_Growth(store, spec, rule, d) for d in spec.domains] for rule in spec.rules},
    )
    for number, domain in enumerate([*spec.domains, "**mean**"]):
        for rule, growths in every.items():
            own = growths[number : number + 1] or growths
            lines.append(_growth_line(domain, rule, own, rule == spec.rules[0]))
    return markdown(list(spec.head), lines)


class _Growth:
    """One domain, added to the pool without it, under one rule."""

    def __init__(self, store: Store, spec: Added, rule: str, domain: str) -> None:
        def find(**wanted: object) -> list[Result]:
            return store.find({**spec.rows, "method": rule, "protocol": "added", **wanted})

        after = find(added=domain)
        sources = set(after[0].sources) - {domain}
        before = [r for r in find(added="") if set(r.sources) == sources]
        bases = [r for r in find(added="", method="base") if set(r.sources) == sources]
        self.after, self.before, self.base = (
            keyed(results, ("target",)) for results in (after, before, bases)
        )
        self.whole = keyed(find(protocol="seen", added=""), ("target",))
        self.domain, self.old = domain, sources
        self.others = {r.target for r in after} - sources - {domain}
        self.seconds = after[0].added_seconds or 0.0
        store.used.update(r.run for r in (*after, *before, *self.whole.values()))


def _growth_line(domain: str, rule: str, growths: Sequence[_Growth], first: bool) -> list[str]:
    """Average over the domains; the gap that is closed is that of the averages."""

    def of(which: str, names: Callable[[_Growth], set[str]]) -> dict[tuple[str, str], Result]:
        return {
            (g.domain, name): getattr(g, which)[(name,)]
            for g in growths
            for name in sorted(names(g))
        }

    def own(which: str) -> dict[tuple[str, str], Result]:
        return of(which, lambda g: {g.domain})

    def change(names: Callable[[_Growth], set[str]]) -> str:
        return gap_text(difference(of("after", names), of("before", names)))

    base, before, after, whole = (
        compare.accuracy(own(which)).value for which in ("base", "before", "after", "whole")
    )
    gain = gap_text(difference(own("after"), own("before")))
    seconds = sum(g.seconds for g in growths) / len(growths)
    return [
        domain if first else "",
        rule,
        percent(base) if first else "",
        percent(before),
        f"{percent(after)} ({gain})",
        percent(whole),
        f"{100 * (after - before) / (whole - before):.0f} %",
        change(lambda g: g.old),
        change(lambda g: g.others),
        f"{seconds:.1f} s" if first else "",
    ]


def card(store: Store) -> str:
    """Write the accuracies of the card of the pool that ships."""
    from polyshot.experiments.card import accuracy_section  # noqa: PLC0415, brings torch
    from polyshot.pool.default import PACKAGED  # noqa: PLC0415
    from polyshot.pool.pool import Pool  # noqa: PLC0415

    results = [result for wanted in CARD for result in store.find(wanted)]
    return accuracy_section(Pool.load(PACKAGED), results)


def table(name: str, store: Store) -> str:
    """Make a table as it stands in a page."""
    if name not in EVERY:
        raise PolyshotError(f"No table is called '{name}' in tools/table_specs.py.")
    spec = EVERY[name]
    store.used.clear()
    if isinstance(spec, Grid):
        lines = grid(spec, store)
    elif isinstance(spec, Tried):
        lines = tried(spec, store)
    else:
        lines = added(spec, store) if isinstance(spec, Added) else spec.lines(store)
    remarks = [f"*{SEEDS_LEGEND}*"] if any("seeds ±" in line for line in lines) else []
    remarks += store.remarks()
    return "\n".join([*lines, *(text for remark in remarks for text in ("", remark))])


def pages(root: Path) -> list[Path]:
    """List the pages that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def written(path: Path, store: Store, used: set[str]) -> str:
    """Return a page as it should be; notes which tables it has."""

    def block(match: re.Match[str]) -> str:
        used.add(match[1])
        return f"<!-- table: {match[1]} -->\n\n{table(match[1], store)}\n\n<!-- /table -->"

    return BLOCK.sub(block, path.read_text(encoding="utf-8"))


def card_written(path: Path, store: Store) -> str:
    """Return the card as it should be."""
    text = path.read_text(encoding="utf-8")
    start, end = "## Accuracy\n", "## Limits\n"
    before, rest = text.split(start, 1)
    return f"{before}{start}\n{card(store)}\n\n{end}{rest.split(end, 1)[1]}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    given = parser.parse_args(words)
    try:
        return _run(given.root, given.check)
    except PolyshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(root: Path, check: bool) -> int:
    store, used, wrong = Store(root / "results"), set[str](), 0
    texts = {path: written(path, store, used) for path in pages(root)}
    shipped = root / "src/polyshot/pools/default/CARD.md"
    if shipped.is_file():
        texts[shipped] = card_written(shipped, store)
    if missing := sorted(set(EVERY) - used):
        raise PolyshotError(f"No page has the tables {', '.join(missing)}.")
    for path, text in texts.items():
        before = path.read_text(encoding="utf-8")
        if before == text:
            continue
        wrong += 1
        if check:
            changes = unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=0)
            lines = [line for line in changes if not line.startswith(("+++", "---", "@@"))]
            sides = (next((x[1:100] for x in lines if x[0] == side), "") for side in "-+")
            hint = " -> ".join(sides)
            print(f"{path.relative_to(root)} differs from results/ (run 'make tables'): {hint}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(root)}")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
