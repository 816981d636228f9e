"""A picture of which classes are taken for which."""

import io
import warnings

import matplotlib
from PIL import Image
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.evaluation.evaluate import class_accuracies

MOST_CLASSES = 300
"""Classes shown: a picture of a thousand is too large to open."""
LONGEST_NAME = 30
"""Letters of a class's name: longer ones leave no room for the picture."""


def confusion_picture(counts: Tensor, pack: Pack, title: str) -> Image.Image:
    """Draw confusion counts ``[C, C]`` as shares of each class's queries, the worst classes first.

    Classes without queries (other parts of the split) are left out, and of very many the best ones.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415, takes a while to import

    asked = counts.sum(1)
    accuracy = class_accuracies(counts)
    asked_for = [i for i in accuracy.argsort().tolist() if asked[i] > 0]
    shown = asked_for[:MOST_CLASSES]
    if len(shown) < len(asked_for):
        title += f", the worst {len(shown)} of {len(asked_for)} classes"
    shares = (counts / asked.clamp(min=1)[:, None])[shown][:, shown]  # [c, c]
    names = [_shortened(pack.domain.class_names[i]) for i in shown]
    labels = [f"{name} {100 * accuracy[i]:.0f} %" for i, name in zip(shown, names, strict=True)]
    side, size = max(5.5, 0.22 * len(shown) + 4), 8
    if len(shown) > 60:
        side, size = 0.1 * len(shown) + 12, 5
    file = io.BytesIO()
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        # A class may be named $5, or in letters that the font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(side, side), dpi=110, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_yticks(range(len(shown)), labels, fontsize=size)
        axes.set_xticks(range(len(shown)), names, fontsize=size, rotation=90)
        axes.set_title(title, fontsize=10)
        axes.set_ylabel("class of the query, and how often it was right", fontsize=9)
        axes.set_xlabel("answer", fontsize=9)
        figure.colorbar(image, ax=axes, shrink=0.6, label="share of the queries")
        figure.savefig(file, format="png")
    return Image.open(file).convert("RGB")


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
