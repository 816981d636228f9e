"""A config that trains on small packs in about a second, and a grid of their cells."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from polyshot.data.pack import Pack
from polyshot.experiments.request import Request
from polyshot.experiments.run import Summary, reproduce
from tests.helpers import SHAPE, TINY, pack_of

SMALL = replace(
    TINY,
    modulator=replace(TINY.modulator, steps=2, episodes=1, validate_every=1),
    validation_episodes=6,
)
OTHER = pack_of([7] * 6, "other")
"""All its classes are test classes."""


def run_grid(packs: list[Pack], out: Path, *names: str, **changes: Any) -> Summary:
    """Run some protocols, four episodes a cell, on the sources and on a domain called other."""
    options: dict[str, Any] = {"others": [OTHER], "config": SMALL, "sources": packs}
    options |= {"protocols": names or ["seen"], "episodes": 4, "shapes": (SHAPE,)} | changes
    asked = {field.name for field in fields(Request)} & set(options)
    request = Request(**{name: options.pop(name) for name in asked})
    return reproduce(request, out=out, **options)
