"""The commands for a user's own images: classify them, and an example to try it on."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import Device, PoolName, ViewsName


def classify(
    support: Annotated[
        Path, Option(help="Examples: a folder for each class, or a CSV of path,label.")
    ],
    query: Annotated[
        list[Path], Option(help="What to classify: files or folders; may be repeated.")
    ],
    pool: PoolName = "default",
    out: Annotated[Path | None, Option(help="Write a table: labels.csv.")] = None,
    rule: Annotated[
        str, Option(help="How members are weighed: auto, select, average, base, member:<domain>.")
    ] = "auto",
    adaptation: Annotated[
        str,
        Option(
            help="What is learned on the examples: none, head, ridge, pa or tsa. tsa learns a "
            "network: without a GPU that takes about half a second an example (far more on a "
            "network from elsewhere), the others far less. auto is tsa up to 60 examples (5,000 "
            "with a GPU) that are not one of each class, else ridge."
        ),
    ] = "auto",
    none_rate: Annotated[
        float | None,
        Option(
            help="Answer 'none of these' to images unlike all examples; the share of images of "
            "your classes that may get it by mistake. 0.05 needs 19 examples or more, of classes "
            "that have two."
        ),
    ] = None,
    views: ViewsName = None,
    device: Device = None,
) -> None:
    """Classify your images from a few examples of each class.

    Every image gets one of your classes, unless you allow 'none of these' with --none-rate.

    Example: polyshot classify --support photos/ --query new/
    """
    from polyshot.classifier.label import label_files
    from polyshot.cli.display import progress, show_table
    from polyshot.pool.forms import load_pools
    from polyshot.util.device import best_device

    loaded, form = load_pools(pool, best_device(device), views)
    with progress("images") as report:
        answer = label_files(loaded, support, query, rule, adaptation, report, none_rate)
    typer.echo(answer.summary)
    if out:
        answer.write_csv(out)
        typer.echo(f"wrote {len(answer.rows)} rows to {out}")
    else:
        columns = ("image", "label", "probability", "runner-up", "its probability")
        lines = []
        for row in answer.rows:
            chance = "" if row.probability is None else f"{row.probability:.2f}"
            other = f"{row.runner_up_probability:.2f}"
            lines.append((row.path, row.label, chance, row.runner_up, other))
        show_table(columns, lines)
    if answer.none_summary:
        typer.echo(answer.none_summary)
    if form:
        typer.echo(f"Form: {form}")
    typer.echo(f"Learned on the examples: {answer.adaptation}")
    members = ", ".join(f"{name} {weight:.2f}" for name, weight in answer.members)
    typer.echo(f"Members used: {members}")


def example(
    out: Annotated[Path, Argument(help="Folder to make.")],
    domain: Annotated[
        str, Option(help="An embedded domain: flowers, plankton, signs, ...")
    ] = "flowers",
    classes: Annotated[int, Option(min=2, help="How many classes.")] = 5,
    shot: Annotated[int, Option(min=1, help="Examples of each class.")] = 5,
    queries: Annotated[int, Option(min=1, help="Images of each class to classify.")] = 20,
    seed: Annotated[int, Option(min=0, help="Another seed, other images.")] = 0,
) -> None:
    """Draw a folder to try things on: support/<class>/*.png and query/*.png, of mixed sizes.

    OUT/answers.csv tells what the queries are, to check the answers by; 'classify' never reads it.

    Example: polyshot example example/ && polyshot classify --support example/support --query
    example/query
    """
    from polyshot.data.toy import draw_example

    made = draw_example(out, domain, classes, shot, queries, seed)
    typer.echo(
        f"wrote {made.support}: {shot} images of each of {classes} classes, and {made.query}: "
        f"{classes * queries} images"
    )
    typer.echo(f"polyshot classify --support {made.support} --query {made.query}")
