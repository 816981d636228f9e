"""The report: self-contained, escaped everywhere, complete, and true to its numbers."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyshot.cli.experiments import report
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import append_results, write_results
from polyshot.experiments.report import write_report
from polyshot.experiments.report.pages import latex_escape, markdown_escape
from tests.experiments.fake_grid import NASTY, Checked, fake_result, write_grid

AWKWARD = "50% <b> & a_b|c {x} $y$ #1 ~^\\ [link](x) `code`"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    write_grid(folder, protocols=("seen", "unseen", "sources-2"), seeds=(0, 1), episodes=30)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(grid: Path) -> Checked:
    return Checked((grid / "report" / "index.html").read_text(encoding="utf-8"))


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]


def test_the_files(grid: Path, tmp_path: Path) -> None:
    names = ["index.html", "tables.md", "tables.tex"]
    assert sorted(path.name for path in (grid / "report").iterdir()) == names
    paths = write_report(grid, tmp_path / "else" / "where")
    assert paths == [tmp_path / "else" / "where" / name for name in names]
    for path in paths:  # the same numbers, the same files
        assert path.read_bytes() == (grid / "report" / path.name).read_bytes()


def test_a_file_of_results_is_enough(tmp_path: Path) -> None:
    results = [fake_result(method) for method in ("base", "select")]
    append_results(tmp_path / "grid" / "results" / "a.jsonl", results)
    append_results(tmp_path / "a.jsonl", results)
    write_results(tmp_path / "b.parquet", results)
    first, *others = (
        [path.read_bytes() for path in write_report(tmp_path / name, tmp_path / f"of {name}")]
        for name in ("grid", "a.jsonl", "b.parquet")
    )
    assert others == [first, first]
    assert write_report(tmp_path / "a.jsonl")[0] == tmp_path / "report" / "index.html"


def test_the_files_of_pages_are_packaged() -> None:
    """Templates and the style sheet are no modules: without a word in pyproject they are lost."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["polyshot"]
    package = root / "src" / "polyshot"
    files = [file for file in (package / "experiments").rglob("*") if file.is_file()]
    for file in files:
        if file.suffix not in (".py", ".pyc"):
            place = file.relative_to(package)
            assert any(place.match(pattern) for pattern in patterns), place


def test_nothing_is_fetched_and_nothing_runs(grid: Path, page: Checked) -> None:
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "form", "img", "image", "use"}
    policy = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy and "default-src 'none'" in str(policy[0])
    text = (grid / "report" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|\son\w+=", text)


def test_links_lead_to_parts_of_the_page(page: Checked) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(link["href"]) for link in page.all("a")]
    assert [link.removeprefix("#") for link in links] == ids


def test_all_parts_are_there(page: Checked) -> None:
    for heading in (
        *("In short", "Best on average", "Accuracies: strong", "Ours beside the paper's"),
        *("What each member contributes", "What the selector chose", "What a task costs"),
        *("Number of parameters", "Training curves", "What was run", "Settings and notes"),
        *("Commands", "Failures", "How far to trust the probabilities"),
    ):
        assert heading in page.text, heading
    assert "tadam on dtd: loss is not a number at update 40 (noon)" in page.text
    assert "4 values were not numbers" in page.text
    assert "polyshot reproduce packs" in page.text and "1ee3633" in page.text
    assert "for new trainings (Student's t over the seeds)" in page.text
    assert "did not converge" in page.text
    assert "dtd (strong, contributions, seed 0)" in page.text
    assert [fold.get("open", "shut") for fold in page.all("details")] == [None, "shut", "shut"]
    assert "abababababababab (noted, but not what was measured)" in page.text
    # 3 protocols, 2 shots, with and without adaptation
    assert len([f for f in page.all("figure") if f.get("class") == "bars"]) == 12


def test_everybody_can_read_it(grid: Path, page: Checked) -> None:
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(head.get("scope") in ("col", "row", "rowgroup") for head in page.all("th"))
    boxes = [e for e in page.all("div") if "box" in str(e.get("class")).split()]
    assert all(e["tabindex"] == "0" and e["aria-label"] for e in boxes)
    text = (grid / "report" / "index.html").read_text(encoding="utf-8")
    assert "@media print" in text and "width=device-width" in text


def test_cells_are_the_results(tmp_path: Path) -> None:
    base, select = fake_result("base"), fake_result("select")
    append_results(tmp_path / "results" / "a.jsonl", [base, select])
    write_report(tmp_path)
    checked = Checked((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    cells = next(line for line in checked.cells if line[0] == "gtsrb" and "reference" in line[1])
    assert cells[1].startswith(f"{100 * base.mean:.1f} ± {100 * base.half_width:.1f}")
    assert f"{100 * select.mean:.1f} ± {100 * select.half_width:.1f}" in cells[2]
    rows = markdown_rows((tmp_path / "report" / "tables.md").read_text(encoding="utf-8"))
    assert f" {100 * base.mean:.1f} ± {100 * base.half_width:.1f} " in rows[2]
    for section in ("What the selector chose", "Training curves", "What each member"):
        assert section not in checked.text


def test_calibration_is_averaged_over_targets_and_seeds(tmp_path: Path) -> None:
    errors = {
        ("base", "gtsrb", 0): 0.02, ("base", "gtsrb", 1): 0.04, ("base", "cars", 0): 0.05,
        ("select", "gtsrb", 0): 0.1, ("feat", "gtsrb", 0): None, ("base", "dtd", 0): 0.2,
        ("feat", "cars", 0): 0.3, ("select", "cars", 0): 0.0, ("select", "dtd", 0): 0.123,
    }  # fmt: skip
    results = [
        fake_result(method, target, train_seed=seed, calibration_error=error)
        for (method, target, seed), error in errors.items()
    ]
    append_results(tmp_path / "results" / "a.jsonl", results)
    page, text, tex = (path.read_text(encoding="utf-8") for path in write_report(tmp_path))
    title = "Calibration: strong, seen, 5-way 5-shot"
    expected = [
        ["method", "seen domains", "unseen domains"],
        ["base", "4.0", "20.0"],  # (3 + 5) / 2
        ["feat", "not measured", "not measured"],  # of one target there is no number
        ["select", "5.0", "12.3"],
    ]
    after = text.split(f"### {title}\n")[1]
    rows = [[cell.strip() for cell in row] for row in markdown_rows(after.split("##")[0])]
    assert [rows[0], *rows[2:]] == expected
    assert [line for line in Checked(page).cells if line in expected[1:]] == expected[1:]
    for row in expected:
        assert f"{' & '.join(row)} \\\\" in tex.split(title)[1]


def test_results_of_old_versions_have_no_calibration(tmp_path: Path) -> None:
    old = [fake_result(method, calibration_error=None) for method in ("base", "select")]
    append_results(tmp_path / "results" / "a.jsonl", old)
    for path in write_report(tmp_path):
        text = path.read_text(encoding="utf-8")
        assert "alibration" not in text and "How far to trust" not in text


def test_only_a_clear_best_is_bold(tmp_path: Path) -> None:
    clear = [fake_result(m) for m in ("base", "simple-avg")]
    equal = [replace(r, target="cars", draw="cars") for r in (clear[0], clear[0])]
    equal[1] = replace(equal[1], method="simple-avg")
    append_results(tmp_path / "results" / "a.jsonl", [*clear, *equal])
    page, text, tex = (path.read_text(encoding="utf-8") for path in write_report(tmp_path))
    mean = f"{100 * clear[0].mean:.1f}"
    assert page.count('<b class="best">') == 2  # gtsrb, and the average of both
    rows = {row[0].strip(): row for row in markdown_rows(text)}
    assert f"**{mean}**" in rows["gtsrb, seen"][1] and "**" not in "".join(rows["cars, seen"])
    assert rf"gtsrb, seen & $\mathbf{{{mean}}} \pm" in tex
    assert re.search(r"cars, seen & \$\d", tex)


def test_what_was_not_measured_says_so(grid: Path, page: Checked) -> None:
    lines = [line for line in page.cells if line[0] == "dtd" and "not measured" in line]
    assert len(lines) == 12  # tadam failed on dtd: in every table of accuracies
    assert "not measured" in (grid / "report" / "tables.tex").read_text(encoding="utf-8")


def test_markdown_tables_are_whole(grid: Path) -> None:
    text = (grid / "report" / "tables.md").read_text(encoding="utf-8")
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(markdown_rows(line)[0])
        assert width in (0, cells)
        width = cells
    assert "## Failures" in text and "paper 96.5" in text


def test_latex_is_whole(grid: Path) -> None:
    text = (grid / "report" / "tables.tex").read_text(encoding="utf-8")
    _check_latex(text)
    assert text.count(r"\clearpage") == text.count(r"\end{table*}") // 8
    assert r"95 \% interval" in text and r"$\pm$" in text


def _check_latex(text: str) -> None:
    """No TeX is at hand: check braces, environments, and that rows fit their columns."""
    bare = re.sub(r"(?m)(?<!\\)%.*$", "", text.replace(r"\\", "\x00"))
    bare_braces = re.sub(r"\\[{}]", "", bare)
    depth = 0
    for mark in bare_braces:
        depth += (mark == "{") - (mark == "}")
        assert depth >= 0
    assert depth == 0
    open_environments: list[str] = []
    columns = 0
    for line in bare.splitlines():
        for word, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", line):
            if word == "begin":
                open_environments.append(name)
            else:
                assert open_environments.pop() == name
        if found := re.search(r"\\begin\{tabular\}\{(l+r*)\}", line):
            columns = len(found[1])
        if line.endswith("\x00"):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
        assert not re.search(r"(?<!\\)[#_]", line)
    assert not open_environments


@pytest.mark.parametrize("name", [NASTY, AWKWARD])
def test_names_are_escaped_everywhere(tmp_path: Path, name: str) -> None:
    results = [
        fake_result(
            *(method, target, "seen", name),
            seen=True, draw=target, device=name, note=name, sources=[name], version=name,
            settings={name: 1.0},
        )
        for method in ("base", name)
        for target in (name, "cars")
    ]  # fmt: skip
    append_results(tmp_path / "results" / "a.jsonl", results)
    write_extras(tmp_path, name)
    page, text, tex = (path.read_text(encoding="utf-8") for path in write_report(tmp_path))
    checked = Checked(page)
    assert not checked.all("script") and "<b>" not in page
    assert checked.text.count(name) >= 20
    widths = {len(row) for row in markdown_rows(text)}
    assert "<script" not in text and "<b>" not in text and min(widths) > 1
    _check_latex(tex)


def write_extras(folder: Path, name: str) -> None:
    shares = {
        "protocol": name, "preset": name, "sources": [name], "method": name, "members": [name],
        "targets": [name], "shares": [[1.0]],
    }  # fmt: skip
    contributions = {
        "protocol": name, "preset": name, "target": name, "sources": [], "queries": 5,
        "methods": {name: {"members": [name], "correct": [[1], [2]]}},
    }  # fmt: skip
    files = {
        "shares/a.json": shares,
        "contributions/a.json": contributions,
        "failures/a.json": {"what": name, "error": name, "when": name},
        "environment.json": {"code": name, "commands": [name], "packs": {name: name}},
        "worlds/w/world.json": {"preset": name, "seed": 0, "sources": [name]},
    }
    for file, value in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps(value), encoding="utf-8")
    lines = [{"step": name, "number": i, "loss": 1.0} for i in range(3)]
    (folder / "worlds" / "w" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_escapes() -> None:
    assert markdown_escape("a_b|c<d>&*e*\nf") == r"a\_b\|c&lt;d&gt;&amp;\*e\* f"
    assert latex_escape("50% a_b & {c} <d> \\") == (
        r"50\% a\_b \& \{c\} \textless{}d\textgreater{} \textbackslash{}"
    )


def test_pools_of_left_out_targets_share_one_heat_map(page: Checked) -> None:
    heads = [line for line in page.cells if line[0] == "Target"]
    assert len(heads) == 3  # one a protocol, though unseen targets have a pool each
    lines = [line for line in page.cells if line[0] == "gtsrb" and "none" in line]
    assert len(lines) == 1 and len(lines[0]) == len(heads[1])


def test_another_seeds_pool_gets_a_row_of_its_own(tmp_path: Path) -> None:
    append_results(tmp_path / "results" / "a.jsonl", [fake_result()])
    write_extras(tmp_path, "x")
    (tmp_path / "shares" / "b.json").write_text((tmp_path / "shares" / "a.json").read_text())
    page, *_ = write_report(tmp_path)
    assert "x (again)" in Checked(page.read_text(encoding="utf-8")).text


def test_leaders_among_members(tmp_path: Path) -> None:
    append_results(tmp_path / "results" / "a.jsonl", [fake_result()])
    write_extras(tmp_path, "x")
    file = tmp_path / "contributions" / "a.json"
    about = json.loads(file.read_text())
    correct = [[5, 1, 0], [4, 4, 0], [1, 3, 0], [0, 2, 4]]
    about["methods"] = {"average": {"members": ["a", "b", "c"], "correct": correct}}
    file.write_text(json.dumps(about))
    page, *_ = write_report(tmp_path)
    checked = Checked(page.read_text(encoding="utf-8"))
    assert "right on 2.0 of 5 queries on average. a or b is best" in checked.text
    assert "in 3 of 4 episodes; 3 of 3 members are best at least once" in checked.text
    assert ["a", "2.5", "2 of 4"] in checked.cells


def test_mixed_draws_and_bad_places(tmp_path: Path) -> None:
    file = tmp_path / "results" / "a.jsonl"
    append_results(file, [fake_result("base"), fake_result("select", draw="other")])
    with pytest.raises(PolyshotError, match="same seed and shape"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()
    file.unlink()
    append_results(file, [fake_result()])
    (tmp_path / "taken").write_text("")
    with pytest.raises(PolyshotError, match="cannot be written"):
        write_report(tmp_path, tmp_path / "taken")


def test_the_command(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(report)
    append_results(tmp_path / "results" / "a.jsonl", [fake_result()])
    done = CliRunner().invoke(app, [str(tmp_path), "--out", str(tmp_path / "r")])
    assert done.exit_code == 0, done.output
    assert f"Look at {tmp_path / 'r' / 'index.html'}" in done.output
    missing = CliRunner().invoke(app, [str(tmp_path / "missing")])
    assert isinstance(missing.exception, PolyshotError)
