"""The tables of a report as text: Markdown to read and LaTeX (booktabs) to include."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyshot.experiments.page_tables import GROUPS, Cell, Row, signed
from polyshot.experiments.report_plain import UNKNOWN, PlainTable
from polyshot.experiments.report_tables import AccuracyTable

MOST_FLOATS = 8
"""LaTeX gives up on too many tables that wait for a place; a new page gives them one."""
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


@dataclass(frozen=True)
class ReportText:
    """What goes into both files."""

    title: str
    summary: Sequence[str]
    tables: Sequence[AccuracyTable]
    notes: Mapping[str, str] = field(default_factory=dict)
    """Title of a table of accuracies -> what to say about it."""
    plain: Mapping[str, Sequence[PlainTable]] = field(default_factory=dict)
    """Heading -> tables."""
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Heading -> lines."""


def markdown_escape(text: str) -> str:
    """Keep a name from being read as markup, or from breaking its line of a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", " ".join(text.split()))


def latex_escape(text: str) -> str:
    """Keep a name from being read as a command."""
    return "".join(LATEX_MARKS.get(mark, mark) for mark in " ".join(text.split()))


def markdown(report: ReportText) -> str:
    """Write all tables as Markdown."""
    lines = [f"# {markdown_escape(report.title)}", ""]
    lines += [f"- {markdown_escape(text)}" for text in report.summary]
    lines += ["", "## Accuracies", "", f"{_LEGEND} {_SECOND}"]
    for table in report.tables:
        lines += ["", f"### {markdown_escape(table.title)}", ""]
        head = ["Domain", *map(markdown_escape, table.methods)]
        body = [
            [markdown_escape(name), *(_markdown_cell(row, method) for method in table.methods)]
            for name, row in _lines(table)
        ]
        lines += _markdown_table(head, body)
        lines += _paragraph(report.notes.get(table.title, ""), markdown_escape)
    for heading, tables in report.plain.items():
        lines += ["", f"## {markdown_escape(heading)}"]
        for plain in tables:
            lines += ["", f"### {markdown_escape(plain.title)}", ""]
            body = [[_joined(cell, markdown_escape) for cell in row] for row in plain.rows]
            lines += _markdown_table([markdown_escape(name) for name in plain.head], body)
            lines += _paragraph(plain.note, markdown_escape)
    for heading, texts in report.lists.items():
        lines += ["", f"## {markdown_escape(heading)}", ""]
        lines += [f"- {markdown_escape(text)}" for text in texts]
    return "\n".join(lines) + "\n"


_LEGEND = (
    "Percent of the queries that got the right class, with the half-width of the 95 % interval. "
    "Bold: the best of its row, where its paired difference to the runner-up is more than chance."
)
_SECOND = "In brackets: the paired difference to base on the same episodes."


def latex(report: ReportText) -> str:
    """Write all tables as LaTeX, each a floating table."""
    lines = [
        r"% Made by 'polyshot report'. Put \usepackage{booktabs,graphicx} and",
        r"% \usepackage[T1]{fontenc} into the preamble, and \input{tables} into the document.",
    ]
    floats = []
    for table in report.tables:
        head = ["Domain", *map(latex_escape, table.methods)]
        bodies = []
        for seen in GROUPS:
            own = [(name, row) for name, row in _lines(table) if row.seen == seen]
            body = [
                [latex_escape(name), *(_latex_cell(row, method) for method in table.methods)]
                for name, row in own
            ]
            if seen in table.averages:  # the last line, under a rule of its own
                bodies += [body[:-1], body[-1:]]
            elif body:
                bodies.append(body)
        caption = latex_escape(f"{table.title}. {_LEGEND}")
        floats.append(_latex_table(caption, head, bodies))
    for tables in report.plain.values():
        for plain in (table for table in tables if not table.words):
            body = [[_joined(cell, latex_escape) for cell in row] for row in plain.rows]
            caption = latex_escape(f"{plain.title}. {plain.note}".strip())
            head = [latex_escape(name) for name in plain.head]
            floats.append(_latex_table(caption, head, [body]))
    for number, table_lines in enumerate(floats, 1):
        lines += table_lines
        if number % MOST_FLOATS == 0:
            lines.append(r"\clearpage")
    return "\n".join(lines) + "\n"


def _lines(table: AccuracyTable) -> list[tuple[str, Row]]:
    """List the rows with their names, each group followed by its average."""
    found = []
    for seen, word in ((True, "seen"), (False, "unseen")):
        found += [(f"{row.target}, {word}", row) for row in table.rows if row.seen == seen]
        if seen in table.averages:
            found.append((f"average, {word}", table.averages[seen]))
    return found


def _markdown_cell(row: Row, method: str) -> str:
    cell = row.cells.get(method)
    if cell is None:
        return UNKNOWN
    mean, half_width = _numbers(cell)
    text = f"**{mean}** ± {half_width}" if method == row.best else f"{mean} ± {half_width}"
    if cell.difference is not None:
        text += f" ({signed(cell.difference)} ± {100 * cell.difference_half_width:.1f})"
    return text


def _latex_cell(row: Row, method: str) -> str:
    cell = row.cells.get(method)
    if cell is None:
        return UNKNOWN
    mean, half_width = _numbers(cell)
    strong = rf"\mathbf{{{mean}}}" if method == row.best else mean
    return rf"${strong} \pm {half_width}$"


def _numbers(cell: Cell) -> tuple[str, str]:
    return f"{100 * cell.mean:.1f}", f"{100 * cell.half_width:.1f}"


def _joined(cell: str, escape: Callable[[str], str]) -> str:
    first, _, second = cell.partition("\n")
    return f"{escape(first)} ({escape(second)})" if second else escape(first)


def _paragraph(text: str, escape: Callable[[str], str]) -> list[str]:
    return ["", escape(text)] if text else []


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _latex_table(
    caption: str, head: Sequence[str], bodies: Sequence[Sequence[Sequence[str]]]
) -> list[str]:
    cells = [head, *(row for body in bodies for row in body)]
    width = sum(max(map(len, column)) for column in zip(*cells, strict=True))
    is_wide = width > WIDEST
    lines = [
        "",
        r"\begin{table*}[htbp]",
        r"\centering",
        rf"\caption{{{caption}}}",
        *([r"\resizebox{\textwidth}{!}{%"] if is_wide else []),
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        f"{' & '.join(head)} \\\\",
    ]
    for body in bodies:
        lines += [r"\midrule", *(f"{' & '.join(row)} \\\\" for row in body)]
    end = "}" if is_wide else ""
    return [*lines, r"\bottomrule", rf"\end{{tabular}}{end}", r"\end{table*}"]
