"""Commands about pools: train, evaluate, classify, look inside, and the demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyshot.cli.options import DropSmall, EpisodeSeed, Part, Queries, ShareGroups, Shot, Way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyshot.evaluation.results import Result


PoolPath = Annotated[
    Path, typer.Argument(help="A pool: a folder made by 'train'.", show_default=False)
]
Packs = Annotated[Path, typer.Argument(help="A folder of packs.", show_default=False)]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; the GPU where there is one.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override an option of the preset: --set base.steps=100.", show_default=False
    ),
]


def train(
    packs: Packs,
    out: Annotated[
        Path,
        typer.Option(help="Run folder; the pool is in it when all is done.", show_default=False),
    ],
    sources: Annotated[
        str, typer.Option(help="Domains to train on: a,b,c; all if not given.", show_default=False)
    ] = "",
    preset: Annotated[
        str, typer.Option(help="tiny (minutes on two cores), paper, or strong.")
    ] = "strong",
    step: Annotated[str, typer.Option(help="base, modulators, selector, or all.")] = "all",
    seed: Annotated[int, typer.Option(help="Another seed, another training.")] = 0,
    settings: Settings = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Start the base from torchvision's ResNet-18 weights (safetensors).",
            show_default=False,
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Train a pool in three steps: base, a modulator for each source, selector.

    Steps that are done are skipped; an interrupted run goes on where it was when started again.

    Example: polyshot train packs --sources flowers,signs --preset tiny --out run
    """
    from dataclasses import replace

    from polyshot.config import override
    from polyshot.config import preset as look_up
    from polyshot.data.pack import open_packs
    from polyshot.display import progress
    from polyshot.training.run import train as run

    config = override(replace(look_up(preset), seed=seed), settings or [])
    chosen = open_packs(packs, _names(sources))
    if not sources:
        chosen = [pack for pack in chosen if pack.domain.split.train]
    with progress("images") as report:
        pool = run(chosen, config, out, step=step, device=device, start=start, progress=report)
    typer.echo(f"wrote {out / 'pool'}: {len(pool.members)} members, hash {pool.hash[:12]}")


def evaluate(
    pool: PoolPath,
    packs: Packs,
    targets: Annotated[
        str, typer.Option(help="Domains to test on: a,b,c; all if not given.", show_default=False)
    ] = "",
    way: Way = 5,
    shot: Shot = 5,
    queries: Queries = 10,
    episodes: Annotated[int, typer.Option(min=2, help="Episodes of each target.")] = 600,
    methods: Annotated[
        str, typer.Option(help="Rules to compare; base is always among them.")
    ] = "base,select,average",
    adapt: Annotated[bool, typer.Option("--adapt", help="Also with further adaptation.")] = False,
    part: Part = "test",
    seed: EpisodeSeed = 0,
    share_groups: ShareGroups = False,
    drop_small: DropSmall = False,
    out: Annotated[
        Path | None, typer.Option(help="Append results, one JSON line each.", show_default=False)
    ] = None,
    confusion: Annotated[
        Path | None,
        typer.Option(help="Folder for a picture of each target's confusions.", show_default=False),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Keep embeddings here, so that the next evaluation is instant.", show_default=False
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Measure a pool on new classes: accuracy with a 95 % interval, and differences to the base.

    Example: polyshot evaluate run/pool packs --adapt --out results.jsonl
    """
    from polyshot.data.pack import open_packs
    from polyshot.data.shapes import EpisodeShape
    from polyshot.device import best_device
    from polyshot.display import progress
    from polyshot.evaluation.embed import EmbeddingCache
    from polyshot.evaluation.evaluate import confusion as count_confusions
    from polyshot.evaluation.evaluate import evaluate as measure
    from polyshot.evaluation.results import append_results
    from polyshot.experiments.confusion import confusion_picture
    from polyshot.experiments.sheet import save_picture
    from polyshot.pool import Pool

    loaded = Pool.load(pool, best_device(device))
    rules = list(dict.fromkeys(["base", *_names(methods)]))
    shape = EpisodeShape(way, shot, queries)
    kept = EmbeddingCache(cache) if cache else None
    sources = set(loaded.about.get("packs", {}).values())
    chosen = open_packs(packs, list(dict.fromkeys(_names(targets))))
    if out:
        append_results(out, [])  # a file that cannot be written shows before any work
    results = []
    with progress("images") as report:
        for pack in chosen:
            results += measure(
                loaded,
                pack,
                rules,
                shape,
                episodes,
                seed=seed,
                part=part,
                adapt=adapt,
                group_disjoint=not share_groups,
                cache=kept,
                seen=pack.hash in sources,
                report=report,
                drop_small=drop_small,
            )
            if confusion:
                counts = count_confusions(
                    loaded,
                    pack,
                    rules[-1],
                    shape,
                    episodes,
                    seed=seed,
                    part=part,
                    group_disjoint=not share_groups,
                    cache=kept,
                    drop_small=drop_small,
                )
                title = f"{pack.domain.name}: {rules[-1]}, {shape}"
                picture = confusion_picture(counts, pack, title)
                save_picture(picture, confusion / f"{pack.domain.name}.png")
    if out:
        append_results(out, results)
    _show_accuracies(results)
    if out:
        typer.echo(f"wrote {len(results)} results to {out}")


def classify(
    pool: Annotated[
        Path, typer.Option(help="A pool: a folder made by 'train'.", show_default=False)
    ],
    support: Annotated[
        Path,
        typer.Option(
            help="Examples: a folder for each class, or a CSV of path,label.", show_default=False
        ),
    ],
    query: Annotated[
        list[Path],
        typer.Option(
            help="What to classify: files or folders; may be repeated.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write a table: labels.csv.", show_default=False)
    ] = None,
    rule: Annotated[
        str, typer.Option(help="select, average, base, or member:<domain>.")
    ] = "average",
    adaptation: Annotated[str, typer.Option(help="none, or head: learn on the examples.")] = "head",
    device: Device = None,
) -> None:
    """Classify your images from a few examples of each class.

    Example: polyshot classify --pool run/pool --support examples/ --query new/
    """
    from polyshot.classifier import label_files
    from polyshot.device import best_device
    from polyshot.display import out as console
    from polyshot.display import progress, table
    from polyshot.pool import Pool

    with progress("images") as report:
        answer = label_files(
            Pool.load(pool, best_device(device)), support, query, rule, adaptation, report
        )
    typer.echo(answer.summary)
    columns = ("image", "label", "probability", "runner-up", "its probability")
    lines = [
        (r.path, r.label, f"{r.probability:.2f}", r.runner_up, f"{r.runner_up_probability:.2f}")
        for r in answer.rows
    ]
    if out:
        answer.write_csv(out)
        typer.echo(f"wrote {len(lines)} rows to {out}")
    else:
        console.print(table(columns, lines))
    typer.echo(
        "Members used: " + ", ".join(f"{name} {weight:.2f}" for name, weight in answer.members)
    )


def info(
    pool: Annotated[
        Path | None,
        typer.Argument(help="A pool; without one, the paper's sizes.", show_default=False),
    ] = None,
) -> None:
    """Show what a pool holds: members, parameters, how it was trained; or the paper's sizes."""
    from polyshot.display import out as console
    from polyshot.display import table
    from polyshot.experiments.sizes import paper_sizes, pool_sizes
    from polyshot.pool import Pool

    if pool is None:
        console.print(table(("what", "parameters"), paper_sizes()))
        return
    loaded = Pool.load(pool)
    config = loaded.about.get("config", {})
    typer.echo(
        f"{pool}: {len(loaded.members)} members ({loaded.kind} modulators), {loaded.size} px, "
        f"{loaded.metric} metric, preset {config.get('preset', 'unknown')}, "
        f"seed {config.get('seed', 'unknown')}, hash {loaded.hash[:12]}"
    )
    console.print(
        table(("member", "parameters", "strength", "scale", "validation"), pool_sizes(loaded))
    )


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
    episodes: Annotated[int, typer.Option(min=2, help="Episodes of each target.")] = 600,
    settings: Settings = None,
) -> None:
    """Train a tiny pool on six embedded domains and test it on these and on two unseen ones.

    Takes some minutes on two cores and ends with a page to look at. It can be interrupted and goes
    on where it was.
    """
    from polyshot.config import override, preset
    from polyshot.display import progress
    from polyshot.experiments.demo import run_demo

    config = override(preset("tiny"), settings or [])
    with progress("images") as report:
        done = run_demo(out, config, episodes, report)
    _show_accuracies(done.results)
    typer.echo(f"The pool is in {out / 'run' / 'pool'}; it took {done.seconds / 60:.1f} minutes.")
    typer.echo(f"Look at {done.page}")


def _show_accuracies(results: "Sequence[Result]") -> None:
    from polyshot.display import out as console
    from polyshot.display import table
    from polyshot.experiments.compare import as_text, rows, with_averages

    found = with_averages(rows(results))
    names = list(dict.fromkeys(name for row in found for name in row.cells))
    adapted = [name for name in names if "+" in name]
    for group in ([name for name in names if name not in adapted], adapted):
        lines = [
            (row.target, "seen" if row.seen else "unseen", *as_text(row, group)) for row in found
        ]
        if group:
            console.print(table(("target", "", *group), lines))
    typer.echo("Accuracy in percent with its 95 % interval; below it the difference to base.")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
