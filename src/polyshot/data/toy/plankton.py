"""Domain `plankton`: translucent drifting organisms under a microscope, dark on a pale field."""

from itertools import product

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Canvas,
    Colour,
    Points,
    Random,
    ToyDomain,
    clouds,
    ellipse,
    enlarge,
    hsv,
    light,
    view,
)

_T = np.linspace(0, np.pi, 10)
# outlines `[n, 2]`; a body of several cells has several
BODIES: dict[str, tuple[Points, ...]] = {
    "disc": (ellipse(0, 0, 0.52, 0.52, 24),),
    "spindle": (
        np.concatenate(
            [(np.cos(_T), 0.28 * np.sin(_T) ** 2), (-np.cos(_T), -0.28 * np.sin(_T) ** 2)], 1
        ).T
        * 0.8,
    ),
    "bell": (
        np.concatenate(
            [
                np.stack([0.6 * np.cos(_T), 0.3 - 0.85 * np.sin(_T)], 1),
                [(-0.3, 0.46), (0, 0.3), (0.3, 0.46)],
            ]
        ),
    ),
    "crescent": (
        np.concatenate(
            [
                np.stack([0.75 * np.cos(_T), 0.35 - 0.85 * np.sin(_T)], 1),
                np.stack([-0.75 * np.cos(_T), 0.35 - 0.4 * np.sin(_T)], 1),
            ]
        ),
    ),
    "chain": tuple(ellipse(x, 0, 0.2, 0.24, 14) for x in (-0.66, -0.22, 0.22, 0.66)),
    "triangle": (np.array([(0, -0.7), (0.65, 0.42), (0, 0.25), (-0.65, 0.42)]),),
}
EXTRAS = ("bare", "with cilia", "with a tail", "with antennae", "with spines", "banded", "spotted")
CLASSES = tuple(product(BODIES, EXTRAS))


def _rim(outline: Points, spacing: float) -> tuple[Points, Points]:
    """Return places `[n, 2]` at even spaces along an outline, and the directions away from it."""
    closed = np.concatenate([outline, outline[:1]])
    steps = np.diff(closed, axis=0)
    length = np.concatenate([[0], np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))])
    at = np.linspace(0, length[-1], max(3, round(length[-1] / spacing)), endpoint=False)
    places = np.stack([np.interp(at, length, closed[:, axis]) for axis in (0, 1)], axis=1)
    along = steps[np.searchsorted(length, at, side="right") - 1]
    away = np.stack([along[:, 1], -along[:, 0]], axis=1)
    # the sign of the area says which way round the outline goes
    area = np.sum(steps[:, 1] * closed[:-1, 0] - steps[:, 0] * closed[:-1, 1])
    away *= np.sign(area) / np.linalg.norm(away, axis=1, keepdims=True)
    return places, away


def _attach(
    canvas: Canvas, outlines: tuple[Points, ...], extra: str, rng: Random, ink: Colour
) -> None:
    """Draw what sticks out of a body, before the body itself."""
    sway = rng.normal(0, 0.12)
    t = np.linspace(0, 1, 12)
    low = max(outline[:, 1].max() for outline in outlines)
    if extra == "with a tail":
        tail = np.stack([0.12 * np.sin(9 * t + 30 * sway) + sway * t, low - 0.1 + t], axis=1)
        canvas.line(tail, 0.07, ink)
    elif extra == "with antennae":
        top = min(outline[:, 1].min() for outline in outlines)
        for side in (-1, 1):
            horn = np.stack([side * (0.08 + 0.75 * t**2), top + 0.15 - (0.75 + sway) * t], axis=1)
            canvas.line(horn, 0.05, ink)
    elif extra in ("with cilia", "with spines"):
        fine = extra == "with cilia"
        for outline in outlines:
            places, away = _rim(outline, 0.13 if fine else 0.42)
            reach = (0.16 if fine else 0.42) * np.exp(rng.normal(0, 0.12, (len(places), 1)))
            for start, end in zip(places, places + away * reach, strict=True):
                canvas.line((start, end), 0.03 if fine else 0.07, ink)


def _fill(canvas: Canvas, outline: Points, extra: str, rng: Random, ink: Colour) -> None:
    """Draw what shows through a body."""
    middle = outline.mean(axis=0)
    if extra == "banded":
        rim = _rim(outline, 0.03)[0]
        left, right = outline[:, 0].min(), outline[:, 0].max()
        for x in np.linspace(left, right, max(4, round((right - left) / 0.2)))[1:-1]:
            ends = rim[np.abs(rim[:, 0] - x) < 0.04, 1]
            canvas.line(((x, ends.min()), (x, ends.max())), 0.07, ink)
    elif extra == "spotted":
        for corner in outline[:: max(1, len(outline) // 6)]:
            x, y = (middle + (corner - middle) * rng.uniform(0.35, 0.6)).tolist()
            canvas.polygon(ellipse(x, y, 0.08, 0.08, 10), ink)


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Catch one organism among specks."""
    body, extra = CLASSES[class_id]
    matrix = view(rng, turn=0.6, zoom=(0.65, 1.0), shift=0.15, tilt=0.1, squash=0.3, flip=True)
    canvas = Canvas(size, (1.0, 1.0, 1.0), matrix)
    for x, y in rng.uniform(-2, 2, (8, 2)).tolist():
        speck, grey = rng.uniform(0.02, 0.09), rng.uniform(0.5, 0.9)
        canvas.polygon(ellipse(x, y, speck, speck * 0.7, 8), (grey, grey, grey))
    hue, depth = rng.uniform(0.02, 0.35), rng.uniform(0.5, 0.85)
    flesh = hsv(hue, rng.uniform(0.02, 0.25), 1.15 - 0.55 * depth)
    ink = hsv(hue, rng.uniform(0.05, 0.3), 0.9 - 0.8 * depth)
    bend = rng.normal(0, 0.2)
    outlines = tuple(
        part + bend * np.stack([0 * part[:, 0], part[:, 0] ** 2], 1) for part in BODIES[body]
    )
    _attach(canvas, outlines, extra, rng, ink)
    for outline in outlines:
        canvas.polygon(outline, flesh)
        canvas.line(np.concatenate([outline, outline[:1]]), 0.05, ink)
        _fill(canvas, outline, extra, rng, ink)
    field = hsv(rng.uniform(0.08, 0.6), rng.uniform(0.02, 0.16), rng.uniform(0.75, 0.98))
    # the light passes through: what is drawn multiplies the field
    return light(rng, canvas.picture() * enlarge(clouds(rng, field, 0.02), size), 0.5, noise=0.05)


DOMAIN = ToyDomain(
    name="plankton",
    about="Translucent organisms under a microscope, by body and appendages, on a pale field.",
    class_names=tuple(f"{body}, {extra}" for body, extra in CLASSES),
    mirror=True,
    paint=paint,
)
