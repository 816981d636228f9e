"""One HTML page of results: a single file without script or anything to fetch."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from polyshot.experiments.page_style import STYLE
from polyshot.experiments.page_tables import Cell, HeatMap, Row, accuracy_table, charts, heat_table
from polyshot.util.files import write_text

__all__ = [
    "Cell",
    "HeatMap",
    "Row",
    "facts_list",
    "html_page",
    "paragraphs",
    "write_file",
    "write_page",
]

LARGEST_SHEET = 1000
"""Pixels: pictures are scaled down to this width."""


def write_page(
    path: Path,
    title: str,
    intro: Sequence[str],
    rows: Sequence[Row],
    sheets: Mapping[str, Image.Image],
    heat_map: HeatMap | None = None,
    remarks: Sequence[str] = (),
    *,
    calibration: str = "",
    baseline: str = "base",
    chance: float | None = None,
    facts: Mapping[str, str] | None = None,
    legend: Mapping[str, str] | None = None,
    commands: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        path: the HTML file; it appears whole or not at all.
        title: heading of the page.
        intro: paragraphs that say what was done.
        rows: one a target; averages of seen and unseen targets are added.
        sheets: contact sheets by the name of their domain.
        heat_map: the selector's choices.
        remarks: what a reader should know about the numbers.
        calibration: the table of how far probabilities are off, as HTML.
        baseline: the method that differences are to.
        chance: accuracy of guessing, marked in the chart.
        facts: short numbers to show on top, such as the time it took.
        legend: one line about each method.
        commands: what to type next.
    """
    methods = list(dict.fromkeys(method for row in rows for method in row.cells))
    parts = [
        f"<header><h1>{escape(title)}</h1>{paragraphs(intro)}{facts_list(facts or {})}</header>",
        "<main>",
        charts(rows, methods, baseline, chance) if rows else "",
        accuracy_table(rows, methods, baseline, legend or {}) if rows else "",
        calibration,
        heat_table(heat_map) if heat_map else "",
        _list("Remarks", remarks),
        _commands(commands),
        _sheets(sheets),
        "</main>",
    ]
    write_file(path, html_page(title, parts))


def html_page(title: str, parts: Sequence[str], style: str = STYLE) -> str:
    """Make a whole page of parts that are HTML already."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be fetched, whatever a class or a file is named.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body>\n</html>\n"
    )


def write_file(path: Path, text: str) -> None:
    """Write a text file that appears whole or not at all."""
    write_text(path, text)


def paragraphs(texts: Sequence[str]) -> str:
    """Make paragraphs of plain text."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def facts_list(facts: Mapping[str, str]) -> str:
    """Make a line of short facts."""
    pairs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts.items()
    )
    return f'<dl class="facts">{pairs}</dl>' if pairs else ""


def _list(heading: str, texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<h2>{heading}</h2><ul>{items}</ul>" if items else ""


def _commands(commands: Sequence[str]) -> str:
    lines = "\n".join(map(escape, commands))
    return f'<h2>Go on</h2><pre tabindex="0">{lines}</pre>' if lines else ""


def _sheets(sheets: Mapping[str, Image.Image]) -> str:
    figures: list[str] = []
    for name, sheet in sheets.items():
        small = sheet.convert("RGB")
        small.thumbnail((LARGEST_SHEET, 4 * LARGEST_SHEET), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        small.save(file, "JPEG", quality=80, optimize=True, progressive=True)
        data = base64.b64encode(file.getvalue()).decode()
        figures.append(
            f'<figure id="sheet-{len(figures)}"><figcaption>{escape(name)}</figcaption>'
            f'<img src="data:image/jpeg;base64,{data}" width="{small.width}" '
            f'height="{small.height}" alt="Examples of the classes of {escape(name)}"></figure>'
        )
    if not figures:
        return ""
    return f'<h2>The images</h2><div class="sheets">{"".join(figures)}</div>'
