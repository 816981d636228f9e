"""The numbers of a result page as HTML: bars, the table of accuracies, the selector's choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from polyshot.evaluation.compare import Cell, Row, average

__all__ = ["Cell", "Row", "average"]  # which reports take from here

GROUPS = {
    True: ("Seen domains", "The pool was trained on other classes of these domains."),
    False: ("Unseen domains", "Nothing of these domains was in the training."),
}


@dataclass(frozen=True)
class HeatMap:
    """How often each member was selected."""

    members: Sequence[str]
    shares: Mapping[str, Sequence[float | None]]
    """Target -> one share a member; None where the target's pool has no such member."""


def _average_of(rows: Sequence[Row], methods: Sequence[str]) -> dict[str, Cell]:
    """Average the methods that were measured on every one of the targets."""
    shared = [method for method in methods if all(method in row.cells for row in rows)]
    return {method: average([row.cells[method] for row in rows]) for method in shared}


def charts(rows: Sequence[Row], methods: Sequence[str], baseline: str, chance: float | None) -> str:
    """Draw the averages over seen and over unseen targets as bars, in HTML: text keeps its size."""
    sections = []
    for seen, (heading, about) in GROUPS.items():
        group = [row for row in rows if row.seen == seen]
        if not group:
            continue
        bars = []
        for method, cell in _average_of(group, methods).items():
            low = max(cell.mean - cell.half_width, 0)
            width = min(cell.mean + cell.half_width, 1) - low
            mark = f'<i class="chance" style="left:{100 * chance:.2f}%"></i>' if chance else ""
            bars.append(
                f'<li class="bar{" reference" if method == baseline else ""}">'
                f'<span>{escape(method)}</span><span class="track" aria-hidden="true">'
                f'<i class="fill" style="width:{100 * cell.mean:.2f}%"></i>'
                f'<i class="whisker" style="left:{100 * low:.2f}%;width:{100 * width:.2f}%"></i>'
                f'{mark}</span><span class="value">{_mean(cell)}</span></li>'
            )
        count = "1 domain" if len(group) == 1 else f"average of {len(group)} domains"
        sections.append(
            f'<section><h3>{heading}</h3><p class="note">{about} Accuracy in percent, {count}.</p>'
            f"<ul>{''.join(bars)}</ul></section>"
        )
    note = f"Dashed line: guessing, {100 * chance:.0f} %. " if chance else ""
    return (
        f'<h2>In short</h2><div class="charts">{"".join(sections)}</div>'
        f'<p class="note">{note}Grey: the reference, {escape(baseline)}. '
        "Whiskers: 95 % intervals.</p>"
    )


def accuracy_table(
    rows: Sequence[Row], methods: Sequence[str], baseline: str, legend: Mapping[str, str]
) -> str:
    """Make the table of all targets and methods, with differences to the baseline."""
    name = escape(baseline)
    about = "".join(
        f"<dt>{escape(method)}</dt><dd>{escape(text)}</dd>" for method, text in legend.items()
    )
    return (
        "<h2>Accuracy of every method on every domain</h2>"
        "<p>Percent of the queries that got the right class, with the half-width of the 95 % "
        f"interval over episodes. Second line: the difference to {name} on the same episodes, in "
        'points; <b class="up">▲</b> and <b class="down">▼</b> mark differences whose interval '
        "excludes 0, all others may be chance.</p>"
        + accuracy_grid(rows, methods, baseline, _averages(rows, methods))
        + (f'<dl class="legend">{about}</dl>' if about else "")
    )


def _averages(rows: Sequence[Row], methods: Sequence[str]) -> dict[bool, Row]:
    groups = {seen: [row for row in rows if row.seen == seen] for seen in GROUPS}
    return {
        seen: Row("average", seen, _average_of(group, methods))
        for seen, group in groups.items()
        if len(group) > 1
    }


def accuracy_grid(
    rows: Sequence[Row],
    methods: Sequence[str],
    baseline: str,
    averages: Mapping[bool, Row],
    caption: str = "Accuracy of methods by target",
) -> str:
    """Make the table alone: seen targets with their average, then unseen ones."""
    head = "".join(f'<th scope="col">{escape(method)}</th>' for method in methods)
    bodies = []
    for seen, (heading, _) in GROUPS.items():
        group = [row for row in rows if row.seen == seen]
        if not group:
            continue
        lines = [
            f'<tr class="group"><th scope="rowgroup">{heading}</th>'
            f'<td colspan="{len(methods)}"></td></tr>'
        ]
        lines += [_line(row, methods, baseline) for row in group]
        if seen in averages:
            lines.append(_line(averages[seen], methods, baseline, ' class="average"'))
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    return boxed(caption, "Domain", head, "".join(bodies))


def _line(row: Row, methods: Sequence[str], baseline: str, mark: str = "") -> str:
    columns = "".join(
        f"<td>{_cell(row.cells.get(m), m == baseline, m == row.best)}</td>" for m in methods
    )
    return f'<tr{mark}><th scope="row">{escape(row.target)}</th>{columns}</tr>'


def _cell(cell: Cell | None, is_baseline: bool, is_best: bool) -> str:
    if cell is None:
        return '<span class="pm">not measured</span>'
    mean = _mean(cell)
    if is_best:
        mean = f'<b class="best"><span class="hidden">best,</span> {mean}</b>'
    if is_baseline or cell.difference is None:
        return mean + ('<span class="diff">reference</span>' if is_baseline else "")
    text = f"{signed(cell.difference)} ± {100 * cell.difference_half_width:.1f}"
    if not cell.verdict:
        return f'{mean}<span class="diff">{text}</span>'
    side, symbol, word = ("up", "▲", "better") if cell.verdict > 0 else ("down", "▼", "worse")
    return (
        f'{mean}<b class="diff {side}"><span aria-hidden="true">{symbol}</span>'
        f'<span class="hidden">{word},</span> {text}</b>'
    )


def _mean(cell: Cell) -> str:
    return f'{100 * cell.mean:.1f} <span class="pm">± {100 * cell.half_width:.1f}</span>'


def signed(share: float) -> str:
    """Format a difference in points; a negative zero would be read as a loss."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\u2212")


def heat_table(heat: HeatMap) -> str:
    """Make a table of targets by members whose cells are coloured by the share."""
    return (
        '<section class="heat"><h2>What the selector chose</h2><p>A row is a target, a column a '
        "member of the pool; a number is the share of the episodes, in percent, in which that "
        "member was selected. A frame marks the member of the target's own domain.</p>"
        + heat_grid(heat)
        + "</section>"
    )


def heat_grid(heat: HeatMap, caption: str = "Share of selections") -> str:
    """Make the table of shares alone."""
    head = "".join(f'<th scope="col">{escape(member)}</th>' for member in heat.members)
    lines = []
    for target, shares in heat.shares.items():
        cells = []
        for member, share in zip(heat.members, shares, strict=True):
            if share is None:
                cells.append('<td class="pm">none</td>')
                continue
            back, ink = heat_colours(share)
            own = ' class="own"' if member == target else ""
            cells.append(f'<td{own} style="background:{back};color:{ink}">{100 * share:.0f}</td>')
        lines.append(f'<tr><th scope="row">{escape(target)}</th>{"".join(cells)}</tr>')
    return boxed(caption, "Target", head, f"<tbody>{''.join(lines)}</tbody>")


def heat_colours(share: float) -> tuple[str, str]:
    """Return background, from near white to dark blue, and a text colour that stands out on it."""
    share = min(max(share, 0.0), 1.0)
    light, dark = (246, 248, 250), (16, 62, 122)
    colour = [round(a + (b - a) * share) for a, b in zip(light, dark, strict=True)]
    linear = [(part / 255) ** 2.2 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Where (1 + 0.05) / (x + 0.05) = (x + 0.05) / 0.05, white and black have the same contrast.
    return "#{:02x}{:02x}{:02x}".format(*colour), "#ffffff" if luminance < 0.179 else "#000000"


def boxed(caption: str, corner: str, head: str, bodies: str) -> str:
    """Make a table that scrolls inside its box where it is wider than the page."""
    caption = escape(caption)
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{caption}"><table>'
        f'<caption>{caption}</caption><thead><tr><th scope="col">{corner}</th>{head}</tr></thead>'
        f"{bodies}</table></div>"
    )


def plain_grid(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a table of plain text; what follows a line break in a cell is small, below the rest."""

    def cell(text: str) -> str:
        first, _, second = text.partition("\n")
        below = f'<span class="diff">{escape(second)}</span>' if second else ""
        return f"{escape(first)}{below}"

    corner, *others = head
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in others)
    lines = (
        f'<tr><th scope="row">{cell(row[0])}</th>'
        + "".join(f"<td>{cell(text)}</td>" for text in row[1:])
        + "</tr>"
        for row in rows
    )
    return boxed(caption, escape(corner), columns, f"<tbody>{''.join(lines)}</tbody>")
