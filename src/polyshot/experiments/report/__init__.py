"""The report of a grid of experiments: one page, and its tables as Markdown and LaTeX.

`tables` pivots and pairs results, `summary`, `growth` and `paper` make text and plain tables of
them, `figures` draws, `pages` fills the templates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from polyshot.errors import join_names
from polyshot.evaluation.compare import BASELINE, Row
from polyshot.experiments.grid import Contributions, Curve, Grid, Training, read_grid
from polyshot.experiments.report.figures import (
    bar_chart,
    contribution_chart,
    curve_chart,
    method_looks,
)
from polyshot.experiments.report.growth import growth_tables
from polyshot.experiments.report.pages import (
    HeatMap,
    latex_escape,
    markdown_escape,
    render,
    write_file,
)
from polyshot.experiments.report.paper import (
    numbers,
    paper_comparisons,
    size_table,
)
from polyshot.experiments.report.summary import (
    agreement_table,
    calibration_tables,
    cost_tables,
    data_table,
    leaders,
    member_table,
    run_facts,
    run_lists,
    settings_table,
    summary,
    winner_table,
)
from polyshot.experiments.report.tables import (
    UNKNOWN,
    AccuracyTable,
    TextTable,
    accuracy_tables,
    classes_in_words,
    listed,
    on_added_domains,
    points,
    protocol_order,
)

TITLE = "Polyshot: report of the experiments"
MOST_FLOATS = 8
"""LaTeX gives up on too many tables that wait for a place; a new page gives them one."""
WIDEST = 90
"""Characters of a line of a LaTeX table; wider ones are shrunk to the page."""
LEGEND = (
    "Percent of the queries that got the right class, with the half-width of the 95 % interval. "
    "Bold: the best of its row, where its paired difference to the runner-up is more than chance."
)


def write_report(folder: Path, out: Path | None = None) -> list[Path]:
    """Read a grid folder and write ``index.html``, ``tables.md`` and ``tables.tex``.

    Args:
        folder: what ``polyshot reproduce`` wrote, or a file of results.
        out: where the report goes; ``report`` inside the folder, or beside the file, if not given.

    Returns:
        The three files.
    """
    grid = read_grid(folder)
    accuracies = accuracy_tables(on_added_domains(grid.results))
    comparisons = paper_comparisons(accuracies)
    contributed = [(about, method) for about in grid.contributions for method in about.correct]
    every = {
        "Best on average": [winner_table(accuracies)],
        "A domain added later": growth_tables(grid.results),
        "Ours beside the paper's": [
            agreement_table(comparisons),
            *(each.as_text() for each in comparisons),
        ],
        "What each member contributes": [member_table(*each) for each in contributed],
        "How far to trust the probabilities": calibration_tables(grid.results),
        "What a task costs": cost_tables(grid.results),
        "Number of parameters": [size_table()],
        "Settings of the methods": [settings_table(grid.results)],
        "Seeds, episodes and data": [data_table(grid)],
    }
    said = summary(accuracies)
    tables = {heading: [t for t in found if t.rows] for heading, found in every.items()}
    lists = run_lists(grid)
    target = out or (folder.parent if folder.is_file() else folder) / "report"
    files = {
        target / "index.html": _page(grid, said, accuracies, tables, lists),
        target / "tables.md": _markdown(said, accuracies, tables, lists),
        target / "tables.tex": _latex(accuracies, tables),
    }
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def _page(
    grid: Grid,
    said: Sequence[str],
    accuracies: Sequence[AccuracyTable],
    tables: Mapping[str, Sequence[TextTable]],
    lists: Mapping[str, Sequence[str]],
) -> str:
    """Draw the figures and fill the page's template."""
    presets: dict[str, list[dict[str, Any]]] = {}
    for table in accuracies:
        averages = [
            replace(row, target=f"average, {'seen' if seen else 'unseen'}")
            for seen, row in table.averages.items()
        ]
        drawn = bar_chart([*table.rows, *averages], table.methods, table.chance, table.title)
        block = {"table": table, "looks": method_looks(table.methods), "chart": drawn}
        presets.setdefault(table.preset, []).append(block)
    worlds: dict[str, list[tuple[Curve, Markup]]] = {}
    for curve in grid.curves:
        worlds.setdefault(curve.world, []).append((curve, curve_chart(curve)))
    return render(
        "grid.html",
        title=TITLE,
        intro=(),
        facts=run_facts(grid),
        baseline=BASELINE,
        summary=said,
        accuracies=presets,
        tables=tables,
        paper=numbers(),
        contributions=[_contributions(about) for about in grid.contributions],
        heat_maps=_heat_maps(grid),
        galleries=[
            {"world": world, "curves": curves, "trained": _trained(grid.worlds.get(world))}
            for world, curves in worlds.items()
        ],
        lists=lists,
    )


def _contributions(about: Contributions) -> dict[str, Any]:
    panels = []
    for method in about.correct:
        label = f"{method} on {about.target}: right predictions of each member, episode by episode"
        panels.append(
            {
                "method": method,
                "label": label,
                "chart": contribution_chart(about, method, label),
                "leaders": leaders(about, method),
                "table": member_table(about, method),
            }
        )
    least, most = about.ends()
    ends = {"least": least, "most": most, "queries": about.queries}
    return {"title": about.title, "panels": panels, **ends}


def _heat_maps(grid: Grid) -> list[HeatMap]:
    """Make one a preset and protocol; pools of left-out targets lack one member each."""
    groups: dict[tuple[str, str, str, str], dict[str, dict[str, float]]] = {}
    for found in grid.shares:
        key = (found.preset, classes_in_words(found.part), found.protocol, found.method)
        rows = groups.setdefault(key, {})
        for target, shares in found.targets.items():
            name = target
            while name in rows:  # another seed's pool
                name += " (again)"
            rows[name] = dict(zip(found.members, shares, strict=True))
    maps = []
    for key in sorted(groups, key=lambda key: (*key[:2], protocol_order(key[2]), key[3])):
        rows = groups[key]
        members = list(dict.fromkeys(member for row in rows.values() for member in row))
        known = {name: [row.get(member) for member in members] for name, row in rows.items()}
        maps.append(HeatMap(members, known, listed(*key)))
    return maps


def _trained(training: Training | None) -> str:
    if training is None:
        return ""
    seed = "" if training.seed is None else f"seed {training.seed}"
    sources = f"sources {join_names(training.sources, 20)}" if training.sources else ""
    said = listed(training.preset, seed, sources)
    return f": {said}" if said else ""


# --- the tables as text


def _markdown(
    said: Sequence[str],
    accuracies: Sequence[AccuracyTable],
    tables: Mapping[str, Sequence[TextTable]],
    lists: Mapping[str, Sequence[str]],
) -> str:
    """Write all tables as Markdown."""

    def accuracy_cell(row: Row, method: str) -> Markup:
        cell = row.cells.get(method)
        if cell is None:
            return Markup(UNKNOWN)
        bold = "**" if method == row.best else ""
        text = f"{bold}{100 * cell.mean:.1f}{bold} ± {100 * cell.half_width:.1f}"
        if cell.difference is not None:
            text += f" ({points((cell.difference, cell.difference_half_width))})"
        return Markup(text)

    return render(
        "tables.md",
        title=TITLE,
        summary=said,
        legend=LEGEND,
        accuracies=accuracies,
        tables=tables,
        lists=lists,
        accuracy_cell=accuracy_cell,
        joined=lambda cell: Markup(_joined(cell, markdown_escape)),
    )


def _latex(accuracies: Sequence[AccuracyTable], tables: Mapping[str, Sequence[TextTable]]) -> str:
    """Write all tables as LaTeX, each a floating table."""
    floats = []
    for table in accuracies:
        head = ["Domain", *map(latex_escape, table.methods)]
        bodies = []
        for seen in (True, False):
            body = [
                [latex_escape(name), *(_latex_cell(row, method) for method in table.methods)]
                for name, row in table.lines()
                if row.seen == seen
            ]
            if seen in table.averages:  # the last line, under a rule of its own
                bodies += [body[:-1], body[-1:]]
            elif body:
                bodies.append(body)
        floats.append(_float(f"{table.title}. {LEGEND}", head, bodies))
    for found in tables.values():
        for text in (each for each in found if not each.words):
            body = [[_joined(cell, latex_escape) for cell in row] for row in text.rows]
            head = [latex_escape(name) for name in text.head]
            floats.append(_float(f"{text.title}. {text.note}".strip(), head, [body]))
    return render("tables.tex", floats=floats, most_floats=MOST_FLOATS)


def _latex_cell(row: Row, method: str) -> str:
    cell = row.cells.get(method)
    if cell is None:
        return UNKNOWN
    mean = f"{100 * cell.mean:.1f}"
    strong = rf"\mathbf{{{mean}}}" if method == row.best else mean
    return rf"${strong} \pm {100 * cell.half_width:.1f}$"


def _joined(cell: str, escape: Callable[[str], str]) -> str:
    first, _, second = cell.partition("\n")
    return f"{escape(first)} ({escape(second)})" if second else escape(first)


def _float(caption: str, head: list[str], bodies: list[list[list[str]]]) -> dict[str, Any]:
    cells = [head, *(row for body in bodies for row in body)]
    width = sum(max(map(len, column)) for column in zip(*cells, strict=True))
    is_wide = width > WIDEST
    return {"caption": latex_escape(caption), "head": head, "bodies": bodies, "is_wide": is_wide}
