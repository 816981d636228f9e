"""Commands about data: import, look, split, draw episodes."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli import options
from polyshot.cli.options import names_in
from polyshot.errors import PolyshotError, counted, join_names, one_line

data = typer.Typer(
    help="Turn images into packs; look at them, split them, draw episodes.", no_args_is_help=True
)

Packs = Annotated[Path, Argument(help="A pack, or a folder of packs.")]
OnePack = Annotated[Path, Argument(help="A pack: a folder made by 'data import'.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace packs that exist.")]
Workers = Annotated[int | None, Option(min=1, max=256, help="Processes; all cores if not given.")]


@data.command("import")
def data_import(
    path: Annotated[
        Path,
        Argument(
            help="An image folder (a folder for each class), a zip or tar of one, Parquet files, "
            "or the Visual Decathlon's root."
        ),
    ],
    out: Annotated[Path, Option(help="Folder for the packs, one folder a domain.")],
    name: Annotated[str | None, Option(help="The domain's name, if not the path's.")] = None,
    size: Annotated[int, Option(help="Side length in pixels.")] = 72,
    only: Annotated[str, Option(help="Of several domains import these: a,b,c.")] = "",
    seed: Annotated[int, Option(help="Seed of the random class split.")] = 0,
    split: Annotated[
        Path | None, Option(help='Your own class split: JSON with "train", "val", "test".')
    ] = None,
    skip_bad: Annotated[
        bool, Option("--skip-bad", help="Go on without unreadable images and empty classes.")
    ] = False,
    no_mirror: Annotated[
        bool,
        Option(
            "--no-mirror",
            help="Mirrored images change class (letters, signs): never mirror in training.",
        ),
    ] = False,
    group_pattern: Annotated[
        str | None,
        Option(
            help="Regular expression on an image's path whose parenthesis names its group, "
            r"for example '(clip\d+)_': support and query never share a group."
        ),
    ] = None,
    label_column: Annotated[
        str | None, Option(help="Parquet: the label column, if several.")
    ] = None,
    keep_case: Annotated[
        bool, Option("--keep-case", help="'a' and 'A' are different classes.")
    ] = False,
    overwrite: Overwrite = False,
    keep: Annotated[
        bool, Option("--keep", help="Leave packs that exist, import the rest.")
    ] = False,
    workers: Workers = None,
) -> None:
    """Turn images into packs: decoded once, RGB, square, with a class split and a content hash.

    Example: polyshot data import photos/ --out packs
    """
    from polyshot.cli.display import progress
    from polyshot.data.importer import ImportOptions, import_source
    from polyshot.data.readers import ReadOptions

    wanted = ImportOptions(
        size=size,
        seed=seed,
        split_file=split,
        mirror=False if no_mirror else None,
        skip_bad=skip_bad,
        overwrite=overwrite,
        keep=keep,
        only=tuple(names_in(only)),
        workers=workers,
    )
    read_options = ReadOptions(name, label_column, group_pattern, keep_case)
    with progress("images") as report:
        done = import_source(path, out, wanted, read_options, report)
    for one in done:
        domain = one.pack.domain
        images = counted(len(domain.labels), "image", "images")
        what = f"{images} of {counted(len(domain.class_names), 'class', 'classes')}"
        if one.kept:
            typer.echo(f"kept {one.pack.path}: {what}")
            continue
        typer.echo(f"wrote {one.pack.path}: {what}, hash {one.pack.hash[:12]}")
        if one.remark:
            typer.echo(f"  {one.remark}", err=True)
        if one.skipped:
            named = join_names((f"{bad.where} ({bad.kind})" for bad in one.skipped), limit=3)
            files = counted(len(one.skipped), "file", "files")
            typer.echo(one_line(f"  left out {files}: {named}"), err=True)


@data.command("toy")
def data_toy(
    out: Annotated[Path, Option(help="Folder for the packs.")],
    only: Annotated[str, Option(help="Draw only these domains: a,b,c.")] = "",
    size: Annotated[int, Option(help="Side length in pixels.")] = 72,
    per_class: Annotated[int, Option(min=1, max=10_000, help="Images of each class.")] = 30,
    seed: Annotated[int, Option(help="Another seed, other images of the same classes.")] = 0,
    overwrite: Overwrite = False,
    workers: Workers = None,
) -> None:
    """Draw the embedded domains: images made by code, nothing is downloaded."""
    from polyshot.cli.display import progress
    from polyshot.data.toy import draw_packs

    with progress("images") as report:
        draw_packs(out, names_in(only), size, per_class, seed, overwrite, workers, report)


@data.command("list")
def data_list(folder: Packs) -> None:
    """Show the packs of a folder: classes, images, how many a class, groups, hash."""
    import numpy as np

    from polyshot.cli.display import show_table
    from polyshot.data.pack import Pack, find_packs

    packs = [Pack.open(path) for path in find_packs(folder)]
    rows = [
        {
            "domain": pack.domain.name,
            "classes": len(pack.domain.class_names),
            "train/val/test": "/".join(map(str, pack.domain.split.sizes)),
            "images": len(pack.domain.labels),
            "a class: min": int(pack.domain.class_sizes.min()),
            "median": int(np.median(pack.domain.class_sizes)),
            "max": int(pack.domain.class_sizes.max()),
            "groups": pack.domain.group_count,
            "size": pack.size,
            "hash": pack.hash[:12],
        }
        for pack in packs
    ]
    show_table(list(rows[0]), [list(row.values()) for row in rows])


@data.command("sheet")
def data_sheet(
    pack: OnePack,
    picture: Annotated[Path, Argument(help="Where to write it: out.png.")],
    classes: Annotated[int, Option(min=1, help="Classes at most.")] = 48,
    examples: Annotated[int, Option(min=1, help="Images of each class.")] = 8,
    seed: Annotated[int, Option(help="Another seed, other images.")] = 0,
) -> None:
    """Draw a contact sheet on which a person can check the labels."""
    from polyshot.data.pack import Pack
    from polyshot.experiments.sheet import contact_sheet, save_picture

    save_picture(contact_sheet(Pack.open(pack), classes, examples, seed), picture)
    typer.echo(f"wrote {picture}")


@data.command("split")
def data_split(
    pack: OnePack,
    file: Annotated[
        Path | None, Option(help='Record your own split: JSON with "train", "val", "test".')
    ] = None,
    seed: Annotated[int | None, Option(help="Record a new random split.")] = None,
) -> None:
    """Show a pack's class split, or record another one in it."""
    from polyshot.cli.display import show_table
    from polyshot.data.pack import Pack
    from polyshot.data.splits import PARTS, read_split_file, split_classes

    opened = Pack.open(pack)
    names, split = opened.domain.class_names, opened.domain.split
    if file is not None and seed is not None:
        raise PolyshotError("--file and --seed are two different splits: give one of them.")
    if file is not None:
        split = read_split_file(file, names)
    elif seed is not None:
        split = split_classes(names, seed)
    if split is not opened.domain.split:
        opened.record_split(split)
    chance = "" if split.seed is None else f", seed {split.seed}"
    parts = [(part, split.part(part)) for part in PARTS]
    rows = [(part, len(ids), ", ".join(names[i] for i in ids)) for part, ids in parts]
    typer.echo(f"{opened.domain.name}: split by rule '{split.rule}'{chance}")
    show_table(("part", "classes", "names"), rows)


@data.command("episodes")
def data_episodes(
    pack: OnePack,
    way: Annotated[int, Option(help="Classes in an episode.")] = 5,
    shot: Annotated[int, Option(help="Support images of each class.")] = 5,
    queries: Annotated[int, Option(help="Query images of each class.")] = 10,
    count: Annotated[
        int, Option("--episodes", min=1, max=options.MOST_EPISODES, help="How many.")
    ] = 600,
    part: Annotated[str, Option(help="train, val, test or all classes.")] = "test",
    seed: options.EpisodeSeed = 0,
    variable: Annotated[
        bool, Option("--variable", help="Meta-Dataset's variable ways and shots.")
    ] = False,
    share_groups: options.ShareGroups = False,
    drop_small: options.DropSmall = False,
    out: Annotated[Path | None, Option(help="Save the indices: out.npz.")] = None,
    picture: Annotated[Path | None, Option(help="Draw the first episode: out.png.")] = None,
) -> None:
    """Draw episodes: the same seed gives the same ones, for every method, on every machine."""
    from polyshot.data.episodes import EpisodeSampler
    from polyshot.data.pack import Pack
    from polyshot.data.shapes import EpisodeShape, VariableShape
    from polyshot.experiments.sheet import episode_sheet, save_picture

    opened = Pack.open(pack)
    shape = VariableShape() if variable else EpisodeShape(way, shot, queries)
    apart = not share_groups
    sampler = EpisodeSampler(
        opened.domain, shape, part=part, seed=seed, group_disjoint=apart, drop_small=drop_small
    )
    episodes = sampler(0, count)
    grouped = "group-disjoint" if sampler.group_disjoint else "not group-disjoint"
    classes = f"{len(sampler.class_ids)} {part} classes"
    typer.echo(
        f"{opened.domain.name}: {count:,} episodes of {shape}, {classes}, "
        f"seed {seed}, {grouped if opened.domain.group_count else 'no groups'}, "
        f"fingerprint {episodes.fingerprint()[:12]}"
    )
    if out is not None:
        episodes.save(out)
        typer.echo(f"wrote {out}")
    if picture is not None:
        save_picture(episode_sheet(opened, episodes), picture)
        typer.echo(f"wrote {picture}")
