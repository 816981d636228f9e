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
