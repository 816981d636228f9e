"""Domain `strokes`: an invented script, written by many unsteady hands on paper."""

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Canvas,
    Points,
    Random,
    ToyDomain,
    any_colour,
    clouds,
    generator,
    hsv,
    light,
    turned,
    view,
)

_CLASS_SEED = 1


def _curve(x: Callable[[Points], Points], y: Callable[[Points], Points]) -> Points:
    t = np.linspace(0, 1, 18)
    return np.stack([x(t), y(t)], axis=1)


def _joined(*corners: tuple[float, float]) -> Points:
    """Return a polyline through corners, with points between them so that it can bend."""
    knots = np.linspace(0, len(corners) - 1, 6 * (len(corners) - 1) + 1)
    places = np.array(corners, dtype=np.float64)
    index = np.arange(len(corners))
    return np.stack([np.interp(knots, index, places[:, axis]) for axis in (0, 1)], axis=1)


# a part is one or more pen strokes in the unit frame
PARTS: dict[str, tuple[Points, ...]] = {
    "bar": (_joined((-1, 0), (1, 0)),),
    "arch": (_curve(lambda t: -np.cos(np.pi * t), lambda t: 0.6 - 1.2 * np.sin(np.pi * t)),),
    "ring": (_curve(lambda t: 0.75 * np.cos(6.4 * t), lambda t: 0.75 * np.sin(6.4 * t)),),
    "wave": (_curve(lambda t: 2 * t - 1, lambda t: 0.45 * np.sin(4 * np.pi * t)),),
    "hook": (_joined((-0.7, -1), (-0.7, 0.7), (0.8, 0.7)),),
    "fork": (_joined((-0.8, -0.9), (0, 0.1), (0.8, -0.9)), _joined((0, 0.1), (0, 1))),
    "cross": (_joined((-0.8, -0.8), (0.8, 0.8)), _joined((0.8, -0.8), (-0.8, 0.8))),
    "coil": (
        _curve(
            lambda t: (0.15 + 0.8 * t) * np.cos(11 * t), lambda t: (0.15 + 0.8 * t) * np.sin(11 * t)
        ),
    ),
    "wedge": (_joined((-0.8, 0.7), (0, -0.8), (0.8, 0.7), (-0.8, 0.7)),),
    "comb": (
        _joined((-0.9, -0.6), (0.9, -0.6)),
        *(_joined((x, -0.6), (x, 0.8)) for x in (-0.9, 0.0, 0.9)),
    ),
}
CLASSES = tuple(combinations(PARTS, 2))


@lru_cache(maxsize=len(CLASSES))
def _layout(class_id: int) -> tuple[tuple[str, float, Points], ...]:
    """Return the class's parts, each with its quarter turn and its place."""
    rng = generator(_CLASS_SEED, class_id)
    first, second = CLASSES[class_id]
    if rng.random() < 0.5:
        first, second = second, first
    direction = rng.integers(4) * np.pi / 2
    offset = np.array([np.cos(direction), np.sin(direction)])
    quarter = rng.integers(4, size=2) * np.pi / 2
    return (
        (first, float(quarter[0]), 0.42 * offset),
        (second, float(quarter[1]), -0.42 * offset),
    )


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Write one character: each part moved a little, every stroke bent a little."""
    paper = hsv(rng.uniform(0.08, 0.16), rng.uniform(0, 0.2), rng.uniform(0.85, 1))
    matrix = view(rng, turn=0.25, zoom=(0.7, 1.05), shift=0.14, tilt=0.1, squash=0.35)
    canvas = Canvas(size, clouds(rng, paper, 0.015), matrix)
    if rng.random() < 0.3:
        rule = any_colour(rng, (0.1, 0.4), (0.75, 0.9))
        for y in np.arange(-2, 2, rng.uniform(0.3, 0.6)):
            canvas.line(((-3, y), (3, y)), 0.01, rule)
    ink = any_colour(rng, (0, 0.6), (0.02, 0.3))
    width = rng.uniform(0.08, 0.17)
    for part, quarter, place in _layout(class_id):
        angle = quarter + rng.normal(0, 0.15)
        stretch = 0.5 * np.exp(rng.normal(0, 0.12, 2))
        moved = place + rng.normal(0, 0.06, 2)
        for stroke in PARTS[part]:
            # two slow waves along the stroke are the tremor of the hand
            t = np.linspace(0, 1, len(stroke))[:, None]
            phase, bend = rng.uniform(0, 6.3, (2, 2)), rng.normal(0, 0.09, (2, 2))
            wobble = bend[0] * np.sin(3 * t + phase[0]) + bend[1] * np.sin(7 * t + phase[1])
            canvas.line(turned((stroke + wobble) * stretch, angle) + moved, width, ink)
    return light(rng, canvas.picture(), 0.4, noise=0.03)


DOMAIN = ToyDomain(
    name="strokes",
    about="Hand-written characters of an invented script, dark ink on pale paper.",
    class_names=tuple(f"{first} and {second}" for first, second in CLASSES),
    mirror=False,
    paint=paint,
)
