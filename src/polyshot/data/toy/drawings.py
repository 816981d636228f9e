"""Domains `signs` and `vehicles`: drawings in a short notation, which drawings.ini explains."""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from polyshot.data.toy import canvas as c
from polyshot.data.toy.canvas import Array, Canvas, Colour, Points, Random


@dataclass(frozen=True)
class Mark:
    """One part of a drawing."""

    material: str
    """The letter that a colour is given for."""
    line: float
    """The width of a line, 0 for a filled outline."""
    points: Points
    """The corners `[n, 2]` in the unit frame."""


def parse(text: str, unit: float = 1.0, origin: tuple[float, float] = (0, 0)) -> tuple[Mark, ...]:
    """Read a drawing; `unit` of its lengths make 1, and `origin` is put in the middle.

    With a `unit` below zero, y goes up in the notation.
    """
    axes = np.array([abs(unit), unit])
    marks = []
    for part in text.split(";"):
        head, *tokens = part.split()
        places = np.array([[float(number) for number in token.split(",")] for token in tokens])
        places = (places - np.array(origin)) / axes
        if "@" in head:
            radius = float(head[2:]) / abs(unit)
            marks += [Mark(head[0], 0, c.ellipse(x, y, radius, radius)) for x, y in places]
        else:
            width = float(head[2:]) / abs(unit) if "~" in head else 0
            marks.append(Mark(head[0], width, places))
    return tuple(marks)


def draw_marks(canvas: Canvas, marks: tuple[Mark, ...], colours: Mapping[str, Colour]) -> None:
    """Draw the marks in their order, each in the colour of its material."""
    for mark in marks:
        if mark.line:
            canvas.line(mark.points, mark.line, colours[mark.material])
        else:
            canvas.polygon(mark.points, colours[mark.material])


_FILE = configparser.ConfigParser(interpolation=None)
_FILE.read_string(resources.files(__package__).joinpath("drawings.ini").read_text("utf-8"))
PICTOGRAMS = {name: parse(text) for name, text in _FILE["pictograms"].items()}
VEHICLES = {name: parse(text, -50, (50, 30)) for name, text in _FILE["vehicles"].items()}

RED, BLUE, YELLOW, GREEN = (0.8, 0.08, 0.1), (0.1, 0.25, 0.7), (0.95, 0.75, 0.05), (0.05, 0.5, 0.3)
WHITE, BLACK = (0.95, 0.95, 0.95), (0.06, 0.06, 0.06)

_TRIANGLE = c.turned(c.ellipse(0, 0.12, 1.05, 1.05, 3), -np.pi / 2) + np.array([-0.12, 0.24])
_SQUARE = np.array([(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)])
# outline, where the rim ends, size of the pictogram; colours of rim, face and ink
PLATES: dict[str, tuple[Points, float, float, Colour, Colour, Colour]] = {
    "red-rimmed triangle": (_TRIANGLE, 0.72, 0.42, RED, WHITE, BLACK),
    "red-rimmed disc": (c.ellipse(0, 0, 0.95, 0.95, 28), 0.72, 0.6, RED, WHITE, BLACK),
    "blue disc": (c.ellipse(0, 0, 0.95, 0.95, 28), 0.88, 0.65, WHITE, BLUE, WHITE),
    "yellow diamond": (c.turned(_SQUARE, np.pi / 4) * 0.92, 0.88, 0.55, BLACK, YELLOW, BLACK),
    "green square": (_SQUARE, 0.88, 0.65, WHITE, GREEN, WHITE),
    "red octagon": (c.turned(c.ellipse(0, 0, 1, 1, 8), np.pi / 8), 0.88, 0.65, WHITE, RED, WHITE),
}
_PER_PLATE = 8
# neighbouring plates share pictograms, so that neither colour nor shape alone is the class
SIGNS = tuple(
    (plate, list(PICTOGRAMS)[(5 * row + column) % len(PICTOGRAMS)])
    for row, plate in enumerate(PLATES)
    for column in range(_PER_PLATE)
)


def _worn(rng: Random, colour: Colour) -> Colour:
    """Fade a paint."""
    r, g, b = np.clip(np.asarray(colour) + rng.normal(0, 0.05, 3), 0, 1).tolist()
    return r, g, b


@c.domain((f"{plate}, {pictogram}" for plate, pictogram in SIGNS), mirror=False)
def signs(class_id: int, rng: Random, size: int) -> Array:
    """Road-sign-like plates: a pictogram on a coloured shape in a blurred street."""
    plate, pictogram = SIGNS[class_id]
    outline, border, extent, *paints = PLATES[plate]
    street = [c.any_colour(rng, (0.05, 0.7), (0.1, 0.9)) for _ in range(4)]
    matrix = c.view(rng, turn=0.25, zoom=(0.55, 0.95), shift=0.2, tilt=0.15, squash=0.25)
    canvas = Canvas(size, c.scene(rng, street), matrix)
    grey = rng.uniform(0.2, 0.7)
    canvas.line(((0, 0.5), (0, 5)), 0.12, (grey, grey, grey))
    rim, face, ink = (_worn(rng, colour) for colour in paints)
    canvas.polygon(outline * 1.06, c.shade(rim, 0.5))
    canvas.polygon(outline, rim)
    middle = outline.mean(axis=0)
    canvas.polygon(middle + (outline - middle) * border, face)
    inset = np.array([[extent, 0, middle[0]], [0, extent, middle[1]], [0, 0, 1]])
    canvas.look(matrix @ inset)
    draw_marks(canvas, PICTOGRAMS[pictogram], {"i": ink, "f": face})
    return c.light(rng, canvas.picture(), 1.1, noise=0.05)


@c.domain(VEHICLES, mirror=True)
def vehicles(class_id: int, rng: Random, size: int) -> Array:
    """Vehicles of land, water and air from the side, in any paint before any scene."""
    horizon = c.any_colour(rng, (0.05, 0.6), (0.4, 0.95))
    around = [horizon, c.shade(horizon, 0.7), c.shade(horizon, 1.3), c.any_colour(rng)]
    matrix = c.view(rng, turn=0.1, zoom=(0.7, 1.0), shift=0.17, tilt=0.1, squash=0.2, flip=True)
    canvas = Canvas(size, c.scene(rng, around), matrix)
    ground = c.any_colour(rng, (0, 0.35), (0.2, 0.8))
    canvas.polygon(((-9, 0.52), (9, 0.52), (9, 9), (-9, 9)), ground)
    canvas.polygon(c.ellipse(0, 0.62, 0.9, 0.06), c.shade(ground, 0.6))
    body = c.contrasting(rng, horizon, 0.25)
    grey, dark = rng.uniform(0.5, 0.85), rng.uniform(0.03, 0.2)
    colours = {
        "b": body,
        "c": c.any_colour(rng, (0, 0.8), (0.25, 1)),
        "w": c.hsv(
            rng.uniform(0.45, 0.65), rng.uniform(0, 0.4), rng.choice([0.15, 0.3, 0.8, 0.95])
        ),
        "m": (grey, grey, grey),
        "k": (dark, dark, dark),
        "g": horizon,
    }
    draw_marks(canvas, list(VEHICLES.values())[class_id], colours)
    return c.light(rng, canvas.picture(), 0.7)
