"""How far probabilities are off, method by method: for the terminal, a page and the report."""

import statistics
from collections.abc import Sequence
from html import escape

from polyshot.evaluation.compare import label
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import BINS
from polyshot.experiments.page_tables import plain_grid
from polyshot.experiments.report_plain import UNKNOWN, PlainTable
from polyshot.experiments.report_tables import method_order, protocol_order

HEADING = "How far to trust the probabilities"
TITLE = "Calibration"
ABOUT = (
    "Expected calibration error in points, the average over targets: how far the probability of an "
    f"answer is from the share of right answers, over {BINS} bins of equal width. 0 is perfect."
)


def calibration_table(results: Sequence[Result], title: str = TITLE) -> PlainTable:
    """Average each method over seen and over unseen targets, each counting the same.

    A method that was not measured on all of these targets has no average: over others it could not
    be compared. There are no rows where nothing was measured, as in results of old versions.
    """
    groups = {
        name: list(dict.fromkeys(r.target for r in results if bool(r.seen) == seen))
        for name, seen in (("seen domains", True), ("unseen domains", False))
    }
    groups = {name: targets for name, targets in groups.items() if targets}
    found: dict[str, dict[str, list[float]]] = {}
    for r in results:
        if r.calibration_error is not None:
            by_target = found.setdefault(label(r), {})
            by_target.setdefault(r.target, []).append(r.calibration_error)
    rows = [
        (name, *(_average(by_target, targets) for targets in groups.values()))
        for name, by_target in found.items()
    ]
    return PlainTable(title, ("method", *groups), rows, ABOUT)


def _average(by_target: dict[str, list[float]], targets: Sequence[str]) -> str:
    """Average over the seeds of each target, then over targets."""
    if not all(target in by_target for target in targets):
        return UNKNOWN
    mean = statistics.fmean(statistics.fmean(by_target[target]) for target in targets)
    return f"{100 * mean:.1f}"


def calibration_section(results: Sequence[Result]) -> str:
    """Make the part of a page, or nothing where nothing was measured."""
    table = calibration_table(results)
    if not table.rows:
        return ""
    grid = plain_grid("Calibration error of methods", table.head, table.rows)
    return f"<h2>{HEADING}</h2><p>{escape(table.note)}</p>{grid}"


def calibration_tables(results: Sequence[Result]) -> list[PlainTable]:
    """Make the tables of a report: one a preset, protocol and shot."""
    blocks: dict[tuple[str, str, int], list[Result]] = {}
    for result in sorted(results, key=lambda r: method_order(label(r))):
        blocks.setdefault((result.preset, result.protocol, result.shot), []).append(result)
    tables = []
    for key in sorted(blocks, key=lambda key: (key[0], protocol_order(key[1]), -key[2])):
        preset, protocol, shot = key
        ways = " or ".join(str(way) for way in sorted({r.way for r in blocks[key]}))
        where = ", ".join(filter(None, (preset, protocol, f"{ways}-way {shot}-shot")))
        tables.append(calibration_table(blocks[key], f"{TITLE}: {where}"))
    return tables
