"""A domain added later: what a pool was before, what it became, and what other domains lost.

Only results are read: the pool before is the one of the same sources that nothing was added to, the
pool from the start the one that was trained on all of them, whatever protocol measured it.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from polyshot.evaluation.compare import BASELINE, Interval
from polyshot.evaluation.results import Result
from polyshot.experiments.report.tables import (
    UNKNOWN,
    Runs,
    TextTable,
    accuracy,
    classes_in_words,
    combined_if_all,
    difference,
    group,
    listed,
    method_order,
    old_sources,
    part_order,
    percent,
    pivot,
    points,
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


@dataclass(frozen=True)
class Addition:
    """A domain that was added to the pool of some sources, as one method sees it."""

    added: str
    old: Sources
    method: str


@dataclass
class Change:
    """What an addition did, on the added domain and on others."""

    base: Interval | None
    before: Interval | None
    after: Interval | None
    start: Interval | None
    """With the domain from the start."""
    gain: Interval | None
    """After less before."""
    possible: Interval | None
    """From the start less before."""
    old: Interval | None
    """Mean change on the old sources."""
    others: Interval | None
    """Mean change on domains that neither pool was trained on."""


def growth_tables(results: Iterable[Result]) -> list[TextTable]:
    """Sum up what additions did: presets, test classes first, many shots first."""
    plain = [r for r in results if r.adaptation == "none"]
    places = group(plain, lambda r: (r.preset, r.part, r.way, r.shot))
    tables = []
    for place in sorted(places, key=lambda p: (p[0], part_order(p[1]), -p[3], p[2])):
        preset, part, way, shot = place
        title = listed(preset, classes_in_words(part), f"{way}-way {shot}-shot")
        tables += _tables(_Growth(places[place]), title)
    return tables


class _Growth:
    """The results of one preset, part and shape, without further adaptation."""

    def __init__(self, results: Sequence[Result]):
        self.runs = pivot(
            results, lambda r: (r.method, old_sources(r), r.added), lambda r: r.target
        )
        """(method, old sources, what was added to them) -> target -> results by seed."""

    def additions(self) -> list[Addition]:
        """List them; of the methods to show, where any of these was measured."""
        found = [Addition(added, old, method) for method, old, added in self.runs if added]
        shown = [each for each in found if each.method in SHOWN] or found
        return sorted(shown, key=lambda each: (each.added, each.old, method_order(each.method)))

    def at(self, method: str, sources: Sources, added: str, target: str) -> Runs:
        """Look up what a pool reached on a target."""
        return self.runs.get((method, sources, added), {}).get(target, {})

    def after(self, each: Addition, target: str) -> Runs:
        """Look up the grown pool."""
        return self.at(each.method, each.old, each.added, target)

    def targets(self, each: Addition) -> list[str]:
        """List the domains that the grown pool was tested on."""
        return sorted(self.runs[each.method, each.old, each.added])

    def gap(self, each: Addition, target: str) -> Interval | None:
        """Return the change of the accuracy on a target."""
        return _difference(self.after(each, target), self.at(each.method, each.old, "", target))

    def change(self, each: Addition) -> Change:
        """Collect the numbers of an addition."""
        added, old = each.added, each.old
        after = self.after(each, added)

        def plain(method: str, sources: Sources) -> Runs:
            """Find results of the trainings that something was added to: seeds differ."""
            every = self.at(method, sources, "", added)
            return {seed: result for seed, result in every.items() if seed in after}

        before, start = plain(each.method, old), plain(each.method, tuple(sorted((*old, added))))
        targets = self.targets(each)
        others = [target for target in targets if target not in (*old, added)]
        return Change(
            base=accuracy(plain(BASELINE, old)),
            before=accuracy(before),
            after=accuracy(after),
            start=accuracy(start),
            gain=_difference(after, before),
            possible=_difference(start, before),
            old=combined_if_all(self.gap(each, target) for target in targets if target in old),
            others=combined_if_all(self.gap(each, target) for target in others),
        )


def _tables(growth: _Growth, title: str) -> list[TextTable]:
    """Make the summary, and for each method the change on every domain."""
    additions = growth.additions()
    methods = list(dict.fromkeys(each.method for each in additions))
    changes = {each: growth.change(each) for each in additions}
    rows = [
        _row(each.added, each.method, change, growth.after(each, each.added).values())
        for each, change in changes.items()
    ]
    tables = [TextTable(f"A domain added later: {title}", HEAD, rows, NOTE)]
    for method in methods:
        own = [each for each in additions if each.method == method]
        if len(own) > 1:
            every = [run for each in own for run in growth.after(each, each.added).values()]
            rows.append(_row("average", method, _average([changes[each] for each in own]), every))
        targets = sorted({target for each in own for target in growth.targets(each)})
        lines = [
            [each.added, *(points(growth.gap(each, target)) for target in targets)] for each in own
        ]
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
    if change.possible[0] <= change.possible[1]:
        return "no clear gap"
    return f"{100 * change.gain[0] / change.possible[0]:.0f} %"


def _time(runs: Sequence[Result]) -> str:
    known = [run.added_seconds for run in runs if run.added_seconds is not None]
    if not known:
        return "not known, interrupted" if runs else UNKNOWN
    devices = ", ".join(sorted({run.added_on for run in runs if run.added_on}))
    return f"{statistics.fmean(known):.1f} s" + (f"\n{devices}" if devices else "")


def _average(changes: Sequence[Change]) -> Change:
    """Average what is known of every addition, each counting the same."""
    return Change(
        **{
            field.name: combined_if_all(getattr(change, field.name) for change in changes)
            for field in fields(Change)
        }
    )


def _difference(one: Runs, other: Runs) -> Interval | None:
    """Pair results on the same episodes; others, as of a pack that was drawn anew, have no pair."""
    draws = {result.draw for runs in (one, other) for result in runs.values()}
    return difference(one, other) if len(draws) == 1 else None
