"""The report of a grid of experiments: one page, and its tables as Markdown and LaTeX.

`tables` pivots results, `summary`, `growth` and `paper` make text and plain tables of them,
`figures` draws, `pages` fills the templates.
"""

from pathlib import Path
from typing import Any

from polyshot.experiments.grid import Contributions, Grid, read_grid
from polyshot.experiments.protocols import PROTOCOLS
from polyshot.experiments.report import figures, summary, tables
from polyshot.experiments.report.growth import growth_tables
from polyshot.experiments.report.pages import HeatMap, render, write_file
from polyshot.experiments.report.paper import numbers, paper_comparisons, size_table

TITLE = "Polyshot: report of the experiments"


def write_report(folder: Path, out: Path | None = None, run: str = "") -> list[Path]:
    """Read a grid folder and write ``index.html``, ``tables.md`` and ``tables.tex``; returns these.

    `folder` is what ``polyshot reproduce`` wrote, or a file of results. The report goes to `out`;
    to ``report`` inside the folder, or beside the file, if that is not given. `run` names one of
    several that share a file.
    """
    grid = read_grid(folder, run)
    accuracies = tables.accuracy_tables(tables.on_added_domains(grid.results))
    comparisons = paper_comparisons(accuracies)
    contributed = [(about, method) for about in grid.contributions for method in about.correct]
    every = {
        "Best on average": [summary.winner_table(accuracies)],
        "A domain added later": growth_tables(grid.results),
        "Ours beside the paper's": [
            summary.agreement_table(comparisons),
            *(each.as_text() for each in comparisons),
        ],
        "What each member contributes": [summary.member_table(*each) for each in contributed],
        "How far to trust the probabilities": summary.calibration_tables(grid.results),
        "What a task costs": summary.cost_tables(grid.results),
        "Number of parameters": [size_table()],
        "Settings of the methods": [summary.settings_table(grid.results)],
        "Seeds, episodes and data": [summary.data_table(grid)],
    }
    shared = {
        "title": TITLE,
        "summary": summary.summary(accuracies),
        "accuracies": accuracies,
        "tables": {heading: [t for t in found if t.rows] for heading, found in every.items()},
        "lists": summary.run_lists(grid),
    }
    target = out or (folder.parent if folder.is_file() else folder) / "report"
    files = {
        target / "index.html": render("grid.html", **shared | _drawn(grid, accuracies)),
        target / "tables.md": render("tables.md", **shared),
        target / "tables.tex": render("tables.tex", **shared),
    }
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def _drawn(grid: Grid, accuracies: list[tables.AccuracyTable]) -> dict[str, Any]:
    """Draw the figures, and collect what else only the page shows."""
    presets: dict[str, list[dict[str, Any]]] = {}
    for table in accuracies:
        rows = [*table.rows, *table.averages.values()]
        drawn = figures.bar_chart(rows, table.methods, table.chance, table.title)
        block = {"table": table, "looks": figures.method_looks(table.methods), "chart": drawn}
        presets.setdefault(table.preset, []).append(block)
    worlds: dict[str, list[tuple[Any, Any]]] = {}
    for curve in grid.curves:
        worlds.setdefault(curve.world, []).append((curve, figures.curve_chart(curve)))
    return {
        "facts": summary.run_facts(grid),
        "presets": presets,
        "paper": numbers(),
        "contributions": [(about, _panels(about)) for about in grid.contributions],
        "heat_maps": _heat_maps(grid),
        "curves": worlds,
        "worlds": grid.worlds,
    }


def _panels(about: Contributions) -> list[dict[str, Any]]:
    """Draw what each member of each method contributes."""
    panels = []
    for method in about.correct:
        label = f"{method} on {about.target}: right predictions of each member, episode by episode"
        panel = {
            "method": method,
            "label": label,
            "chart": figures.contribution_chart(about, method, label),
            "leaders": summary.leaders(about, method),
            "table": summary.member_table(about, method),
        }
        panels.append(panel)
    return panels


def _heat_maps(grid: Grid) -> list[HeatMap]:
    """Make one a preset and protocol; pools of left-out targets lack one member each."""
    groups: dict[tuple[str, str, str, str], dict[str, dict[str, float]]] = {}
    for found in grid.shares:
        key = (found.preset, tables.classes_in_words(found.part), found.protocol, found.method)
        rows = groups.setdefault(key, {})
        for target, shares in found.targets.items():
            name = target
            while name in rows:  # another seed's pool
                name += " (again)"
            rows[name] = dict(zip(found.members, shares, strict=True))
    maps = []
    for key in sorted(
        groups, key=lambda key: (*key[:2], tables.place_in(PROTOCOLS, key[2]), key[3])
    ):
        rows = groups[key]
        members = list(dict.fromkeys(member for row in rows.values() for member in row))
        known = {name: [row.get(member) for member in members] for name, row in rows.items()}
        maps.append(HeatMap(members, known, tables.listed(*key)))
    return maps
