"""What commands show: progress with rate and remaining time on stderr, tables on stdout."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

out = Console()
"""Results: what a user may pipe into a file."""
err = Console(stderr=True)
"""Progress, remarks and errors."""


class RateColumn(ProgressColumn):
    """Items a second, over the last while."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """Show the speed once there is one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s", style="cyan")


@contextmanager
def progress(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar a name; yields ``report(name, done, total)``."""
    bars: dict[str, object] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(unit),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    # Drawing takes the interpreter from the work: four times a second is lively enough.
    with Progress(*columns, console=err, refresh_per_second=4) as shown:

        def report(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = shown.add_task(name, total=total)
            shown.update(bars[name], completed=done)  # type: ignore[arg-type]

        yield report


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Make a table whose numeric columns are aligned right; cells are plain text or ``Text``."""
    made = Table()
    for i, name in enumerate(columns):
        numeric = all(isinstance(row[i], int | float) for row in rows)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> Text:
    """Wrap a value, so that a class named ``[red]`` is shown and not taken for markup."""
    if isinstance(value, Text):
        return value
    return Text(f"{value:,}" if isinstance(value, int) else str(value))
