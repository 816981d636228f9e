"""Domains `flowers` and `plankton`: blossoms seen from above, organisms under a microscope."""

from itertools import product

import numpy as np

from polyshot.data.toy import canvas as c
from polyshot.data.toy.canvas import Array, Canvas, Colour, Points, Random

COUNTS = {3: "three", 5: "five", 8: "eight", 13: "thirteen"}
# half outlines from the base to the tip of a petal of length 1; the width is 1 at its widest
HALVES: dict[str, tuple[tuple[float, float], ...]] = {
    "round": ((0, 0.1), (0.3, 0.45), (0.55, 0.9), (0.75, 1), (0.92, 0.75), (1, 0.3)),
    "pointed": ((0, 0.15), (0.25, 0.7), (0.45, 0.95), (0.65, 0.75), (0.85, 0.3), (1, 0)),
    "notched": ((0, 0.1), (0.4, 0.55), (0.75, 0.95), (0.95, 0.9), (1, 0.6), (0.7, 0)),
    "strap": ((0, 0.5), (0.3, 0.5), (0.6, 0.5), (0.9, 0.5), (0.97, 0.4), (1, 0.2)),
}
STYLES = ("single", "double", "ringed")
HUES = {"red": 0.0, "orange": 0.08, "yellow": 0.15, "blue": 0.62, "violet": 0.77, "pink": 0.9}
BLOSSOMS = tuple(
    (*form, list(HUES)[(5 * index + index // 6) % len(HUES)])
    for index, form in enumerate(product(COUNTS, HALVES, STYLES))
)


def _petal(form: str, count: int) -> Points:
    """Return the outline `[12, 2]` of a petal that points to the right."""
    half = np.array(HALVES[form], dtype=np.float64)
    width = min(0.5, 2.4 / count) if form != "strap" else min(0.32, 1.9 / count)
    half[:, 1] *= width
    return np.concatenate([half, half[::-1] * np.array([1, -1])])


@c.domain(
    (f"{COUNTS[n]} {form} petals, {style}, {hue}" for n, form, style, hue in BLOSSOMS), mirror=True
)
def flowers(class_id: int, rng: Random, size: int) -> Array:
    """Blossoms over leaves, by number, form, layers and colour of their petals."""
    count, form, style, colour = BLOSSOMS[class_id]
    leaves = [
        c.hsv(rng.uniform(0.17, 0.45), rng.uniform(0.3, 0.9), v) for v in (0.15, 0.3, 0.5, 0.7)
    ]
    leaves.append(c.hsv(rng.random(), rng.uniform(0.1, 0.8), rng.uniform(0.3, 0.9)))
    matrix = c.view(rng, turn=np.pi, zoom=(0.6, 1.05), shift=0.2, tilt=0.1, squash=0.35)
    canvas = Canvas(size, c.scene(rng, leaves, 10), matrix)
    for _ in range(3):
        leaf = _petal("pointed", 8) * rng.uniform(0.8, 1.8)
        place = rng.uniform(-1, 1, 2)
        canvas.polygon(c.turned(leaf, rng.uniform(0, 6.3)) + place, leaves[rng.integers(4)])

    hue = HUES[colour] + rng.normal(0, 0.025)
    base = c.hsv(hue, rng.uniform(0.5, 0.95), rng.uniform(0.75, 1))
    petal = _petal(form, count)
    angles = np.arange(count) * 2 * np.pi / count
    layers = [(1.0, 0.0, 1.0)]
    if style == "double":
        layers.append((0.62, np.pi / count, rng.uniform(0.6, 0.75)))
    for length, twist, tone in layers:
        around = angles + twist + rng.normal(0, 0.25 / count, count)
        lengths = length * np.exp(rng.normal(0, 0.07, count))
        tones = tone * rng.uniform(0.8, 1.15, count)
        # of each petal in turn: the rim, the face, the vein
        parts = np.stack([petal * 1.05, petal, petal * np.array([0.7, 0.08])])
        outlines = [c.turned(parts * reach, a) for reach, a in zip(lengths, around, strict=True)]
        colours = [c.shade(base, t * k) for t in tones.tolist() for k in (0.5, 1.0, 0.65)]
        canvas.polygons(np.concatenate(outlines), colours)
    if style == "ringed":
        canvas.polygon(c.ellipse(0, 0, 0.48, 0.48), c.hsv(hue + 0.5, 0.2, 0.95))
        canvas.polygon(c.ellipse(0, 0, 0.36, 0.36), c.shade(base, 0.45))
    heart = c.hsv(rng.uniform(0.08, 0.18), rng.uniform(0.5, 1), rng.uniform(0.25, 0.95))
    canvas.polygon(c.ellipse(0, 0, 0.2, 0.2), c.shade(heart, 0.5))
    canvas.polygon(c.ellipse(0, 0, 0.16, 0.16), heart)
    return c.light(rng, canvas.picture(), 0.9)


_T = np.linspace(0, np.pi, 10)


def _arch(across: float, low: float, up: float) -> Points:
    return np.stack([across * np.cos(_T), low - up * np.sin(_T)], 1)


_SPINDLE = [(np.cos(_T), 0.28 * np.sin(_T) ** 2), (-np.cos(_T), -0.28 * np.sin(_T) ** 2)]
# outlines `[n, 2]`; a body of several cells has several
BODIES: dict[str, tuple[Points, ...]] = {
    "disc": (c.ellipse(0, 0, 0.52, 0.52, 24),),
    "spindle": (np.concatenate(_SPINDLE, 1).T * 0.8,),
    "bell": (np.concatenate([_arch(0.6, 0.3, 0.85), [(-0.3, 0.46), (0, 0.3), (0.3, 0.46)]]),),
    "crescent": (np.concatenate([_arch(0.75, 0.35, 0.85), _arch(-0.75, 0.35, 0.4)]),),
    "chain": tuple(c.ellipse(x, 0, 0.2, 0.24, 14) for x in (-0.66, -0.22, 0.22, 0.66)),
    "triangle": (np.array([(0, -0.7), (0.65, 0.42), (0, 0.25), (-0.65, 0.42)]),),
}
EXTRAS = ("bare", "with cilia", "with a tail", "with antennae", "with spines", "banded", "spotted")
ORGANISMS = tuple(product(BODIES, EXTRAS))


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
            canvas.polygon(c.ellipse(x, y, 0.08, 0.08, 10), ink)


@c.domain((f"{body}, {extra}" for body, extra in ORGANISMS), mirror=True)
def plankton(class_id: int, rng: Random, size: int) -> Array:
    """Translucent organisms under a microscope, by body and appendages, on a pale field."""
    body, extra = ORGANISMS[class_id]
    matrix = c.view(rng, turn=0.6, zoom=(0.65, 1.0), shift=0.15, tilt=0.1, squash=0.3, flip=True)
    canvas = Canvas(size, (1.0, 1.0, 1.0), matrix)
    for x, y in rng.uniform(-2, 2, (8, 2)).tolist():
        speck, grey = rng.uniform(0.02, 0.09), rng.uniform(0.5, 0.9)
        canvas.polygon(c.ellipse(x, y, speck, speck * 0.7, 8), (grey, grey, grey))
    hue, depth = rng.uniform(0.02, 0.35), rng.uniform(0.5, 0.85)
    flesh = c.hsv(hue, rng.uniform(0.02, 0.25), 1.15 - 0.55 * depth)
    ink = c.hsv(hue, rng.uniform(0.05, 0.3), 0.9 - 0.8 * depth)
    bend = rng.normal(0, 0.2)
    outlines = tuple(
        part + bend * np.stack([0 * part[:, 0], part[:, 0] ** 2], 1) for part in BODIES[body]
    )
    _attach(canvas, outlines, extra, rng, ink)
    for outline in outlines:
        canvas.polygon(outline, flesh)
        canvas.line(np.concatenate([outline, outline[:1]]), 0.05, ink)
        _fill(canvas, outline, extra, rng, ink)
    field = c.hsv(rng.uniform(0.08, 0.6), rng.uniform(0.02, 0.16), rng.uniform(0.75, 0.98))
    # the light passes through: what is drawn multiplies the field
    through = canvas.picture() * c.enlarge(c.clouds(rng, field, 0.02), size)
    return c.light(rng, through, 0.5, noise=0.05)
