"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyshot.errors import PolyshotError

MOST_EPISODES = 1_000_000
"""Of a target; half a million make an interval of a twentieth of a point."""

EpisodeSeed = Annotated[int, Option(help="Another seed, other episodes.")]
ShareGroups = Annotated[bool, Option("--share-groups", help="Let support and query share a group.")]
DropSmall = Annotated[bool, Option("--drop-small", help="Leave out classes that are too small.")]
Preset = Annotated[str, Option(help="tiny (minutes on two cores), paper, or strong.")]
Device = Annotated[str | None, Option(help="cpu, cuda or mps; the GPU where there is one.")]
PoolName = Annotated[
    str,
    Option(
        "--pool",
        help="full (the best), fast (for a CPU), a folder made by 'train', a backbone such as "
        "efficientnet-lite0 or transformers:<folder>; several, a,b, answer together. default is "
        "full on a GPU, fast without one.",
    ),
]
ViewsName = Annotated[
    str | None,
    Option(
        "--views",
        help="How often to look at each image: one, three (zoomed) or five (with its corners). "
        "More is steadier, and as many times slower; as the pool says if not given.",
    ),
]
Sites = Annotated[
    str,
    Option(
        help="Names or patterns of a backbone's layers at which modulators act and tsa learns: "
        "'blocks.1*,head'; convolutions and linear layers of its blocks if not given."
    ),
]
EngineName = Annotated[
    str,
    Option("--engine", help="Where jobs run: local (this machine), or ray (a cluster, an extra)."),
]
Address = Annotated[
    str,
    Option(
        help="Of a Ray cluster: auto, or ray-head:6379; without one, ray starts on this machine."
    ),
]
Threads = Annotated[int, Option(help="Threads, and cores, of each job of --engine ray.")]
Gpus = Annotated[
    float | None,
    Option(
        help="GPUs of each job of --engine ray: 0.25 lets four share one; 1 where there are any."
    ),
]
StoreUrl = Annotated[
    str,
    Option(
        "--store",
        help="A shared path or URL (s3://...) by which files travel between the machines of "
        "--engine ray, instead of Ray's object store.",
    ),
]
Results = Annotated[
    list[Path] | None, Option(help="Results of 'evaluate' or 'reproduce'; may be repeated.")
]
SourcePacks = Annotated[Path | None, Option(help="The sources' packs, to describe the data by.")]
Strict = Annotated[
    bool,
    Option("--strict", help="Stop where an image cannot be read, before anything is learned."),
]


def names_in(text: str) -> list[str]:
    """Take ``a, b,c`` apart; no text is no names, commas alone are a mistake."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text and not names:
        raise PolyshotError(f"'{text}' names nothing: write names as a,b,c, or leave it out.")
    return names
