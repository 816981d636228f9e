"""Domains `aerial` and `solids`: land from above, and solids rendered from all around."""

from collections.abc import Callable
from itertools import product

import numpy as np

from polyshot.data.toy import canvas as c
from polyshot.data.toy.canvas import Array, Canvas, Colour, Points, Random

_REACH = 1.7  # how far the land goes in the unit frame, so that no view sees its end


def _greens(rng: Random, count: int) -> list[Colour]:
    """Draw the colours of vegetation: fresh, dry or bare."""
    hues, tones = rng.uniform(0.09, 0.34, count), rng.uniform(0.3, 0.75, count)
    return [c.hsv(h, 0.45, v) for h, v in zip(hues.tolist(), tones.tolist(), strict=True)]


def _lattice(step: float, rng: Random, jitter: float = 0.0) -> Points:
    """Return places `[n, 2]` on a square lattice, each moved by up to `jitter` steps."""
    ticks = np.arange(-_REACH, _REACH, step) + rng.uniform(0, step)
    places = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    return places + rng.uniform(-jitter, jitter, places.shape) * step


def _boxes(places: Points, half: Points) -> Points:
    """Return upright rectangles `[n, 4, 2]` of half sides `[n, 2]`."""
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    boxes: Points = places[:, None] + half[:, None] * corners
    return boxes


def _strips(canvas: Canvas, rng: Random) -> None:
    edges = np.cumsum(rng.uniform(0.12, 0.3, 24)) - _REACH
    places = np.stack([0 * edges, edges], axis=1)
    canvas.polygons(_boxes(places, np.full((24, 2), (_REACH, 0.32))), _greens(rng, 24))


def _patches(canvas: Canvas, rng: Random) -> None:
    places = _lattice(0.55, rng)
    colours = _greens(rng, len(places))
    edges = [c.shade(colour, 0.6) for colour in colours]
    canvas.polygons(_boxes(places, np.full(places.shape, 0.3)), edges)
    canvas.polygons(_boxes(places, np.full(places.shape, 0.26)), colours)


def _pivots(canvas: Canvas, rng: Random) -> None:
    places = _lattice(0.6, rng)
    canvas.polygons(places[:, None] + c.ellipse(0, 0, 0.27, 0.27, 14), _greens(rng, len(places)))


def _orchard(canvas: Canvas, rng: Random) -> None:
    tree = c.hsv(rng.uniform(0.2, 0.4), 0.6, rng.uniform(0.15, 0.35))
    places = _lattice(0.21, rng, 0.08)
    canvas.polygons(places[:, None] + c.ellipse(0, 0, 0.07, 0.07, 7), [tree, c.shade(tree, 1.2)])


def _forest(canvas: Canvas, rng: Random) -> None:
    base = c.hsv(rng.uniform(0.2, 0.42), 0.6, rng.uniform(0.2, 0.4))
    places = _lattice(0.24, rng, 0.6)
    half = rng.uniform(0.1, 0.2, (len(places), 1, 1))
    tones = [c.shade(base, factor) for factor in rng.uniform(0.6, 1.4, 40).tolist()]
    canvas.polygons(places[:, None] + half * c.ellipse(0, 0, 1, 1, 8), tones)


def _houses(canvas: Canvas, rng: Random) -> None:
    places = _lattice(0.34, rng, 0.15)
    half = rng.uniform(0.08, 0.12, places.shape)
    roof = c.hsv(rng.uniform(0, 0.09), rng.uniform(0.1, 0.6), rng.uniform(0.5, 0.85))
    canvas.polygons(_boxes(places + 0.03, half), [(0.08, 0.1, 0.1)])
    boxes = _boxes(places, half)
    canvas.polygons(boxes, [c.shade(roof, 1.1), roof])
    boxes[:, 2:, 1] -= half[:, 1:]  # the half of the roof that the sun does not reach
    canvas.polygons(boxes, [c.shade(roof, 0.65)])


def _blocks(canvas: Canvas, rng: Random) -> None:
    places = _lattice(0.62, rng)
    half = np.full(places.shape, 0.26)
    tones = [(v, v, v * 0.97) for v in rng.uniform(0.45, 0.9, 16).tolist()]
    canvas.polygons(_boxes(places + 0.07, half), [(0.08, 0.08, 0.1)])
    canvas.polygons(_boxes(places, half), tones)
    canvas.polygons(_boxes(places, half * 0.45), [(0.3, 0.3, 0.32)])


def _line(canvas: Canvas, rng: Random, colour: Colour) -> None:
    canvas.line(((-2.5, 0), (2.5, rng.uniform(-0.2, 0.2))), 0.2, colour)


def _crossing(canvas: Canvas, rng: Random, colour: Colour) -> None:
    canvas.line(((-2.5, 0), (2.5, 0)), 0.2, colour)
    lean = rng.uniform(-0.4, 0.4)
    canvas.line(((lean, -2.5), (-lean, 2.5)), 0.2, colour)


def _roundabout(canvas: Canvas, rng: Random, colour: Colour) -> None:
    for angle in np.arange(3) * 2 * np.pi / 3 + rng.normal(0, 0.15, 3):
        canvas.line(((0, 0), (2.5 * np.cos(angle), 2.5 * np.sin(angle))), 0.17, colour)
    canvas.polygon(c.ellipse(0, 0, 0.46, 0.46), colour)
    canvas.polygon(c.ellipse(0, 0, 0.26, 0.26), _greens(rng, 1)[0])


def _meander(canvas: Canvas, rng: Random, colour: Colour) -> None:
    x = np.linspace(-2.5, 2.5, 50)
    y = rng.uniform(0.35, 0.5) * np.sin(4.5 * x + rng.uniform(0, 6.3))
    canvas.line(np.stack([x, y], axis=1), 0.24, colour)


def _confluence(canvas: Canvas, rng: Random, colour: Colour) -> None:
    x = np.linspace(0, 2.5, 14)
    for angle in np.array([0, 2.4, 3.9]) + rng.normal(0, 0.12, 3):
        bend = 0.12 * np.sin(4 * x + rng.uniform(0, 6.3)) * np.minimum(1, 3 * x)
        canvas.line(c.turned(np.stack([x, bend], axis=1), angle), 0.28, colour)


def _lake(canvas: Canvas, rng: Random, colour: Colour) -> None:
    shore = c.ellipse(0, 0, 0.75, 0.55, 24) * np.exp(rng.normal(0, 0.04, (24, 1)))
    canvas.polygon(shore * 1.08, c.shade(colour, 1.5))
    canvas.polygon(shore, colour)


COVERS: dict[str, Callable[[Canvas, Random], None]] = {
    "strip fields": _strips,
    "square fields": _patches,
    "round fields": _pivots,
    "orchard": _orchard,
    "forest": _forest,
    "houses": _houses,
    "city blocks": _blocks,
}
WAYS: dict[str, tuple[Callable[[Canvas, Random, Colour], None], bool]] = {
    "a straight road": (_line, False),
    "a crossing": (_crossing, False),
    "a roundabout": (_roundabout, False),
    "a winding river": (_meander, True),
    "a confluence": (_confluence, True),
    "a lake": (_lake, True),
}
LANDS = tuple(product(COVERS, WAYS))


@c.domain((f"{cover} with {way}" for cover, way in LANDS), mirror=True)
def aerial(class_id: int, rng: Random, size: int) -> Array:
    """Land from above: fields, trees or roofs with a road or a water through them."""
    cover, way = LANDS[class_id]
    drawn, water = WAYS[way]
    soil = c.hsv(rng.uniform(0.07, 0.25), rng.uniform(0.15, 0.5), rng.uniform(0.4, 0.75))
    matrix = c.view(rng, turn=np.pi, zoom=(0.8, 1.25), shift=0.1, tilt=0.08, squash=0.1, flip=True)
    canvas = Canvas(size, soil, matrix)
    COVERS[cover](canvas, rng)
    if water:
        colour = c.hsv(rng.uniform(0.35, 0.62), rng.uniform(0.2, 0.6), rng.uniform(0.15, 0.5))
    else:
        # asphalt or gravel; a tone between them would drown in the land
        tone = rng.choice([0.15, 0.8]) + rng.uniform(0, 0.15)
        colour = c.hsv(rng.uniform(0.05, 0.15), rng.uniform(0, 0.15), tone)
    # the way through the land has its own direction
    canvas.look(c.view(rng, turn=np.pi, zoom=(0.8, 1.15), shift=0.2, tilt=0.08, flip=True))
    drawn(canvas, rng, colour)
    return c.light(rng, canvas.picture(), 1.0)


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
STACKS = tuple((top, base) for base, top in product(BELOW, ABOVE))


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
    colours = [c.shade(colour, tone) for tone in tones.tolist()]
    canvas.polygons(_flat(faces[far_first], pitch), colours)
    lid = 0.35 + 0.75 * max(0.0, float(lamp[2]))
    canvas.polygon(_flat(rings[-1], pitch), c.shade(colour, lid))


def _flat(points: Points, pitch: float) -> Points:
    """See points `[..., 3]` from above the horizon by `pitch`: `[..., 2]` in the unit frame."""
    down = -points[..., 2] * np.cos(pitch) - points[..., 1] * np.sin(pitch)
    return np.stack([points[..., 0], 0.75 + down], axis=-1)


@c.domain((f"{top} on {base}" for top, base in STACKS), mirror=True)
def solids(class_id: int, rng: Random, size: int) -> Array:
    """Rendered solids, one on the other, in any colours and from all around."""
    top, base = STACKS[class_id]
    floor = c.any_colour(rng, (0, 0.15), (0.7, 0.9))
    matrix = c.view(rng, turn=0.1, zoom=(0.7, 0.95), shift=0.13, tilt=0.1, squash=0.0)
    canvas = Canvas(size, c.clouds(rng, floor, 0.02), matrix)
    wall = c.shade(floor, rng.uniform(0.6, 1.3))
    canvas.polygon(((-9, -9), (9, -9), (9, -0.1), (-9, -0.1)), wall)
    pitch, swing = rng.uniform(0.3, 0.75), rng.uniform(0, 2 * np.pi)
    lamp = np.array([np.cos(swing), -abs(np.sin(swing)), rng.uniform(0.6, 1.4)])
    lamp /= np.linalg.norm(lamp)
    shadow = c.ellipse(-0.35 * lamp[0], 0.72, 0.8, 0.75 * np.sin(pitch))
    canvas.polygon(shadow, c.shade(floor, 0.6))
    lift = 0.0
    for shape in (base, top):
        wide, tall = np.exp(rng.normal(0, 0.06, 2))
        rings = _mesh(shape, rng.uniform(0, 2 * np.pi), wide, tall, lift)
        _render(canvas, rings, lamp, pitch, c.any_colour(rng, (0.05, 0.95), (0.5, 1)))
        lift = float(rings[-1, 0, 2])
    return c.light(rng, canvas.picture(), 0.5, noise=0.03)
