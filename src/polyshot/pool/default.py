"""The pool that the name ``default`` means, wherever a command asks for a pool."""

import os
from pathlib import Path

from polyshot.errors import PolyshotError

NAME, ON_LITE0 = "default", "lite0"
"""Of the pools that ship with the package; the latter's base is not in it (`models.loaders`)."""
POOLS = Path(__file__).parents[1] / "pools"
PACKAGED = POOLS / NAME
"""Where the pool of our own base lies."""
CARD = "CARD.md"
"""A pool's card, where it lies in its folder."""
VARIABLE = "POLYSHOT_POOL"
"""Of the environment: the folder of another pool that takes its place."""


def pool_path(name: str | Path) -> Path:
    """Return the folder of a pool that a user named: a path, ``default`` or ``lite0``.

    A folder of one's own called default is ``./default``. Refuses what is something else.
    """
    if name == ON_LITE0:
        return POOLS / ON_LITE0
    if name == NAME:
        return default_pool()
    path = Path(name)
    if path.is_file():
        raise PolyshotError(
            f"{name} is no pool: it is a file, and a pool is a folder with a pool.json. A "
            "classifier that 'polyshot fit' wrote is named by --model."
        )
    if (path / "config.json").is_file() and not (path / "pool.json").exists():
        raise PolyshotError(
            f"{name} is no pool: it looks like a model of transformers, name it "
            f"transformers:{name}."
        )
    if not path.exists():
        raise PolyshotError(
            f"{name} is no pool: there is no such folder. Name one, {NAME}, {ON_LITE0}, or a "
            "backbone, such as resnet18, efficientnet-lite0 or transformers:<folder>."
        )
    return path


def has_default() -> bool:
    """Whether ``default`` means anything."""
    return VARIABLE in os.environ or (PACKAGED / "pool.json").is_file()


def check_not_shipped(place: Path) -> None:
    """Refuse to write over a pool that ships, by whatever path it is named."""
    if place.resolve() in (PACKAGED.resolve(), (POOLS / ON_LITE0).resolve()):
        raise PolyshotError(
            f"{place} is the pool that ships, which is not changed: name another folder with --out."
        )


def default_pool() -> Path:
    """Return the folder of the pool that ``default`` means; refuses where there is none."""
    if other := os.environ.get(VARIABLE):
        if not (Path(other) / "pool.json").is_file():
            raise PolyshotError(f"{VARIABLE} names {other}, which is no pool: it has no pool.json.")
        return Path(other)
    if not (PACKAGED / "pool.json").is_file():
        raise PolyshotError(
            "This copy of Polyshot comes without a trained pool: name one with --pool "
            f"(or {VARIABLE}); 'polyshot demo' makes a small one in demo/run/pool, "
            "'polyshot train' a real one."
        )
    return PACKAGED
