"""The command that measures a pool, on packs or on a user's own images."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polyshot.cli import options
from polyshot.cli.options import names_in

PAPERS = ("auto", "select", "average")
"""Rules that are compared with the base on packs: the paper's, and the default."""


def evaluate(
    images: Annotated[
        Path,
        Argument(help="Packs, or labelled images: a folder for each class, a zip, a CSV, Parquet."),
    ],
    pool: options.PoolName = "default",
    targets: Annotated[str, Option(help="Domains to test on: a,b,c; all if not given.")] = "",
    shape: Annotated[
        str,
        Option(
            help="fixed: each episode has the ways, shots and queries below. meta-dataset: each "
            "has ways of its own, 5 to 50, and uneven shots, up to 500 support images."
        ),
    ] = "fixed",
    way: Annotated[
        int | None, Option(help="Classes in an episode: 5, of images as they allow.")
    ] = None,
    shot: Annotated[int | None, Option(help="Support images of each class: 5, likewise.")] = None,
    queries: Annotated[int | None, Option(help="Query images of each class: 10, likewise.")] = None,
    episodes: Annotated[
        int, Option(min=2, max=options.MOST_EPISODES, help="Episodes of each target.")
    ] = 600,
    methods: Annotated[
        str,
        Option(
            help="Rules to compare, base among them always; if not given, of packs "
            "base,auto,select,average (select where there is a selector), of images all that work "
            "on embeddings."
        ),
    ] = "",
    adapt: Annotated[
        str | None,
        Option(
            help="Also with these adaptations: head,ridge,pa,tsa, or auto, as 'classify' chooses; "
            "if not given, of packs none, of images ridge. Without a GPU tsa takes about 0.6 "
            "seconds an example in every episode."
        ),
    ] = None,
    part: Annotated[
        str | None, Option(help="train, val, test or all classes of packs; test if not given.")
    ] = None,
    seed: options.EpisodeSeed = 0,
    share_groups: options.ShareGroups = False,
    drop_small: options.DropSmall = False,
    out: Annotated[
        Path | None,
        Option(
            help="Append results, one JSON line each; those that are there are not measured again."
        ),
    ] = None,
    page: Annotated[
        Path | None, Option(help="Write a page to look at; of images polyshot-<name>.html.")
    ] = None,
    confusion: Annotated[
        Path | None, Option(help="Folder for a picture of each target's confusions.")
    ] = None,
    cache: Annotated[
        Path | None, Option(help="Keep embeddings here, so that the next evaluation is instant.")
    ] = None,
    views: options.ViewsName = None,
    sites: options.Sites = "",
    device: options.Device = None,
) -> None:
    """Measure a pool: accuracy with a 95 % interval, and differences to the base.

    On packs it takes their test classes. On your own labelled images it takes all classes and the
    largest tasks that they allow, compares all rules, and writes a page to look at. With --shape
    meta-dataset tasks are as uneven as life: many or few classes, many or few examples of each.

    Example: polyshot evaluate photos/
    """
    from polyshot.cli.display import progress, show_accuracies
    from polyshot.evaluation import evaluate as evaluation
    from polyshot.evaluation.results import Result, ResultsFile
    from polyshot.experiments import own_data
    from polyshot.experiments.report.figures import confusion_picture
    from polyshot.experiments.sheet import save_picture
    from polyshot.pool.forms import load_pools
    from polyshot.tasks import EmbeddingCache
    from polyshot.util.device import best_device
    from polyshot.util.files import check_writable

    request = own_data.ShapeRequest.of(shape, way, shot, queries)
    pools, form = load_pools(pool, best_device(device), views, names_in(sites))
    loaded = pools[0]
    packed = own_data.holds_packs(images)
    usual = own_data.possible(loaded, PAPERS) if packed else own_data.rules_of(loaded)
    rules = list(dict.fromkeys(["base", *(names_in(methods) or usual)]))
    adaptations = names_in(("none" if packed else "ridge") if adapt is None else adapt)
    check_writable(page)
    file = ResultsFile(out)
    kept = EmbeddingCache(cache) if cache else None
    sources = {pack for each in pools for pack in each.about.get("packs", {}).values()}
    results: list[Result] = []
    apart, names = not share_groups, names_in(targets)
    with (
        progress("images") as report,
        own_data.open_targets(
            images, loaded.size, request, names, part, drop_small, apart, report
        ) as chosen,
    ):
        for target in chosen:
            pack, name = target.pack, target.pack.domain.name
            drawn = (target.shape, episodes, seed, target.part)
            how = evaluation.Drawing(
                group_disjoint=apart, drop_small=target.drop_small, cache=kept, report=report
            )
            seen = pack.hash in sources
            options = (rules, *drawn, adaptations, seen, file.known)
            # Written at once: what comes after may be interrupted.
            results += file.add(evaluation.evaluate(pools, pack, *options, **how))
            if confusion:
                how["report"] = None  # once is enough
                counts = evaluation.confusion(pools, pack, rules[-1], *drawn, **how)
                picture = confusion_picture(counts, pack, f"{name}: {rules[-1]}, {target.shape}")
                save_picture(picture, confusion / f"{name}.png")
        if page is None and not packed:
            page = Path(f"polyshot-{images.resolve().stem}.html")
        if page:
            own_data.write_evaluation(page, loaded, chosen, results, pool)
    for target in chosen:
        for remark in target.remarks:
            typer.echo(remark)
    show_accuracies(results)
    if form:
        typer.echo(f"Form: {form}")
    if out:
        typer.echo(file)
    if page:
        typer.echo(f"Look at {page}")
