"""Commands that make pools and look inside: train, info, card, and the demo."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import (
    MOST_EPISODES,
    Address,
    Device,
    EngineName,
    Gpus,
    Preset,
    Results,
    Sites,
    SourcePacks,
    StoreUrl,
    Threads,
    names_in,
)
from polyshot.errors import PolyshotError

Packs = Annotated[Path, Argument(help="A folder of packs.")]
Settings = Annotated[
    list[str] | None,
    Option("--set", help="Override an option of the preset: --set base.steps=100."),
]


def train(
    packs: Packs,
    out: Annotated[Path, Option(help="Run folder; the pool is in it when all is done.")],
    sources: Annotated[str, Option(help="Domains to train on: a,b,c; all if not given.")] = "",
    preset: Preset = "strong",
    step: Annotated[str, Option(help="base, modulators, selector, or all.")] = "all",
    seed: Annotated[int, Option(help="Another seed, another training.")] = 0,
    settings: Settings = None,
    sites: Sites = "",
    start: Annotated[
        Path | None,
        Option(help="Start the base from torchvision's ResNet-18 weights (safetensors)."),
    ] = None,
    members_per_source: Annotated[
        str,
        Option(
            help="Members of each source, one for each cluster of its classes: a number, or auto."
        ),
    ] = "",
    joint: Annotated[bool, Option("--joint", help="Train base and modulators together.")] = False,
    device: Device = None,
    engine: EngineName = "local",
    address: Address = "",
    threads: Threads = 1,
    gpus: Gpus = None,
    store: StoreUrl = "",
) -> None:
    """Train a pool in three steps: base, a modulator for each source, selector.

    Steps that are done are skipped; an interrupted run goes on where it was when started again.
    With --engine ray each modulator is learned by a job of its own.

    Example: polyshot train packs --sources flowers,signs --preset tiny --out run
    """
    import json
    from dataclasses import replace

    from polyshot.cli.display import progress
    from polyshot.config import override
    from polyshot.config import preset as look_up
    from polyshot.data.pack import open_packs
    from polyshot.engines import chosen_engine
    from polyshot.training.jobs import train_by
    from polyshot.training.run import train as run

    options = [*(settings or []), *(["joint=true"] if joint else [])]
    if sites:
        options.append(f"sites={json.dumps(names_in(sites))}")
    if members_per_source:
        if members_per_source.strip() == "0":
            raise PolyshotError("--members-per-source 0 has no members: take 1 or more, or auto.")
        count = "0" if members_per_source == "auto" else members_per_source
        options.append(f"modulator.members={count}")
    config = override(replace(look_up(preset), seed=seed), options)
    chosen = open_packs(packs, names_in(sources))
    if not sources:
        chosen = [pack for pack in chosen if pack.domain.split.train]
    with (
        progress("images") as report,
        chosen_engine(engine, device, address, threads, gpus, store) as (runs, each),
    ):
        if engine == "local":
            pool = run(chosen, config, out, step=step, device=device, start=start, progress=report)
        elif step != "all":
            raise PolyshotError("--engine ray does all steps that are missing: leave out --step.")
        else:
            pool = train_by(runs, each, chosen, config, out, start, report)
    typer.echo(f"wrote {out / 'pool'}: {len(pool.members)} members, hash {pool.hash[:12]}")


def info(
    pool: Annotated[
        str | None, Argument(help="A pool, or 'default'; without one, the paper's sizes.")
    ] = None,
) -> None:
    """Show what a pool holds: members, parameters, how it was trained; or the paper's sizes."""
    from polyshot.cli.display import show_table
    from polyshot.experiments.card import pool_sizes
    from polyshot.experiments.report.paper import paper_sizes
    from polyshot.pool.pool import Pool

    if pool is None:
        show_table(("what", "parameters"), paper_sizes())
        return
    loaded = Pool.named(pool)
    config = loaded.about.get("config", {})
    typer.echo(
        f"{pool}: {len(loaded.members)} members ({loaded.kind} modulators), {loaded.size} px, "
        f"{loaded.metric} metric, preset {config.get('preset', 'unknown')}, "
        f"seed {config.get('seed', 'unknown')}, hash {loaded.hash[:12]}"
    )
    show_table(("member", "parameters", "strength", "scale", "validation"), pool_sizes(loaded))


def card(
    pool: Annotated[
        str, Argument(help="A pool: a folder made by 'train', or the one that ships.")
    ] = "default",
    out: Annotated[Path | None, Option(help="Markdown file; printed if not given.")] = None,
    results: Results = None,
    packs: SourcePacks = None,
) -> None:
    """Write a pool's card: data and its licence, recipe, accuracy, limits, how to remake it.

    The pool that ships has its card with it, with all that was measured; it is shown as it is.

    Example: polyshot card run/pool --packs packs --results results.jsonl --out CARD.md
    """
    from polyshot.experiments.card import card_of
    from polyshot.experiments.report.pages import write_file
    from polyshot.pool.default import pool_path

    text = card_of(pool_path(pool), results or [], packs)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_file(out, text)
    typer.echo(f"wrote {out}")


def demo(
    out: Annotated[Path, Option(help="Folder for everything the demo makes.")] = Path("demo"),
    episodes: Annotated[
        int, Option(min=2, max=MOST_EPISODES, help="Episodes of each target.")
    ] = 600,
    settings: Settings = None,
) -> None:
    """Train a tiny pool on six embedded domains and test it on these and on two unseen ones.

    Takes some minutes on two cores and ends with a page to look at. It can be interrupted and goes
    on where it was.
    """
    from polyshot.cli.display import progress, show_accuracies
    from polyshot.config import override, preset
    from polyshot.experiments.demo import run_demo

    config = override(preset("tiny"), settings or [])
    with progress("images") as report:
        done = run_demo(out, config, episodes, report)
    show_accuracies(done.results)
    typer.echo(done.labelled)
    typer.echo(f"The pool is in {out / 'run' / 'pool'}; it took {done.seconds / 60:.1f} minutes.")
    typer.echo(f"Look at {done.page}")
