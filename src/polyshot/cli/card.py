"""The command that writes a pool's card."""

from pathlib import Path
from typing import Annotated

import typer


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
    from polyshot.experiments.report.pages import write_file
    from polyshot.pool.default import CARD, pool_path

    folder = pool_path(pool)
    written = folder / CARD
    if written.is_file() and not (results or packs):
        text = written.read_text(encoding="utf-8")
    else:
        text = _describe(folder, results or [], packs)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_file(out, text)
    typer.echo(f"wrote {out}")


def _describe(pool: Path, results: list[Path], packs: Path | None) -> str:
    from polyshot.data.pack import open_packs
    from polyshot.evaluation.results import read_results
    from polyshot.experiments.card import card as describe
    from polyshot.pool.pool import Pool

    measured = [result for file in results for result in read_results(file)]
    return describe(Pool.load(pool), measured, open_packs(packs) if packs else [])
