"""The report of a grid of experiments: one page, and its tables as Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from polyshot.errors import join_names
from polyshot.evaluation.compare import BASELINE
from polyshot.experiments.calibration_tables import HEADING as CALIBRATION
from polyshot.experiments.calibration_tables import calibration_tables
from polyshot.experiments.grid_reader import Contributions, Grid, Shares, World, read_grid
from polyshot.experiments.page import facts_list, html_page, paragraphs, write_file
from polyshot.experiments.page_style import REPORT_STYLE
from polyshot.experiments.page_tables import HeatMap, Row, accuracy_grid, heat_grid, plain_grid
from polyshot.experiments.paper_numbers import DATA_DIFFERS, NOT_COMPARED
from polyshot.experiments.report_figures import bar_chart, contribution_chart, curve_gallery
from polyshot.experiments.report_growth import growth_tables, on_added_domains
from polyshot.experiments.report_plain import (
    PlainTable,
    beside_paper,
    cost_tables,
    member_table,
    settings_table,
    size_table,
)
from polyshot.experiments.report_run import run_facts, run_lists, seeds_and_packs
from polyshot.experiments.report_summary import agreement_table, summary, winner_table
from polyshot.experiments.report_tables import (
    AccuracyTable,
    accuracy_tables,
    classes_in_words,
    protocol_order,
)
from polyshot.experiments.report_text import ReportText, latex, markdown

TITLE = "Polyshot: report of the experiments"
PAPER = "Ours beside the paper's"
GROWTH = "A domain added later"
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
    "results with further adaptation and with one shot are charts without numbers."
)


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
    besides = beside_paper(tables)
    said = summary(tables)
    notes = {table.title: _about_table(table) for table in tables}
    plain: dict[str, Sequence[PlainTable]] = {
        "Best on average": [winner_table(tables)],
        GROWTH: growth_tables(grid.results),
        PAPER: [agreement_table(besides), *(beside.plain() for beside in besides)],
        "What each member contributes": [
            member_table(about, method) for about in grid.contributions for method in about.correct
        ],
        CALIBRATION: calibration_tables(grid.results),
        "What a task costs": cost_tables(grid.results),
        "Number of parameters": [size_table()],
        "Settings of the methods": [settings_table(grid.results)],
        "Seeds, episodes and data": seeds_and_packs(grid),
    }
    plain = {heading: [t for t in found if t.rows] for heading, found in plain.items()}
    plain = {heading: found for heading, found in plain.items() if found}
    lists = run_lists(grid)
    text = ReportText(TITLE, said, tables, notes, plain, lists)
    target = out or folder / "report"
    files = {
        target / "index.html": _page(grid, text),
        target / "tables.md": markdown(text),
        target / "tables.tex": latex(text),
    }
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def _about_table(table: AccuracyTable) -> str:
    lines = [f"{table.episodes()} episodes a target."]
    spread = table.seed_spread()
    if seeds := table.seeds():
        lines.append(f"Training seeds: {', '.join(map(str, seeds))}.")
    if spread:
        said = ", ".join(f"{name} {100 * value:.2f}" for name, value in spread.items())
        lines.append(
            f"{ABOUT_SEEDS} Standard deviation between seeds of the average over targets, in "
            f"points: {said}."
        )
    return " ".join(lines)


def _page(grid: Grid, text: ReportText) -> str:
    by_preset: dict[str, list[AccuracyTable]] = {}
    for table in text.tables:
        by_preset.setdefault(table.preset, []).append(table)
    sections = {"In short": _list(text.summary) + _plain(text.plain.get("Best on average", []))}
    for preset, tables in by_preset.items():
        heading = f"Accuracies: {preset}" if preset else "Accuracies"
        body = "".join(_accuracies(table, text.notes[table.title]) for table in tables)
        sections[heading] = paragraphs(ABOUT_TABLES) + body
    sections[GROWTH] = _plain(text.plain.get(GROWTH, []))
    sections[PAPER] = _paper(text.plain.get(PAPER, []))
    sections["What each member contributes"] = "".join(map(_contributions, grid.contributions))
    sections["What the selector chose"] = _selector(grid)
    for heading in (CALIBRATION, "What a task costs", "Number of parameters"):
        sections[heading] = _plain(text.plain.get(heading, []))
    worlds = {name: _world(world) for name, world in grid.worlds.items()}
    sections["Training curves"] = curve_gallery(grid.curves, worlds)
    sections["What was run"] = _what_was_run(text)
    sections = {heading: body for heading, body in sections.items() if body}
    links = "".join(
        f'<li><a href="#part-{i}">{escape(heading)}</a></li>' for i, heading in enumerate(sections)
    )
    parts = [
        f"<header><h1>{TITLE}</h1>{facts_list(run_facts(grid))}</header>",
        f'<nav aria-label="Contents"><ol class="contents">{links}</ol></nav>',
        '<main class="report">',
        *(
            f'<h2 id="part-{i}">{escape(heading)}</h2>{body}'
            for i, (heading, body) in enumerate(sections.items())
        ),
        "</main>",
    ]
    return html_page(TITLE, parts, REPORT_STYLE)


def _accuracies(table: AccuracyTable, note: str) -> str:
    rows = [*table.rows, *_renamed(table)]
    chance = 1 / int(table.way) if table.way.isdigit() else None
    return (
        f"<h3>{escape(table.title)}</h3>"
        + accuracy_grid(table.rows, table.methods, BASELINE, table.averages, table.title)
        + f'<p class="note">{escape(note)}</p>'
        + bar_chart(rows, table.methods, chance, table.title)
    )


def _renamed(table: AccuracyTable) -> list[Row]:
    return [
        replace(row, target=f"average, {'seen' if seen else 'unseen'}")
        for seen, row in table.averages.items()
    ]


def _paper(tables: Sequence[PlainTable]) -> str:
    if not tables:
        return ""
    differs = [f"{name}: {words}." for name, words in DATA_DIFFERS.items()]
    return (
        paragraphs([ABOUT_PAPER])
        + "<p>The project's shared images, at most 72 px, against the paper's data:</p>"
        + _list(differs)
        + paragraphs([NOT_COMPARED])
        + _plain(tables)
    )


def _contributions(about: Contributions) -> str:
    panels = []
    for method in about.correct:
        table = member_table(about, method)
        panels.append(
            f"<div><h4>{escape(method)}</h4>{contribution_chart(about, method)}"
            f"<p>{escape(_leaders(about, method))}</p>"
            f'<div class="numbers">{plain_grid(table.title, table.head, table.rows)}</div></div>'
        )
    return f'<h3>{escape(about.title)}</h3><div class="pair">{"".join(panels)}</div>'


def _leaders(about: Contributions, method: str) -> str:
    """Say whether few members lead in most episodes, as the paper finds of simple averaging."""
    correct, members = about.correct[method], about.members[method]
    wins = {
        member: sum(episode[i] == max(episode) for episode in correct)
        for i, member in enumerate(members)
    }
    order = sorted(wins, key=lambda member: -wins[member])
    leading = [members.index(member) for member in order[:2]]
    covered = sum(any(episode[i] == max(episode) for i in leading) for episode in correct)
    mean = sum(map(sum, correct)) / (len(correct) * len(members))
    return (
        f"A member is right on {mean:.1f} of {about.queries} queries on average. "
        f"{' or '.join(order[:2])} is best, or one of the best, in {covered} of {len(correct)} "
        f"episodes; {sum(count > 0 for count in wins.values())} of {len(members)} members are best "
        "at least once."
    )


def _selector(grid: Grid) -> str:
    """One heat map a preset and protocol; pools of left-out targets lack one member each."""
    groups: dict[tuple[str, str, str, str], list[Shares]] = {}
    for found in grid.shares:
        key = (found.preset, classes_in_words(found.part), found.protocol, found.method)
        groups.setdefault(key, []).append(found)
    parts = []
    for key in sorted(groups, key=lambda key: (*key[:2], protocol_order(key[2]), key[3])):
        own = groups[key]
        members = list(dict.fromkeys(member for found in own for member in found.members))
        rows: dict[str, list[float | None]] = {}
        for found in own:
            for target, shares in found.targets.items():
                known = dict(zip(found.members, shares, strict=True))
                name = target
                while name in rows:  # another seed's pool
                    name += " (again)"
                rows[name] = [known.get(member) for member in members]
        title = ", ".join(filter(None, key))
        parts.append(f"<h3>{escape(title)}</h3>{heat_grid(HeatMap(members, rows), title)}")
    about = (
        "A row is a target, a column a member; a number is the share of the episodes, in percent, "
        "in which that member was selected. A frame marks the member of the target's own domain; "
        "'none' means that the target's pool has no such member."
    )
    return f'<section class="heat"><p>{about}</p>{"".join(parts)}</section>' if parts else ""


def _what_was_run(text: ReportText) -> str:
    body = [_plain(text.plain.get("Seeds, episodes and data", []))]
    body.append(_plain(text.plain.get("Settings of the methods", [])))
    for heading, lines in text.lists.items():
        body.append(f"<h3>{escape(heading)}</h3>")
        if heading == "Commands":
            body.append(f'<pre tabindex="0">{escape(chr(10).join(lines))}</pre>')
        else:
            body.append(_list(lines))
    return "".join(body)


def _plain(tables: Sequence[PlainTable]) -> str:
    parts = []
    for table in tables:
        note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
        parts.append(
            f'<h3>{escape(table.title)}</h3><div class="{"words" if table.words else "numbers"}">'
            f"{plain_grid(table.title, table.head, table.rows)}</div>{note}"
        )
    return "".join(parts)


def _list(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _world(world: World) -> str:
    seed = "" if world.seed is None else f"seed {world.seed}"
    sources = f"sources {join_names(world.sources, 20)}" if world.sources else ""
    return ", ".join(filter(None, (world.preset, seed, sources)))
