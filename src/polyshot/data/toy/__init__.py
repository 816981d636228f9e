"""Embedded domains: image collections drawn by code, to try and to test Polyshot with no download.

Each class is a fixed form (a letter, a stroke program, a plate with a pictogram); its examples
differ in viewpoint, light, clutter and noise. Every image is a pure function of its domain, class,
example number, size and seed.
"""

import numpy as np
from numpy.typing import NDArray

from polyshot.data.toy.canvas import ToyDomain, generator, to_bytes
from polyshot.data.toy.characters import glyphs, strokes
from polyshot.data.toy.drawings import signs, vehicles
from polyshot.data.toy.living import flowers, plankton
from polyshot.data.toy.scenes import aerial, solids
from polyshot.data.toy.textures import smears, textures
from polyshot.errors import PolyshotError, did_you_mean, join_names

__all__ = ["DOMAINS", "ToyDomain", "draw", "draw_one"]

_ALL = (glyphs, strokes, textures, signs, flowers, vehicles, aerial, smears, plankton, solids)
DOMAINS: dict[str, ToyDomain] = {domain.name: domain for domain in _ALL}
"""The embedded domains by name."""

_SMALLEST = 16  # pixels: below this the forms that define the classes are gone


def draw(
    name: str, size: int = 72, per_class: int = 30, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw a whole domain: images `[n, 3, size, size]` ordered by class, and labels `[n]`.

    The first images of each class stay the same when `per_class` grows.
    """
    if per_class < 1:
        raise PolyshotError(f"per_class is {per_class}; draw at least one image per class.")
    classes = len(_domain(name, size, seed).class_names)
    images = np.empty((classes * per_class, 3, size, size), dtype=np.uint8)
    for row in range(len(images)):
        images[row] = draw_one(name, row // per_class, row % per_class, size, seed)
    return images, np.repeat(np.arange(classes, dtype=np.int64), per_class)


def draw_one(name: str, class_id: int, example: int, size: int, seed: int) -> NDArray[np.uint8]:
    """Draw one image `[3, size, size]`: the row of `draw` with this class and example number."""
    domain = _domain(name, size, seed)
    if not 0 <= class_id < len(domain.class_names):
        raise PolyshotError(f"'{name}' has classes 0 to {len(domain.class_names) - 1}: {class_id}.")
    if example < 0:
        raise PolyshotError(f"example is {example}; examples count from 0.")
    rng = generator(int.from_bytes(name.encode(), "big"), class_id, seed, example)
    picture = domain.paint(class_id, rng, size)
    return np.ascontiguousarray(to_bytes(picture).transpose(2, 0, 1))


def _domain(name: str, size: int, seed: int) -> ToyDomain:
    if name not in DOMAINS:
        known = join_names(DOMAINS, len(DOMAINS))
        raise PolyshotError(
            f"No embedded domain '{name}'.{did_you_mean(name, DOMAINS)} Known: {known}."
        )
    if size < _SMALLEST:
        raise PolyshotError(f"size is {size}; draw at {_SMALLEST} pixels or more.")
    if seed < 0:
        raise PolyshotError(f"seed is {seed}; use 0 or more.")
    return DOMAINS[name]
