"""Commands for pools: add a domain, remove one, list them, merge two, publish one."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli.options import Device, Results, SourcePacks
from polyshot.pool.default import NAME

pools = typer.Typer(
    help="Let pools grow: add, remove, list, merge; publish them.", no_args_is_help=True
)

PoolPath = Annotated[
    str,
    Argument(
        help="A pool: a folder made by 'train', or 'default', the one that ships.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, Option(help="Write the new pool here; without it, in place ('default' needs it).")
]
NoSelector = Annotated[
    bool, Option("--no-selector", help="Go without a selector, where it cannot be trained anew.")
]


@pools.command()
def add(
    pool: PoolPath,
    pack: Annotated[Path, Argument(help="The new domain's pack.")],
    out: Out = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set", help="Override an option of the pool's training: --set modulator.steps=500."
        ),
    ] = None,
    part: Annotated[
        str,
        Option(
            help="Classes to learn from: train, those of the class split; all; or auto, all where "
            "the domain has no training classes."
        ),
    ] = "auto",
    no_selector: NoSelector = False,
    device: Device = None,
) -> None:
    """Add a domain: one modulator is trained, the base and all other members stay as they are.

    How long it takes is said first. Without a GPU it is a shorter training, of some minutes.

    The old images are not needed. Interrupted, the same command goes on; until it is done, the
    pool stays as it was.

    Example: polyshot pool add run/pool packs/birds --out grown
    """
    from polyshot.cli.display import progress, warn
    from polyshot.data.pack import Pack
    from polyshot.training.edit import grow

    folder, place = _folders(pool, out)
    opened = Pack.open(pack)
    name = opened.domain.name
    with progress("images") as report:
        how = (settings or [], not no_selector, device, report, part, warn)
        grown = grow(folder, opened, place, *how)
    about = grown.about["steps"][f"modulator:{name}"]
    typer.echo(
        f"wrote {place}: {len(grown.members)} members, hash {grown.hash[:12]}; {name} has strength "
        f"{about['strength']:g} and gains {100 * about['gain']:+.1f} points over the base on its "
        "validation classes"
    )
    if not about["strength"]:
        typer.echo(f"The modulator of {name} did not help: its member is the base itself.")


@pools.command()
def remove(
    pool: PoolPath,
    domain: Annotated[str, Argument(help="Its name, see 'pool list'.")],
    out: Out = None,
) -> None:
    """Remove a domain's members and all that the pool keeps of its tasks; nothing is trained.

    Example: polyshot pool remove run/pool birds
    """
    from polyshot.pool.pool import Pool

    folder, place = _folders(pool, out)
    smaller = Pool.load(folder).remove(domain)
    smaller.save(place)
    typer.echo(f"wrote {place}: {len(smaller.members)} members, hash {smaller.hash[:12]}")


@pools.command("list")
def list_(pool: PoolPath = NAME) -> None:
    """List a pool's members: strength, scale, validation, gain, and how they came in.

    Example: polyshot pool list run/pool
    """
    from polyshot.cli.display import show_table
    from polyshot.pool.default import pool_path
    from polyshot.pool.pool import Pool
    from polyshot.training.edit import listing

    loaded = Pool.load(pool_path(pool))
    typer.echo(
        f"{pool}: {len(loaded.members)} members ({loaded.kind}), {loaded.size} px, hash "
        f"{loaded.hash[:12]}, base {loaded.member_hash(0)[:12]}"
    )
    columns = ("member", "strength", "scale", "validation", "gain", "came in", "hash")
    show_table(columns, listing(loaded))
    if loaded.selector is None:
        typer.echo("It has no selector.")
    elif not loaded.statistics:
        typer.echo("It keeps no statistics of its tasks: its selector cannot grow.")


@pools.command()
def merge(
    one: PoolPath,
    other: PoolPath,
    out: Annotated[Path, Option(help="Folder of the new pool.")],
    no_selector: NoSelector = False,
) -> None:
    """Join two pools over one base; the selector is trained anew, in seconds.

    Example: polyshot pool merge mine/pool yours/pool --out ours
    """
    from polyshot.cli.display import progress
    from polyshot.pool.default import check_not_shipped, pool_path
    from polyshot.pool.files import check_destination
    from polyshot.pool.pool import Pool
    from polyshot.training.edit import merge as join

    check_not_shipped(out)
    check_destination(out)
    pair = [Pool.load(pool_path(each)) for each in (one, other)]
    with progress("tasks") as report:
        joint = join(pair[0], pair[1], not no_selector, report)
    joint.save(out)
    typer.echo(f"wrote {out}: {len(joint.members)} members, hash {joint.hash[:12]}")


@pools.command()
def publish(
    pool: PoolPath,
    out: Annotated[Path, Option(help="Folder to make, which can be uploaded as it is.")],
    results: Results = None,
    packs: SourcePacks = None,
    licence: Annotated[
        str | None, Option(help="Of the weights, as the Hub calls it: apache-2.0, cc-by-4.0, ...")
    ] = None,
    precision: Annotated[str, Option(help="Of the weights: full, half, eight or six.")] = "full",
) -> None:
    """Write a pool with its card in the layout of the Hugging Face Hub; nothing is uploaded.

    Example: polyshot pool publish default --out hub --licence apache-2.0 --precision six
    """
    from polyshot.experiments.card import card_of
    from polyshot.pool.default import check_not_shipped, pool_path
    from polyshot.pool.pool import Pool

    check_not_shipped(out)
    folder = pool_path(pool)
    text = card_of(folder, results or [], packs)
    loaded = Pool.load(folder)
    loaded.save_pretrained(out, precision, text, licence)  # type: ignore[arg-type]
    typer.echo(f"wrote {out}: {len(loaded.members)} members, hash {loaded.hash[:12]}")
    typer.echo(f"hf upload <you>/<name> {out}")


def _folders(pool: str, out: Path | None) -> tuple[Path, Path]:
    """Return where a pool is and where the changed one goes; the one that ships is not changed."""
    from polyshot.errors import PolyshotError
    from polyshot.pool.default import check_not_shipped, pool_path

    folder = pool_path(pool)
    if out is None and pool == NAME:
        raise PolyshotError(
            "The pool that ships is not changed in place: name a folder with --out."
        )
    check_not_shipped(out or folder)
    return folder, out or folder
