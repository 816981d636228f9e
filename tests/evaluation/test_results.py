"""Results on disk: JSON lines while a grid runs, Parquet tables that are kept."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import (
    Result,
    Run,
    append_results,
    read_results,
    read_runs,
    read_table,
    write_results,
    write_table,
)

ROOT = Path(__file__).parents[2]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
whole = st.integers(0, 2**53)
number = st.floats(allow_nan=False, allow_infinity=False)


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


results = st.builds(
    Result,
    method=text, target=text, seen=maybe(st.booleans()), way=whole, shot=whole, queries=whole,
    part=text, adaptation=text, seed=whole, episodes=whole, group_disjoint=st.booleans(),
    fingerprint=text, mean=number, half_width=number,
    per_episode=st.lists(st.integers(0, 10_000).map(lambda n: round(n / 10_000, 4)), max_size=20),
    pool=text, pack=text, version=text, draw=text, protocol=text, preset=text,
    sources=st.lists(text, max_size=3), added=text, added_seconds=maybe(number), added_on=text,
    train_seed=maybe(whole), settings=st.dictionaries(text, number | whole, max_size=3), note=text,
    parameters=maybe(whole), multiply_adds=maybe(whole), seconds=maybe(number), device=text,
    calibration_error=maybe(number), shape=text, run=text,
)  # fmt: skip
EXAMPLE = Result(
    *("base", "signs", True, 5, 1, 10, "test", "none", 0, 2, False, "f", 0.5, 0.1),
    *([0.4, 0.6], "pool", "pack", "0"),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(results, max_size=4))
def test_a_table_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Result]
) -> None:
    file = tmp_path_factory.mktemp("table") / "rows.parquet"
    write_results(file, rows)
    assert read_results(file) == rows
    assert [type(v) for r in read_results(file) for v in r.settings.values()] == [
        type(v) for r in rows for v in r.settings.values()
    ]
    assert [found for found in file.parent.iterdir() if found.suffix == ".parquet"] == [file]


def test_every_accuracy_of_four_digits_is_kept_exactly(tmp_path: Path) -> None:
    every = [round(n / 10_000, 4) for n in range(10_001)]
    write_results(tmp_path / "a.parquet", [replace(EXAMPLE, per_episode=every)])
    assert read_results(tmp_path / "a.parquet")[0].per_episode == every


@pytest.mark.parametrize("wrong", [-0.1, 1.1, 0.12345, float("nan"), float("inf")])
def test_accuracies_that_would_lose_digits_are_refused(wrong: float, tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match="'base' on signs cannot be kept"):
        write_results(tmp_path / "a.parquet", [replace(EXAMPLE, per_episode=[0.5, wrong])])
    assert not list(tmp_path.iterdir())


def test_lines_of_before_are_read(tmp_path: Path) -> None:
    newer = ("run", "added", "added_seconds", "added_on", "calibration_error", "draw", "settings")
    old = {name: value for name, value in asdict(EXAMPLE).items() if name not in newer}
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    assert read_results(tmp_path / "old.jsonl") == [EXAMPLE]


def test_tables_of_before_are_read(tmp_path: Path) -> None:
    """A table that was written when results had fewer fields gives these their defaults."""
    whole = asdict(replace(EXAMPLE, run="one")) | {"per_episode": [4000, 6000], "settings": "{}"}
    write_table(tmp_path / "old.parquet", [{k: v for k, v in whole.items() if k != "note"}])
    assert read_results(tmp_path / "old.parquet") == [replace(EXAMPLE, run="one")]


def test_lines_are_appended_and_a_bad_one_is_named(tmp_path: Path) -> None:
    results = [EXAMPLE, replace(EXAMPLE, method="average", note="Übung", seen=None)]
    file = tmp_path / "deep" / "results.jsonl"
    append_results(file, results[:1])
    append_results(file, results[1:])
    assert read_results(file) == results
    assert [json.loads(line)["method"] for line in file.read_text().splitlines()] == [
        "base",
        "average",
    ]
    with file.open("a") as opened:
        opened.write('{"method": "base"}\n')
    with pytest.raises(PolyshotError, match="line 3, is no result"):
        read_results(file)
    with pytest.raises(PolyshotError, match="cannot be read"):
        read_results(tmp_path / "nowhere")


def test_a_folder_is_read_whole_without_tables_of_other_things(tmp_path: Path) -> None:
    one, two = replace(EXAMPLE, target="one"), replace(EXAMPLE, target="two")
    write_results(tmp_path / "a.parquet", [one])
    append_results(tmp_path / "deep" / "b.jsonl", [two])
    write_table(tmp_path / "shares.parquet", [{"target": "one", "shares": [0.5, 0.5]}])
    (tmp_path / "notes.txt").write_text("no results")
    assert read_results(tmp_path) == [one, two]
    assert read_table(tmp_path / "shares.parquet") == [{"target": "one", "shares": [0.5, 0.5]}]
    with pytest.raises(PolyshotError, match=r"shares\.parquet is no table of results"):
        read_results(tmp_path / "shares.parquet")


def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    write_results(file, [EXAMPLE])
    for cut in (0, 3, 40, file.stat().st_size - 20):
        broken = tmp_path / f"cut{cut}.parquet"
        broken.write_bytes(file.read_bytes()[:cut])
        with pytest.raises(PolyshotError, match="is no Parquet file that can be read") as told:
            read_results(broken)
        assert "\n" not in str(told.value)
    with pytest.raises(PolyshotError, match="cannot be read: No such file"):
        read_results(tmp_path / "none.parquet")


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for act in (lambda f: write_results(f, [EXAMPLE]), read_results):
        with pytest.raises(PolyshotError, match=r"pip install 'polyshot\[parquet\]'"):
            act(tmp_path / "a.parquet")
    append_results(tmp_path / "a.jsonl", [EXAMPLE])
    assert read_results(tmp_path / "a.jsonl") == [EXAMPLE]


def test_runs(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('{"one": {"commit": "abc", "clean": false}}')
    assert read_runs(tmp_path / "runs.json") == {"one": Run("abc", False)}
    for text in ("{", "[]", '{"one": {"comit": "abc"}}'):
        (tmp_path / "runs.json").write_text(text)
        with pytest.raises(PolyshotError, match=r"runs\.json is damaged"):
            read_runs(tmp_path / "runs.json")


def test_what_is_kept_can_be_read_and_names_its_runs() -> None:
    folder = ROOT / "results"
    runs = read_runs(folder / "runs.json")
    kept = read_results(folder)
    assert len(kept) > 3000 and {result.run for result in kept} <= set(runs)
    for result in kept:
        assert len(result.per_episode) == result.episodes
        assert sum(result.per_episode) / result.episodes == pytest.approx(result.mean, abs=1e-3)
    assert any(run.clean is False for run in runs.values())
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000
