"""Domain `aerial`: land from above, a cover with a road or a water through it."""

from collections.abc import Callable
from itertools import product

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Canvas,
    Colour,
    Points,
    Random,
    ToyDomain,
    ellipse,
    hsv,
    light,
    shade,
    turned,
    view,
)

_REACH = 1.7  # how far the land goes in the unit frame, so that no view sees its end


def _greens(rng: Random, count: int) -> list[Colour]:
    """Draw the colours of vegetation: fresh, dry or bare."""
    hues, tones = rng.uniform(0.09, 0.34, count), rng.uniform(0.3, 0.75, count)
    return [hsv(h, 0.45, v) for h, v in zip(hues.tolist(), tones.tolist(), strict=True)]


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
    canvas.polygons(_boxes(places, np.full(places.shape, 0.3)), [shade(c, 0.6) for c in colours])
    canvas.polygons(_boxes(places, np.full(places.shape, 0.26)), colours)


def _pivots(canvas: Canvas, rng: Random) -> None:
    places = _lattice(0.6, rng)
    discs = places[:, None] + ellipse(0, 0, 0.27, 0.27, 14)
    canvas.polygons(discs, _greens(rng, len(places)))


def _orchard(canvas: Canvas, rng: Random) -> None:
    tree = hsv(rng.uniform(0.2, 0.4), 0.6, rng.uniform(0.15, 0.35))
    places = _lattice(0.21, rng, 0.08)
    canvas.polygons(places[:, None] + ellipse(0, 0, 0.07, 0.07, 7), [tree, shade(tree, 1.2)])


def _forest(canvas: Canvas, rng: Random) -> None:
    base = hsv(rng.uniform(0.2, 0.42), 0.6, rng.uniform(0.2, 0.4))
    places = _lattice(0.24, rng, 0.6)
    half = rng.uniform(0.1, 0.2, (len(places), 1, 1))
    tones = [shade(base, factor) for factor in rng.uniform(0.6, 1.4, 40).tolist()]
    canvas.polygons(places[:, None] + half * ellipse(0, 0, 1, 1, 8), tones)


def _houses(canvas: Canvas, rng: Random) -> None:
    places = _lattice(0.34, rng, 0.15)
    half = rng.uniform(0.08, 0.12, places.shape)
    roof = hsv(rng.uniform(0, 0.09), rng.uniform(0.1, 0.6), rng.uniform(0.5, 0.85))
    canvas.polygons(_boxes(places + 0.03, half), [(0.08, 0.1, 0.1)])
    boxes = _boxes(places, half)
    canvas.polygons(boxes, [shade(roof, 1.1), roof])
    boxes[:, 2:, 1] -= half[:, 1:]  # the half of the roof that the sun does not reach
    canvas.polygons(boxes, [shade(roof, 0.65)])


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
    canvas.polygon(ellipse(0, 0, 0.46, 0.46), colour)
    canvas.polygon(ellipse(0, 0, 0.26, 0.26), _greens(rng, 1)[0])


def _meander(canvas: Canvas, rng: Random, colour: Colour) -> None:
    x = np.linspace(-2.5, 2.5, 50)
    y = rng.uniform(0.35, 0.5) * np.sin(4.5 * x + rng.uniform(0, 6.3))
    canvas.line(np.stack([x, y], axis=1), 0.24, colour)


def _confluence(canvas: Canvas, rng: Random, colour: Colour) -> None:
    x = np.linspace(0, 2.5, 14)
    for angle in np.array([0, 2.4, 3.9]) + rng.normal(0, 0.12, 3):
        bend = 0.12 * np.sin(4 * x + rng.uniform(0, 6.3)) * np.minimum(1, 3 * x)
        canvas.line(turned(np.stack([x, bend], axis=1), angle), 0.28, colour)


def _lake(canvas: Canvas, rng: Random, colour: Colour) -> None:
    shore = ellipse(0, 0, 0.75, 0.55, 24) * np.exp(rng.normal(0, 0.04, (24, 1)))
    canvas.polygon(shore * 1.08, shade(colour, 1.5))
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
CLASSES = tuple(product(COVERS, WAYS))


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Lay out one piece of land; the way through it has its own direction."""
    cover, way = CLASSES[class_id]
    drawn, water = WAYS[way]
    soil = hsv(rng.uniform(0.07, 0.25), rng.uniform(0.15, 0.5), rng.uniform(0.4, 0.75))
    matrix = view(rng, turn=np.pi, zoom=(0.8, 1.25), shift=0.1, tilt=0.08, squash=0.1, flip=True)
    canvas = Canvas(size, soil, matrix)
    COVERS[cover](canvas, rng)
    if water:
        colour = hsv(rng.uniform(0.35, 0.62), rng.uniform(0.2, 0.6), rng.uniform(0.15, 0.5))
    else:
        # asphalt or gravel; a tone between them would drown in the land
        tone = rng.choice([0.15, 0.8]) + rng.uniform(0, 0.15)
        colour = hsv(rng.uniform(0.05, 0.15), rng.uniform(0, 0.15), tone)
    canvas.look(view(rng, turn=np.pi, zoom=(0.8, 1.15), shift=0.2, tilt=0.08, flip=True))
    drawn(canvas, rng, colour)
    return light(rng, canvas.picture(), 1.0)


DOMAIN = ToyDomain(
    name="aerial",
    about="Land from above: fields, trees or roofs with a road or a water through them.",
    class_names=tuple(f"{cover} with {way}" for cover, way in CLASSES),
    mirror=True,
    paint=paint,
)
