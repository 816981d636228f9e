"""Domains `glyphs` and `strokes`: printed letters of many fonts, and an invented script."""

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from polyshot.data.toy import canvas as c
from polyshot.data.toy.canvas import Array, Canvas, Points, Random

# no pairs that differ only by case or by a half turn
CHARACTERS = "ABDEFGHJKLMNPQRSTUWXYadeghnrt2345678&@#?%€§ΩΣΔΦΨλξπЖЯЮ"
FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)


@lru_cache(maxsize=2048)
def _mask(font: int, character: str, side: int) -> Image.Image:
    """Return a character in the middle of a black square, grey levels `[side, side]`."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    face = ImageFont.truetype(str(folder / f"{FONTS[font]}.ttf"), round(side * 0.8))
    image = Image.new("L", (side, side))
    left, top, right, bottom = face.getbbox(character)
    corner = ((side - left - right) / 2, (side - top - bottom) / 2)
    ImageDraw.Draw(image).text(corner, character, fill=255, font=face)
    return image


def _warped(mask: Image.Image, matrix: Points, size: int) -> Array:
    """See a square mask through a viewpoint: `[size, size]` of 0 to 1."""
    side = mask.width
    to_image = np.array([[size / 2, 0, size / 2], [0, size / 2, size / 2], [0, 0, 1]])
    to_mask = np.array([[side / 2, 0, side / 2], [0, side / 2, side / 2], [0, 0, 1]])
    back = to_mask @ np.linalg.inv(to_image @ matrix)
    numbers = (back / back[2, 2]).ravel()[:8].tolist()
    kind, smooth = Image.Transform.PERSPECTIVE, Image.Resampling.BILINEAR
    return c.from_image(mask.transform((size, size), kind, numbers, resample=smooth))


@c.domain((unicodedata.name(character).lower() for character in CHARACTERS), mirror=False)
def glyphs(class_id: int, rng: Random, size: int) -> Array:
    """Printed characters of four scripts in many fonts, colours and poses."""
    font = int(rng.integers(len(FONTS)))
    matrix = c.view(rng, turn=0.3, zoom=(0.85, 1.3), shift=0.2, tilt=0.15, squash=0.25)
    ink = _warped(_mask(font, CHARACTERS[class_id], size), matrix, size)
    for side in (-1.5, 1.5):  # neighbours, cut off
        if rng.random() < 0.4:
            beside = matrix @ np.array([[1, 0, side], [0, 1, 0], [0, 0, 1]])
            other = CHARACTERS[rng.integers(len(CHARACTERS))]
            ink = np.maximum(ink, _warped(_mask(font, other, size), beside, size))
    first = c.any_colour(rng, (0, 0.6), (0.4, 1))
    # print is more often dark on bright
    dark, bright = sorted((first, c.contrasting(rng, first, 0.4)), key=c.brightness)
    paper, letter = (dark, bright) if rng.random() < 0.2 else (bright, dark)
    ground = c.enlarge(c.clouds(rng, paper, 0.05), size)
    front = c.enlarge(c.clouds(rng, letter, 0.04), size)
    return c.light(rng, ground + (front - ground) * ink[..., None], 0.6)


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
PAIRS = tuple(combinations(PARTS, 2))


@lru_cache(maxsize=len(PAIRS))
def _layout(class_id: int) -> tuple[tuple[str, float, Points], ...]:
    """Return the class's parts, each with its quarter turn and its place."""
    rng = c.generator(_CLASS_SEED, class_id)
    first, second = PAIRS[class_id]
    if rng.random() < 0.5:
        first, second = second, first
    direction = rng.integers(4) * np.pi / 2
    offset = np.array([np.cos(direction), np.sin(direction)])
    quarter = rng.integers(4, size=2) * np.pi / 2
    return ((first, float(quarter[0]), 0.42 * offset), (second, float(quarter[1]), -0.42 * offset))


@c.domain((f"{first} and {second}" for first, second in PAIRS), mirror=False)
def strokes(class_id: int, rng: Random, size: int) -> Array:
    """Hand-written characters of an invented script, dark ink on pale paper."""
    paper = c.hsv(rng.uniform(0.08, 0.16), rng.uniform(0, 0.2), rng.uniform(0.85, 1))
    matrix = c.view(rng, turn=0.25, zoom=(0.7, 1.05), shift=0.14, tilt=0.1, squash=0.35)
    canvas = Canvas(size, c.clouds(rng, paper, 0.015), matrix)
    if rng.random() < 0.3:
        rule = c.any_colour(rng, (0.1, 0.4), (0.75, 0.9))
        for y in np.arange(-2, 2, rng.uniform(0.3, 0.6)):
            canvas.line(((-3, y), (3, y)), 0.01, rule)
    ink = c.any_colour(rng, (0, 0.6), (0.02, 0.3))
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
            canvas.line(c.turned((stroke + wobble) * stretch, angle) + moved, width, ink)
    return c.light(rng, canvas.picture(), 0.4, noise=0.03)
