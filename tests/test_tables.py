"""The tables of README and docs are what their rows say, and the tool tells where they are not."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from polyshot.evaluation.results import (
    Result,
    read_results,
    read_runs,
    read_table,
    write_results,
)
from polyshot.util.files import read_json, write_json, write_text
from tests.experiments.fake_grid import fake_result

ROOT = Path(__file__).parents[1]


_READ: dict[bytes, list[Result]] = {}


def read_once(file: Path) -> list[Result]:
    """Read a file of results, or copy what was read from one with the same bytes."""
    key = sha256(file.read_bytes()).digest()
    if key not in _READ:
        _READ[key] = read_results(file)
    return list(_READ[key])


_MADE: dict[tuple[str, bytes], str] = {}


def made_once(table: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    """Make a table once of the same rows: most tests change a page, or one file of results."""

    def make(name: str, store: Any) -> str:
        if "content" not in vars(store):  # of a run of the tool
            files = sorted(store.folder.iterdir())
            store.content = sha256(b"".join(file.read_bytes() for file in files)).digest()
        if (name, store.content) not in _MADE:
            _MADE[name, store.content] = table(name, store)
        return _MADE[name, store.content]

    return make


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import tables

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "read_results", read_once)
            patch.setattr(tables, "table", made_once(tables.table))
            yield tables
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def run(tool: ModuleType, root: Path, *options: str) -> int:
    code: int = tool.main(["--root", str(root), *options])
    return code


def test_the_pages_are_what_their_rows_say(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tool, ROOT, "--check") == 0, capsys.readouterr().out


def test_a_changed_row_shows_and_is_written(
    tool: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkout / "results" / "rivals.parquet"
    rows = read_results(file)
    place = "strong", "auto", "seen", "none"
    changed = next(
        i
        for i, r in enumerate(rows)
        if (r.run, r.method, r.protocol, r.adaptation) == place and r.shot == 5
    )
    worse = [0.0] * rows[changed].episodes
    rows[changed] = replace(rows[changed], per_episode=worse, mean=0.0)
    write_results(file, rows)
    before = (checkout / "README.md").read_text(encoding="utf-8")
    assert run(tool, checkout, "--check") == 1
    lines = capsys.readouterr().out.splitlines()
    assert all("differs from results/ (run 'make tables')" in line for line in lines)
    assert {line.split()[0] for line in lines} == {"README.md", "docs/results/rivals.md"}
    assert (checkout / "README.md").read_text(encoding="utf-8") == before
    assert run(tool, checkout) == 0 and run(tool, checkout, "--check") == 0
    assert (checkout / "README.md").read_text(encoding="utf-8") != before


def test_a_changed_number_in_a_page_shows(
    tool: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = checkout / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("81.8 ±0.2,", "91.8 ±0.2,", 1), encoding="utf-8")
    assert run(tool, checkout, "--check") == 1
    said = capsys.readouterr().out
    assert "91.8 ±0.2" in said.split(" -> ")[0] and "81.8 ±0.2" in said.split(" -> ")[1]


def test_tables_that_nobody_knows_or_shows(
    tool: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = checkout / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("table: readme", "table: redme"), encoding="utf-8")
    assert run(tool, checkout, "--check") == 2
    assert "No table is called 'redme'" in capsys.readouterr().err
    page.write_text("nothing here", encoding="utf-8")
    assert run(tool, checkout, "--check") == 2
    assert "No page has the tables readme." in capsys.readouterr().err


def test_rows_of_changed_checkouts_are_named_below_their_table(tool: ModuleType) -> None:
    store = tool.Store(ROOT / "results")
    runs = read_runs(ROOT / "results" / "runs.json")
    assert runs["paper"].clean is False and runs["seeds"].clean
    assert "uncommitted changes: run `paper`.*" in tool.table("paper-seen", store)
    assert "uncommitted" not in tool.table("seeds-domains", store)


def test_a_cell_is_one_row_of_each_place(tool: ModuleType) -> None:
    rows = tool.Store(ROOT / "results").find({"table": "seeds", "method": "base", "shot": 5})
    with pytest.raises(tool.PolyshotError, match="two rows of base"):
        tool.keyed(rows, ("target",))


def test_budgets_are_those_of_the_rows(tool: ModuleType) -> None:
    rows = tool.Store(ROOT / "results").find({"table": "paper", "run": "paper", "protocol": "seen"})
    by_method = {row.method: row for row in rows}
    wanted = {
        "base": "none", "finetune": "none", "feat": "32,000", "select": "32,000",
        "simple-avg": "80,000",
    }  # fmt: skip
    assert {name: tool.budget([by_method[name]]) for name in wanted} == wanted
    noted = replace(by_method["feat"], training_episodes=28000)
    assert tool.budget([noted, by_method["select"]]) == "28,000 to 32,000"


def test_the_page_of_the_paper_fills_in(tool: ModuleType, checkout: Path) -> None:
    """Rows of a run by that name stand beside the paper's; what has none says so."""
    (checkout / "results" / "paper.parquet").unlink(missing_ok=True)
    store = tool.Store(checkout / "results")
    assert tool.table("paper-seen", store).count("not measured") == 9 * 9
    rows = store.find({"table": "rivals", "run": "strong", "protocol": "seen"})
    runs = read_json(checkout / "results" / "runs.json")
    write_json(checkout / "results" / "runs.json", {**runs, "paper": runs["strong"]})
    joint = [replace(r, protocol="joint") for r in rows if r.method in ("base", "select")]
    own = [replace(row, run="paper") for row in [*rows, *joint]]
    write_results(checkout / "results" / "paper.parquet", own)
    store = tool.Store(checkout / "results")
    text = tool.table("paper-seen", store)
    means = {
        (r.target, r.method): f"{100 * r.mean:.1f}"
        for r in rows
        if r.shot == 5 and r.adaptation == "none"
    }
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    assert f"| {means['gtsrb', 'select']} (96.5) |" in lines["gtsrb"]
    assert f"| {means['cars', 'select']} (62.9) |" in lines["aircraft; ours: cars"]
    assert lines["dtd"].count("not measured") == 9  # never a source with us
    seven = ("cars", "cifar100", "gtsrb", "imagenet", "omniglot", "actions", "flowers")
    mean = sum(float(means[name, "average"]) for name in seven) / 7
    columns = text.splitlines()[0].strip("| ").split(" | ")  # the corner is empty
    averages = lines["**average, those measured of DoS**"].strip("| ").split(" | ")[1:]
    by_name = dict(zip(columns, averages, strict=True))
    assert by_name["ProtoMAML"].startswith("not measured")  # its rows are of another training
    shown = re.fullmatch(r"([0-9.]+) ±0\.\d \(([0-9.]+)\)", by_name["DoA"])
    assert shown and float(shown[1]) == pytest.approx(mean, abs=0.06)
    assert float(shown[2]) == pytest.approx(
        (42.82 + 62.96 + 82.93 + 57.83 + 95.54 + 69.68 + 83.63) / 7, abs=0.06
    )
    claims = tool.table("paper-claims", store)
    (line,) = [line for line in claims.splitlines() if line.startswith("| DoS beats FEAT |")]
    assert line.count("holds: +0.4 ±0.1") == 2  # ours, and where it was taken from
    assert "| base + prototypes |" in tool.table("paper-joint", store)
    assert "(0.0 ±0.0)" in tool.table("paper-joint", store)  # the same rows
    against = tool.table("paper-against", store)
    (line,) = [line for line in against.splitlines() if line.startswith("| FEAT |")]
    assert line.startswith("| FEAT | +0.4 ±0.1 (+6.9) |") and line.count("not measured") == 2
    assert "| DoS - DoA, seen | not measured (+0.1) |" in tool.table("paper-leads-sources", store)
    growing = tool.table("paper-growing", store)
    pair = sum(float(means[name, "select"]) for name in ("cifar100", "imagenet")) / 2
    (line,) = [line for line in growing.splitlines() if "seen | DoS |" in line][:1]
    assert line.count("not measured") == 3 and float(line.split(" | ")[-1].strip(" |")) == (
        pytest.approx(pair, abs=0.11)
    )
    figure = tool.table("paper-figure-seen-5", store)
    assert "| **average** |" in figure and "82.4 (-0.1 ±0.1)" in figure
    assert run(tool, checkout) == 0 and run(tool, checkout, "--check") == 0
    page = (checkout / "docs" / "results" / "paper.md").read_text(encoding="utf-8")
    assert text in page


def test_what_a_grid_notes_is_filed(tmp_path: Path) -> None:
    """Rows, selections and contributions go to their tables; a second part is added."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import file_results
    finally:
        sys.path.remove(str(ROOT / "tools"))
    grid, kept = tmp_path / "grid", tmp_path / "kept"
    world = "tiny-2-sources-seed3-abc"
    about = {"protocol": "seen", "preset": "tiny", "method": "select", "sources": ["a", "b"]}
    shares = {"members": ["base", "a", "b"], "targets": ["a"], "shares": [[0.0, 1.0, 0.0]]}
    correct = {"members": ["a", "b"], "correct": [[3, 1], [2, 2]]}
    contributions = {
        **about, "protocol": "contributions", "train_seed": 3, "target": "a", "queries": 4,
        "methods": {"average": correct},
    }  # fmt: skip
    write_json(grid / "environment.json", {"code": "0.1.0", "commands": ["polyshot reproduce"]})
    write_json(grid / "shares" / f"seen-{world}-select-123.json", {**about, **shares})
    write_json(grid / "contributions" / f"{world}-contributions.json", contributions)
    row = fake_result("select", "a")
    write_text(grid / "results" / world / "one.jsonl", row.to_json() + "\n")
    words = [str(grid), "paper", "--run", "paper", "--commit", "abc123", "--results", str(kept)]
    assert file_results.main(words) == 0
    assert read_runs(kept / "runs.json")["paper"].commit == "abc123"
    assert read_runs(kept / "runs.json")["paper"].clean
    (share,) = read_table(kept / "shares.parquet")
    assert (share["target"], share["train_seed"], share["shares"]) == ("a", 3, [0.0, 1.0, 0.0])
    members = {r["member"]: r["correct"] for r in read_table(kept / "contributions.parquet")}
    assert members == {"a": [3, 2], "b": [1, 2]}
    (grid / "results" / world / "one.jsonl").unlink()
    write_text(grid / "results" / world / "two.jsonl", fake_result("select", "b").to_json() + "\n")
    write_json(
        grid / "shares" / f"seen-{world}-select-123.json", {**about, **shares, "targets": ["b"]}
    )
    assert file_results.main([*words, "--add"]) == 0
    assert {r.target for r in read_results(kept / "paper.parquet")} == {"a", "b"}
    assert {r["target"] for r in read_table(kept / "shares.parquet")} == {"a", "b"}
    assert len(read_table(kept / "contributions.parquet")) == 2
    assert file_results.main([*words[:-4], "--commit", "other", *words[-2:], "--add"]) == 2
    assert file_results.main(words) == 0  # without --add the run begins anew
    assert {r.target for r in read_results(kept / "paper.parquet")} == {"b"}
