"""Tables that several commands show."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from polyshot.evaluation.results import Result


WIDEST = 4
"""Methods that fit side by side into a narrow terminal."""


def show_accuracies(results: "Sequence[Result]") -> None:
    """Print accuracies: a row a target, or a row a method where targets are few and methods many.

    Methods with adaptation have a table of their own; then comes how far probabilities are off.
    """
    from polyshot.cli.display import out as console
    from polyshot.cli.display import table
    from polyshot.data.shapes import META_DATASET, VariableShape
    from polyshot.evaluation.compare import as_text, rows, with_averages
    from polyshot.experiments.report.summary import calibration_table

    found = with_averages(rows(results))
    names = list(dict.fromkeys(name for row in found for name in row.cells))
    adapted = [name for name in names if "+" in name]
    for group in ([name for name in names if name not in adapted], adapted):
        if not group:
            continue
        kinds = ["seen" if row.seen else "unseen" for row in found]
        if len(group) > len(found) and len(group) > WIDEST:
            titles = [f"{row.target} ({kind})" for row, kind in zip(found, kinds, strict=True)]
            columns = zip(group, *(as_text(row, group) for row in found), strict=True)
            console.print(table(("method", *titles), list(columns)))
        else:
            lines = [
                (row.target, kind, *as_text(row, group))
                for row, kind in zip(found, kinds, strict=True)
            ]
            console.print(table(("target", "", *group), lines))
    if any(result.shape == META_DATASET for result in results):
        typer.echo(f"Tasks of {VariableShape()}, as in Meta-Dataset.")
    typer.echo("Accuracy in percent with its 95 % interval; below it the difference to base.")
    calibration = calibration_table(results)
    if calibration.rows:
        method, *groups = calibration.head
        head = (method, *(f"calibration error, {group}" for group in groups))
        console.print(table(head, list(calibration.rows)))
        typer.echo(calibration.note)
