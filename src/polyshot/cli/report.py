"""Commands that write pages: the report of a grid of experiments, the card of a pool."""

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


def card(
    pool: Annotated[
        str, typer.Argument(help="A pool: a folder made by 'train', or the one that ships.")
    ] = "default",
    out: Annotated[Path | None, typer.Option(help="Markdown file; printed if not given.")] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Results of 'evaluate' or 'reproduce'; may be repeated."),
    ] = None,
    packs: Annotated[
        Path | None, typer.Option(help="The sources' packs, to describe the data by.")
    ] = None,
) -> None:
    """Write a pool's card: data and its licence, recipe, accuracy, limits, how to remake it.

    The pool that ships has its card with it, with all that was measured; it is shown as it is.

    Example: polyshot card run/pool --packs packs --results results.jsonl --out CARD.md
    """
    from polyshot.data.pack import open_packs
    from polyshot.evaluation.results import read_results
    from polyshot.experiments.card import card as describe
    from polyshot.experiments.report.pages import write_file
    from polyshot.pool.default import CARD, pool_path
    from polyshot.pool.pool import Pool

    folder = pool_path(pool)
    if (folder / CARD).is_file() and not (results or packs):
        text = (folder / CARD).read_text(encoding="utf-8")
    else:
        measured = [result for file in results or [] for result in read_results(file)]
        text = describe(Pool.load(folder), measured, open_packs(packs) if packs else [])
    if out is None:
        typer.echo(text, nl=False)
        return
    write_file(out, text)
    typer.echo(f"wrote {out}")
