"""The figures of a report as inline SVG: bars, contributions of members, training curves."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from polyshot.experiments.grid_reader import Contributions, Curve
from polyshot.experiments.page_tables import Row, heat_colours
from polyshot.experiments.report_tables import METHODS

COLOURS = (
    *("#8a94a0", "#e0b000", "#a67c00", "#d1495b", "#7a3b69", "#e8833a", "#3a9d5d", "#70543e"),
    *("#103e7a", "#4a9ae0", "#103e7a", "#4a9ae0"),
)
"""One a method of `METHODS`; the pool's are blue, and hollow with channel modulators."""
OTHERS = ("#00798c", "#b56576", "#5c6b2f", "#8d5bd0")
MOST_POINTS = 200
"""Of a curve: more cannot be told apart in a small chart."""

BAR, BETWEEN, LEFT, TOP, HEIGHT = 8, 14, 30, 8, 200


def bar_chart(
    rows: Sequence[Row], methods: Sequence[str], chance: float | None, caption: str
) -> str:
    """Draw one group of bars a target, one bar a method, as the paper's figures do."""
    group = len(methods) * BAR + BETWEEN
    width = LEFT + len(rows) * group
    looks = {method: _look(method, methods) for method in methods}
    parts = [_axis(width)]
    for i, row in enumerate(rows):
        x = LEFT + i * group + BETWEEN / 2
        for j, method in enumerate(methods):
            if method in row.cells:
                cell = row.cells[method]
                said = (
                    f"{row.target}, {method}: {100 * cell.mean:.1f} ± {100 * cell.half_width:.1f}"
                )
                parts.append(_bar(x + j * BAR, cell.mean, cell.half_width, looks[method], said))
        middle = x + len(methods) * BAR / 2
        parts.append(
            f'<text x="{middle:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
            f"{escape(_shortened(row.target, max(8, group // 7)))}</text>"
        )
    if chance:
        y = _height(chance)
        parts.append(
            f'<line x1="{LEFT}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" class="guess"></line>'
        )
    keys = "".join(
        f'<li><i style="background:{fill};border-color:{edge}"></i>{escape(method)}</li>'
        for method, (fill, edge) in looks.items()
    )
    svg = _svg(width, TOP + HEIGHT + 24, caption, "".join(parts))
    note = " Dashed: guessing." if chance else ""
    return (
        '<figure class="bars"><figcaption class="note">Accuracy in percent, with 95 % intervals; '
        f"bars in the order of the names below.{note}</figcaption>"
        f'{_scrolled(svg, caption)}<ul class="keys">{keys}</ul></figure>'
    )


def _look(method: str, methods: Sequence[str]) -> tuple[str, str]:
    """Return fill and edge of a method's bars."""
    name = method.partition(" + ")[0]
    if name in METHODS:
        colour = COLOURS[METHODS.index(name)]
    else:
        unknown = [m for m in methods if m.partition(" + ")[0] not in METHODS]
        colour = OTHERS[unknown.index(method) % len(OTHERS)]
    # With adaptation, 'base + head' stands next to the baseline.
    hollow = name.endswith("-channel") or (name == "base" and method != name)
    return ("#ffffff" if hollow else colour), colour


def _axis(width: int) -> str:
    lines = []
    for percent in range(0, 101, 20):
        y = _height(percent / 100)
        lines.append(
            f'<line x1="{LEFT}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" class="rule"></line>'
            f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
        )
    return "".join(lines)


def _height(share: float) -> float:
    return TOP + HEIGHT * (1 - min(max(share, 0.0), 1.0))


def _bar(x: float, mean: float, half_width: float, look: tuple[str, str], said: str) -> str:
    fill, edge = look
    top, low, high = _height(mean), _height(mean - half_width), _height(mean + half_width)
    middle = x + BAR / 2
    return (
        f'<g><title>{escape(said)}</title><rect x="{x + 0.75:.2f}" y="{top:.1f}" '
        f'width="{BAR - 1.5}" height="{TOP + HEIGHT - top:.1f}" fill="{fill}" stroke="{edge}">'
        f'</rect><path d="M{middle:.1f} {low:.1f}V{high:.1f}M{middle - 2:.1f} {low:.1f}h4'
        f'M{middle - 2:.1f} {high:.1f}h4" class="line"></path></g>'
    )


def contribution_chart(about: Contributions, method: str) -> str:
    """Draw a strip: members are rows, episodes columns, darker is more right; a dot is the best.

    All methods of the same target share one scale of colours, so that they can be compared.
    """
    values = [v for episodes in about.correct.values() for episode in episodes for v in episode]
    least, span = min(values), max(max(values) - min(values), 1)
    members, episodes = about.members[method], about.correct[method]
    side, left = 16, 7 * max(len(_shortened(member, 16)) for member in members) + 10
    parts = []
    for i, member in enumerate(members):
        parts.append(
            f'<text x="{left - 6}" y="{i * side + 12}" text-anchor="end">'
            f"{escape(_shortened(member, 16))}</text>"
        )
        for j, episode in enumerate(episodes):
            back, ink = heat_colours((episode[i] - least) / span)
            x, y = left + j * side, i * side
            parts.append(
                f'<rect x="{x}" y="{y}" width="{side - 1}" height="{side - 1}" fill="{back}">'
                f"<title>{escape(member)}, episode {j + 1}: {episode[i]} of {about.queries}"
                "</title></rect>"
            )
            if episode[i] == max(episode):
                parts.append(f'<circle cx="{x + 7.5}" cy="{y + 7.5}" r="3" fill="{ink}"></circle>')
    caption = f"{method} on {about.target}: right predictions of each member, episode by episode"
    svg = _svg(left + len(episodes) * side, len(members) * side + 2, caption, "".join(parts))
    return (
        f'<figure><figcaption class="note">{escape(caption)}. From {least} (light) to '
        f"{least + span} (dark) of {about.queries}; a dot marks the best of an episode."
        f"</figcaption>{_scrolled(svg, caption)}</figure>"
    )


def curve_chart(curve: Curve) -> str:
    """Draw a small chart of one training step: validation above, loss below."""
    width, panel, gap = 250, 64, 26
    lines = {"validation": curve.validation, "loss": curve.loss}
    shown = {name: points for name, points in lines.items() if points}
    updates = [x for points in shown.values() for x, _ in points]
    parts = []
    for i, (name, points) in enumerate(shown.items()):
        top = 16 + i * (panel + gap)
        unit = _percent if name == "validation" else _number
        values = [y for _, y in points]
        parts.append(
            f'<text x="0" y="{top - 5}">{name} {unit(min(values))} to {unit(max(values))}, last '
            f'{unit(values[-1])}</text><path d="M0 {top}h{width}M0 {top + panel}h{width}" '
            f'class="rule"></path><polyline class="{name}" points="'
            f'{_polyline(points, (min(updates), max(updates)), (0, top, width, panel))}">'
            "</polyline>"
        )
    title = " ".join(filter(None, [curve.run if curve.run != "." else "", curve.step]))
    note = f"{curve.not_numbers} values were not numbers." if curve.not_numbers else ""
    last = f"to update {max(updates):,.0f}. " if updates else ""
    caption = f"{title}: curves of the training"
    svg = _svg(width, max(len(shown), 1) * (panel + gap), caption, "".join(parts))
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}"
        f'<p class="note">{last}{note}</p></figure>'
    )


def _polyline(
    points: Sequence[tuple[float, float]],
    ends: tuple[float, float],
    box: tuple[float, float, float, float],
) -> str:
    """Place points in a box; of many, evenly spaced ones and the last."""
    step = math.ceil(len(points) / MOST_POINTS)
    kept = [*points[::step], points[-1]]
    values = [y for _, y in points]
    least, span = min(values), max(values) - min(values)
    left, top, width, height = box
    across = (ends[1] - ends[0]) or 1.0
    placed = []
    for x, y in kept:
        share = (y - least) / span if span else 0.5
        placed.append(
            f"{left + width * (x - ends[0]) / across:.1f},{top + height * (1 - share):.1f}"
        )
    return " ".join(placed)


def curve_gallery(curves: Sequence[Curve], worlds: Mapping[str, str]) -> str:
    """Draw all curves, a fold for each world; ``worlds`` says what each was trained on."""
    parts: list[str] = []
    for world in dict.fromkeys(curve.world for curve in curves):
        own = [curve_chart(curve) for curve in curves if curve.world == world]
        about = f": {worlds[world]}" if worlds.get(world) else ""
        parts.append(
            f"<details{'' if parts else ' open'}><summary>{escape(world)}</summary>"
            f'<p class="note">{len(own)} steps{escape(about)}</p>'
            f'<div class="curves">{"".join(own)}</div></details>'
        )
    note = '<p class="note">Open a line for its curves; closed ones are not printed.</p>'
    return note + "".join(parts) if len(parts) > 1 else "".join(parts)


def _svg(width: float, height: float, said: str, inside: str) -> str:
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{escape(said)}">{inside}</svg>'
    )


def _scrolled(svg: str, said: str) -> str:
    return (
        f'<div class="box chart" tabindex="0" role="region" aria-label="{escape(said)}">{svg}</div>'
    )


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: float) -> str:
    return f"{value:.3g}"
