"""Domain `signs`: road-sign-like plates, a pictogram on a coloured shape in a blurred street."""

from functools import lru_cache

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Canvas,
    Colour,
    Mark,
    Points,
    Random,
    ToyDomain,
    any_colour,
    draw_marks,
    ellipse,
    light,
    parse,
    scene,
    shade,
    turned,
    view,
)

RED, BLUE, YELLOW, GREEN = (0.8, 0.08, 0.1), (0.1, 0.25, 0.7), (0.95, 0.75, 0.05), (0.05, 0.5, 0.3)
WHITE, BLACK = (0.95, 0.95, 0.95), (0.06, 0.06, 0.06)

_TRIANGLE = turned(ellipse(0, 0.12, 1.05, 1.05, 3), -np.pi / 2) + np.array([-0.12, 0.24])
_SQUARE = np.array([(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)])
# outline, where the rim ends, size of the pictogram; colours of rim, face and ink
PLATES: dict[str, tuple[Points, float, float, Colour, Colour, Colour]] = {
    "red-rimmed triangle": (_TRIANGLE, 0.72, 0.42, RED, WHITE, BLACK),
    "red-rimmed disc": (ellipse(0, 0, 0.95, 0.95, 28), 0.72, 0.6, RED, WHITE, BLACK),
    "blue disc": (ellipse(0, 0, 0.95, 0.95, 28), 0.88, 0.65, WHITE, BLUE, WHITE),
    "yellow diamond": (turned(_SQUARE, np.pi / 4) * 0.92, 0.88, 0.55, BLACK, YELLOW, BLACK),
    "green square": (_SQUARE, 0.88, 0.65, WHITE, GREEN, WHITE),
    "red octagon": (turned(ellipse(0, 0, 1, 1, 8), np.pi / 8), 0.88, 0.65, WHITE, RED, WHITE),
}
# i: ink, f: face
PICTOGRAMS = {
    "arrow ahead": "i~.28 0,.85 0,-.2; i -.6,-.1 0,-.95 .6,-.1",
    "arrow right": "i~.28 -.5,.85 -.5,-.25 .1,-.25; i .05,-.8 .95,-.25 .05,.3",
    "arrow left": "i~.28 .5,.85 .5,-.25 -.1,-.25; i -.05,-.8 -.95,-.25 -.05,.3",
    "bar": "i -.9,-.22 .9,-.22 .9,.22 -.9,.22",
    "diagonal cross": "i~.28 -.7,-.7 .7,.7; i~.28 .7,-.7 -.7,.7",
    "exclamation mark": "i -.22,-.95 .22,-.95 .12,.3 -.12,.3; i@.22 0,.75",
    "walker": "i@.2 0,-.75; i~.24 0,-.4 0,.15; i~.18 -.5,.9 0,.1 .5,.9; i~.16 -.5,.1 0,-.35 .5,0",
    "bicycle": "i@.44 -.52,.35 .52,.35; f@.3 -.52,.35 .52,.35;"
    "i~.12 -.52,.35 -.2,-.3 .35,-.3 .52,.35; i~.12 -.2,-.3 .05,.35 .35,-.3; i~.12 .35,-.3 .3,-.65",
    "double bend": "i~.26 -.4,.9 -.4,.3 .4,-.2 .4,-.9",
    "two posts": "i -.6,-.85 -.2,-.85 -.2,.85 -.6,.85; i .2,-.85 .6,-.85 .6,.85 .2,.85",
    "house": "i -.9,-.05 0,-.9 .9,-.05; i -.6,0 .6,0 .6,.85 -.6,.85;"
    "f -.18,.25 .18,.25 .18,.85 -.18,.85",
    "lightning": "i .25,-.95 -.6,.15 -.05,.15 -.25,.95 .6,-.2 .05,-.2",
    "fork": "i~.26 0,.9 0,.15 -.65,-.8; i~.26 0,.15 .65,-.8",
    "plus": "i~.32 0,-.8 0,.8; i~.32 -.8,0 .8,0",
    "chevrons": "i~.2 -.7,-.05 0,-.75 .7,-.05; i~.2 -.7,.65 0,-.05 .7,.65",
    "three dots": "i@.28 0,-.55 -.6,.45 .6,.45",
}
_PER_PLATE = 8
# neighbouring plates share pictograms, so that neither colour nor shape alone is the class
CLASSES = tuple(
    (plate, list(PICTOGRAMS)[(5 * row + column) % len(PICTOGRAMS)])
    for row, plate in enumerate(PLATES)
    for column in range(_PER_PLATE)
)


@lru_cache(maxsize=len(PICTOGRAMS))
def _marks(pictogram: str) -> tuple[Mark, ...]:
    return parse(PICTOGRAMS[pictogram])


def _worn(rng: Random, colour: Colour) -> Colour:
    """Fade a paint."""
    r, g, b = np.clip(np.asarray(colour) + rng.normal(0, 0.05, 3), 0, 1).tolist()
    return r, g, b


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Put up one plate on its post."""
    plate, pictogram = CLASSES[class_id]
    outline, border, extent, *paints = PLATES[plate]
    street = [any_colour(rng, (0.05, 0.7), (0.1, 0.9)) for _ in range(4)]
    matrix = view(rng, turn=0.25, zoom=(0.55, 0.95), shift=0.2, tilt=0.15, squash=0.25)
    canvas = Canvas(size, scene(rng, street), matrix)
    grey = rng.uniform(0.2, 0.7)
    canvas.line(((0, 0.5), (0, 5)), 0.12, (grey, grey, grey))
    rim, face, ink = (_worn(rng, colour) for colour in paints)
    canvas.polygon(outline * 1.06, shade(rim, 0.5))
    canvas.polygon(outline, rim)
    middle = outline.mean(axis=0)
    canvas.polygon(middle + (outline - middle) * border, face)
    inset = np.array([[extent, 0, middle[0]], [0, extent, middle[1]], [0, 0, 1]])
    canvas.look(matrix @ inset)
    draw_marks(canvas, _marks(pictogram), {"i": ink, "f": face})
    return light(rng, canvas.picture(), 1.1, noise=0.05)


DOMAIN = ToyDomain(
    name="signs",
    about="Road-sign-like plates: a pictogram on a coloured shape in a blurred street.",
    class_names=tuple(f"{plate}, {pictogram}" for plate, pictogram in CLASSES),
    mirror=False,
    paint=paint,
)
