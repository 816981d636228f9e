"""A picture of which classes are taken for which."""

import io

import matplotlib
from PIL import Image
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.evaluation.evaluate import class_accuracies


def confusion_picture(counts: Tensor, pack: Pack, title: str) -> Image.Image:
    """Draw confusion counts ``[C, C]`` as shares of each class's queries, the worst classes first.

    Classes without queries (other parts of the split) are left out.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415, takes a while to import

    asked = counts.sum(1)
    accuracy = class_accuracies(counts)
    shown = [i for i in accuracy.argsort().tolist() if asked[i] > 0]
    shares = (counts / asked.clamp(min=1)[:, None])[shown][:, shown]  # [c, c]
    names = [pack.domain.class_names[i] for i in shown]
    side = max(4.0, 0.22 * len(shown) + 2.5)
    figure = Figure(figsize=(side, side), dpi=110, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    labels = [f"{name} {100 * accuracy[i]:.0f} %" for i, name in zip(shown, names, strict=True)]
    size = 8 if len(shown) < 60 else 5
    axes.set_yticks(range(len(shown)), labels, fontsize=size)
    axes.set_xticks(range(len(shown)), names, fontsize=size, rotation=90)
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("class of the query, and how often it was right", fontsize=9)
    axes.set_xlabel("answer", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.6, label="share of the queries")
    file = io.BytesIO()
    with matplotlib.rc_context({"text.parse_math": False}):  # a class may be named $5
        figure.savefig(file, format="png")
    return Image.open(file).convert("RGB")
