"""Results of several methods on the same episodes, as rows of a table with paired differences."""

from collections.abc import Sequence

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import paired
from polyshot.experiments.page_tables import Cell, Row, average

BASELINE = "base"
"""Base + nearest prototypes: the rival that every table shows."""


def label(result: Result) -> str:
    """Name a method with its adaptation: ``select + head``."""
    return (
        result.method if result.adaptation == "none" else f"{result.method} + {result.adaptation}"
    )


def rows(results: Sequence[Result]) -> list[Row]:
    """One row a target; differences are to the baseline, over the same episodes."""
    by_target: dict[str, dict[str, Result]] = {}
    for result in results:
        by_target.setdefault(result.target, {})[label(result)] = result
    return [
        Row(
            target=target,
            seen=bool(next(iter(found.values())).seen),
            cells={name: _cell(one, found.get(BASELINE)) for name, one in found.items()},
        )
        for target, found in by_target.items()
    ]


def _cell(result: Result, baseline: Result | None) -> Cell:
    if baseline is None or result is baseline:
        return Cell(result.mean, result.half_width)
    if result.fingerprint != baseline.fingerprint:
        raise PolyshotError(
            f"{result.target}: '{label(result)}' and '{label(baseline)}' were measured on "
            "different episodes and cannot be compared: evaluate them with the same shape and seed."
        )
    difference, half_width = paired(result.per_episode, baseline.per_episode)
    return Cell(result.mean, result.half_width, difference, half_width)


def as_text(row: Row, methods: Sequence[str]) -> list[str]:
    """Format a row for the terminal: ``81.2 ±0.4``, below it the difference where there is one."""
    texts = []
    for method in methods:
        cell = row.cells.get(method)
        if cell is None:
            texts.append("")
            continue
        text = f"{100 * cell.mean:.1f} ±{100 * cell.half_width:.1f}"
        if cell.difference is not None:
            points = round(100 * cell.difference, 1) + 0.0  # of -0.0, which reads as a loss, 0.0
            text += f"\n{points:+.1f} ±{100 * cell.difference_half_width:.1f}"
        texts.append(text)
    return texts


def with_averages(found: Sequence[Row]) -> list[Row]:
    """Add the averages of seen and of unseen targets, each target counting the same."""
    extended = list(found)
    for seen, name in ((True, "average, seen"), (False, "average, unseen")):
        group = [row for row in found if row.seen == seen]
        if len(group) > 1:
            shared = [m for m in group[0].cells if all(m in row.cells for row in group)]
            cells = {method: average([row.cells[method] for row in group]) for method in shared}
            extended.append(Row(name, seen, cells))
    return extended
