"""What the numbers of a report say: who is best, where the paper's order holds, costs, settings."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyshot.errors import join_names
from polyshot.evaluation.compare import BASELINE, group, is_clear, label
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import BINS, Estimate
from polyshot.experiments.grid import Contributions, Grid
from polyshot.experiments.report.pages import UNKNOWN, percent, points, render
from polyshot.experiments.report.paper import PaperComparison, numbers, paper_table
from polyshot.experiments.report.tables import (
    AccuracyTable,
    TextTable,
    blocks,
    classes_in_words,
    listed,
    method_order,
    ranking,
    shape_in_words,
)

POOL = ("select", "average", "select-channel", "average-channel")
"""The paper's own methods; all others but the base are its rivals."""
CALIBRATION = "Calibration"
ABOUT_CALIBRATION = (
    "Expected calibration error in points, the average over targets: how far the probability of an "
    f"answer is from the share of right answers, over {BINS} bins of equal width. 0 is perfect."
)
FACTS = ("code", "polyshot", "torch", "python", "platform", "device")
HASH_SHOWN = 16
"""Digits of a hash: enough to tell packs apart."""


# --- who is best


class Winner(NamedTuple):
    """The best of an average over targets, and how far it is ahead of the next."""

    method: str
    accuracy: Estimate
    second: str = ""
    gap: Estimate | None = None


def winner(table: AccuracyTable, seen: bool) -> Winner | None:
    """Find the best of the methods that were measured on every seen, or unseen, target."""
    if seen not in table.averages or not (cells := table.averages[seen].cells):
        return None
    best, *others = ranking(cells)
    if not others:
        return Winner(best, cells[best].accuracy)
    gap = table.gap(best, others[0], table.targets(seen))
    return Winner(best, cells[best].accuracy, others[0], gap)


def summary(tables: Sequence[AccuracyTable]) -> list[str]:
    """Say in a few lines what the main tables show: most shots, without further adaptation."""
    most = max(table.shot for table in tables)
    main = [table for table in tables if table.shot == most and not table.adapted]
    winners = []
    for table in main:
        seen = table.protocol == "seen"
        found = winner(table, seen) if table.protocol in ("seen", "unseen") else None
        if found is not None:
            place = listed(f"{table.protocol} domains", classes_in_words(table.part))
            winners.append((table, place, found, _against(table, seen)))
    claims = _claims([table for table in main if table.part == "test"])
    return render("summary.txt", winners=winners, claims=claims).splitlines()


def _against(table: AccuracyTable, seen: bool) -> list[tuple[str, str, Estimate]]:
    """Compare the best of the pool's methods with the best rival, and with the base alone."""
    order = ranking(table.averages[seen].cells)
    ours = next((m for m in order if m in POOL), None)
    rival = next((m for m in order if m not in (*POOL, BASELINE)), None)
    found = []
    for other in (rival, BASELINE):
        if ours is not None and other in order:
            gap = table.gap(ours, other, table.targets(seen))
            found += [] if gap is None else [(ours, other, gap)]
    return found


def _claims(tables: Sequence[AccuracyTable]) -> list[dict[str, Any]]:
    """Find, for the order of the paper's averages, ours."""
    found = []
    for claim in numbers()["claims"]:
        protocol, better, worse = claim["protocol"], claim["better"], claim["worse"]
        own = [table for table in tables if table.protocol == protocol]
        gaps = [(t.preset, t.gap(better, worse, t.targets(protocol == "seen"))) for t in own]
        ours = [(preset, gap) for preset, gap in gaps if gap is not None]
        block = paper_table(protocol)
        if ours and block is not None:
            paper = (block.average[better], block.average[worse])
            found.append({**claim, "paper": paper, "ours": ours})
    return found


def winner_table(tables: Sequence[AccuracyTable]) -> TextTable:
    """Show the best on average of every table, a line for each experiment and kind of target."""
    kinds = dict.fromkeys((table.shot, table.adapted) for table in tables)
    lines: dict[tuple[str, str], dict[tuple[int, bool], str]] = {}
    for table in tables:
        for seen in table.averages:
            found = winner(table, seen)
            if found is None:
                continue
            text = f"{found.method} {percent(found.accuracy)}"
            if found.gap is not None:
                doubt = "" if is_clear(found.gap) else ", may be chance"
                text += f"\n{points(found.gap)} to {found.second}{doubt}"
            lines.setdefault(_place(table, seen), {})[table.shot, table.adapted] = text
    names = [f"{shot}-shot, adapted" if adapted else f"{shot}-shot" for shot, adapted in kinds]
    rows = [
        [*place, *(cells.get(kind, UNKNOWN) for kind in kinds)] for place, cells in lines.items()
    ]
    note = "Accuracy on average over the domains; below it the lead over the next method."
    return TextTable("Best on average", ("experiment", "domains", *names), rows, note)


def agreement_table(comparisons: Iterable[PaperComparison]) -> TextTable:
    """Count the pairs of methods whose order, on average, is the paper's."""
    rows = []
    for each in comparisons:
        found = each.agreement()
        if found.pairs:
            counts = (f"{found.same} of {found.pairs}", f"{found.clear_same} of {found.clear}")
            rows.append((*_place(each.table, each.seen), each.table.shape, *counts))
    return TextTable(
        "Where the paper's order holds",
        ("experiment", "domains", "tasks", "all pairs", "beyond chance in ours"),
        rows,
        "Pairs of methods that, on the average of the domains that both have, stand in the "
        "paper's order: of all pairs, and of those whose difference in ours is more than chance.",
    )


def _place(table: AccuracyTable, seen: bool) -> tuple[str, str]:
    name = listed(table.preset, table.protocol, classes_in_words(table.part))
    return name, "seen" if seen else "unseen"


# --- calibration


def calibration_table(results: Sequence[Result], title: str = CALIBRATION) -> TextTable:
    """Average each method over seen and over unseen targets, each counting the same.

    A method that was not measured on all of these targets has no average: over others it could not
    be compared. There are no rows where nothing was measured, as in results of old versions.
    """
    kinds = {"seen domains": True, "unseen domains": False}
    every = {
        name: list(dict.fromkeys(r.target for r in results if bool(r.seen) == seen))
        for name, seen in kinds.items()
    }
    groups = {name: targets for name, targets in every.items() if targets}
    rows = []
    measured = [r for r in results if r.calibration_error is not None]
    for name, own in group(measured, label).items():
        by_target = {
            target: statistics.fmean(r.calibration_error or 0.0 for r in found)  # over seeds
            for target, found in group(own, lambda r: r.target).items()
        }
        cells = [
            f"{100 * statistics.fmean(by_target[target] for target in targets):.1f}"
            if all(target in by_target for target in targets)
            else UNKNOWN
            for targets in groups.values()
        ]
        rows.append((name, *cells))
    return TextTable(title, ("method", *groups), rows, ABOUT_CALIBRATION)


def calibration_tables(results: Sequence[Result]) -> list[TextTable]:
    """Make the tables of a report: one a preset, part of the classes, protocol and shot."""
    ordered = sorted(results, key=lambda r: method_order(label(r)))
    tables = []
    for (preset, part, protocol, _), own in blocks(ordered):
        where = listed(preset, protocol, classes_in_words(part), shape_in_words(own))
        tables.append(calibration_table(own, f"{CALIBRATION}: {where}"))
    return tables


# --- costs, settings, members


def cost_tables(results: Sequence[Result]) -> list[TextTable]:
    """What one task costs, by preset and shot, in the first part and protocol measured."""
    note = "Parameters of the whole trained method; the median time over targets, in batches."
    head = ("method", "parameters", "multiply-adds", "time", "device")
    tables, first = [], dict[str, tuple[str, str]]()
    for (preset, part, protocol, _), own in blocks(results):
        if first.setdefault(preset, (part, protocol)) != (part, protocol):
            continue
        classes = classes_in_words(part)
        place = listed(preset or "no preset", protocol or "no protocol", classes)
        found = group(own, label)
        rows = [(name, *_cost(found[name])) for name in sorted(found, key=method_order)]
        title = f"Cost of a task: {place}, {shape_in_words(own)}"
        tables.append(TextTable(title, head, rows, note))
    return tables


def _cost(runs: Sequence[Result]) -> tuple[str, str, str, str]:
    seconds = [r.seconds for r in runs if r.seconds is not None]
    return (
        _range([r.parameters for r in runs if r.parameters is not None]),
        _range([r.multiply_adds for r in runs if r.multiply_adds is not None], 1e9, " G"),
        f"{_short(1000 * statistics.median(seconds))} ms" if seconds else UNKNOWN,
        ", ".join(sorted({r.device for r in runs if r.device})),
    )


def _range(values: Sequence[int], unit: float = 1, suffix: str = "") -> str:
    """Format equal numbers once, others as a range: the pool grows with its sources."""
    if not values:
        return UNKNOWN
    ends = dict.fromkeys(_short(v / unit) + suffix for v in (min(values), max(values)))
    return " to ".join(ends)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def settings_table(results: Iterable[Result]) -> TextTable:
    """List what each method was set to, and what is noted about it."""
    found = group(results, lambda r: (r.preset, label(r)))
    rows = []
    for preset, name in sorted(found, key=lambda key: (key[0], method_order(key[1]))):
        own = found[preset, name]
        texts = [", ".join(f"{k} {v}" for k, v in sorted(r.settings.items())) for r in own]
        settings, notes = (
            "; ".join(filter(None, dict.fromkeys(each))) for each in (texts, [r.note for r in own])
        )
        if settings or notes:
            rows.append((preset, name, settings, notes))
    head = ("preset", "method", "settings", "notes")
    return TextTable("Settings and notes", head, rows, words=True)


def member_table(about: Contributions, method: str) -> TextTable:
    """Average each member's right predictions, and count the episodes in which it was best."""
    correct, wins = about.correct[method], about.best(method).sum(0)
    each = zip(about.members[method], correct.mean(0), wins, strict=True)
    rows = [(member, f"{mean:.1f}", f"{count} of {len(correct)}") for member, mean, count in each]
    head = ("member", f"right of {about.queries}, mean", "best of its episode")
    return TextTable(f"{method}: members on {about.title}", head, rows)


def leaders(about: Contributions, method: str) -> str:
    """Say whether few members lead in most episodes, as the paper finds of simple averaging."""
    correct, members, best = about.correct[method], about.members[method], about.best(method)
    first = np.argsort(-best.sum(0), kind="stable")[:2]
    return (
        f"A member is right on {correct.mean():.1f} of {about.queries} queries on average. "
        f"{' or '.join(members[i] for i in first)} is best, or one of the best, in "
        f"{best[:, first].any(1).sum()} of {len(correct)} episodes; {best.any(0).sum()} of "
        f"{len(members)} members are best at least once."
    )


# --- what was run


def run_facts(grid: Grid) -> dict[str, str]:
    """Collect the short facts for the top of the page."""
    results = grid.results
    facts = {
        "results": f"{len(results):,}",
        "methods": str(len({r.method for r in results})),
        "targets": str(len({r.target for r in results})),
        "presets": _joined(r.preset for r in results),
        "training seeds": _joined(r.train_seed for r in results if r.train_seed is not None),
        "failures": str(len(grid.failures)),
        "device": _joined(r.device for r in results),
    }
    noted = {name: grid.environment.get(name) for name in FACTS}
    facts |= {name: value for name, value in noted.items() if isinstance(value, str) and value}
    return {name: value for name, value in facts.items() if value}


def data_table(grid: Grid) -> TextTable:
    """List each target's data and episodes."""
    noted = grid.environment.get("packs")
    hashes: dict[str, Any] = noted if isinstance(noted, dict) else {}
    found = group(grid.results, lambda r: (r.target, r.part))
    for name in set(hashes) - {target for target, _ in found}:
        found[name, ""] = []
    rows = []
    for target, part in sorted(found):
        own = found[target, part]
        used = sorted({r.pack for r in own if r.pack})
        shown = [pack[:HASH_SHOWN] for pack in used]
        noted_hash = str(hashes.get(target, ""))
        if noted_hash and noted_hash not in used:
            shown.append(f"{noted_hash[:HASH_SHOWN]} (noted, but not what was measured)")
        seeds, episodes = _joined(r.seed for r in own), _joined(r.episodes for r in own)
        apart = "yes" if any(r.group_disjoint for r in own) else "no"
        rows.append((target, join_names(shown, 20), part, seeds, episodes, apart))
    head = ("target", "data hash", "classes", "episode seed", "episodes", "groups kept apart")
    return TextTable("Data and episodes", head, rows, words=True)


def run_lists(grid: Grid) -> dict[str, list[str]]:
    """Collect commands, failures and code versions, each under its heading."""
    commands = grid.environment.get("commands")
    lists = {
        "Commands": [str(line) for line in commands] if isinstance(commands, list) else [],
        "Failures": [
            f"{f.what}: {' '.join(f.error.split())}" + (f" ({f.when})" if f.when else "")
            for f in grid.failures
        ],
        "Code": [f"results of Polyshot {_joined(r.version for r in grid.results)}"],
    }
    return {heading: lines for heading, lines in lists.items() if lines}


def _joined(values: Iterable[Any]) -> str:
    """List values once each, sorted."""
    return join_names((str(value) for value in sorted(set(values)) if value != ""), 20)
