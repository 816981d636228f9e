"""Options that several commands share."""

from typing import Annotated

import typer

Way = Annotated[int, typer.Option(help="Classes in an episode.")]
Shot = Annotated[int, typer.Option(help="Support images of each class.")]
Queries = Annotated[int, typer.Option(help="Query images of each class.")]
Part = Annotated[str, typer.Option(help="train, val, test or all classes.")]
EpisodeSeed = Annotated[int, typer.Option(help="Another seed, other episodes.")]
ShareGroups = Annotated[
    bool, typer.Option("--share-groups", help="Let support and query share a group.")
]
DropSmall = Annotated[
    bool, typer.Option("--drop-small", help="Leave out classes that are too small.")
]
Preset = Annotated[str, typer.Option(help="tiny (minutes on two cores), paper, or strong.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one.")]
PoolName = Annotated[
    str, typer.Option("--pool", help="A pool: a folder made by 'train', or the one that ships.")
]
ViewsName = Annotated[
    str | None,
    typer.Option(
        "--views",
        help="How often to look at each image: one, three (zoomed) or five (with its corners). "
        "More is steadier, and as many times slower; as the pool says if not given.",
    ),
]


def names_in(text: str) -> list[str]:
    """Take ``a, b,c`` apart."""
    return [name.strip() for name in text.split(",") if name.strip()]
