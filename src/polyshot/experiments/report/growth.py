"""A domain added later: what a pool was before, what it became, and what other domains lost.

Only results are read: the pool before is the one of the same sources that nothing was added to, the
pool from the start the one that was trained on all of them, whatever protocol measured it.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyshot.evaluation import compare
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import Estimate
from polyshot.experiments.protocols import PARTS
from polyshot.experiments.report.pages import UNKNOWN, percent, points
from polyshot.experiments.report.tables import (
    TextTable,
    classes_in_words,
    listed,
    method_order,
    old_sources,
    place_in,
    shape_in_words,
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
CHANGES = (
    "A row is an addition, a column a domain that it was tested on: the paired change of the "
    "accuracy, in points, with the half-width of its 95 % interval."
)

Sources = tuple[str, ...]
"""Names, sorted."""
Runs = Mapping[tuple[str, int | None], Result]
"""Results of one pool, by target and training seed."""


class Change(NamedTuple):
    """What an addition did, on the added domain and on others."""

    base: Estimate | None
    before: Estimate | None
    after: Estimate | None
    start: Estimate | None
    """With the domain from the start."""
    gain: Estimate | None
    """After less before."""
    possible: Estimate | None
    """From the start less before."""
    old: Estimate | None
    """Mean change on the old sources."""
    others: Estimate | None
    """Mean change on domains that neither pool was trained on."""


@dataclass(frozen=True)
class Addition:
    """A domain that was added to the pool of some sources, as one method sees it."""

    method: str
    old: Sources
    added: str
    pools: Mapping[tuple[str, Sources, str], Runs]
    """Every pool of the same preset, part and shape: (method, old sources, what was added)."""

    @property
    def runs(self) -> Runs:
        """What the grown pool reached."""
        return self.pools[self.method, self.old, self.added]

    @property
    def own(self) -> Runs:
        """What it reached on the domain that was added."""
        return _on(self.runs, [self.added])

    @property
    def targets(self) -> list[str]:
        """The domains that the grown pool was tested on."""
        return sorted({target for target, _ in self.runs})

    def gap(self, targets: Sequence[str]) -> Estimate | None:
        """Return the mean change of the accuracy on some targets."""
        return _difference(_on(self.runs, targets), self.pools.get((self.method, self.old, ""), {}))

    def change(self) -> Change:
        """Collect the numbers."""

        def plain(method: str, sources: Sources) -> Runs:
            """Find results of the trainings that something was added to: seeds differ."""
            every = self.pools.get((method, sources, ""), {})
            return {place: result for place, result in every.items() if place in self.own}

        before = plain(self.method, self.old)
        start = plain(self.method, tuple(sorted((*self.old, self.added))))
        base, was, became, possible = (
            compare.accuracy(runs) if runs else None
            for runs in (plain(compare.BASELINE, self.old), before, self.own, start)
        )
        return Change(
            *(base, was, became, possible),
            gain=_difference(self.own, before),
            possible=_difference(start, before),
            old=self.gap([target for target in self.targets if target in self.old]),
            others=self.gap([t for t in self.targets if t not in (*self.old, self.added)]),
        )


def growth_tables(results: Iterable[Result]) -> list[TextTable]:
    """Sum up what additions did: presets, test classes first, many shots first."""
    plain = [r for r in results if r.adaptation == "none"]
    places = compare.group(plain, lambda r: (r.preset, r.part, r.way, r.shot))
    tables = []
    for place in sorted(places, key=lambda p: (p[0], place_in(PARTS, p[1]), -p[3], p[2])):
        own = places[place]
        title = listed(place[0], classes_in_words(place[1]), shape_in_words(own))
        tables += _tables(additions(own), title)
    return tables


def additions(results: Iterable[Result]) -> list[Addition]:
    """List what was added; of the methods to show, where any of these was measured."""
    pools = compare.group(results, lambda r: (r.method, old_sources(r), r.added))
    runs = {pool: compare.by_place(own) for pool, own in pools.items()}
    found = [Addition(*pool, runs) for pool in pools if pool[2]]
    shown = [each for each in found if each.method in SHOWN] or found
    return sorted(shown, key=lambda each: (each.added, each.old, method_order(each.method)))


def _tables(found: Sequence[Addition], title: str) -> list[TextTable]:
    """Make the summary, and for each method the change on every domain."""
    pairs = [(each, each.change()) for each in found]
    rows = [_row(each.added, each.method, change, each.own.values()) for each, change in pairs]
    tables = [TextTable(f"A domain added later: {title}", HEAD, rows, NOTE)]
    for method in dict.fromkeys(each.method for each in found):
        own = [(each, change) for each, change in pairs if each.method == method]
        if len(own) > 1:
            # What is known of every addition, each counting the same.
            known = zip(*(change for _, change in own), strict=True)
            mean = Change(*map(compare.combined_if_all, known))
            every = [run for each, _ in own for run in each.own.values()]
            rows.append(_row("average", method, mean, every))
        targets = sorted({target for each, _ in own for target in each.targets})
        lines = [[each.added, *(points(each.gap([t])) for t in targets)] for each, _ in own]
        head = ("added", *targets)
        tables.append(TextTable(f"{method}, change on every domain: {title}", head, lines, CHANGES))
    return [table for table in tables if table.rows]


def _row(added: str, method: str, change: Change, runs: Iterable[Result]) -> list[str]:
    after = percent(change.after)
    if change.gain is not None:
        after += f"\n{points(change.gain)}"
    cells = [percent(change.base), percent(change.before), after, percent(change.start)]
    others = [points(change.old), points(change.others)]
    return [added, method, *cells, _closed(change), *others, _time(list(runs))]


def _closed(change: Change) -> str:
    """Say how much of what a training with the domain would gain the addition has gained."""
    if change.gain is None or change.possible is None:
        return UNKNOWN
    if change.possible.value <= change.possible.episodes:
        return "no clear gap"
    return f"{100 * change.gain.value / change.possible.value:.0f} %"


def _time(runs: Sequence[Result]) -> str:
    known = [run.added_seconds for run in runs if run.added_seconds is not None]
    if not known:
        return "not known, interrupted" if runs else UNKNOWN
    devices = ", ".join(sorted({run.added_on for run in runs if run.added_on}))
    return f"{statistics.fmean(known):.1f} s" + (f"\n{devices}" if devices else "")


def _on(runs: Runs, targets: Sequence[str]) -> Runs:
    return {place: result for place, result in runs.items() if place[0] in targets}


def _difference(one: Runs, other: Runs) -> Estimate | None:
    """Pair results on the same episodes; others, as of a pack that was drawn anew, have no pair."""
    shared = [place for place in one if place in other]
    same = all(compare.may_pair(one[place], other[place]) for place in shared)
    return compare.difference(one, other) if same else None
