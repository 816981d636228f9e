"""The tables of README and docs are what their rows say, and the tool tells where they are not."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest

from polyshot.evaluation.results import Result, read_results, read_runs, write_results

ROOT = Path(__file__).parents[1]


_READ: dict[bytes, list[Result]] = {}


def read_once(file: Path) -> list[Result]:
    """Read a file of results, or copy what was read from one with the same bytes."""
    key = sha256(file.read_bytes()).digest()
    if key not in _READ:
        _READ[key] = read_results(file)
    return list(_READ[key])


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import tables

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "read_results", read_once)
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
    file = checkout / "results" / "seeds.parquet"
    rows = read_results(file)
    changed = next(i for i, r in enumerate(rows) if (r.method, r.protocol) == ("auto", "seen"))
    worse = [0.0] * rows[changed].episodes
    rows[changed] = replace(rows[changed], per_episode=worse, mean=0.0)
    write_results(file, rows)
    before = (checkout / "README.md").read_text(encoding="utf-8")
    assert run(tool, checkout, "--check") == 1
    lines = capsys.readouterr().out.splitlines()
    assert all("differs from results/ (run 'make tables')" in line for line in lines)
    assert {line.split()[0] for line in lines} == {"README.md", "docs/results/seeds.md"}
    assert (checkout / "README.md").read_text(encoding="utf-8") == before
    assert run(tool, checkout) == 0 and run(tool, checkout, "--check") == 0
    assert (checkout / "README.md").read_text(encoding="utf-8") != before


def test_a_changed_number_in_a_page_shows(
    tool: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = checkout / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("81.9 ±0.2,", "91.9 ±0.2,", 1), encoding="utf-8")
    assert run(tool, checkout, "--check") == 1
    said = capsys.readouterr().out
    assert "91.9 ±0.2" in said.split(" -> ")[0] and "81.9 ±0.2" in said.split(" -> ")[1]


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
    assert runs["rivals"].clean is False and runs["seeds"].clean
    assert "uncommitted changes: run `rivals`.*" in tool.table("rivals-dtd", store)
    assert "uncommitted" not in tool.table("seeds-domains", store)


def test_a_cell_is_one_row_of_each_place(tool: ModuleType) -> None:
    rows = tool.Store(ROOT / "results").find({"table": "seeds", "method": "base", "shot": 5})
    with pytest.raises(tool.PolyshotError, match="two rows of base"):
        tool.keyed(rows, ("target",))
