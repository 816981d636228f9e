"""Domain `flowers`: blossoms seen from above, by number, form and layers of their petals."""

from itertools import product

import numpy as np

from polyshot.data.toy.canvas import (
    Array,
    Canvas,
    Points,
    Random,
    ToyDomain,
    ellipse,
    hsv,
    light,
    scene,
    shade,
    turned,
    view,
)

COUNTS = {3: "three", 5: "five", 8: "eight", 13: "thirteen"}
# half outlines from the base to the tip of a petal of length 1; the width is 1 at its widest
HALVES: dict[str, tuple[tuple[float, float], ...]] = {
    "round": ((0, 0.1), (0.3, 0.45), (0.55, 0.9), (0.75, 1), (0.92, 0.75), (1, 0.3)),
    "pointed": ((0, 0.15), (0.25, 0.7), (0.45, 0.95), (0.65, 0.75), (0.85, 0.3), (1, 0)),
    "notched": ((0, 0.1), (0.4, 0.55), (0.75, 0.95), (0.95, 0.9), (1, 0.6), (0.7, 0)),
    "strap": ((0, 0.5), (0.3, 0.5), (0.6, 0.5), (0.9, 0.5), (0.97, 0.4), (1, 0.2)),
}
STYLES = ("single", "double", "ringed")
HUES = {"red": 0.0, "orange": 0.08, "yellow": 0.15, "blue": 0.62, "violet": 0.77, "pink": 0.9}
CLASSES = tuple(
    (*form, list(HUES)[(5 * index + index // 6) % len(HUES)])
    for index, form in enumerate(product(COUNTS, HALVES, STYLES))
)


def _petal(form: str, count: int) -> Points:
    """Return the outline `[12, 2]` of a petal that points to the right."""
    half = np.array(HALVES[form], dtype=np.float64)
    width = min(0.5, 2.4 / count) if form != "strap" else min(0.32, 1.9 / count)
    half[:, 1] *= width
    return np.concatenate([half, half[::-1] * np.array([1, -1])])


def paint(class_id: int, rng: Random, size: int) -> Array:
    """Open one blossom over leaves."""
    count, form, style, colour = CLASSES[class_id]
    leaves = [hsv(rng.uniform(0.17, 0.45), rng.uniform(0.3, 0.9), v) for v in (0.15, 0.3, 0.5, 0.7)]
    leaves.append(hsv(rng.random(), rng.uniform(0.1, 0.8), rng.uniform(0.3, 0.9)))
    matrix = view(rng, turn=np.pi, zoom=(0.6, 1.05), shift=0.2, tilt=0.1, squash=0.35)
    canvas = Canvas(size, scene(rng, leaves, 10), matrix)
    for _ in range(3):
        leaf = _petal("pointed", 8) * rng.uniform(0.8, 1.8)
        place = rng.uniform(-1, 1, 2)
        canvas.polygon(turned(leaf, rng.uniform(0, 6.3)) + place, leaves[rng.integers(4)])

    hue = HUES[colour] + rng.normal(0, 0.025)
    base = hsv(hue, rng.uniform(0.5, 0.95), rng.uniform(0.75, 1))
    petal = _petal(form, count)
    angles = np.arange(count) * 2 * np.pi / count
    layers = [(1.0, 0.0, 1.0)]
    if style == "double":
        layers.append((0.62, np.pi / count, rng.uniform(0.6, 0.75)))
    for length, twist, tone in layers:
        around = angles + twist + rng.normal(0, 0.25 / count, count)
        lengths = length * np.exp(rng.normal(0, 0.07, count))
        tones = tone * rng.uniform(0.8, 1.15, count)
        # of each petal in turn: the rim, the face, the vein
        parts = np.stack([petal * 1.05, petal, petal * np.array([0.7, 0.08])])
        outlines = [turned(parts * reach, a) for reach, a in zip(lengths, around, strict=True)]
        colours = [shade(base, t * k) for t in tones.tolist() for k in (0.5, 1.0, 0.65)]
        canvas.polygons(np.concatenate(outlines), colours)
    if style == "ringed":
        canvas.polygon(ellipse(0, 0, 0.48, 0.48), hsv(hue + 0.5, 0.2, 0.95))
        canvas.polygon(ellipse(0, 0, 0.36, 0.36), shade(base, 0.45))
    heart = hsv(rng.uniform(0.08, 0.18), rng.uniform(0.5, 1), rng.uniform(0.25, 0.95))
    canvas.polygon(ellipse(0, 0, 0.2, 0.2), shade(heart, 0.5))
    canvas.polygon(ellipse(0, 0, 0.16, 0.16), heart)
    return light(rng, canvas.picture(), 0.9)


DOMAIN = ToyDomain(
    name="flowers",
    about="Blossoms over leaves, by number, form, layers and colour of their petals.",
    class_names=tuple(
        f"{COUNTS[count]} {form} petals, {style}, {colour}"
        for count, form, style, colour in CLASSES
    ),
    mirror=True,
    paint=paint,
)
