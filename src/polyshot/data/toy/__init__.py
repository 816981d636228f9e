"""Embedded domains: image collections drawn by code, to try and to test Polyshot with no download.

Each class is a fixed form (a letter, a stroke program, a plate with a pictogram); its examples
differ in viewpoint, light, clutter and noise. Every image is a pure function of its domain, class,
example number, size and seed. On disk they are packs, or an example to try Polyshot on::

    example/support/<class>/*.png   the examples of each class
    example/query/*.png             what to classify, in no order
    example/answers.csv             path,label of each query, to check the labels by
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polyshot.data.importer import map_in_order
from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.data.toy.canvas import ToyDomain, generator, to_bytes
from polyshot.data.toy.characters import glyphs, strokes
from polyshot.data.toy.drawings import signs, vehicles
from polyshot.data.toy.living import flowers, plankton
from polyshot.data.toy.scenes import aerial, solids
from polyshot.data.toy.textures import smears, textures
from polyshot.errors import PolyshotError, unknown
from polyshot.util.counter_rng import key
from polyshot.util.files import new_folder
from polyshot.util.progress import Progress

_ALL = (glyphs, strokes, textures, signs, flowers, vehicles, aerial, smears, plankton, solids)
DOMAINS: dict[str, ToyDomain] = {domain.name: domain for domain in _ALL}
"""The embedded domains by name."""

SIDES = (48, 240)
"""Pixels: images come in any size between these, as a user's do."""
_LARGEST = 1024  # pixels, as of images that are imported
_SMALLEST = 16  # pixels: below this the forms that define the classes are gone


def draw(
    name: str, size: int = 72, per_class: int = 30, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw a whole domain: images `[n, 3, size, size]` ordered by class, and labels `[n]`.

    The first images of each class stay the same when `per_class` grows.
    """
    if per_class < 1:
        raise PolyshotError(f"per_class is {per_class}; draw at least one image per class.")
    classes = range(len(_domain(name, size, seed).class_names))
    images = [_draw_class(name, class_id, size, per_class, seed) for class_id in classes]
    return np.concatenate(images), np.repeat(np.array(classes, dtype=np.int64), per_class)


def draw_one(name: str, class_id: int, example: int, size: int, seed: int) -> NDArray[np.uint8]:
    """Draw one image `[3, size, size]`: the row of `draw` with this class and example number."""
    domain = _domain(name, size, seed)
    if not 0 <= class_id < len(domain.class_names):
        raise PolyshotError(f"'{name}' has classes 0 to {len(domain.class_names) - 1}: {class_id}.")
    if example < 0:
        raise PolyshotError(f"example is {example}; examples count from 0.")
    rng = generator(int.from_bytes(name.encode(), "big"), class_id, seed, example)
    return np.ascontiguousarray(to_bytes(domain.paint(class_id, rng, size)).transpose(2, 0, 1))


def _domain(name: str, size: int, seed: int) -> ToyDomain:
    if name not in DOMAINS:
        raise unknown("embedded domain", name, DOMAINS, len(DOMAINS))
    if not _SMALLEST <= size <= _LARGEST:
        raise PolyshotError(
            f"size is {size}; draw at {_SMALLEST} pixels or more, {_LARGEST} at most."
        )
    if seed < 0:
        raise PolyshotError(f"seed is {seed}; use 0 or more.")
    return DOMAINS[name]


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
    for name in names or DOMAINS:
        draw_one(name, 0, 0, size, seed)  # complains of a wrong name or size before any work
    packs = []
    for name in names or DOMAINS:
        about = DOMAINS[name]
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
    return np.stack([draw_one(name, class_id, each, size, seed) for each in range(per_class)])


class Example:
    """Where the parts of an example are."""

    def __init__(self, folder: Path):
        self.support = folder / "support"
        """A folder for each class."""
        self.query = folder / "query"
        """The images to classify."""
        self.answers = folder / "answers.csv"
        """A table of the queries' classes."""

    def right(self, labels: Iterable[tuple[Path, str]]) -> tuple[int, int]:
        """Count the right ones among (path, label) of queries, and all of them."""
        with self.answers.open(encoding="utf-8", newline="") as file:
            known = {row["path"]: row["label"] for row in csv.DictReader(file)}
        hits = [known.get(f"query/{path.name}") == label for path, label in labels]
        return sum(hits), len(hits)


def draw_example(
    out: Path,
    domain: str = "flowers",
    classes: int = 5,
    shot: int = 5,
    queries: int = 20,
    seed: int = 0,
) -> Example:
    """Draw an example of an embedded domain into a folder, which is refused where there is one.

    It has so many of the domain's classes, spread over all of them, with `shot` examples and
    `queries` images to classify of each.
    """
    if out.exists():
        raise PolyshotError(f"{out} exists: choose a folder that does not.")
    if min(shot, queries) < 1:
        raise PolyshotError("An example needs at least one image a class to learn from and to ask.")
    draw_one(domain, 0, 0, SIDES[0], seed)  # refuses a name or seed that there is not
    names = DOMAINS[domain].class_names
    if not 2 <= classes <= len(names):
        raise PolyshotError(f"'{domain}' can show 2 to {len(names)} classes, not {classes}.")
    rng = np.random.default_rng(key("example", domain, seed))
    places = iter(rng.permutation(classes * queries).tolist())
    answers = []
    with new_folder(out) as partial:
        made = Example(partial)
        made.query.mkdir()
        for class_id in np.linspace(0, len(names) - 1, classes).round().astype(int).tolist():
            label = names[class_id].replace("/", "-")
            (made.support / label).mkdir(parents=True)
            for number in range(shot + queries):
                image = _picture(domain, class_id, number, seed, rng)
                if number < shot:
                    image.save(made.support / label / f"{number:02}.png")
                    continue
                name = f"{next(places):03}.png"
                image.save(made.query / name)
                answers.append((f"query/{name}", label))
        with made.answers.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *sorted(answers)])
    return Example(out)


def _picture(
    domain: str, class_id: int, number: int, seed: int, rng: np.random.Generator
) -> Image.Image:
    """Draw one image of any size, a little wider than high or the other way around."""
    side = int(rng.integers(*SIDES))
    pixels = draw_one(domain, class_id, number, side, seed).transpose(1, 2, 0)
    cut = round(side * rng.uniform(0, 0.2))
    across, down = (cut, 0) if rng.random() < 0.5 else (0, cut)
    box = (across // 2, down // 2, side - (across + 1) // 2, side - (down + 1) // 2)
    return Image.fromarray(pixels).crop(box)
