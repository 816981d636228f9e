"""What the embedded domains share: random views, a supersampled canvas, backgrounds and light.

Geometry lives in the *unit frame*: x to the right, y down, both from -1 to 1 across the image, so
that a drawing looks the same at every image size. Pictures are float32 arrays `[size, size, 3]` of
0 to 1. Random numbers whose count depends on the image size (the noise) are drawn last, for the
same reason.
"""

import colorsys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

Array = NDArray[np.float32]
Points = NDArray[np.float64]
Colour = tuple[float, float, float]
Random = np.random.Generator
Range = tuple[float, float]
Painter = Callable[[int, Random, int], Array]
"""Draws one example, `paint(class_id, rng, size)`: float32 `[size, size, 3]` of about 0 to 1."""

SUPERSAMPLING = 2

_SCENE = 48  # pixels across a clutter picture before it is blurred


def generator(*keys: int) -> Random:
    """Return the random stream that belongs to these non-negative integers, on every machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(keys)))


def view(
    rng: Random,
    *,
    turn: float = 0.3,
    zoom: Range = (0.6, 0.95),
    shift: float = 0.2,
    tilt: float = 0.15,
    squash: float = 0.15,
    flip: bool = False,
) -> Points:
    """Draw a viewpoint: a homography `[3, 3]` from an object's unit frame to the image's.

    `turn` bounds the rotation in radians, `shift` the move, `tilt` the perspective and `squash` the
    foreshortening along a random axis; `flip` allows a mirror image.
    """
    angle, axis = rng.uniform(-turn, turn), rng.uniform(0, np.pi)
    scale = np.exp(rng.uniform(np.log(zoom[0]), np.log(zoom[1])))
    thin = 1 - rng.uniform(0, squash)
    matrix = _rotation(axis) @ np.diag([scale, scale * thin, 1]) @ _rotation(angle - axis)
    if flip and rng.random() < 0.5:
        matrix = matrix @ np.diag([-1.0, 1.0, 1.0])
    matrix[:2, 2] = rng.uniform(-shift, shift, 2)
    matrix[2, :2] = rng.uniform(-tilt, tilt, 2)
    return matrix


def _rotation(angle: float) -> Points:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def turned(points: ArrayLike, angle: float) -> Points:
    """Rotate points `[..., 2]` about the origin."""
    return np.asarray(points, dtype=np.float64) @ _rotation(angle)[:2, :2].T


def project(matrix: Points, points: ArrayLike) -> Points:
    """Map points `[..., 2]` through a homography `[3, 3]`."""
    flat = np.asarray(points, dtype=np.float64) @ matrix[:, :2].T + matrix[:, 2]
    return flat[..., :2] / flat[..., 2:]


def ellipse(x: float, y: float, rx: float, ry: float, sides: int = 20) -> Points:
    """Return the outline `[sides, 2]` of an upright ellipse."""
    angles = np.linspace(0, 2 * np.pi, sides, endpoint=False)
    return np.stack([x + rx * np.cos(angles), y + ry * np.sin(angles)], axis=1)


@lru_cache(maxsize=8)
def pixels(size: int) -> Points:
    """Return the centres `[size, size, 2]` of an image's pixels in the unit frame."""
    ticks = (np.arange(size) + 0.5) * 2 / size - 1
    return np.stack(np.meshgrid(ticks, ticks), axis=-1)


class Canvas:
    """A supersampled picture to draw on, seen through a viewpoint."""

    def __init__(self, size: int, ground: Array | Colour, matrix: Points) -> None:
        """Open a canvas over one colour, or over a picture `[cells, cells, 3]` enlarged to it."""
        self.side = size * SUPERSAMPLING
        self.look(matrix)
        if isinstance(ground, tuple):
            self.image = Image.new("RGB", (self.side, self.side), _bytes(ground))
        else:
            self.image = _enlarged(ground, self.side)
        self.pen = ImageDraw.Draw(self.image)

    def look(self, matrix: Points) -> None:
        """Take another viewpoint for what is drawn from now on."""
        self.matrix = matrix
        self.scale = float(np.sqrt(abs(np.linalg.det(matrix[:2, :2]))))

    def _place(self, points: ArrayLike) -> Points:
        return (project(self.matrix, points) + 1) * (self.side / 2)

    def polygon(self, points: ArrayLike, colour: Colour) -> None:
        """Fill one outline `[corners, 2]`."""
        self.pen.polygon(self._place(points).ravel().tolist(), fill=_bytes(colour))

    def polygons(self, points: ArrayLike, colours: Sequence[Colour]) -> None:
        """Fill many outlines `[n, corners, 2]`, the colours in turn."""
        placed = self._place(points)
        inside = (placed.max(axis=1) > 0) & (placed.min(axis=1) < self.side)
        fills = [_bytes(colour) for colour in colours]
        flat = placed.reshape(len(placed), -1)
        for index in np.flatnonzero(inside.all(axis=1)).tolist():
            self.pen.polygon(flat[index].tolist(), fill=fills[index % len(fills)])

    def line(self, points: ArrayLike, width: float, colour: Colour) -> None:
        """Draw a polyline `[n, 2]` with round ends; the width is in the unit frame."""
        placed = self._place(points)
        thick = max(1.0, width * self.scale * self.side / 2)
        fill = _bytes(colour)
        self.pen.line(placed.ravel().tolist(), fill=fill, width=round(thick), joint="curve")
        if thick > 3:
            half = thick / 2 - 0.5
            for x, y in (placed[0].tolist(), placed[-1].tolist()):
                self.pen.ellipse((x - half, y - half, x + half, y + half), fill=fill)

    def picture(self) -> Array:
        """Return the picture `[size, size, 3]` at the size asked for."""
        return from_image(self.image.reduce(SUPERSAMPLING))


def from_image(image: Image.Image) -> Array:
    """Turn a PIL image into floats of 0 to 1, `[height, width, 3]` (or `[height, width]`)."""
    return np.asarray(image, dtype=np.float32) / np.float32(255)


def to_bytes(picture: Array) -> NDArray[np.uint8]:
    """Round a picture of 0 to 1 to bytes, the same shape; what lies outside is clipped."""
    return (np.clip(picture, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)


def _bytes(colour: Colour) -> tuple[int, int, int]:
    r, g, b = colour
    return int(r * 255 + 0.5), int(g * 255 + 0.5), int(b * 255 + 0.5)


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """Return the colour of a hue (wraps at 1), saturation and value."""
    return colorsys.hsv_to_rgb(hue % 1, saturation, value)


def any_colour(rng: Random, saturation: Range = (0.1, 0.9), value: Range = (0.2, 0.95)) -> Colour:
    """Draw a colour of any hue."""
    return hsv(rng.random(), rng.uniform(*saturation), rng.uniform(*value))


def shade(colour: Colour, factor: float) -> Colour:
    """Darken (below 1) or lighten (above 1) a colour."""
    r, g, b = colour
    return min(1, r * factor), min(1, g * factor), min(1, b * factor)


def brightness(colour: Colour) -> float:
    """Return how bright a colour looks, 0 to 1."""
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def contrasting(rng: Random, other: Colour, gap: float = 0.35) -> Colour:
    """Draw a colour that differs from another by at least `gap` (below 0.45) in brightness."""
    while True:
        colour = any_colour(rng, (0, 0.85), (0.02, 1))
        if abs(brightness(colour) - brightness(other)) >= gap:
            return colour


def clouds(rng: Random, base: Colour, spread: float) -> Array:
    """Return a few random colours about `base`, `[4, 4, 3]`; enlarged, they are a smooth field."""
    return (np.asarray(base) + rng.normal(0, spread, (4, 4, 3))).astype(np.float32)


def scene(rng: Random, colours: Sequence[Colour], shapes: int = 8) -> Array:
    """Return clutter of the given colours, `[12, 12, 3]`; enlarged, it is out of focus."""
    picks = rng.integers(len(colours), size=shapes + 1)
    image = Image.new("RGB", (_SCENE, _SCENE), _bytes(colours[picks[0]]))
    pen = ImageDraw.Draw(image)
    corners = rng.uniform(-0.2, 1.2, (shapes, 1, 2)) + rng.uniform(-0.5, 0.5, (shapes, 4, 2))
    factors = rng.uniform(0.6, 1.3, shapes)
    for pick, factor, outline in zip(picks[1:], factors, corners, strict=True):
        colour = _bytes(shade(colours[pick], float(factor)))
        pen.polygon((outline * _SCENE).ravel().tolist(), fill=colour)
    return from_image(image.reduce(4))


def enlarge(picture: Array, size: int) -> Array:
    """Enlarge a small picture `[cells, cells, 3]` smoothly to `[size, size, 3]`."""
    return from_image(_enlarged(picture, size))


def _enlarged(picture: Array, side: int) -> Image.Image:
    return Image.fromarray(to_bytes(picture)).resize((side, side), Image.Resampling.BICUBIC)


def light(rng: Random, picture: Array, amount: float = 1.0, noise: float = 0.04) -> Array:
    """Light a picture `[size, size, 3]`: exposure, tint, a gradient, a shadow, then sensor noise.

    `amount` scales all but the noise, whose standard deviation is at most `noise`.
    """
    frame = pixels(len(picture))
    gain = np.exp(amount * (rng.uniform(-0.4, 0.25) + rng.normal(0, 0.07, 3)))
    slope, edge = rng.normal(0, 0.18 * amount, 2), rng.normal(0, 1, 2)
    offset, softness = rng.uniform(-0.8, 0.8), rng.uniform(1, 6)
    depth = rng.uniform(0, 0.45) * amount
    ramp = 1 + frame @ slope
    if rng.random() < 0.5:
        ramp *= 1 - depth * np.clip((frame @ edge - offset) * softness, 0, 1)
    lit = picture * (ramp[..., None] * gain).astype(np.float32)
    # evenly distributed: twice as fast to draw as normal noise, and no eye tells them apart
    width = np.float32(rng.uniform(0, noise) * np.sqrt(12))
    lit += width * (rng.random(lit.shape, dtype=np.float32) - np.float32(0.5))
    return lit


@dataclass(frozen=True)
class ToyDomain:
    """An image collection that code draws."""

    name: str
    """Its name, the key in `DOMAINS`."""
    class_names: tuple[str, ...]
    """A readable name for each class, in the order of the labels."""
    mirror: bool
    """Whether a horizontal flip keeps the class."""
    paint: Painter


def domain(class_names: Iterable[str], mirror: bool) -> Callable[[Painter], ToyDomain]:
    """Turn a painter into the embedded domain of its name."""

    def made(paint: Painter) -> ToyDomain:
        return ToyDomain(paint.__name__, tuple(class_names), mirror, paint)

    return made
