"""A domain added later: what a pool was before, what it became, and what other domains lost.

Only results are read: the pool before is the one of the same sources that nothing was added to, the
pool from the start the one that was trained on all of them, whatever protocol measured it.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from polyshot.evaluation.compare import BASELINE
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined
from polyshot.experiments.page_tables import signed
from polyshot.experiments.protocols import ADDED
from polyshot.experiments.report_plain import UNKNOWN, PlainTable
from polyshot.experiments.report_tables import (
    Interval,
    Runs,
    accuracy,
    classes_in_words,
    difference,
    method_order,
    part_order,
)

SHOWN = ("select", "auto")
"""Methods of the tables; all there are where neither of them was measured."""
HEAD = (
    *("added", "method", "base without it", "before", "after", "with it from the start"),
    *("gap closed", "old domains", "other unseen domains", "time"),
)
NOTE = (
    "Accuracy on the added domain in percent, with the half-width of the 95 % interval; below "
    "'after' the paired difference to 'before'. The gap is what training with the domain from the "
    "start gains over the pool before; it is not given where that may be chance. Old and other "
    "domains: the mean paired change of their accuracies, in points. The time is that of the "
    "addition alone, selector included."
)

Place = tuple[str, str, int, int]
"""Preset, part of the classes, way, shot."""
Sources = tuple[str, ...]
"""Names, sorted: members may come in another order."""


def on_added_domains(results: Iterable[Result]) -> list[Result]:
    """Leave out, of the protocol `added`, what is no row of its tables of accuracies.

    These have one row a domain: the pools that it was added to, and the base without it. How other
    domains fare is in `growth_tables`.
    """
    every = list(results)
    grown = {(r.preset, r.part, r.added, _old(r)) for r in every if r.added}

    def belongs(r: Result) -> bool:
        if r.protocol != ADDED:
            return True
        if r.added:
            return r.target == r.added
        return r.method == BASELINE and (r.preset, r.part, r.target, _old(r)) in grown

    return [r for r in every if belongs(r)]


def growth_tables(results: Iterable[Result]) -> list[PlainTable]:
    """Sum up what additions did: presets, test classes first, many shots first."""
    places: dict[Place, _Growths] = {}
    for r in results:
        if r.adaptation == "none":
            places.setdefault((r.preset, r.part, r.way, r.shot), _Growths()).add(r)
    order = sorted(places, key=lambda p: (p[0], part_order(p[1]), -p[3], p[2]))
    return [table for place in order for table in places[place].tables(_title(place))]


def _title(place: Place) -> str:
    preset, part, way, shot = place
    return ", ".join(filter(None, (preset, classes_in_words(part), f"{way}-way {shot}-shot")))


def _old(result: Result) -> Sources:
    """Return the sources without what was added."""
    return tuple(sorted(name for name in result.sources if name != result.added))


@dataclass(frozen=True)
class _Growth:
    """A domain that was added to the pool of some sources, as one method sees it."""

    added: str
    old: Sources
    method: str


@dataclass
class _Line:
    """The numbers of a growth, on the added domain."""

    base: Interval | None
    before: Interval | None
    after: Interval | None
    start: Interval | None
    gain: Interval | None
    """After less before."""
    possible: Interval | None
    """From the start less before."""
    old: Interval | None
    others: Interval | None
    seconds: list[float | None]
    devices: list[str]


@dataclass
class _Growths:
    """All results of one place, without further adaptation."""

    runs: dict[tuple[str, str, Sources, str], dict[int | None, Result]] = field(
        default_factory=dict
    )
    """(method, target, old sources, what was added to them) -> results by seed."""

    def add(self, r: Result) -> None:
        """Sort a result in; of several protocols' copies the longest stays."""
        seeds = self.runs.setdefault((r.method, r.target, _old(r), r.added), {})
        known = seeds.get(r.train_seed)
        if known is None or r.episodes > known.episodes:
            seeds[r.train_seed] = r

    def tables(self, title: str) -> list[PlainTable]:
        """Make the summary, and for each method the change on every domain."""
        growths = self._growths()
        methods = list(dict.fromkeys(growth.method for growth in growths))
        lines = {growth: self._line(growth) for growth in growths}
        rows = [_row(growth.added, growth.method, line) for growth, line in lines.items()]
        for method in methods:
            own = [line for growth, line in lines.items() if growth.method == method]
            if len(own) > 1:
                rows.append(_row("average", method, _average(own)))
        tables = [PlainTable(f"A domain added later: {title}", HEAD, rows, NOTE)]
        for method in methods:
            own_growths = [growth for growth in growths if growth.method == method]
            tables.append(self._changes(f"{method}, change on every domain: {title}", own_growths))
        return [table for table in tables if table.rows]

    def _growths(self) -> list[_Growth]:
        found = {_Growth(added, old, method) for method, _, old, added in self.runs if added}
        shown = [growth for growth in found if growth.method in SHOWN] or found
        return sorted(shown, key=lambda g: (g.added, g.old, method_order(g.method)))

    def _line(self, growth: _Growth) -> _Line:
        added, method, old = growth.added, growth.method, growth.old
        after = self.runs.get((method, added, old, added), {})

        def others(who: str, sources: Sources) -> dict[int | None, Result]:
            """Find results of the trainings that something was added to: seeds differ."""
            every = self.runs.get((who, added, sources, ""), {})
            return {seed: result for seed, result in every.items() if seed in after}

        before = others(method, old)
        start = others(method, tuple(sorted((*old, added))))
        targets = self._targets(growth)
        return _Line(
            _accuracy(others(BASELINE, old)),
            _accuracy(before),
            _accuracy(after),
            _accuracy(start),
            _difference(after, before),
            _difference(start, before),
            self._change(growth, [target for target in targets if target in old]),
            self._change(growth, [t for t in targets if t not in (*old, added)]),
            [result.added_seconds for result in after.values()],
            [result.added_on for result in after.values()],
        )

    def _targets(self, growth: _Growth) -> list[str]:
        """List the domains that the grown pool was tested on."""
        wanted = (growth.method, growth.old, growth.added)
        return sorted(target for m, target, *place in self.runs if (m, *place) == wanted)

    def _gap(self, growth: _Growth, target: str) -> Interval | None:
        old, method = growth.old, growth.method
        after = self.runs.get((method, target, old, growth.added), {})
        return _difference(after, self.runs.get((method, target, old, ""), {}))

    def _change(self, growth: _Growth, targets: Sequence[str]) -> Interval | None:
        gaps = [self._gap(growth, target) for target in targets]
        known = [gap for gap in gaps if gap is not None]
        return combined(known) if known and len(known) == len(gaps) else None

    def _changes(self, title: str, growths: Sequence[_Growth]) -> PlainTable:
        targets = sorted({target for growth in growths for target in self._targets(growth)})
        rows = [
            [growth.added, *(_points(self._gap(growth, target)) for target in targets)]
            for growth in growths
        ]
        note = (
            "A row is an addition, a column a domain that it was tested on: the paired change of "
            "the accuracy, in points, with the half-width of its 95 % interval."
        )
        return PlainTable(title, ("added", *targets), rows, note)


def _row(added: str, method: str, line: _Line) -> list[str]:
    after = _percent(line.after)
    if line.gain is not None:
        after += f"\n{_points(line.gain)}"
    cells = [_percent(line.base), _percent(line.before), after, _percent(line.start)]
    changes = [_points(line.old), _points(line.others)]
    return [added, method, *cells, _closed(line), *changes, _time(line)]


def _closed(line: _Line) -> str:
    """Say how much of what a training with the domain would gain the addition has gained."""
    if line.gain is None or line.possible is None:
        return UNKNOWN
    if line.possible[0] <= line.possible[1]:
        return "no clear gap"
    return f"{100 * line.gain[0] / line.possible[0]:.0f} %"


def _time(line: _Line) -> str:
    known = [seconds for seconds in line.seconds if seconds is not None]
    if not known:
        return "not known, interrupted" if line.seconds else UNKNOWN
    devices = ", ".join(sorted({device for device in line.devices if device}))
    return f"{statistics.fmean(known):.1f} s" + (f"\n{devices}" if devices else "")


def _average(lines: Sequence[_Line]) -> _Line:
    """Average what is known of every line, each counting the same."""

    def mean(values: Iterable[Interval | None]) -> Interval | None:
        every = list(values)
        known = [value for value in every if value is not None]
        return combined(known) if len(known) == len(every) else None

    return _Line(
        mean(line.base for line in lines),
        mean(line.before for line in lines),
        mean(line.after for line in lines),
        mean(line.start for line in lines),
        mean(line.gain for line in lines),
        mean(line.possible for line in lines),
        mean(line.old for line in lines),
        mean(line.others for line in lines),
        [seconds for line in lines for seconds in line.seconds],
        [device for line in lines for device in line.devices],
    )


def _accuracy(runs: Runs) -> Interval | None:
    return accuracy(runs) if runs else None


def _difference(one: Runs, other: Runs) -> Interval | None:
    """Pair results on the same episodes; others, as of a pack that was drawn anew, have no pair."""
    draws = {result.draw for runs in (one, other) for result in runs.values()}
    return difference(one, other) if len(draws) == 1 else None


def _percent(value: Interval | None) -> str:
    return UNKNOWN if value is None else f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"


def _points(value: Interval | None) -> str:
    return UNKNOWN if value is None else f"{signed(value[0])} ± {100 * value[1]:.1f}"
