"""Building blocks of the textures: tones and distances as functions of the place.

All take and return arrays of one shape; x and y count in cells of the pattern.
"""

import numpy as np
from numpy.typing import NDArray

from polyshot.data.toy.canvas import Points, Random

_TABLE = 64  # random tables repeat after this many cells, far outside of any image


def ink(depth: Points) -> Points:
    """Return 1 inside (depth above zero), 0 outside, with a soft edge against jaggies."""
    return np.clip(depth * 12 + 0.5, 0, 1)


def off(x: Points) -> Points:
    """Return the distance to the nearest whole number, 0 to 0.5."""
    return np.abs(x - np.rint(x))


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
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            seed = table[(row + dy) % _TABLE, (column + dx) % _TABLE]
            away = np.hypot(
                column + dx + 0.9 * (seed[..., 0] - 0.5) - x,
                row + dy + 0.9 * (seed[..., 1] - 0.5) - y,
            )
            nearer = away < first
            second = np.where(nearer, first, np.minimum(second, away))
            first, shade = np.where(nearer, away, first), np.where(nearer, seed[..., 2], shade)
    return first, second, shade


def odd(*cells: Points) -> NDArray[np.bool_]:
    """Return where the cell numbers add up to an odd number."""
    total = np.zeros(cells[0].shape)
    for places in cells:
        total += np.rint(places)
    is_odd: NDArray[np.bool_] = total % 2 == 1
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
