"""The embedded domains as packs, drawn on all cores."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyshot.data import toy
from polyshot.data.domain import Domain
from polyshot.data.pack import Pack, PackWriter
from polyshot.data.workers import map_in_order
from polyshot.util.progress import Progress


def draw_packs(
    out: Path,
    names: Sequence[str] = (),
    size: int = 72,
    per_class: int = 30,
    seed: int = 0,
    overwrite: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Pack]:
    """Draw the named domains (all of them if none is named) into packs ``out/<name>``."""
    for name in names:
        toy.draw_one(name, 0, 0, size, seed)  # complains of a wrong name or size before any work
    packs = []
    for name in names or toy.DOMAINS:
        about = toy.DOMAINS[name]
        classes = len(about.class_names)
        with PackWriter(out / name, size, overwrite) as writer:
            jobs = [(name, class_id, size, per_class, seed) for class_id in range(classes)]
            for images in map_in_order(_draw_class, jobs, workers):
                writer.append(images)
                if progress:
                    progress(name, writer.count, classes * per_class)
            labels = np.repeat(np.arange(classes), per_class)
            domain = Domain(name, about.class_names, labels, mirror=about.mirror)
            source = {"reader": "toy", "origin": f"polyshot {name}", "seed": seed, "skipped": {}}
            packs.append(writer.finish(domain, source))
    return packs


def keep_packs(
    out: Path, names: Sequence[str], size: int, progress: Progress | None = None
) -> list[Pack]:
    """Open the packs ``out/<name>`` of the named domains; draw those not there at this size."""
    packs = []
    for name in names:
        there = Pack.open(out / name) if (out / name / "domain.json").is_file() else None
        if there is None or there.size != size:
            there = draw_packs(out, [name], size=size, overwrite=True, progress=progress)[0]
        packs.append(there)
    return packs


def _draw_class(
    name: str, class_id: int, size: int, per_class: int, seed: int
) -> NDArray[np.uint8]:
    """Draw one class, uint8 ``[per_class, 3, size, size]``."""
    examples = range(per_class)
    return np.stack([toy.draw_one(name, class_id, example, size, seed) for example in examples])
