"""Domain `solids`: two turned or cut solids, one on the other, rendered from all around."""

from itertools import product

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Canvas,
    Colour,
    Points,
    Random,
    ToyDomain,
    any_colour,
    clouds,
    ellipse,
    light,
    shade,
    view,
)

_ROUND = 16
_ARC = np.linspace(0, np.pi, 7)
# sides around, and the profile from the bottom up: (height, radius)
SHAPES: dict[str, tuple[int, tuple[tuple[float, float], ...]]] = {
    "box": (4, ((0, 0.62), (0.8, 0.62))),
    "slab": (4, ((0, 1.05), (0.25, 1.05))),
    "prism": (3, ((0, 0.75), (0.85, 0.75))),
    "pyramid": (4, ((0, 0.72), (1, 0))),
    "cylinder": (_ROUND, ((0, 0.5), (0.85, 0.5))),
    "cone": (_ROUND, ((0, 0.58), (1.05, 0))),
    "cup": (_ROUND, ((0, 0.25), (0.8, 0.65))),
    "hourglass": (_ROUND, ((0, 0.65), (0.45, 0.2), (0.9, 0.65))),
    "ball": (_ROUND, tuple((0.5 - 0.5 * np.cos(a), 0.5 * np.sin(a)) for a in _ARC)),
    "dome": (_ROUND, tuple((0.75 * np.sin(a), 0.85 * np.cos(a)) for a in _ARC / 2)),
}
BELOW = ("box", "slab", "prism", "cylinder", "hourglass", "cup")
ABOVE = ("box", "prism", "pyramid", "cylinder", "cone", "ball", "dome")
CLASSES = tuple((top, base) for base, top in product(BELOW, ABOVE))


def _mesh(shape: str, turn: float, wide: float, tall: float, lift: float) -> Points:
    """Return the rings of a solid, `[levels, sides, 3]`, z up, on the height `lift`."""
    sides, profile = SHAPES[shape]
    angles = turn + np.arange(sides) * 2 * np.pi / sides
    height, radius = np.array(profile).T
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    flat = radius[:, None, None] * wide * ring
    level = np.broadcast_to((lift + tall * height)[:, None, None], (*flat.shape[:2], 1))
    return np.concatenate([flat, level], axis=-1)


def _render(canvas: Canvas, rings: Points, lamp: Points, pitch: float, colour: Colour) -> None:
    """Draw the faces of a solid that look at the viewer, far ones first."""
    after = np.roll(rings, -1, axis=1)
    faces = np.stack([rings[:-1], after[:-1], after[1:], rings[1:]], axis=2).reshape(-1, 4, 3)
    # diagonals, because at a tip two corners of a face fall together
    normals = np.cross(faces[:, 2] - faces[:, 0], faces[:, 3] - faces[:, 1])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True) + 1e-9
    toward = np.array([0, -np.cos(pitch), np.sin(pitch)])
    seen = np.flatnonzero(normals @ toward > 0)
    far_first = seen[np.argsort(faces[seen].mean(axis=1) @ toward)]
    tones = 0.35 + 0.75 * np.clip(normals[far_first] @ lamp, 0, 1)
    colours = [shade(colour, tone) for tone in tones.tolist()]
    canvas.polygons(_flat(faces[far_first], pitch), colours)
    lid = 0.35 + 0.75 * max(0.0, float(lamp[2]))
    canvas.polygon(_flat(rings[-1], pitch), shade(colour, lid))


def _flat(points: Points, pitch: float) -> Points:
    """See points `[..., 3]` from above the horizon by `pitch`: `[..., 2]` in the unit frame."""
    down = -points[..., 2] * np.cos(pitch) - points[..., 1] * np.sin(pitch)
    return np.stack([points[..., 0], 0.75 + down], axis=-1)


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Set one solid on another on a floor, under one lamp."""
    top, base = CLASSES[class_id]
    floor = any_colour(rng, (0, 0.15), (0.7, 0.9))
    matrix = view(rng, turn=0.1, zoom=(0.7, 0.95), shift=0.13, tilt=0.1, squash=0.0)
    canvas = Canvas(size, clouds(rng, floor, 0.02), matrix)
    wall = shade(floor, rng.uniform(0.6, 1.3))
    canvas.polygon(((-9, -9), (9, -9), (9, -0.1), (-9, -0.1)), wall)
    pitch, swing = rng.uniform(0.3, 0.75), rng.uniform(0, 2 * np.pi)
    lamp = np.array([np.cos(swing), -abs(np.sin(swing)), rng.uniform(0.6, 1.4)])
    lamp /= np.linalg.norm(lamp)
    shadow = ellipse(-0.35 * lamp[0], 0.72, 0.8, 0.75 * np.sin(pitch))
    canvas.polygon(shadow, shade(floor, 0.6))
    lift = 0.0
    for shape in (base, top):
        wide, tall = np.exp(rng.normal(0, 0.06, 2))
        rings = _mesh(shape, rng.uniform(0, 2 * np.pi), wide, tall, lift)
        _render(canvas, rings, lamp, pitch, any_colour(rng, (0.05, 0.95), (0.5, 1)))
        lift = float(rings[-1, 0, 2])
    return light(rng, canvas.picture(), 0.5, noise=0.03)


DOMAIN = ToyDomain(
    name="solids",
    about="Rendered solids, one on the other, in any colours and from all around.",
    class_names=tuple(f"{top} on {base}" for top, base in CLASSES),
    mirror=True,
    paint=paint,
)
