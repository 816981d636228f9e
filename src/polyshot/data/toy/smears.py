"""Domain `smears`: one picture of a whole motion, as dynamic images of videos show it."""

from collections.abc import Callable
from itertools import product

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Points,
    Random,
    ToyDomain,
    any_colour,
    enlarge,
    light,
    pixels,
    project,
    scene,
    view,
)

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
CLASSES = tuple(product(PATHS, MOVERS))


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Add up the moving blobs over time: early ones darken, late ones brighten."""
    path, mover = CLASSES[class_id]
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

    matrix = view(rng, turn=0.7, zoom=(0.75, 1.05), shift=0.15, tilt=0.1, squash=0.3, flip=True)
    scale = np.sqrt(abs(np.linalg.det(matrix[:2, :2])))
    ticks = pixels(size)[0, :, 0]
    chroma = rng.normal(0, 1, 3)
    chroma *= 0.35 / np.linalg.norm(chroma)
    # from dark to bright; the chroma keeps the middle of the way visible on grey
    tint = chroma + rng.uniform(0.25, 0.45) * (1.8 * time[:, None] - 0.7)
    added = np.zeros((size, size, 3))
    spread = width * scale * rng.uniform(0.8, 1.2)
    cover = np.zeros((size, size))
    for offset in offsets:
        place = project(matrix, track + np.array([0, offset]))
        # a round blob is the product of its profiles, so a whole track is one matrix product
        across = np.exp(-0.5 * ((ticks - place[:, :1]) / spread[:, None]) ** 2)
        down = np.exp(-0.5 * ((ticks - place[:, 1:]) / spread[:, None]) ** 2) * strength[:, None]
        cover += down.T @ across
        for channel in range(3):
            added[..., channel] += (down * tint[:, channel, None]).T @ across
    # the trail's colour is the mean over time, its opacity saturates
    trail = added / (cover[..., None] + 0.6)
    grey = float(rng.uniform(0.4, 0.6))
    still = any_colour(rng, (0.05, 0.25), (0.4, 0.6))
    rest = enlarge(scene(rng, [(grey, grey, grey), still], 5), size)
    return light(rng, (rest + 1.3 * trail).astype(np.float32), 0.5, noise=0.04)


DOMAIN = ToyDomain(
    name="smears",
    about="Trails of moving blobs added up over time, as in dynamic images of videos.",
    class_names=tuple(f"{mover}, {path}" for path, mover in CLASSES),
    mirror=True,
    paint=paint,
)
