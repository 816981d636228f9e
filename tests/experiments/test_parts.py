"""Measuring on validation classes: the same machinery, other classes, never mixed with test."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import append_results
from polyshot.experiments.grid import read_grid
from polyshot.experiments.grid_folder import Cell
from polyshot.experiments.report import write_report
from polyshot.experiments.report.paper import paper_comparisons
from polyshot.experiments.report.summary import (
    calibration_tables,
    cost_tables,
    data_table,
    summary,
    winner_table,
)
from polyshot.experiments.report.tables import accuracy_tables
from polyshot.experiments.run import BAR, Summary
from tests.helpers import SHAPE, files_of

from .fake_grid import DOMAINS, fake_result
from .small_worlds import SMALL, run_grid

pytestmark = pytest.mark.usefixtures("one_thread", "small_shape")


def run(packs: list[Pack], out: Path, *names: str, **changes: Any) -> Summary:
    options = {"methods": ["base", "select"], "adapt": False} | changes
    return run_grid(packs, out, *names, **options)


def test_names_of_test_cells_are_what_they_were(packs: list[Pack]) -> None:
    cell = Cell(packs[0], SHAPE, "none", 4, 0)
    assert cell.name == "signs-5w2s3q-none-4e-seed0"
    other = Cell(packs[0], SHAPE, "none", 4, 0, "val")
    assert other.name == "signs-5w2s3q-none-4e-seed0-val"
    assert str(cell) == "signs, 5-way 2-shot"
    assert str(other) == "signs, validation classes, 5-way 2-shot"


def test_validation_classes_are_measured_beside_test_classes(
    packs: list[Pack], tmp_path: Path
) -> None:
    run(packs, tmp_path)
    kept = ("results", "shares", "worlds")
    before = {file: state for name in kept for file, state in files_of(tmp_path / name).items()}
    trained: set[str] = set()
    done = run(packs, tmp_path, part="val", report=lambda name, *_: trained.add(name))
    assert (done.cells, done.measured, done.before, done.failed) == (4, 4, 0, [])
    assert trained == {BAR}  # nothing is trained for it
    after = files_of(tmp_path)
    assert all(after[file] == state for file, state in before.items())
    new = {file for file in after if file.suffix in (".jsonl", ".json")} - set(before)
    assert {file.stem.split("-")[-1] for file in new if "results" in file.parts} == {"val"}
    grid = read_grid(tmp_path)
    for result in grid.results:
        pack = next(pack for pack in packs if pack.domain.name == result.target)
        drawn = EpisodeSampler(pack.domain, SHAPE, part=result.part)(0, 4)
        assert result.fingerprint == drawn.fingerprint()
        assert set(drawn.classes.flatten().tolist()) <= set(pack.domain.split.part(result.part))
    counts = [sum(result.part == part for result in grid.results) for part in ("test", "val")]
    assert counts == [4, 4]
    assert sorted(shares.part for shares in grid.shares) == ["test", "val"]
    assert all(set(shares.targets) == {"signs", "textures"} for shares in grid.shares)
    assert run(packs, tmp_path, part="val").measured == 0


def test_an_interrupted_grid_of_validation_classes_goes_on(
    packs: list[Pack], tmp_path: Path
) -> None:
    def stop(name: str, done: int, _: int) -> None:
        if name == BAR and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(packs, tmp_path, part="val", report=stop)
    done = run(packs, tmp_path, part="val")
    assert (done.before, done.measured) == (3, 1)


def test_another_protocol_takes_the_shares_of_its_part(packs: list[Pack], tmp_path: Path) -> None:
    run(packs, tmp_path, part="val", methods=["select"], others=[])
    options: dict[str, Any] = {"methods": ["select"], "others": []}
    assert run(packs, tmp_path, "sources-2", part="val", **options).measured == 0
    assert run(packs, tmp_path, "sources-2", **options).measured == 2  # of test classes
    parts = [(shares.protocol, shares.part) for shares in read_grid(tmp_path).shares]
    assert sorted(parts) == [("seen", "val"), ("sources-2", "test"), ("sources-2", "val")]


def test_targets_without_validation_classes_are_left_out(packs: list[Pack], tmp_path: Path) -> None:
    done = run(packs, tmp_path, "unseen", part="val", methods=["base"])
    assert (done.cells, done.failed) == (2, [])
    assert {result.target for result in read_grid(tmp_path).results} == {"signs", "textures"}
    with pytest.raises(PolyshotError, match=r"^other has no validation classes: leave it out"):
        run(packs, tmp_path, "unseen", part="val", targets=["other"])


def test_contributions_stay_on_test_classes(packs: list[Pack], tmp_path: Path) -> None:
    run(packs, tmp_path, "contributions", part="val", targets=["signs", "other"])
    names = [file.stem for file in (tmp_path / "contributions").iterdir()]
    assert len(names) == 2 and all(name.endswith("seed0") for name in names)


@pytest.mark.parametrize(
    ("part", "message"),
    [("vall", "Did you mean 'val'"), ("train", "no part 'train' to measure on, only test, val")],
)
def test_other_parts_are_refused_before_any_work(
    packs: list[Pack], tmp_path: Path, part: str, message: str
) -> None:
    with pytest.raises(PolyshotError, match=message) as refused:
        run(packs, tmp_path / "grid", part=part)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "grid").exists()


# --- the report


def both_parts() -> list[Any]:
    return [
        fake_result(method, target, protocol, part=part, draw=f"{target}-{part}")
        for part in ("val", "test")
        for protocol in ("seen", "unseen")
        for target in ("gtsrb", "cars", "omniglot")
        for method in ("base", "select", "average")
    ]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["test", "val", "all"]),
            st.sampled_from(sorted(DOMAINS)),
            st.sampled_from(["base", "select", "feat"]),
            st.sampled_from(["seen", "unseen"]),
        ),
        min_size=1,
        unique=True,
    )
)
def test_no_table_mixes_parts(cells: list[tuple[str, str, str, str]]) -> None:
    results = [
        fake_result(method, target, protocol, part=part, draw=f"{target}-{part}", episodes=3)
        for part, target, method, protocol in cells
    ]
    tables = accuracy_tables(results)
    shown = [
        result
        for table in tables
        for column in table.columns.values()
        for result in column.values()
        if result.part == table.part
    ]
    assert sorted(r.to_json() for r in shown) == sorted(r.to_json() for r in results)
    assert len({table.title for table in tables}) == len(tables)
    for table in tables:
        assert ("validation classes" in table.title) == (table.part == "val")


def test_words_about_the_paper_are_about_test_classes() -> None:
    results = both_parts()
    tables = accuracy_tables(results)
    assert [table.part for table in tables] == ["test", "test", "val", "val"]
    assert {each.table.part for each in paper_comparisons(tables)} == {"test"}
    said = summary(tables)
    assert sum("validation classes" in line for line in said) == 2  # who is best, in each protocol
    only = [table for table in tables if table.part == "test"]
    assert [line for line in said if "validation" not in line] == summary(only)
    assert len(winner_table(tables).rows) == 2 * len(winner_table(only).rows)
    (cost,) = cost_tables(results)
    assert "validation" not in cost.title
    (cost,) = cost_tables([result for result in results if result.part == "val"])
    assert "validation classes" in cost.title
    titles = [table.title for table in calibration_tables(results)]
    assert [title.count("validation classes") for title in titles] == [0, 0, 1, 1]


def test_the_page_names_the_classes(tmp_path: Path) -> None:
    append_results(tmp_path / "results" / "a.jsonl", both_parts())
    page, text, tex = (path.read_text(encoding="utf-8") for path in write_report(tmp_path))
    title = "strong, seen (trained on all sources, tested on new classes of each), "
    for written in (page, text, tex):
        assert f"{title}validation classes, 5-way 5-shot" in written
        assert f"{title}5-way 5-shot" in written
    table = data_table(read_grid(tmp_path))
    assert [row[:3:2] for row in table.rows][:2] == [("cars", "test"), ("cars", "val")]


# --- seeds


def test_seeds_start_at_the_configs(packs: list[Pack], tmp_path: Path) -> None:
    run(packs, tmp_path, methods=["base"], seeds=2, config=replace(SMALL, seed=1))
    assert {result.train_seed for result in read_grid(tmp_path).results} == {1, 2}
