"""Targets to measure a pool on: packs, or a user's own labelled images, packed for the occasion.

Of one's own images all classes are new to the pool, and the tasks are as large as they allow.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from polyshot.data.importer import Imported, ImportOptions, import_source
from polyshot.data.pack import Domain, Pack, open_packs
from polyshot.data.shapes import Capacity, EpisodeShape
from polyshot.data.splits import ClassSplit
from polyshot.errors import PolyshotError, join_names
from polyshot.util.progress import Progress

LARGEST = EpisodeShape()
"""What is measured where the images allow it: 5 ways, 5 shots, 10 queries."""
KEPT = 0.8
"""Share of the classes that must be large enough: a few small ones must not make tasks small."""


@dataclass(frozen=True)
class Wish:
    """Numbers of an episode's shape that a user insists on; the others follow from the images."""

    way: int | None = None
    shot: int | None = None
    queries: int | None = None

    def shape(self, default: EpisodeShape = LARGEST) -> EpisodeShape:
        """Fill what is not asked for from another shape."""
        return EpisodeShape(
            default.way if self.way is None else self.way,
            default.shot if self.shot is None else self.shot,
            default.queries if self.queries is None else self.queries,
        )


@dataclass(frozen=True)
class Target:
    """One domain and the tasks that are drawn from it."""

    pack: Pack
    shape: EpisodeShape
    part: str
    """Of its class split."""
    drop_small: bool
    """Leave classes out that are too small for the shape."""
    remarks: tuple[str, ...] = ()
    """What a user should know: files and classes left out, tasks smaller than usual."""


def holds_packs(path: Path) -> bool:
    """Whether a folder is a pack or holds packs; anything else is taken for images."""
    return (path / "domain.json").is_file() or any(path.glob("*/domain.json"))


@contextmanager
def open_targets(
    path: Path,
    size: int,
    wish: Wish | None = None,
    only: Sequence[str] = (),
    part: str | None = None,
    drop_small: bool = False,
    group_disjoint: bool = True,
    progress: Progress | None = None,
) -> Iterator[list[Target]]:
    """Open packs, or import images for as long as the context lasts.

    Args:
        path: a pack or a folder of packs; an image folder, or what else `data import` reads.
        size: the pool's, to which images are brought.
        wish: what the tasks must look like.
        only: of several domains take these.
        part: of the packs' class split, ``test`` by default; of images all classes are taken.
        drop_small: of packs, leave out classes that are too small for the shape.
        group_disjoint: keep support and query from sharing a group, where there are groups.
        progress: told how many images were read.

    """
    wish = wish or Wish()
    if (path / "pool.json").is_file():
        raise PolyshotError(f"{path} is a pool: name it with --pool, and the images without.")
    if holds_packs(path):
        packs = open_packs(path, list(dict.fromkeys(only)))
        yield [Target(pack, wish.shape(), part or "test", drop_small) for pack in packs]
        return
    options = ImportOptions(size=size, skip_bad=True, only=tuple(only))
    with tempfile.TemporaryDirectory(prefix="polyshot-") as folder:
        imported = import_source(path, Path(folder), options, progress=progress)
        yield [_own(one, wish, group_disjoint) for one in imported]


def choose_shape(
    domain: Domain, wish: Wish | None = None, group_disjoint: bool = True
) -> EpisodeShape:
    """Find the largest tasks, up to 5 ways, 5 shots and 10 queries, for most of the classes.

    Two thirds of the images of a small class are support, one third queries. Refuses where fewer
    than two classes have two images each.
    """
    wish = wish or Wish()
    smallest = EpisodeShape(1, 1, 1)
    usable = len(_fitting(domain, smallest, group_disjoint))
    if len(domain.class_names) < 2:
        raise PolyshotError(
            f"{domain.name} has one class, '{domain.class_names[0]}': there is nothing to tell "
            "apart. Give a folder for each of two or more classes."
        )
    if usable < 2:
        raise PolyshotError(
            f"{domain.name}: {usable} of {len(domain.class_names)} classes have two images, at "
            "least two classes must: one image to learn from and one to ask for. Add images."
        )
    way = min(LARGEST.way, usable) if wish.way is None else wish.way
    needed = max(way, ceil(KEPT * usable))
    shape = smallest
    for images in range(LARGEST.shot + LARGEST.queries, 1, -1):
        shot = min(LARGEST.shot, images - max(1, images // 3))
        shape = wish.shape(EpisodeShape(way, shot, min(LARGEST.queries, images - shot)))
        if len(_fitting(domain, shape, group_disjoint)) >= needed:
            return shape
    return shape  # the sampler says why the shape that was wished for cannot be


def _fitting(domain: Domain, shape: EpisodeShape, group_disjoint: bool) -> tuple[int, ...]:
    """List the classes that are large enough for a shape."""
    one = EpisodeShape(1, shape.shot, shape.queries)
    capacity = Capacity(domain, one, group_disjoint and domain.groups is not None)
    try:
        return capacity.usable_classes("all", drop_small=True)
    except PolyshotError:  # not even one
        return ()


def _own(imported: Imported, wish: Wish, group_disjoint: bool) -> Target:
    """Describe imported images as a target, with what was left out."""
    domain = imported.pack.domain
    shape = choose_shape(domain, wish, group_disjoint)
    remarks = []
    if bad := imported.skipped:
        named = join_names((f"{one.where} ({one.kind})" for one in bad), limit=3)
        remarks.append(f"{domain.name}: {len(bad):,} unreadable files are left out: {named}.")
    kept = set(_fitting(domain, shape, group_disjoint))
    small = [name for i, name in enumerate(domain.class_names) if i not in kept]
    if small:
        remarks.append(
            f"{domain.name}: {len(small)} of {len(domain.class_names)} classes have fewer than "
            f"{shape.shot + shape.queries} images and are left out: {join_names(small, 3)}."
        )
    if shape != wish.shape():
        remarks.append(
            f"{domain.name}: {len(domain.labels):,} images of {len(domain.class_names)} classes "
            f"allow tasks of {shape}, fewer than the usual {LARGEST}."
        )
    everything = ClassSplit((), (), tuple(range(len(domain.class_names))), rule="target-only")
    pack = replace(imported.pack, domain=domain.with_split(everything))
    return Target(pack, shape, "all", True, tuple(remarks))
