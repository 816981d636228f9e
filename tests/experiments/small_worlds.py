"""Small packs, a config that trains on them in about a second, and a grid of their cells."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from polyshot.config import BaseConfig, Config, ModulatorConfig, SelectorConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.experiments.jobs import Request
from polyshot.experiments.run import Summary, reproduce
from polyshot.models.resnet import ResNetConfig
from tests.helpers import make_domain

SHAPE = EpisodeShape(5, 2, 3)
ONE_SHOT = EpisodeShape(5, 1, 3)
SMALL = Config(
    preset="tiny",
    size=16,
    model=ResNetConfig(width=4, stem="small/2"),
    base=BaseConfig(steps=7, batch=16, learning_rate=0.05, warm_up=2, validate_every=3),
    modulator=ModulatorConfig(steps=2, episodes=1, shape=SHAPE, validate_every=1),
    selector=SelectorConfig(steps=6, tasks=12, batch=8, hidden=8, validate_every=4),
    shape=SHAPE,
    validation_episodes=6,
)


def pack_of(sizes: list[int], name: str, size: int = 16) -> Pack:
    """A pack in memory of random pixels; its classes, all of them test classes, have the sizes."""
    domain = make_domain(sizes, name=name)
    pixels = np.random.default_rng(len(name)).integers(0, 256, (sum(sizes), 3, size, size))
    return Pack(Path(name), domain, pixels.astype(np.uint8), f"hash of {name}", {})


OTHER = pack_of([7] * 6, "other")
"""All its classes are test classes."""


def states(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All files with the time of their last change."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def run_grid(packs: list[Pack], out: Path, *names: str, **changes: Any) -> Summary:
    """Run some protocols, four episodes a cell, on the sources and on a domain called other."""
    options: dict[str, Any] = {"others": [OTHER], "config": SMALL, "sources": packs}
    options |= {"protocols": names or ["seen"], "episodes": 4, "shapes": (SHAPE,)} | changes
    asked = {field.name for field in fields(Request)} & set(options)
    request = Request(**{name: options.pop(name) for name in asked})
    return reproduce(request, out=out, **options)
