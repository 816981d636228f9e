"""Domain `textures`: endless patterns, each a tone as a function of the place."""

from collections.abc import Callable

import numpy as np

from polyshot.data.toy import fields as f
from polyshot.data.toy.canvas import (
    Array,
    Points,
    Random,
    ToyDomain,
    any_colour,
    contrasting,
    light,
    pixels,
    project,
    view,
)

# tones of about 0 to 1 at x and y; what is random within a class comes from the third
FIELDS: dict[str, Callable[[Points, Points, Random], Points]] = {
    "even stripes": lambda x, _y, _: f.ink(f.off(x) - 0.25),
    "thin lines": lambda x, _y, _: f.ink(0.08 - f.off(x)),
    "double lines": lambda x, _y, _: f.ink(0.07 - np.abs(f.off(x) - 0.17)),
    "wavy stripes": lambda x, y, _: f.ink(f.off(x + 0.35 * np.sin(3 * y)) - 0.25),
    "chevrons": lambda x, y, _: f.ink(f.off(x + 1.6 * f.off(0.6 * y)) - 0.25),
    "dashes": lambda x, y, _: f.ink(np.minimum(0.15 - f.off(y), 0.32 - f.off(f.bond(0.6 * x, y)))),
    "sawtooth ramps": lambda x, _y, _: 0.5 + f.cell(0.8 * x),
    "gingham": lambda x, y, _: (f.ink(f.off(x) - 0.25) + f.ink(f.off(y) - 0.25)) / 2,
    "tartan": lambda x, y, _: (
        0.6 * f.ink(f.off(0.5 * x) - 0.2) * f.ink(f.off(0.5 * y) - 0.2)
        + 0.4 * f.ink(0.05 - np.minimum(f.off(0.5 * x), f.off(0.5 * y)))
    ),
    "checkers": lambda x, y, _: f.ink(0.5 * np.sin(np.pi * x) * np.sin(np.pi * y)),
    "triangles": lambda x, y, _: f.triangles(x, y / 0.87).astype(np.float64),
    "grid": lambda x, y, _: f.ink(0.09 - np.minimum(f.off(x), f.off(y))),
    "bricks": lambda x, y, rng: (
        f.ink(np.minimum(0.42 - f.off(y), (0.46 - f.off(f.bond(0.5 * x, y))) * 2))
        * (0.6 + 0.4 * f.tone(f.bond(0.5 * x, y), y, rng))
    ),
    "plain weave": lambda x, y, _: f.weave(x, y, 1),
    "twill": lambda x, y, _: f.weave(1.3 * x, 1.3 * y, 3),
    "basket": lambda x, y, _: np.where(
        f.odd(0.6 * x, 0.6 * y), 2 * f.off(1.8 * x), 2 * f.off(1.8 * y)
    ),
    "honeycomb": lambda x, y, _: f.ink(0.07 - f.hexagon(x, y)),
    "hexagon studs": lambda x, y, _: f.ink(f.hexagon(x, y) - 0.2),
    "dots": lambda x, y, _: f.ink(0.27 - f.disc(x, y)),
    "rings": lambda x, y, _: f.ink(0.08 - np.abs(f.disc(x, y) - 0.33)),
    "two sizes of dots": lambda x, y, _: f.ink(0.14 + 0.26 * f.odd(x, y) - f.disc(x, y)),
    "plus signs": lambda x, y, _: f.ink(
        np.minimum(0.1 - np.minimum(f.off(x), f.off(y)), 0.36 - np.maximum(f.off(x), f.off(y)))
    ),
    "crescents": lambda x, y, _: f.ink(
        np.minimum(0.38 - f.disc(x, y), np.hypot(f.cell(x) - 0.17, f.cell(y)) - 0.28)
    ),
    "scales": lambda x, y, _: np.clip(
        2.6 * np.hypot(f.cell(f.bond(x, 2 * y)), 0.6 * (f.cell(2 * y) + 0.5)) - 0.5, 0, 1
    ),
    "argyle": lambda x, y, _: (
        0.6 * f.ink(0.42 - f.off(0.6 * x) - f.off(0.4 * y))
        + 0.4 * f.ink(0.03 - np.abs(0.5 - f.off(0.6 * x + 0.5) - f.off(0.4 * y + 0.5)))
    ),
    "tree rings": lambda x, y, rng: f.ink(
        f.off(1.6 * np.hypot(x, y) + 0.5 * f.noise(0.7 * x, 0.7 * y, rng)) - 0.25
    ),
    "wood grain": lambda x, y, rng: 2 * f.off(1.2 * x + 0.9 * f.noise(0.5 * x, 0.2 * y, rng)),
    "rays": lambda x, y, _: f.ink(
        (f.off(np.arctan2(y, x) * 9 / np.pi) - 0.25) * np.hypot(x, y) * 0.3
    ),
    "spiral": lambda x, y, _: f.ink(f.off(np.hypot(x, y) + np.arctan2(y, x) * 3 / np.pi) - 0.25),
    "crackle": lambda x, y, rng: f.ink(0.09 - f.crackle(0.8 * x, 0.8 * y, rng)),
    "stained cells": lambda x, y, rng: f.seeds(0.9 * x, 0.9 * y, rng)[2],
    "pebbles": lambda x, y, rng: np.clip(1.15 - 1.9 * f.seeds(x, y, rng)[0], 0, 1),
    "scattered dots": lambda x, y, rng: f.ink(0.22 - f.seeds(x, y, rng)[0]),
    "bubbles": lambda x, y, rng: f.ink(0.06 - f.bubbles(0.8 * x, 0.8 * y, rng)),
    "clouds": lambda x, y, rng: 0.5 + 0.5 * f.rough(0.5 * x, 0.5 * y, rng),
    "marble": lambda x, y, rng: np.abs(f.rough(0.5 * x, 0.5 * y, rng)) ** 0.7,
    "contour lines": lambda x, y, rng: f.ink(0.12 - f.off(2.5 * f.noise(0.5 * x, 0.5 * y, rng))),
    "camouflage": lambda x, y, rng: f.ink(f.noise(0.7 * x, 0.7 * y, rng)),
    "brushed metal": lambda x, y, rng: 0.5 + 0.4 * f.noise(0.3 * x, 6 * y, rng),
    "grit": lambda x, y, rng: f.ink(f.noise(4 * x, 4 * y, rng) - 0.3),
    "sticks": lambda x, y, rng: f.ink(f.sticks(x, y, rng)),
    "ripples": lambda x, y, _: f.ink(
        np.cos(6 * np.hypot(x - 2, y)) * np.cos(6 * np.hypot(x + 2, y)) * 0.3
    ),
    "egg crate": lambda x, y, _: 0.5 + 0.5 * np.sin(4 * x) * np.sin(4 * y),
    "five-fold waves": lambda x, y, _: f.ink(f.waves(x, y, 5)),
    "labyrinth": lambda x, y, rng: f.ink(0.13 - f.truchet(x, y, rng)),
    "diagonal maze": lambda x, y, rng: f.ink(
        0.12 - np.abs(f.cell(x) - f.coin(x, y, rng) * f.cell(y))
    ),
    "mosaic": lambda x, y, rng: f.tone(1.2 * x, 1.2 * y, rng),
    "quarter turns": lambda x, y, rng: f.ink(
        0.62 - np.hypot(f.cell(x) * f.coin(x, y, rng) + 0.5, f.cell(y) + 0.5)
    ),
}
_NAMES = tuple(FIELDS)


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Show a piece of one pattern in two colours of any kind."""
    matrix = view(rng, turn=np.pi, zoom=(2.2, 3.6), shift=2.0, squash=0.2, flip=True)
    place = project(matrix, pixels(size))
    tone = FIELDS[_NAMES[class_id]](place[..., 0], place[..., 1], rng)[..., None]
    first = any_colour(rng, (0, 0.8))
    low, high = np.asarray(first), np.asarray(contrasting(rng, first, 0.3))
    return light(rng, (low + (high - low) * tone).astype(np.float32), 0.8, noise=0.06)


DOMAIN = ToyDomain(
    name="textures",
    about="Endless patterns in any two colours, from stripes and weaves to cells and noise.",
    class_names=_NAMES,
    mirror=True,
    paint=paint,
)
