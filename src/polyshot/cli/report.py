"""The command that turns a grid of experiments into a report."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[
        Path, typer.Argument(help="A folder made by 'reproduce', or a file of results.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the report goes; FOLDER/report if not given.")
    ] = None,
) -> None:
    """Write the report of the experiments: a page to look at, tables as Markdown and LaTeX.

    Example: polyshot report grid
    """
    from polyshot.experiments.report import write_report

    page, *tables = write_report(folder, out)
    typer.echo(f"wrote {' and '.join(map(str, tables))}")
    typer.echo(f"Look at {page}")
