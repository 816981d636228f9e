"""The simpler tables of a report: ours beside the paper's, costs, sizes, settings, members."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyshot.evaluation.compare import label
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined
from polyshot.experiments.grid_reader import Contributions
from polyshot.experiments.paper_numbers import (
    DATA_DIFFERS,
    paper_accuracy,
    paper_parameters,
    paper_table,
)
from polyshot.experiments.protocols import PROTOCOLS
from polyshot.experiments.report_tables import (
    AccuracyTable,
    Interval,
    classes_in_words,
    method_order,
    part_order,
    protocol_order,
)
from polyshot.experiments.sizes import paper_sizes

UNKNOWN = "not measured"
PAPER_SHAPE = ("5", 5)
"""Way and shot of the paper's printed tables."""


@dataclass(frozen=True)
class PlainTable:
    """A table of text; a line break in a cell makes a small second line."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: bool = False
    """Whether cells hold text of any length: such a table stays out of the LaTeX."""


@dataclass(frozen=True)
class Agreement:
    """How far the order of our averages is the paper's, over pairs of methods."""

    pairs: int
    same: int
    clear: int
    """Pairs whose difference, in ours, is more than chance."""
    clear_same: int


@dataclass(frozen=True)
class Beside:
    """One of our tables beside the paper's: seen or unseen targets that both have."""

    table: AccuracyTable
    seen: bool
    targets: list[str]
    methods: list[str]
    sources: int | None

    def paper(self, method: str, target: str) -> float:
        """Return the paper's accuracy."""
        found = paper_accuracy(self._name, method, target, self.sources)
        if found is None:
            raise LookupError(f"The paper has no {method} on {target}.")
        return found

    @property
    def _name(self) -> str:
        return "seen" if self.seen else "unseen"

    def paper_average(self, method: str) -> float:
        """Average the paper's accuracies over the targets that both have."""
        return statistics.fmean(self.paper(method, target) for target in self.targets)

    def agreement(self) -> Agreement:
        """Compare the order of each two methods, on the average of the targets."""
        pairs = same = clear = clear_same = 0
        for i, one in enumerate(self.methods):
            for other in self.methods[i + 1 :]:
                gap = self.table.gap(one, other, self.targets)
                theirs = self.paper_average(one) - self.paper_average(other)
                if gap is None or not theirs:
                    continue
                agrees, is_clear = gap[0] * theirs > 0, abs(gap[0]) > gap[1]
                pairs, same = pairs + 1, same + agrees
                clear, clear_same = clear + is_clear, clear_same + (is_clear and agrees)
        return Agreement(pairs, same, clear, clear_same)

    def plain(self) -> PlainTable:
        """Make the table: ours, below it the paper's."""
        rows = []
        for target in self.targets:
            cells = [_pair(self._ours(m, [target]), self.paper(m, target)) for m in self.methods]
            rows.append([target, *cells])
        if len(rows) > 1:
            cells = [
                _pair(self._ours(m, self.targets), self.paper_average(m)) for m in self.methods
            ]
            rows.append(["average of these", *cells])
        return PlainTable(
            f"{self.table.title}, {self._name} domains",
            ["Domain", *self.methods],
            rows,
            f"Data and scale differ from the paper's: compare orders only.{self._sources()}",
        )

    def _ours(self, method: str, targets: Sequence[str]) -> Interval | None:
        cells = [row.cells.get(method) for row in self.table.rows if row.target in targets]
        known = [(cell.mean, cell.half_width) for cell in cells if cell is not None]
        return combined(known) if len(known) == len(cells) else None

    def _sources(self) -> str:
        block = paper_table(self._name, self.sources)
        if block is None or block.sources is None:
            return ""
        ours = ", ".join(self.table.sources()) or "unknown"
        return (
            f" The paper's sources: {', '.join(block.sources)}; ours: {ours}. It does not say "
            "whether these numbers are with further adaptation."
        )


def beside_paper(tables: Iterable[AccuracyTable]) -> list[Beside]:
    """Find our tables, and their targets and methods, for which the paper prints numbers."""
    found = []
    for table in tables:
        if table.adapted or table.part != "test" or (table.way, table.shot) != PAPER_SHAPE:
            continue
        if table.protocol not in PROTOCOLS or not PROTOCOLS[table.protocol].paper:
            continue
        digits = table.protocol.removeprefix("sources-")
        sources = int(digits) if digits.isdigit() else None
        for seen in (True, False):
            name = "seen" if seen else "unseen"
            block = paper_table(name, sources)
            theirs = {} if block is None else block.targets
            targets = [t for t in table.targets(seen) if t in DATA_DIFFERS and t in theirs]
            measured = [m for m in table.methods if any(m in table.runs[t] for t in targets)]
            methods = [m for m in measured if block is not None and m in block.average]
            if targets and methods:
                found.append(Beside(table, seen, targets, methods, sources))
    return found


def size_table() -> PlainTable:
    """Count parameters as the paper does, for eight sources."""
    ours, paper = dict(paper_sizes()), paper_parameters()
    base, selector = "base (ResNet-18)", "selector, 8 outputs (its table)"
    names = {base: "base", selector: "selector"}
    rows = [
        (name, f"{count:,}", _count(paper.get(names.get(name, name))))
        for name, count in ours.items()
    ]
    for kind in ("conv1x1", "channel"):
        total = ours[base] + ours[f"eight {kind} modulators"] + ours[selector]
        name = f"sum with {kind} modulators"
        rows.append((name, f"{total:,}", _count(paper[name])))
    return PlainTable("Parameters with eight sources", ("what", "ours", "paper"), rows)


def cost_tables(results: Sequence[Result]) -> list[PlainTable]:
    """What one task costs, by preset and shot, in the first part and protocol measured."""
    tables = []
    for preset in sorted({r.preset for r in results}):
        own = [r for r in results if r.preset == preset]
        part = min((r.part for r in own), key=part_order)
        own = [r for r in own if r.part == part]
        protocol = min((r.protocol for r in own), key=protocol_order)
        own = [r for r in own if r.protocol == protocol]
        for shot in sorted({r.shot for r in own}, reverse=True):
            chosen = [r for r in own if r.shot == shot]
            rows = []
            for name in sorted({label(r) for r in chosen}, key=method_order):
                runs = [r for r in chosen if label(r) == name]
                parameters = [r.parameters for r in runs if r.parameters is not None]
                work = [r.multiply_adds for r in runs if r.multiply_adds is not None]
                seconds = [r.seconds for r in runs if r.seconds is not None]
                time = f"{_short(1000 * statistics.median(seconds))} ms" if seconds else UNKNOWN
                devices = ", ".join(sorted({r.device for r in runs if r.device}))
                rows.append((name, _range(parameters), _range(work, 1e9, " G"), time, devices))
            ways = " or ".join(str(way) for way in sorted({r.way for r in chosen}))
            place = (preset or "no preset", protocol or "no protocol", classes_in_words(part))
            title = f"Cost of a task: {', '.join(filter(None, place))}"
            tables.append(
                PlainTable(
                    f"{title}, {ways}-way {shot}-shot",
                    ("method", "parameters", "multiply-adds", "time", "device"),
                    rows,
                    "Parameters of the whole trained method; the median time over targets, in "
                    "batches.",
                )
            )
    return tables


def settings_table(results: Iterable[Result]) -> PlainTable:
    """List what each method was set to, and what is noted about it."""
    found: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for r in results:
        settings, notes = found.setdefault((r.preset, label(r)), ({}, {}))
        settings |= {", ".join(f"{k} {v}" for k, v in sorted(r.settings.items())): None}
        notes |= {r.note: None}
    rows = [
        (preset, name, "; ".join(filter(None, settings)), "; ".join(filter(None, notes)))
        for (preset, name), (settings, notes) in sorted(
            found.items(), key=lambda item: (item[0][0], method_order(item[0][1]))
        )
        if any(settings) or any(notes)
    ]
    head = ("preset", "method", "settings", "notes")
    return PlainTable("Settings and notes", head, rows, words=True)


def member_table(about: Contributions, method: str) -> PlainTable:
    """Average each member's right predictions, and count the episodes in which it was best."""
    correct = about.correct[method]
    rows = []
    for i, member in enumerate(about.members[method]):
        mean = statistics.fmean(episode[i] for episode in correct)
        best = sum(episode[i] == max(episode) for episode in correct)
        rows.append((member, f"{mean:.1f}", f"{best} of {len(correct)}"))
    head = ("member", f"right of {about.queries}, mean", "best of its episode")
    return PlainTable(f"{method}: members on {about.title}", head, rows)


def _pair(ours: Interval | None, paper: float) -> str:
    text = UNKNOWN if ours is None else f"{100 * ours[0]:.1f} ± {100 * ours[1]:.1f}"
    return f"{text}\npaper {100 * paper:.1f}"


def _count(value: int | None) -> str:
    return "not given" if value is None else f"{value:,}"


def _range(values: Sequence[int], unit: float = 1, suffix: str = "") -> str:
    """Format equal numbers once, others as a range: the pool grows with its sources."""
    if not values:
        return UNKNOWN
    ends = dict.fromkeys(_short(v / unit) + suffix for v in (min(values), max(values)))
    return " to ".join(ends)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
