"""Pages and text from the templates beside this file; a page is one file that works offline."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from polyshot.errors import PolyshotError, join_names
from polyshot.evaluation.compare import BASELINE, SEEDS_LEGEND, Row, averages, half_widths, is_clear
from polyshot.evaluation.stats import Estimate
from polyshot.util.files import write_text

UNKNOWN = "not measured"
INK, LINE, PAPER, BLUE, BROWN = "#1b1f24", "#d5dae0", "#ffffff", "#2f6db5", "#8a5a00"
VARIABLES = {INK: "--ink", LINE: "--line", PAPER: "--paper", BLUE: "--blue", BROWN: "--brown"}
"""Colours of the style sheet: a page may be dark."""
LARGEST_SHEET = 1000
"""Pixels: pictures are scaled down to this width."""
WIDEST = 90
"""Characters of a line of a LaTeX table; wider ones are shrunk to the page."""
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


# --- text


def percent(value: Estimate | None) -> str:
    """Format a mean with its interval: ``81.2 ± 0.4``."""
    return UNKNOWN if value is None else f"{100 * value.value:.1f} {half_widths(value, space=' ')}"


def points(value: Estimate | None) -> str:
    """Format a difference with its interval, in points: ``+1.2 ± 0.4``."""
    if value is None:
        return UNKNOWN
    text = f"{100 * value.value:+.1f}"  # a negative zero would be read as a loss
    text = "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\u2212")
    return f"{text} {half_widths(value, space=' ')}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def markdown_escape(text: str) -> str:
    """Keep a name from being read as markup, or from breaking its line of a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", _one_line(text))


def latex_escape(text: str) -> str:
    """Keep a name from being read as a command."""
    return "".join(LATEX_MARKS.get(mark, mark) for mark in _one_line(text))


def heat_colours(share: float) -> tuple[str, str]:
    """Return background, from near white to dark blue, and a text colour that stands out on it."""
    share = min(max(share, 0.0), 1.0)
    light, dark = (246, 248, 250), (16, 62, 122)
    colour = [round(a + (b - a) * share) for a, b in zip(light, dark, strict=True)]
    linear = [(part / 255) ** 2.2 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Where (1 + 0.05) / (x + 0.05) = (x + 0.05) / 0.05, white and black have the same contrast.
    return "#{:02x}{:02x}{:02x}".format(*colour), "#fefefe" if luminance < 0.179 else "#000000"


# --- templates


@cache
def _environment(kind: str) -> Environment:
    """Make what renders templates of a kind: what is printed in them is escaped, but in plain text.

    LaTeX is full of braces: its templates are written with ``<< >>`` and ``<% %>``.
    """
    escape = {"md": markdown_escape, "tex": latex_escape, "txt": _one_line}.get(kind)
    options: dict[str, Any] = {
        "loader": PackageLoader("polyshot.experiments.report"),
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
        "autoescape": kind == "html",
    }
    if kind == "tex":
        marks = {"variable": ("<<", ">>"), "block": ("<%", "%>"), "comment": ("<#", "#>")}
        for name, (start, end) in marks.items():
            options |= {f"{name}_start_string": start, f"{name}_end_string": end}
    if escape is not None:
        options["finalize"] = lambda value: (
            value if isinstance(value, Markup) else escape(str(value))
        )
    made = Environment(**options)  # noqa: S701 (pages escape; the others have `escape`)
    filters = (
        percent,
        points,
        half_widths,
        is_clear,
        join_names,
        fmean,
        heat_colours,
        themed,
        is_wide,
    )
    made.filters |= {each.__name__: each for each in filters}
    style = resources.files("polyshot.experiments.report").joinpath("style.css")
    sheet = Markup(style.read_text("utf-8"))  # noqa: S704 (a file of ours)
    made.globals |= {"style": sheet, "baseline": BASELINE}
    made.globals |= {"seeds_legend": SEEDS_LEGEND}
    return made


def render(template: str, **values: Any) -> str:
    """Fill a template: ``grid.html``, ``tables.md``, ``tables.tex``, ``summary.txt``."""
    kind = template.rpartition(".")[2]
    return _environment(kind).get_template(f"{template}.j2").render(**values)


def write_file(path: Path, text: str) -> None:
    """Write a text file that appears whole or not at all."""
    if path.is_dir():
        raise PolyshotError(f"{path} cannot be written: it is a folder.")
    write_text(path, text)


def themed(colour: str) -> str:
    """Return the style sheet's variable for a colour, where it has one."""
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour


def is_wide(body: str) -> bool:
    r"""Tell whether rows of a LaTeX table, ``a & b \\``, are wider than the page."""
    rows = [line.split(" & ") for line in body.splitlines() if line.endswith(r" \\")]
    columns = zip(*rows, strict=True)
    return sum(max(len(cell.removesuffix(r" \\")) for cell in each) for each in columns) > WIDEST


# --- the page of `evaluate` and of the demo


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
    rows: Sequence[Row]
    """One a target; averages of seen and unseen targets are added."""
    sheets: Mapping[str, Image.Image] = field(default_factory=dict)
    """Contact sheets by the name of their domain."""
    heat_map: HeatMap | None = None
    """The selector's choices."""
    remarks: Sequence[str] = ()
    """What a reader should know about the numbers."""
    calibration: Any = None
    """A `TextTable` of how far probabilities are off; left out where it has no rows."""
    chance: float | None = None
    """Accuracy of guessing, marked in the chart."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Short numbers to show on top, such as the time it took."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """One line about each method."""

    def write(self, path: Path, template: str = "results.html", **more: Any) -> None:
        """Write the HTML file, whole or not at all, by a template that may show more."""
        page = vars(self) | {
            "methods": list(dict.fromkeys(method for row in self.rows for method in row.cells)),
            "means": averages(self.rows, least=1),
            "averages": averages(self.rows),
            "sheets": [_sheet(name, sheet) for name, sheet in self.sheets.items()],
        }
        write_file(path, render(template, **page | more))


def _sheet(name: str, sheet: Image.Image) -> dict[str, object]:
    """Scale a picture down and write it into a link."""
    small = sheet.convert("RGB")
    small.thumbnail((LARGEST_SHEET, 4 * LARGEST_SHEET), Image.Resampling.LANCZOS)
    source = as_link(small, quality=80, progressive=True)
    return {"name": name, "source": source, "width": small.width, "height": small.height}


def as_link(picture: Image.Image, **options: Any) -> str:
    """Write a picture into a link, as a JPEG."""
    file = io.BytesIO()
    picture.save(file, "JPEG", optimize=True, **options)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
