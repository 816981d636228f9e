"""`polyshot evaluate --shape meta-dataset`: tasks of variable ways and uneven shots."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyshot.cli import main
from polyshot.data.pack import Pack, PackWriter
from polyshot.data.shapes import VariableShape
from polyshot.evaluation.evaluate import evaluate
from polyshot.evaluation.results import read_results
from polyshot.experiments.report.tables import accuracy_tables
from polyshot.pool.pool import Pool
from tests.helpers import SIZE, pack_of, random_pool

SIZES = {"uneven": [6, 9, 12, 7, 20, 8, 15, 5], "few": [9, 9, 9, 9]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool, and two packs: one of them has too few classes."""
    made = tmp_path_factory.mktemp("evaluate")
    random_pool().save(made / "pool")
    for name, sizes in SIZES.items():
        drawn = pack_of(sizes, name)
        with PackWriter(made / "packs" / name, SIZE) as writer:
            writer.append(np.asarray(drawn.images))
            writer.finish(drawn.domain, {"reader": "test"})
    return made


class Told:
    """Runs the command in the test's own process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as end:
            main(["evaluate", *map(str, arguments)])
        captured = self.capsys.readouterr()
        assert int(end.value.code or 0) == code, captured.err
        if not code:
            return captured.out
        lines = [line for line in captured.err.splitlines() if line.strip() and "━" not in line]
        assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
        return lines[0]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], wide_terminal: None) -> Told:
    return Told(capsys)


def test_a_pool_without_a_selector_is_measured_by_the_rules_that_it_can_follow(
    folder: Path, tmp_path: Path, told: Told
) -> None:
    replace(random_pool(), selector=None).save(tmp_path / "plain")
    named = (
        "--pool",
        tmp_path / "plain",
        "--episodes",
        5,
        "--targets",
        "few",
        "--shot",
        2,
        "--queries",
        4,
    )
    told(folder / "packs", *named, "--way", 3, "--part", "all", "--out", tmp_path / "rows.jsonl")
    rows = read_results(tmp_path / "rows.jsonl")
    assert {row.method for row in rows} == {"base", "auto", "average"}
    assert "select" in told(folder / "packs", *named, "--methods", "select", code=2)


VARIABLE = ("--shape", "meta-dataset", "--episodes", 5)


def test_rows_table_and_page_say_the_shape(folder: Path, tmp_path: Path, told: Told) -> None:
    out, page = tmp_path / "rows.jsonl", tmp_path / "page.html"
    said = told(
        folder / "packs" / "uneven", "--pool", folder / "pool", *VARIABLE,
        "--methods", "average", "--adapt", "head", "--out", out, "--page", page,
        "--confusion", tmp_path / "pictures",
    )  # fmt: skip
    assert "Tasks of 5 to 50 ways, uneven shots" in said and "uneven" in said
    rows = read_results(out)
    assert [(r.method, r.adaptation) for r in rows] == [
        ("base", "none"), ("average", "none"), ("base", "head"), ("average", "head"),
    ]  # fmt: skip
    assert {(r.shape, r.way, r.shot, r.queries) for r in rows} == {("meta-dataset", 0, 0, 0)}
    pack, pool = Pack.open(folder / "packs" / "uneven"), Pool.load(folder / "pool")
    expected = evaluate(pool, pack, ["base", "average"], VariableShape(), 5, adapt=["head"])
    assert [r.per_episode for r in rows] == [r.per_episode for r in expected]
    text = page.read_text(encoding="utf-8")
    assert "5 to 50 ways, uneven shots" in text and "0-way" not in text
    assert (tmp_path / "pictures" / "uneven.png").is_file()


def test_a_report_of_such_rows_names_the_shape(folder: Path) -> None:
    pack, pool = Pack.open(folder / "packs" / "uneven"), Pool.load(folder / "pool")
    (table,) = accuracy_tables(evaluate(pool, pack, ["base", "average"], VariableShape(), 5))
    assert "5 to 50 ways, uneven shots" in table.title and table.chance is None


def test_a_fixed_shape_is_the_usual_one(folder: Path, tmp_path: Path, told: Told) -> None:
    arguments = (folder / "packs" / "uneven", "--pool", folder / "pool", "--episodes", 4)
    for name, more in (("one", ()), ("two", ("--shape", "fixed"))):
        numbers = ("--shot", 2, "--queries", 3, "--out", tmp_path / f"{name}.jsonl")
        assert "uneven shots" not in told(*arguments, *numbers, *more)
    assert read_results(tmp_path / "one.jsonl") == read_results(tmp_path / "two.jsonl")


@pytest.mark.parametrize("number", ["--way", "--shot", "--queries"])
def test_numbers_that_the_shape_draws_itself_are_refused(
    number: str, folder: Path, told: Told
) -> None:
    line = told(folder / "packs", "--pool", folder / "pool", *VARIABLE, number, 5, code=2)
    assert "leave out --way, --shot and --queries" in line


def test_what_cannot_be_is_refused_in_one_line(folder: Path, told: Told) -> None:
    line = told(folder / "packs", "--pool", folder / "pool", "--shape", "meta", code=2)
    assert "no shape 'meta'" in line and "meta-dataset" in line
    few = folder / "packs" / "few"
    line = told(few, "--pool", folder / "pool", *VARIABLE, code=2)
    assert "few: 4 classes in the part 'test', 5 ways are asked for" in line
    assert "fixed shape" in line


def test_own_images_are_measured_so_too(
    folder: Path, image_folder: object, tmp_path: Path, told: Told
) -> None:
    sizes = {"ant": 4, "bee": 7, "cat": 5, "dog": 9, "elk": 6, "fox": 1}
    photos = image_folder(**sizes)  # type: ignore[operator]
    page = tmp_path / "photos.html"
    said = told(photos, "--pool", folder / "pool", *VARIABLE, "--methods", "base", "--page", page)
    assert "1 of 6 classes have fewer than 2 images and are left out: fox" in said
    assert "Tasks of 5 to 50 ways, uneven shots" in said
    assert "5 to 50 ways, uneven shots a task" in page.read_text(encoding="utf-8")
