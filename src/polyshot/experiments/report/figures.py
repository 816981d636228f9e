"""The figures of pages, by matplotlib: bars, contributions of members, training curves, confusions.

Figures of the report are SVG inside the page, in its colours, light or dark; numbers are shown when
the mouse rests on them.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch, Rectangle
from PIL import Image
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.evaluation.compare import Row
from polyshot.evaluation.evaluate import class_accuracies
from polyshot.experiments.grid import Contributions, Curve
from polyshot.experiments.report import pages
from polyshot.experiments.report.pages import heat_colours, percent
from polyshot.experiments.report.tables import METHODS

COLOURS = (
    *("#8a94a0", "#e0b000", "#a67c00", "#d1495b", "#7a3b69", "#e8833a", "#3a9d5d", "#70543e"),
    *("#2457a6", "#4a9ae0", "#2457a6", "#4a9ae0"),
)
"""One a method of `METHODS`; the pool's are blue, and hollow with channel modulators."""
OTHERS = ("#00798c", "#b56576", "#5c6b2f", "#8d5bd0")
MOST_POINTS = 200
"""Of a curve: more cannot be told apart in a small chart."""
TIPPED = "tipped"
"""Id of the patches that show a text when the mouse rests on them."""
LETTER = 6.6
"""Pixels: the width of a usual letter."""
MOST_CLASSES = 300
"""Classes of a confusion picture: one of a thousand is too large to open."""
LONGEST_NAME = 30
"""Letters of a class's name: longer ones leave no room for the picture."""


@contextmanager
def _settings() -> Iterator[None]:
    """Draw text as it is: a class may be named $5, or in letters that the font lacks."""
    options: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "polyshot",
        "text.parse_math": False,
        "text.color": pages.INK,
        "font.size": 11,
        "lines.linewidth": 1,
    }
    with matplotlib.rc_context(options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _svg(figure: Figure, label: str, tips: Sequence[str] = ()) -> Markup:
    """Make the part of a page: no names, nothing fetched, colours from the style sheet.

    72nds of an inch become pixels, `label` says what is to be seen. `tips` are texts that are shown
    over the patches of the collection named `TIPPED`, in order.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    inside = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    inside = re.sub(r"<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->", "", inside, flags=re.S)
    if tips:
        before, mark, after = inside.partition(f'<g id="{TIPPED}">')
        own, end, rest = after.partition("</g>")
        titles = iter(tips)
        own = re.sub("/>", lambda _: f"><title>{escape(next(titles))}</title></path>", own)
        inside = f"{before}{mark}{own}{end}{rest}"
    inside = re.sub(r' (id|clip-path|xml:space)="[^"]*"', "", inside)
    inside = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), inside)
    inside = re.sub(r"\s*\n\s*", "\n", inside)
    for colour, variable in pages.VARIABLES.items():
        inside = inside.replace(colour, f"var({variable})")
    width, height = (72 * side for side in figure.get_size_inches())
    return Markup(  # noqa: S704 (matplotlib escapes texts, and this the label)
        f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{escape(label)}">{inside}</svg>'
    )


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width / 72, height / 72))


def _patches(patches: Sequence[Patch], **looks: Any) -> PatchCollection:
    """Collect patches; with two links, a single one is drawn like many, not as a marker."""
    return PatchCollection(patches, urls=[None, None], **looks)


def method_looks(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return fill and edge of each method's bars; no two look alike but adapted forms."""
    unknown = [m for m in methods if m.partition(" + ")[0] not in METHODS]
    looks = {}
    for method in methods:
        name = method.partition(" + ")[0]
        if name in METHODS:
            colour = COLOURS[METHODS.index(name)]
        else:
            colour = OTHERS[unknown.index(method) % len(OTHERS)]
        # With adaptation, 'base + head' stands next to the baseline.
        hollow = name.endswith("-channel") or (name == "base" and method != name)
        looks[method] = (pages.PAPER if hollow else colour), colour
    return looks


def bar_chart(
    rows: Sequence[Row], methods: Sequence[str], chance: float | None, label: str
) -> Markup:
    """Draw one group of bars a target, one bar a method, as the paper's figures do."""
    left, top, height, below = 30, 8, 200, 24
    names = [_shortened(row.target, 16) for row in rows]
    group = max(8 * len(methods) + 14, LETTER * max(map(len, names)) + 8)
    bar = min(18, (group - 14) / len(methods))
    width = group * len(rows)
    whole = (left + width, top + height + below)
    looks, first = method_looks(methods), (group - bar * len(methods)) / 2
    bars, fills, edges, tips = [], [], [], []
    whiskers: list[list[tuple[float, float]]] = []
    for i, row in enumerate(rows):
        for j, method in enumerate(methods):
            if method not in row.cells:
                continue
            cell, x = row.cells[method], i * group + first + (j + 0.5) * bar
            low = 100 * max(cell.mean - cell.half_width, 0)
            high = 100 * min(cell.mean + cell.half_width, 1)
            bars.append(Rectangle((x - bar / 2 + 0.75, 0), bar - 1.5, 100 * cell.mean))
            whiskers += [[(x, low), (x, high)], *([(x - 2, y), (x + 2, y)] for y in (low, high))]
            fills.append(looks[method][0])
            edges.append(looks[method][1])
            tips.append(f"{row.target}, {method}: {percent(cell.accuracy)}")
    with _settings():
        figure = _figure(*whole)
        axes = figure.add_axes(
            (left / whole[0], below / whole[1], width / whole[0], height / whole[1])
        )
        axes.set(xlim=(0, width), ylim=(0, 100))
        axes.set_axis_off()
        for share in range(0, 101, 20):
            axes.axhline(share, color=pages.LINE, zorder=0)
            axes.text(-5, share, str(share), ha="right", va="center")
        for i, name in enumerate(names):
            axes.text((i + 0.5) * group, -5, name, ha="center", va="top")
        axes.add_collection(_patches(bars, facecolors=fills, edgecolors=edges, gid=TIPPED))
        axes.add_collection(LineCollection(whiskers, colors=pages.INK, linewidths=1))
        if chance:
            axes.axhline(100 * chance, color=pages.INK, dashes=(5, 4))
        return _svg(figure, label, tips)


def contribution_chart(about: Contributions, method: str, label: str) -> Markup:
    """Draw a strip: members are rows, episodes columns, darker is more right; a dot is the best.

    All methods of the same target share one scale of colours, so that they can be compared.
    """
    least, most = about.ends()
    members, episodes, best = about.members[method], about.correct[method], about.best(method)
    names = [_shortened(member, 16) for member in members]
    side, left = 16.0, LETTER * max(map(len, names)) + 10
    whole = (left + side * len(episodes), side * len(members))
    squares, dots, tips, backs, inks = [], [], [], [], []
    for i, member in enumerate(members):
        for j, episode in enumerate(episodes):
            back, ink = heat_colours((episode[i] - least) / (most - least))
            squares.append(Rectangle((j, i), 0.94, 0.94))
            backs.append(back)
            tips.append(f"{member}, episode {j + 1}: {episode[i]} of {about.queries}")
            if best[j, i]:
                dots.append(Ellipse((j + 0.47, i + 0.47), 0.38, 0.38))
                inks.append(ink)
    with _settings():
        figure = _figure(*whole)
        axes = figure.add_axes((left / whole[0], 0, 1 - left / whole[0], 1))
        axes.set(xlim=(0, len(episodes)), ylim=(len(members), 0))
        axes.set_axis_off()
        for i, name in enumerate(names):
            axes.text(-0.4, i + 0.5, name, ha="right", va="center")
        axes.add_collection(_patches(squares, facecolors=backs, edgecolors="none", gid=TIPPED))
        axes.add_collection(_patches(dots, facecolors=inks, edgecolors="none"))
        return _svg(figure, label, tips)


def curve_chart(curve: Curve) -> Markup:
    """Draw a small chart of one training step: validation above, loss below."""
    width, panel, gap = 250, 64, 26
    lines = {"validation": curve.validation, "loss": curve.loss}
    shown = {name: points for name, points in lines.items() if points}
    height = max(len(shown), 1) * (panel + gap)
    colours = {"validation": pages.BLUE, "loss": pages.BROWN}
    with _settings():
        figure = _figure(width, height)
        for i, (name, points) in enumerate(shown.items()):
            values = [100 * y if name == "validation" else y for _, y in points]
            form = "{:.1f} %".format if name == "validation" else "{:.3g}".format
            said = f"{name} {form(min(values))} to {form(max(values))}, last {form(values[-1])}"
            bottom = height - 16 - panel - i * (panel + gap)
            figure.text(0, (bottom + panel + 4) / height, said)
            axes = figure.add_axes((0, bottom / height, 1, panel / height), frameon=False)
            room = 0.5 if min(values) == max(values) else 0
            ends = (min(values) - room, max(values) + room)
            axes.set(xticks=[], yticks=[], xlim=curve.updates(), ylim=ends)
            axes.axhline(axes.get_ylim()[0], color=pages.LINE)
            axes.axhline(axes.get_ylim()[1], color=pages.LINE)
            step = math.ceil(len(points) / MOST_POINTS)
            kept = [*range(0, len(points), step), len(points) - 1]
            xs, ys = [points[k][0] for k in kept], [values[k] for k in kept]
            axes.plot(xs, ys, color=colours[name], linewidth=1.6, clip_on=False)
        return _svg(figure, f"{curve.title}: curves of the training")


def confusion_picture(counts: Tensor, pack: Pack, title: str) -> Image.Image:
    """Draw confusion counts ``[C, C]`` as shares of each class's queries, the worst classes first.

    Classes without queries (other parts of the split) are left out, and of very many the best ones.
    """
    asked = counts.sum(1)
    accuracy = class_accuracies(counts)
    asked_for = [i for i in accuracy.argsort().tolist() if asked[i] > 0]
    shown = asked_for[:MOST_CLASSES]
    if len(shown) < len(asked_for):
        title += f", the worst {len(shown)} of {len(asked_for)} classes"
    shares = (counts / asked.clamp(min=1)[:, None])[shown][:, shown]  # [c, c]
    names = [_shortened(pack.domain.class_names[i], LONGEST_NAME) for i in shown]
    labels = [f"{name} {100 * accuracy[i]:.0f} %" for i, name in zip(shown, names, strict=True)]
    side, size = max(5.5, 0.22 * len(shown) + 4), 8
    if len(shown) > 60:
        side, size = 0.1 * len(shown) + 12, 5
    file = io.BytesIO()
    with _settings():
        figure = Figure(figsize=(side, side), dpi=110, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_yticks(range(len(shown)), labels, fontsize=size)
        axes.set_xticks(range(len(shown)), names, fontsize=size, rotation=90)
        axes.set_title(title, fontsize=10)
        axes.set_ylabel("class of the query, and how often it was right", fontsize=9)
        axes.set_xlabel("answer", fontsize=9)
        bar = figure.colorbar(image, ax=axes, shrink=0.6)
        bar.set_label("share of the queries", fontsize=9)
        figure.savefig(file, format="png")
    return Image.open(file).convert("RGB")


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
