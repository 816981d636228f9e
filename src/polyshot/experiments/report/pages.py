"""Pages and text from the templates beside this file; a page is one file that works offline."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import BASELINE, Row
from polyshot.experiments.report.figures import VARIABLES, heat_colours
from polyshot.experiments.report.tables import TextTable, average_row, points
from polyshot.util.files import write_text

GROUPS = {
    True: ("Seen domains", "The pool was trained on other classes of these domains."),
    False: ("Unseen domains", "Nothing of these domains was in the training."),
}
LARGEST_SHEET = 1000
"""Pixels: pictures are scaled down to this width."""
LATEX_MARKS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "\u2212": "$-$",
    "…": r"\dots{}",
} | {mark: f"\\{mark}" for mark in "&%$#_"}


def markdown_escape(text: str) -> str:
    """Keep a name from being read as markup, or from breaking its line of a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", " ".join(text.split()))


def latex_escape(text: str) -> str:
    """Keep a name from being read as a command."""
    return "".join(LATEX_MARKS.get(mark, mark) for mark in " ".join(text.split()))


@cache
def _environment(kind: str) -> Environment:
    """Make what renders templates of a kind: what is printed in them is escaped.

    LaTeX is full of braces: its templates are written with ``<< >>`` and ``<% %>``, and are given
    text that is escaped already.
    """
    options: dict[str, Any] = {
        "loader": PackageLoader("polyshot.experiments.report"),
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }
    if kind == "tex":
        marks = {"variable": ("<<", ">>"), "block": ("<%", "%>"), "comment": ("<#", "#>")}
        for name, (start, end) in marks.items():
            options |= {f"{name}_start_string": start, f"{name}_end_string": end}
        return Environment(**options, autoescape=False)
    if kind == "md":

        def escaped(value: Any) -> Any:
            return value if isinstance(value, Markup) else markdown_escape(str(value))

        return Environment(**options, autoescape=False, finalize=escaped)
    made = Environment(**options, autoescape=True)
    made.filters |= {"points": points, "heat_colours": heat_colours, "themed": _themed}
    style = resources.files("polyshot.experiments.report").joinpath("style.css")
    made.globals["style"] = Markup(style.read_text("utf-8"))
    return made


def render(template: str, **values: Any) -> str:
    """Fill a template: ``grid.html``, ``tables.md``, ``tables.tex``."""
    kind = template.rpartition(".")[2]
    return _environment(kind).get_template(f"{template}.j2").render(**values)


def write_file(path: Path, text: str) -> None:
    """Write a text file that appears whole or not at all."""
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        write_text(path, text)
    except OSError as error:
        raise PolyshotError(f"{path} cannot be written: {error.strerror or error}.") from None


def _themed(colour: str) -> str:
    """Return the style sheet's variable for a colour, where it has one."""
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour


@dataclass(frozen=True)
class HeatMap:
    """How often each member was selected."""

    members: Sequence[str]
    shares: Mapping[str, Sequence[float | None]]
    """Target -> one share a member; None where the target's pool has no such member."""
    title: str = ""


@dataclass(frozen=True)
class ResultsPage:
    """A page about a pool on some targets: of `evaluate`, or of the demo."""

    title: str
    intro: Sequence[str]
    """Paragraphs that say what was done."""
    rows: Sequence[Row]
    """One a target; averages of seen and unseen targets are added."""
    sheets: Mapping[str, Image.Image] = field(default_factory=dict)
    """Contact sheets by the name of their domain."""
    heat_map: HeatMap | None = None
    """The selector's choices."""
    remarks: Sequence[str] = ()
    """What a reader should know about the numbers."""
    calibration: TextTable | None = None
    """How far probabilities are off; left out where it has no rows."""
    baseline: str = BASELINE
    """The method that differences are to."""
    chance: float | None = None
    """Accuracy of guessing, marked in the chart."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Short numbers to show on top, such as the time it took."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """One line about each method."""
    commands: Sequence[str] = ()
    """What to type next."""

    def write(self, path: Path) -> None:
        """Write the HTML file; it appears whole or not at all."""
        by_kind = {seen: [row for row in self.rows if row.seen == seen] for seen in GROUPS}
        averages = {seen: average_row(rows) for seen, rows in by_kind.items() if rows}
        groups = [
            {
                "heading": GROUPS[seen][0],
                "about": GROUPS[seen][1],
                "count": f"average of {len(rows)} domains" if len(rows) > 1 else "1 domain",
                "cells": averages[seen].cells,
            }
            for seen, rows in by_kind.items()
            if rows
        ]
        page = vars(self) | {
            "methods": list(dict.fromkeys(method for row in self.rows for method in row.cells)),
            "groups": groups,
            "averages": {seen: row for seen, row in averages.items() if len(by_kind[seen]) > 1},
            "sheets": [_sheet(name, sheet) for name, sheet in self.sheets.items()],
        }
        write_file(path, render("results.html", **page))


def _sheet(name: str, sheet: Image.Image) -> dict[str, object]:
    """Scale a picture down and write it into a link."""
    small = sheet.convert("RGB")
    small.thumbnail((LARGEST_SHEET, 4 * LARGEST_SHEET), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80, optimize=True, progressive=True)
    source = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"name": name, "source": source, "width": small.width, "height": small.height}
