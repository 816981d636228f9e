"""What commands show: progress with rate and remaining time on stderr, tables on stdout."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich import progress as rich
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyshot.errors import counted, join_names, one_line, printable

if TYPE_CHECKING:
    from polyshot.data.images import BadImage
    from polyshot.evaluation.results import Result

out = Console()
"""Results: what a user may pipe into a file."""
err = Console(stderr=True)
"""Progress, remarks and errors."""


class RateColumn(rich.ProgressColumn):
    """Items a second, over the last while; the task says what they are."""

    def render(self, task: rich.Task) -> Text:
        """Show the speed once there is one."""
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        unit = task.fields["unit"]
        shown = f"{speed:,.0f} {unit}/s" if speed >= 1 else f"{60 * speed:,.1f} {unit}/min"
        return Text(shown, style="cyan")


UNITS = {"selector": "tasks", "urt": "tasks"}
"""What bars of these names count instead."""


@contextmanager
def progress(unit: str, whole: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar a name, which counts units; yields ``report(name, done, total)``.

    The bar called `whole` counts parts of a long work, in units of its name: it comes first and
    stays, the others go when they are full or when the next part is begun.
    """
    bars: dict[str, rich.TaskID] = {}
    columns = (
        rich.TextColumn("{task.description}", markup=False),  # names are no markup
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        RateColumn(),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
    )
    # Parts of a long work come seldom: their speed needs a longer look back.
    period = 1800 if whole else 30
    # Drawing takes the interpreter from the work: four times a second is lively enough.
    with rich.Progress(
        *columns, console=err, refresh_per_second=4, speed_estimate_period=period
    ) as shown:

        def report(name: str, done: int, total: int) -> None:
            if name not in bars:  # what was done before says nothing about the speed
                counted = name if name == whole else UNITS.get(name, unit)
                bars[name] = shown.add_task(name, total=total, completed=done, unit=counted)
            shown.update(bars[name], completed=done, total=total)
            if not whole:
                return
            full = [name] if name != whole and done >= total else []
            for other in [each for each in bars if each != whole] if name == whole else full:
                shown.remove_task(bars.pop(other))

        yield report


def warn(remark: str) -> None:
    """Say on stderr what a user should know, and go on."""
    typer.secho("note: ", fg="yellow", bold=True, nl=False, err=True)
    typer.echo(one_line(remark), err=True)


def warn_left_out(examples: "Sequence[BadImage]") -> None:
    """Name examples that cannot be read, or belong to no class."""
    if examples:
        named = join_names(map(str, examples))
        warn(f"{counted(len(examples), 'example is', 'examples are')} left out: {named}.")


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table whose numeric columns are aligned right; cells are plain text or ``Text``."""
    made = Table()
    for i, name in enumerate(columns):
        numeric = all(isinstance(row[i], int | float) for row in rows)
        made.add_column(_cell(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    out.print(made)


def _cell(value: object) -> Text:
    """Wrap a value, so that a class named ``[red]`` is shown and not taken for markup.

    Nor are what terminals take for commands: a name may hold anything.
    """
    if isinstance(value, Text):
        return value
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return Text("\n".join(map(printable, text.split("\n"))))


WIDEST = 4
"""Methods that fit side by side into a narrow terminal."""


def show_accuracies(results: "Sequence[Result]") -> None:
    """Print accuracies: a row a target, or a row a method where targets are few and methods many.

    Methods with adaptation have a table of their own; then comes how far probabilities are off.
    """
    from polyshot.data.shapes import META_DATASET, VariableShape
    from polyshot.evaluation.compare import as_text, averages, rows
    from polyshot.experiments.report.summary import calibration_table

    found = rows(results)
    found += averages(found).values()
    names = list(dict.fromkeys(name for row in found for name in row.cells))
    adapted = [name for name in names if "+" in name]
    kinds = ["seen" if row.seen else "unseen" for row in found]
    for group in ([name for name in names if name not in adapted], adapted):
        cells = [as_text(row, group) for row in found]
        if len(group) > max(len(found), WIDEST):
            titles = [f"{row.target} ({kind})" for row, kind in zip(found, kinds, strict=True)]
            show_table(("method", *titles), list(zip(group, *cells, strict=True)))
        elif group:
            targets = [row.target for row in found]
            lines = [(*one, *texts) for *one, texts in zip(targets, kinds, cells, strict=True)]
            show_table(("target", "", *group), lines)
    if any(result.shape == META_DATASET for result in results):
        typer.echo(f"Tasks of {VariableShape()}, as in Meta-Dataset.")
    typer.echo("Accuracy in percent with its 95 % interval; below it the difference to base.")
    calibration = calibration_table(results)
    if calibration.rows:
        method, *groups = calibration.head
        head = (method, *(f"calibration error, {group}" for group in groups))
        show_table(head, list(calibration.rows))
        typer.echo(calibration.note)
