"""Domains `textures` and `smears`: endless patterns and pictures of a whole motion, by fields.

A field is a tone as a function of the place. The functions for textures take and return arrays of
one shape; x and y count in cells of the pattern.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from polyshot.data.toy import canvas as c
from polyshot.data.toy.canvas import Array, Points, Random

_TABLE = 64  # random tables repeat after this many cells, far outside of any image


def ink(depth: Points) -> Points:
    """Return 1 inside (depth above zero), 0 outside, with a soft edge against jaggies."""
    return np.clip(depth * 12 + 0.5, 0, 1)


def off(x: Points) -> Points:
    """Return the distance to the nearest whole number, 0 to 0.5."""
    return np.abs(cell(x))


def cell(x: Points) -> Points:
    """Return the place within its cell, -0.5 to 0.5."""
    return x - np.rint(x)


def tone(x: Points, y: Points, rng: Random) -> Points:
    """Return one random number of 0 to 1 for each unit cell."""
    table = rng.random((_TABLE, _TABLE))
    tones: Points = table[np.rint(y).astype(int) % _TABLE, np.rint(x).astype(int) % _TABLE]
    return tones


def coin(x: Points, y: Points, rng: Random) -> Points:
    """Return 1 or -1 at random for each unit cell."""
    return np.where(tone(x, y, rng) < 0.5, 1.0, -1.0)


def noise(x: Points, y: Points, rng: Random) -> Points:
    """Return smooth noise of about -1 to 1 that changes over one unit."""
    table = rng.uniform(-1.3, 1.3, (_TABLE, _TABLE))
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    u, v = x - left, y - top
    u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
    left, top = left % _TABLE, top % _TABLE
    right, low = (left + 1) % _TABLE, (top + 1) % _TABLE
    upper = table[top, left] * (1 - u) + table[top, right] * u
    lower = table[low, left] * (1 - u) + table[low, right] * u
    field: Points = upper * (1 - v) + lower * v
    return field


def rough(x: Points, y: Points, rng: Random) -> Points:
    """Return noise with finer noise on it."""
    return noise(x, y, rng) + 0.5 * noise(2 * x, 2 * y, rng) + 0.25 * noise(4 * x, 4 * y, rng)


def seeds(x: Points, y: Points, rng: Random) -> tuple[Points, Points, Points]:
    """Return the distances to the nearest and second seed, one a cell, and the nearest's tone."""
    table = rng.random((_TABLE, _TABLE, 3))
    column, row = np.rint(x).astype(int), np.rint(y).astype(int)
    first = np.full(x.shape, 9.0)
    second, shade = first.copy(), np.zeros(x.shape)
    for dy, dx in product((-1, 0, 1), repeat=2):
        seed = table[(row + dy) % _TABLE, (column + dx) % _TABLE]
        across = column + dx + 0.9 * (seed[..., 0] - 0.5) - x
        away = np.hypot(across, row + dy + 0.9 * (seed[..., 1] - 0.5) - y)
        nearer = away < first
        second = np.where(nearer, first, np.minimum(second, away))
        first, shade = np.where(nearer, away, first), np.where(nearer, seed[..., 2], shade)
    return first, second, shade


def odd(*cells: Points) -> NDArray[np.bool_]:
    """Return where the cell numbers add up to an odd number."""
    is_odd: NDArray[np.bool_] = np.sum(np.rint(cells), axis=0) % 2 == 1
    return is_odd


def hexagon(x: Points, y: Points) -> Points:
    """Return the distance to the border of the hexagon around each place, 0 to 0.5."""
    # hexagons are the cells of two shifted lattices
    tall = y / np.sqrt(3)
    ax, ay = cell(x), cell(tall) * np.sqrt(3)
    bx, by = cell(x - 0.5), cell(tall - 0.5) * np.sqrt(3)
    first = ax**2 + ay**2 < bx**2 + by**2
    hx, hy = np.abs(np.where(first, ax, bx)), np.abs(np.where(first, ay, by))
    depth: Points = 0.5 - np.maximum(hx, hx / 2 + hy * np.sqrt(3) / 2)
    return depth


def disc(x: Points, y: Points) -> Points:
    """Return the distance to the middle of the cell."""
    return np.hypot(cell(x), cell(y))


def crackle(x: Points, y: Points, rng: Random) -> Points:
    """Return the distance to the borders of random cells."""
    first, second, _ = seeds(x, y, rng)
    return second - first


def bubbles(x: Points, y: Points, rng: Random) -> Points:
    """Return the distance to circles of random places and sizes."""
    first, _, size = seeds(x, y, rng)
    return np.abs(first - 0.2 - 0.25 * size)


def triangles(x: Points, y: Points) -> NDArray[np.bool_]:
    """Return which of the two colours of a lattice of triangles a place has."""
    flipped = odd(x, y)
    return flipped ^ (cell(x) * np.where(flipped, 1, -1) > cell(y))


def bond(x: Points, y: Points) -> Points:
    """Shift every other row by half a cell."""
    return x + 0.5 * odd(y)


def weave(x: Points, y: Points, over: int) -> Points:
    """Return two sets of rounded threads, each passing over `over` of the others."""
    top = (np.rint(x) + np.rint(y)) % (over + 1) >= 1
    return np.where(top, 0.95 - 1.3 * off(x), 0.55 - off(y))


def truchet(x: Points, y: Points, rng: Random) -> Points:
    """Return the distance to quarter arcs that join at random into loops."""
    u, v = coin(x, y, rng) * cell(x), cell(y)
    one, other = np.hypot(u - 0.5, v - 0.5), np.hypot(u + 0.5, v + 0.5)
    return np.minimum(np.abs(one - 0.5), np.abs(other - 0.5))


def waves(x: Points, y: Points, count: int) -> Points:
    """Return the sum of plane waves from directions spread evenly over half a turn."""
    angles = np.arange(count) * np.pi / count
    summands = [np.cos(2 * np.pi * (x * np.cos(a) + y * np.sin(a))) for a in angles]
    total: Points = np.mean(summands, axis=0)
    return total


def sticks(x: Points, y: Points, rng: Random) -> Points:
    """Return the depth inside a stick of random direction, one a cell."""
    angle = np.pi * tone(x, y, rng)
    u, v = cell(x), cell(y)
    along, across = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
    return np.minimum(0.42 - np.abs(along), 0.1 - np.abs(across))


# tones of about 0 to 1 at x and y; what is random within a class comes from the third
FIELDS: dict[str, Callable[[Points, Points, Random], Points]] = {
    "even stripes": lambda x, _y, _: ink(off(x) - 0.25),
    "thin lines": lambda x, _y, _: ink(0.08 - off(x)),
    "double lines": lambda x, _y, _: ink(0.07 - np.abs(off(x) - 0.17)),
    "wavy stripes": lambda x, y, _: ink(off(x + 0.35 * np.sin(3 * y)) - 0.25),
    "chevrons": lambda x, y, _: ink(off(x + 1.6 * off(0.6 * y)) - 0.25),
    "dashes": lambda x, y, _: ink(np.minimum(0.15 - off(y), 0.32 - off(bond(0.6 * x, y)))),
    "sawtooth ramps": lambda x, _y, _: 0.5 + cell(0.8 * x),
    "gingham": lambda x, y, _: (ink(off(x) - 0.25) + ink(off(y) - 0.25)) / 2,
    "tartan": lambda x, y, _: (
        0.6 * ink(off(0.5 * x) - 0.2) * ink(off(0.5 * y) - 0.2)
        + 0.4 * ink(0.05 - np.minimum(off(0.5 * x), off(0.5 * y)))
    ),
    "checkers": lambda x, y, _: ink(0.5 * np.sin(np.pi * x) * np.sin(np.pi * y)),
    "triangles": lambda x, y, _: triangles(x, y / 0.87).astype(np.float64),
    "grid": lambda x, y, _: ink(0.09 - np.minimum(off(x), off(y))),
    "bricks": lambda x, y, rng: (
        ink(np.minimum(0.42 - off(y), (0.46 - off(bond(0.5 * x, y))) * 2))
        * (0.6 + 0.4 * tone(bond(0.5 * x, y), y, rng))
    ),
    "plain weave": lambda x, y, _: weave(x, y, 1),
    "twill": lambda x, y, _: weave(1.3 * x, 1.3 * y, 3),
    "basket": lambda x, y, _: np.where(odd(0.6 * x, 0.6 * y), 2 * off(1.8 * x), 2 * off(1.8 * y)),
    "honeycomb": lambda x, y, _: ink(0.07 - hexagon(x, y)),
    "hexagon studs": lambda x, y, _: ink(hexagon(x, y) - 0.2),
    "dots": lambda x, y, _: ink(0.27 - disc(x, y)),
    "rings": lambda x, y, _: ink(0.08 - np.abs(disc(x, y) - 0.33)),
    "two sizes of dots": lambda x, y, _: ink(0.14 + 0.26 * odd(x, y) - disc(x, y)),
    "plus signs": lambda x, y, _: ink(
        np.minimum(0.1 - np.minimum(off(x), off(y)), 0.36 - np.maximum(off(x), off(y)))
    ),
    "crescents": lambda x, y, _: ink(
        np.minimum(0.38 - disc(x, y), np.hypot(cell(x) - 0.17, cell(y)) - 0.28)
    ),
    "scales": lambda x, y, _: np.clip(
        2.6 * np.hypot(cell(bond(x, 2 * y)), 0.6 * (cell(2 * y) + 0.5)) - 0.5, 0, 1
    ),
    "argyle": lambda x, y, _: (
        0.6 * ink(0.42 - off(0.6 * x) - off(0.4 * y))
        + 0.4 * ink(0.03 - np.abs(0.5 - off(0.6 * x + 0.5) - off(0.4 * y + 0.5)))
    ),
    "tree rings": lambda x, y, rng: ink(
        off(1.6 * np.hypot(x, y) + 0.5 * noise(0.7 * x, 0.7 * y, rng)) - 0.25
    ),
    "wood grain": lambda x, y, rng: 2 * off(1.2 * x + 0.9 * noise(0.5 * x, 0.2 * y, rng)),
    "rays": lambda x, y, _: ink((off(np.arctan2(y, x) * 9 / np.pi) - 0.25) * np.hypot(x, y) * 0.3),
    "spiral": lambda x, y, _: ink(off(np.hypot(x, y) + np.arctan2(y, x) * 3 / np.pi) - 0.25),
    "crackle": lambda x, y, rng: ink(0.09 - crackle(0.8 * x, 0.8 * y, rng)),
    "stained cells": lambda x, y, rng: seeds(0.9 * x, 0.9 * y, rng)[2],
    "pebbles": lambda x, y, rng: np.clip(1.15 - 1.9 * seeds(x, y, rng)[0], 0, 1),
    "scattered dots": lambda x, y, rng: ink(0.22 - seeds(x, y, rng)[0]),
    "bubbles": lambda x, y, rng: ink(0.06 - bubbles(0.8 * x, 0.8 * y, rng)),
    "clouds": lambda x, y, rng: 0.5 + 0.5 * rough(0.5 * x, 0.5 * y, rng),
    "marble": lambda x, y, rng: np.abs(rough(0.5 * x, 0.5 * y, rng)) ** 0.7,
    "contour lines": lambda x, y, rng: ink(0.12 - off(2.5 * noise(0.5 * x, 0.5 * y, rng))),
    "camouflage": lambda x, y, rng: ink(noise(0.7 * x, 0.7 * y, rng)),
    "brushed metal": lambda x, y, rng: 0.5 + 0.4 * noise(0.3 * x, 6 * y, rng),
    "grit": lambda x, y, rng: ink(noise(4 * x, 4 * y, rng) - 0.3),
    "sticks": lambda x, y, rng: ink(sticks(x, y, rng)),
    "ripples": lambda x, y, _: ink(
        np.cos(6 * np.hypot(x - 2, y)) * np.cos(6 * np.hypot(x + 2, y)) * 0.3
    ),
    "egg crate": lambda x, y, _: 0.5 + 0.5 * np.sin(4 * x) * np.sin(4 * y),
    "five-fold waves": lambda x, y, _: ink(waves(x, y, 5)),
    "labyrinth": lambda x, y, rng: ink(0.13 - truchet(x, y, rng)),
    "diagonal maze": lambda x, y, rng: ink(0.12 - np.abs(cell(x) - coin(x, y, rng) * cell(y))),
    "mosaic": lambda x, y, rng: tone(1.2 * x, 1.2 * y, rng),
    "quarter turns": lambda x, y, rng: ink(
        0.62 - np.hypot(cell(x) * coin(x, y, rng) + 0.5, cell(y) + 0.5)
    ),
}
_NAMES = tuple(FIELDS)


@c.domain(_NAMES, mirror=True)
def textures(class_id: int, rng: Random, size: int) -> Array:
    """Endless patterns in any two colours, from stripes and weaves to cells and noise."""
    matrix = c.view(rng, turn=np.pi, zoom=(2.2, 3.6), shift=2.0, squash=0.2, flip=True)
    place = c.project(matrix, c.pixels(size))
    tone = FIELDS[_NAMES[class_id]](place[..., 0], place[..., 1], rng)[..., None]
    first = c.any_colour(rng, (0, 0.8))
    low, high = np.asarray(first), np.asarray(c.contrasting(rng, first, 0.3))
    return c.light(rng, (low + (high - low) * tone).astype(np.float32), 0.8, noise=0.06)


_STEPS = 56
# a path maps time `[steps]` of 0 to 1 to x and y
PATHS: dict[str, Callable[[Points], tuple[Points, Points]]] = {
    "line": lambda t: (1.8 * t - 0.9, 0 * t),
    "arc": lambda t: (-0.8 * np.cos(np.pi * t), 0.4 - 0.9 * np.sin(np.pi * t)),
    "ring": lambda t: (0.65 * np.cos(6.3 * t), 0.65 * np.sin(6.3 * t)),
    "spiral": lambda t: (0.85 * t * np.cos(13 * t), 0.85 * t * np.sin(13 * t)),
    "eight": lambda t: (0.85 * np.sin(6.3 * t), 0.5 * np.sin(12.6 * t)),
    "zigzag": lambda t: (1.8 * t - 0.9, 1.1 * np.abs((3 * t) % 2 - 1) - 0.5),
    "bounce": lambda t: (1.8 * t - 0.9, 0.5 - 1.1 * np.abs(np.sin(3 * np.pi * t)) * (1.1 - t)),
    "corner": lambda t: (np.minimum(2 * t, 1) * 1.3 - 0.65, np.maximum(2 * t - 1, 0) * 1.3 - 0.65),
    "wave": lambda t: (1.8 * t - 0.9, 0.4 * np.sin(4 * np.pi * t)),
}
MOVERS = ("one blob", "two side by side", "three side by side", "a growing blob", "a blinking blob")
TRAILS = tuple(product(PATHS, MOVERS))


@c.domain((f"{mover}, {path}" for path, mover in TRAILS), mirror=True)
def smears(class_id: int, rng: Random, size: int) -> Array:
    """Trails of moving blobs added up over time, as in dynamic images of videos."""
    path, mover = TRAILS[class_id]
    time = np.linspace(0, 1, _STEPS)
    track = np.stack(PATHS[path](time), axis=1)
    # a blob does not keep its pace; the form of the path stays
    time = time + rng.uniform(-0.12, 0.12) * np.sin(np.pi * time)
    width, strength = np.full(_STEPS, 0.075), np.ones(_STEPS)
    lanes = {"two side by side": (-0.2, 0.2), "three side by side": (-0.36, 0.0, 0.36)}
    offsets = lanes.get(mover, (0.0,))
    if mover == "a growing blob":
        width = 0.02 + 0.16 * time
    if mover == "a blinking blob":
        strength = (np.cos(2 * np.pi * 5 * time) > 0).astype(np.float64)
    if len(offsets) > 1:
        width = width * 0.6

    matrix = c.view(rng, turn=0.7, zoom=(0.75, 1.05), shift=0.15, tilt=0.1, squash=0.3, flip=True)
    scale = np.sqrt(abs(np.linalg.det(matrix[:2, :2])))
    ticks = c.pixels(size)[0, :, 0]
    chroma = rng.normal(0, 1, 3)
    chroma *= 0.35 / np.linalg.norm(chroma)
    # early blobs darken, late ones brighten; the chroma keeps the middle of the way visible on grey
    tint = chroma + rng.uniform(0.25, 0.45) * (1.8 * time[:, None] - 0.7)
    added = np.zeros((size, size, 3))
    spread = width * scale * rng.uniform(0.8, 1.2)
    cover = np.zeros((size, size))
    for offset in offsets:
        place = c.project(matrix, track + np.array([0, offset]))
        # a round blob is the product of its profiles, so a whole track is one matrix product
        across = np.exp(-0.5 * ((ticks - place[:, :1]) / spread[:, None]) ** 2)
        down = np.exp(-0.5 * ((ticks - place[:, 1:]) / spread[:, None]) ** 2) * strength[:, None]
        cover += down.T @ across
        for channel in range(3):
            added[..., channel] += (down * tint[:, channel, None]).T @ across
    # the trail's colour is the mean over time, its opacity saturates
    trail = added / (cover[..., None] + 0.6)
    grey = float(rng.uniform(0.4, 0.6))
    still = c.any_colour(rng, (0.05, 0.25), (0.4, 0.6))
    rest = c.enlarge(c.scene(rng, [(grey, grey, grey), still], 5), size)
    return c.light(rng, (rest + 1.3 * trail).astype(np.float32), 0.5, noise=0.04)
