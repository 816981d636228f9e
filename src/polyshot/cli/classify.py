"""The commands for a user's own images: fit a classifier, ask it, and an example to try it on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import (
    Address,
    Device,
    EngineName,
    Gpus,
    PoolName,
    Sites,
    Strict,
    Threads,
    ViewsName,
    names_in,
)
from polyshot.errors import PolyshotError

if TYPE_CHECKING:
    from polyshot.classifier.label import LabelledFiles

RuleName = Annotated[
    str, Option(help="How members are weighed: auto, select, average, base, member:<domain>.")
]
AdaptationName = Annotated[
    str,
    Option(
        help="What is learned on the examples: none, head, ridge, pa or tsa. tsa learns a "
        "network: without a GPU that takes about half a second an example (far more on a "
        "network from elsewhere), the others far less. auto is ridge; tsa up to 5,000 examples "
        "with a GPU, and up to 60 without one on networks of ours, if some class has two."
    ),
]
NoneRate = Annotated[
    float | None,
    Option(
        help="Answer 'none of these' to images unlike all examples; the share of images of "
        "your classes that may get it by mistake. 0.05 needs 19 examples or more, of classes "
        "that have two."
    ),
]
PrecisionName = Annotated[
    str,
    Option(
        help="Bits of weights: full, half, eight or six; auto leaves pools as they are and rounds "
        "EfficientNet-Lite to eight bits and networks of transformers to half."
    ),
]


def fit(
    support: Annotated[
        Path, Argument(help="Examples: a folder for each class, or a CSV of path,label.")
    ],
    out: Annotated[Path, Option(help="Where to write the classifier: birds.polyshot.")],
    pool: PoolName = "default",
    rule: RuleName = "auto",
    adaptation: AdaptationName = "auto",
    none_rate: NoneRate = None,
    views: ViewsName = None,
    sites: Sites = "",
    precision: PrecisionName = "auto",
    no_examples: Annotated[
        bool,
        Option(
            "--no-examples",
            help="Do not keep the examples' small images, names and embeddings in the file; it "
            "can then not be corrected.",
        ),
    ] = False,
    strict: Strict = False,
    device: Device = None,
) -> None:
    """Learn a classifier from a few examples of each class, and keep it as one file.

    Examples that cannot be read are left out, and named, unless --strict.

    Example: polyshot fit photos/ --out birds.polyshot
    """
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.classifier.label import fit_files
    from polyshot.cli.display import progress, warn_left_out
    from polyshot.pool.forms import load_pools
    from polyshot.util.device import best_device
    from polyshot.util.files import check_writable

    check_writable(out)
    loaded, form = load_pools(pool, best_device(device), views, names_in(sites))
    made = FewShotClassifier(
        loaded,
        rule,
        adaptation,
        none_rate=none_rate,
        precision=precision,  # type: ignore[arg-type]
    )
    with progress("images") as report:
        left_out = fit_files(made, support, report, strict)
    warn_left_out(left_out)
    made.save(out, examples=not no_examples)
    if made.can_estimate:
        typer.echo(made.estimate())
    typer.echo(f"wrote {out}: {len(made.classes_)} classes, {out.stat().st_size / 1e6:.1f} MB")
    if form:
        typer.echo(f"Form: {form}")
    typer.echo(f"Learned on the examples: {made.adaptation_ if made.adapted_ else 'none'}")
    typer.echo(f"polyshot classify --model {out} --query new/")


def classify(
    query: Annotated[
        list[str],
        Option(
            help="What to classify: files or folders; may be repeated. Into a folder of labels "
            "also Parquet and tar files (WebDataset), and URLs of them."
        ),
    ],
    support: Annotated[
        Path | None, Option(help="Examples: a folder for each class, or a CSV of path,label.")
    ] = None,
    model: Annotated[
        Path | None, Option(help="A classifier that 'polyshot fit' wrote, instead of examples.")
    ] = None,
    pool: PoolName = "default",
    out: Annotated[
        str,
        Option(
            help="Write a table: labels.csv. A folder or URL (labels/) takes any number of images, "
            "a table a shard, and goes on where it was."
        ),
    ] = "",
    page: Annotated[
        Path | None,
        Option(help="Write a page to look at: thumbnails by label, the least certain first."),
    ] = None,
    rule: RuleName = "auto",
    adaptation: AdaptationName = "auto",
    none_rate: NoneRate = None,
    views: ViewsName = None,
    sites: Sites = "",
    strict: Strict = False,
    device: Device = None,
    shard: Annotated[
        int, Option(help="Files of a folder that share a table of a folder of labels.")
    ] = 1000,
    engine: EngineName = "local",
    address: Address = "",
    threads: Threads = 1,
    gpus: Gpus = None,
) -> None:
    """Classify your images from a few examples of each class.

    Every image gets one of your classes, unless you allow 'none of these' with --none-rate. One
    that cannot be read gets a row with the reason, unless --strict.

    Example: polyshot classify --support photos/ --query new/ --page labels.html
    """
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.classifier.label import check_queries, check_table, label_by, label_files
    from polyshot.classifier.many import label_many
    from polyshot.cli.display import progress, warn, warn_left_out
    from polyshot.engines import chosen_engine
    from polyshot.experiments.labels import write_labels_page
    from polyshot.pool.forms import load_pools
    from polyshot.util.device import best_device
    from polyshot.util.files import check_writable

    many = _is_folder(out)
    if not many and engine != "local":
        raise PolyshotError("--engine ray labels into a folder: name one, --out labels/.")
    if not many and out:
        check_table(Path(out))
    check_writable(page)
    form, where = "", best_device(device)
    queries = [Path(each) for each in query]
    if many and (model is None or page):
        raise PolyshotError(
            f"{out} cannot be written: a folder of labels is made by a classifier that is kept "
            "('polyshot fit' writes one, --model names it), without --page. Or write a table, "
            "--out labels.csv."
        )
    if model is not None:
        given = {
            "--support": support is not None,
            "--pool": pool != "default",
            "--rule": rule != "auto",
            "--adaptation": adaptation != "auto",
            "--none-rate": none_rate is not None,
            "--views": views is not None,
            "--sites": sites != "",
        }
        if told := [option for option, is_given in given.items() if is_given]:
            raise PolyshotError(
                f"A classifier knows {', '.join(told)} already: leave that out, or fit another one."
            )
        if many:
            with (
                progress("images") as report,
                chosen_engine(engine, device, address, threads, gpus) as (runs, each),
            ):
                done = label_many(runs, each, model, query, out, shard, strict, report)
            typer.echo(f"{done}\nwrote {out}")
            return
        check_queries(queries, strict)
        loaded = FewShotClassifier.load(model, where)
        with progress("images") as report:
            answer = label_by(loaded, queries, report, strict)
    elif support is None:
        raise PolyshotError(
            "Name your examples (--support photos/), or a classifier that 'polyshot fit' wrote "
            "(--model birds.polyshot)."
        )
    else:
        pools, form = load_pools(pool, where, views, names_in(sites))
        with progress("images") as report:
            answer = label_files(
                pools, support, queries, rule, adaptation, report, none_rate, strict
            )
    warn_left_out(answer.left_out)
    if answer.unread:
        warn(answer.unread_summary)
    _show(answer, Path(out) if out else None)
    if page:
        write_labels_page(page, answer)
        typer.echo(f"wrote {page}")
    if form:
        typer.echo(f"Form: {form}")
    typer.echo(f"Learned on the examples: {answer.adaptation}")
    members = ", ".join(f"{name} {weight:.2f}" for name, weight in answer.members)
    typer.echo(f"Members used: {members}")


def _is_folder(out: str) -> bool:
    """Tell whether labels go into a folder: what has no suffix, and is no file, is one."""
    if not out or "://" in out:
        return bool(out)
    path = Path(out)
    return out.endswith("/") or path.is_dir() or not (path.suffix or path.exists())


def _show(answer: "LabelledFiles", out: Path | None) -> None:
    """Print the answers, or write them as a table."""
    from polyshot.cli.display import show_table

    typer.echo(answer.summary)
    if out:
        answer.write_csv(out)
        typer.echo(f"wrote {len(answer.rows)} rows to {out}")
    else:
        columns = ("image", "label", "probability", "runner-up", "its probability")
        lines = []
        for row in answer.rows:
            chances = [row.probability, row.runner_up_probability]
            first, second = ("" if chance is None else f"{chance:.2f}" for chance in chances)
            label = f"({row.reason})" if row.reason else row.label
            lines.append((row.path, label, first, row.runner_up, second))
        show_table(columns, lines)
    if answer.none_summary:
        typer.echo(answer.none_summary)


def example(
    out: Annotated[Path, Argument(help="Folder to make.")],
    domain: Annotated[
        str, Option(help="An embedded domain: flowers, plankton, signs, ...")
    ] = "flowers",
    classes: Annotated[int, Option(min=2, help="How many classes.")] = 5,
    shot: Annotated[int, Option(min=1, max=1000, help="Examples of each class.")] = 5,
    queries: Annotated[
        int, Option(min=1, max=10_000, help="Images of each class to classify.")
    ] = 20,
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
