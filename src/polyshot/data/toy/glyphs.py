"""Domain `glyphs`: printed characters in the fonts that come with matplotlib."""

import unicodedata
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from polyshot.data.toy.canvas import (
    Array,
    Points,
    Random,
    ToyDomain,
    any_colour,
    brightness,
    clouds,
    contrasting,
    enlarge,
    from_image,
    light,
    view,
)

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
    warped = mask.transform(
        (size, size),
        Image.Transform.PERSPECTIVE,
        (back / back[2, 2]).ravel()[:8].tolist(),
        resample=Image.Resampling.BILINEAR,
    )
    return from_image(warped)


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Print one character on a coloured ground, often between cut-off neighbours."""
    font = int(rng.integers(len(FONTS)))
    matrix = view(rng, turn=0.3, zoom=(0.85, 1.3), shift=0.2, tilt=0.15, squash=0.25)
    ink = _warped(_mask(font, CHARACTERS[class_id], size), matrix, size)
    for side in (-1.5, 1.5):
        if rng.random() < 0.4:
            beside = matrix @ np.array([[1, 0, side], [0, 1, 0], [0, 0, 1]])
            other = CHARACTERS[rng.integers(len(CHARACTERS))]
            ink = np.maximum(ink, _warped(_mask(font, other, size), beside, size))
    first = any_colour(rng, (0, 0.6), (0.4, 1))
    # print is more often dark on bright
    dark, bright = sorted((first, contrasting(rng, first, 0.4)), key=brightness)
    paper, letter = (dark, bright) if rng.random() < 0.2 else (bright, dark)
    ground, front = (
        enlarge(clouds(rng, paper, 0.05), size),
        enlarge(clouds(rng, letter, 0.04), size),
    )
    return light(rng, ground + (front - ground) * ink[..., None], 0.6)


DOMAIN = ToyDomain(
    name="glyphs",
    about="Printed characters of four scripts in many fonts, colours and poses.",
    class_names=tuple(unicodedata.name(character).lower() for character in CHARACTERS),
    mirror=False,
    paint=paint,
)
