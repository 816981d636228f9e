"""The report of a grid of experiments: one page, and its tables as Markdown and LaTeX.

`tables` pivots and pairs results, `summary`, `growth` and `paper` make text and plain tables of
them, `figures` draws, `pages` fills the templates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
    data_differs,
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
ABOUT_TABLES = (
    "Percent of the queries that got the right class, with the half-width of the 95 % interval "
    "over episodes. Below it the difference to base (base and nearest prototypes) on the same "
    "episodes, in points; ▲ and ▼ mark differences whose interval excludes 0. The best of a row "
    "is marked only where its paired difference to the runner-up is more than chance.",
    "Where methods have different numbers of episodes, differences are over the first ones that "
    "both have. Intervals cover the choice of episodes, not of test classes; of equal methods, "
    "one in twenty comparisons is marked by chance.",
)
ABOUT_SEEDS = (
    "Cells are means over the seeds of the training. Their intervals cover the choice of episodes, "
    "each averaged over the seeds; what another training would change is the spread between seeds."
)
ABOUT_PAPER = (
    "The paper's numbers stand below ours where the domain is the same. They are not the same "
    "experiment: data and scale differ, so only the order of methods can be compared, not the "
    "height of the numbers. The paper's are of 5-way 5-shot tasks without further adaptation; its "
    "results with further adaptation and with one shot are charts without numbers.",
    "The project's shared images, at most 72 px, against the paper's data:",
)
ABOUT_SELECTOR = (
    "A row is a target, a column a member; a number is the share of the episodes, in percent, in "
    "which that member was selected. A frame marks the member of the target's own domain; 'none' "
    "means that the target's pool has no such member."
)


@dataclass
class Section:
    """A part of the page; what it has is shown in this order."""

    heading: str
    paragraphs: Sequence[str] = ()
    bullets: Sequence[str] = ()
    closing: Sequence[str] = ()
    """Paragraphs below the bullets."""
    tables: Sequence[TextTable] = ()
    accuracies: Sequence[dict[str, Any]] = ()
    contributions: Sequence[dict[str, Any]] = ()
    heat_maps: Sequence[HeatMap] = ()
    galleries: Sequence[dict[str, Any]] = ()
    lists: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing but words about it."""
        parts = (self.tables, self.accuracies, self.contributions, self.heat_maps, self.galleries)
        return not any(map(len, (*parts, self.lists)))


def write_report(folder: Path, out: Path | None = None) -> list[Path]:
    """Read a grid folder and write ``index.html``, ``tables.md`` and ``tables.tex``.

    Args:
        folder: what ``polyshot reproduce`` wrote.
        out: where the report goes; ``report`` inside the folder if not given.

    Returns:
        The three files.
    """
    grid = read_grid(folder)
    tables = accuracy_tables(on_added_domains(grid.results))
    comparisons = paper_comparisons(tables)
    said = summary(tables)
    notes = {table.title: _about_table(table) for table in tables}
    every = {
        "Best on average": [winner_table(tables)],
        "A domain added later": growth_tables(grid.results),
        "Ours beside the paper's": [
            agreement_table(comparisons),
            *(each.as_text() for each in comparisons),
        ],
        "What each member contributes": [
            member_table(about, method) for about in grid.contributions for method in about.correct
        ],
        "How far to trust the probabilities": calibration_tables(grid.results),
        "What a task costs": cost_tables(grid.results),
        "Number of parameters": [size_table()],
        "Settings of the methods": [settings_table(grid.results)],
        "Seeds, episodes and data": [data_table(grid)],
    }
    texts = {heading: [t for t in found if t.rows] for heading, found in every.items()}
    lists = run_lists(grid)
    page = {
        "title": TITLE,
        "intro": (),
        "facts": run_facts(grid),
        "baseline": BASELINE,
        "sections": _sections(grid, said, tables, notes, texts, lists),
    }
    known = {heading: found for heading, found in texts.items() if found}
    target = out or folder / "report"
    files = {
        target / "index.html": render("grid.html", **page),
        target / "tables.md": markdown(said, tables, notes, known, lists),
        target / "tables.tex": latex(tables, known),
    }
    for path, content in files.items():
        write_file(path, content)
    return list(files)


# --- the page


def _sections(
    grid: Grid,
    said: Sequence[str],
    tables: Sequence[AccuracyTable],
    notes: dict[str, str],
    texts: dict[str, list[TextTable]],
    lists: dict[str, list[str]],
) -> list[Section]:
    """List the parts that have anything to show."""

    def plain(heading: str) -> Section:
        return Section(heading, tables=texts[heading])

    by_preset: dict[str, list[AccuracyTable]] = {}
    for table in tables:
        by_preset.setdefault(table.preset, []).append(table)
    contributed = [_contributions(about) for about in grid.contributions]
    every = [
        *(
            Section(
                f"Accuracies: {preset}" if preset else "Accuracies",
                ABOUT_TABLES,
                accuracies=[_accuracies(table, notes[table.title]) for table in own],
            )
            for preset, own in by_preset.items()
        ),
        plain("A domain added later"),
        replace(
            plain("Ours beside the paper's"),
            paragraphs=ABOUT_PAPER,
            bullets=[f"{name}: {words}." for name, words in data_differs().items()],
            closing=[numbers()["not_compared"]],
        ),
        Section("What each member contributes", contributions=contributed),
        Section("What the selector chose", [ABOUT_SELECTOR], heat_maps=_heat_maps(grid)),
        plain("How far to trust the probabilities"),
        plain("What a task costs"),
        plain("Number of parameters"),
        Section("Training curves", galleries=_galleries(grid)),
        Section(
            "What was run",
            tables=[*texts["Seeds, episodes and data"], *texts["Settings of the methods"]],
            lists=lists,
        ),
    ]
    short = Section("In short", bullets=said, tables=texts["Best on average"])
    first = [short] if said or not short.is_empty else []
    return [*first, *(section for section in every if not section.is_empty)]


def _about_table(table: AccuracyTable) -> str:
    lines = [f"{table.episodes()} episodes a target."]
    if seeds := table.seeds():
        lines.append(f"Training seeds: {', '.join(map(str, seeds))}.")
    if spread := table.seed_spread():
        said = ", ".join(f"{name} {100 * value:.2f}" for name, value in spread.items())
        lines.append(
            f"{ABOUT_SEEDS} Standard deviation between seeds of the average over targets, in "
            f"points: {said}."
        )
    return " ".join(lines)


def _accuracies(table: AccuracyTable, note: str) -> dict[str, Any]:
    named = [
        replace(row, target=f"average, {'seen' if seen else 'unseen'}")
        for seen, row in table.averages.items()
    ]
    chance = 1 / int(table.way) if table.way.isdigit() else None
    return {
        "table": table,
        "note": note,
        "chance": chance,
        "looks": method_looks(table.methods),
        "chart": bar_chart([*table.rows, *named], table.methods, chance, table.title),
    }


def _contributions(about: Contributions) -> dict[str, Any]:
    panels = []
    least, most = about.ends()
    for method in about.correct:
        label = f"{method} on {about.target}: right predictions of each member, episode by episode"
        panels.append(
            {
                "method": method,
                "label": label,
                "caption": f"{label}. From {least} (light) to {most} (dark) of {about.queries}; a "
                "dot marks the best of an episode.",
                "chart": contribution_chart(about, method, label),
                "leaders": leaders(about, method),
                "table": member_table(about, method),
            }
        )
    return {"title": about.title, "panels": panels}


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


def _galleries(grid: Grid) -> list[dict[str, Any]]:
    """Collect the training curves of each world."""
    worlds: dict[str, list[Curve]] = {}
    for curve in grid.curves:
        worlds.setdefault(curve.world, []).append(curve)
    return [
        {
            "world": world,
            "note": f"{len(curves)} steps{_trained(grid.worlds.get(world))}",
            "curves": [
                {"title": curve.title, "chart": curve_chart(curve), "note": _about_curve(curve)}
                for curve in curves
            ],
        }
        for world, curves in worlds.items()
    ]


def _trained(training: Training | None) -> str:
    if training is None:
        return ""
    seed = "" if training.seed is None else f"seed {training.seed}"
    sources = f"sources {join_names(training.sources, 20)}" if training.sources else ""
    said = listed(training.preset, seed, sources)
    return f": {said}" if said else ""


def _about_curve(curve: Curve) -> str:
    last = f"to update {curve.updates()[1]:,.0f}. " if curve.loss or curve.validation else ""
    return last + (f"{curve.not_numbers} values were not numbers." if curve.not_numbers else "")


# --- the tables as text


def markdown(
    said: Sequence[str],
    tables: Sequence[AccuracyTable],
    notes: dict[str, str],
    texts: dict[str, list[TextTable]],
    lists: dict[str, list[str]],
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
        tables=tables,
        notes=notes,
        text_tables=texts,
        lists=lists,
        accuracy_cell=accuracy_cell,
        joined=lambda cell: Markup(_joined(cell, markdown_escape)),
    )


def latex(tables: Sequence[AccuracyTable], texts: dict[str, list[TextTable]]) -> str:
    """Write all tables as LaTeX, each a floating table."""
    floats = []
    for table in tables:
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
    for found in texts.values():
        for text in (table for table in found if not table.words):
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
