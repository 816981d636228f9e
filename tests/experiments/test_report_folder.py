"""Grid folders: what is read, and the one line that each kind of damage gives."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from polyshot.errors import PolyshotError
from polyshot.evaluation.results import append_results
from polyshot.experiments.grid import read_grid
from tests.experiments.fake_grid import fake_result, write_grid

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return write_grid(tmp_path, targets=("gtsrb", "dtd"), methods=("base", "select"), episodes=12)


def put(folder: Path, *results: dict[str, Any]) -> Path:
    file = folder / "results" / "more.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(result) + "\n" for result in results))
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(PolyshotError) as caught:
        read_grid(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_everything_is_read(grid: Path) -> None:
    found = read_grid(grid)
    assert len(found.results) == 2 * 2 * 2 * 2 * 2  # targets, methods, shots, forms, protocols
    assert found.failures[0].what == "tadam on dtd"
    assert [s.protocol for s in found.shares] == ["seen", "unseen", "unseen"]
    assert found.contributions[0].members["average"][0] == "base"
    assert len(found.contributions[0].correct["simple-avg"]) == 40
    assert found.worlds["strong-seen-0"].sources[0] == "actions"
    assert found.environment["code"] == "1ee3633"


def test_curves(grid: Path) -> None:
    curves = [c for c in read_grid(grid).curves if c.world == "strong-seen-0"]
    steps = [(c.run, c.step) for c in curves]
    assert steps[:2] == [(".", "base"), (".", "modulator:actions")]
    assert steps[-1] == ("rivals/tadam", "tadam")
    assert (".", "modulator:cars:strength") not in steps  # one line is no curve
    assert (len(curves[0].loss), len(curves[0].validation)) == (80, 8)
    assert (len(curves[-1].loss), curves[-1].not_numbers) == (4, 4)


def test_results_are_enough(tmp_path: Path) -> None:
    append_results(tmp_path / "results" / "deep" / "er" / "a.jsonl", [fake_result()])
    found = read_grid(tmp_path)
    assert found.results == [fake_result()]
    assert not (found.failures or found.shares or found.contributions or found.curves)
    assert found.environment == {} and found.worlds == {}


def test_no_folder_or_nothing_in_it(tmp_path: Path) -> None:
    assert "run 'polyshot reproduce' first" in refused(tmp_path / "missing")
    assert "no results" in refused(tmp_path) and "'polyshot reproduce'" in refused(tmp_path)
    (tmp_path / "file").write_text("")
    assert "no folder" in refused(tmp_path / "file")
    put(tmp_path)
    assert "no results" in refused(tmp_path)


def test_a_damaged_line(tmp_path: Path) -> None:
    file = put(tmp_path, asdict(fake_result())) / "results" / "more.jsonl"
    file.write_text(file.read_text()[:-20])
    assert "more.jsonl, line 1, is no result" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": float("nan")}, "not a number"),
        ({"half_width": float("inf")}, "not a number"),
        ({"per_episode": [float("nan")] * 60}, "not a number"),
        ({"per_episode": None}, "episodes are missing"),
        ({"mean": None}, "not a number"),
        ({"seconds": float("nan")}, "not a number"),
        ({"per_episode": [0.5] * 59}, "60 episodes are noted, 59 are there"),
        ({"per_episode": [0.5], "episodes": 1, "mean": 0.5}, "1 episodes are noted"),
        ({"per_episode": [1.5] * 60, "mean": 1.5}, "between 0 and 1"),
        ({"per_episode": [0.5] * 60, "mean": 0.6}, "mean is not that"),
        ({"target": 3}, "name is not text"),
        ({"calibration_error": 1.5}, "calibration error is not between 0 and 1"),
        ({"calibration_error": float("nan")}, "calibration error is not between 0 and 1"),
        ({"calibration_error": "low"}, "calibration error is not between 0 and 1"),
    ],
)
def test_numbers_that_cannot_be(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    said = refused(put(tmp_path, asdict(fake_result("feat")) | changes))
    assert message in said and "more.jsonl, line 1, 'feat'" in said


def test_the_same_twice_counts_once_but_a_contradiction_is_refused(tmp_path: Path) -> None:
    one = asdict(fake_result())
    assert len(read_grid(put(tmp_path, one, one)).results) == 1
    other = asdict(fake_result("select")) | {"method": "base"}
    assert "measured twice" in refused(put(tmp_path, one, other))
    assert len(read_grid(put(tmp_path, one, other | {"train_seed": 1})).results) == 2
    shared = put(tmp_path, one | {"run": "first"}, other | {"run": "then"})
    assert "by the runs 'first' and 'then': name the one that is wanted, with --run" in refused(
        shared
    )
    (chosen,) = read_grid(shared, "then").results
    assert chosen.per_episode == other["per_episode"]
    with pytest.raises(PolyshotError, match=r"no run 'thne'.*Did you mean 'then'"):
        read_grid(shared, "thne")


def test_of_two_lengths_the_longer_counts(tmp_path: Path) -> None:
    short, long = (asdict(fake_result(episodes=count)) for count in (20, 60))
    for order in ((short, long), (long, short), (short, long, short)):
        (result,) = read_grid(put(tmp_path, *order)).results
        assert result.episodes == 60
    assert "measured twice" in refused(put(tmp_path, short, long | {"settings": {"a": 1.0}}))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("failures/tadam-dtd.json", lambda a: a.pop("what"), "lacks 'what'"),
        ("shares/strong-seen-gtsrb.json", lambda a: a["shares"].pop(), "zip()"),
        ("shares/strong-seen-gtsrb.json", lambda a: a["shares"][0].pop(), "numbers for"),
        ("shares/strong-seen-gtsrb.json", lambda a: a.update(shares=[[2.0] * 9] * 2), "between"),
        (
            "shares/strong-seen-gtsrb.json",
            lambda a: a.update(shares=[[float("nan")] * 9] * 2),
            "between",
        ),
        ("contributions/dtd.json", lambda a: a.update(queries=5), "between 0 and 5"),
        ("contributions/dtd.json", lambda a: a["methods"]["average"]["correct"].clear(), "no epi"),
        ("contributions/dtd.json", lambda a: a.update(methods=[]), "items"),
        ("worlds/strong-seen-0/world.json", lambda a: a.update(sources=3), "iterable"),
    ],
)
def test_damaged_files(grid: Path, file: str, change: Change, message: str) -> None:
    about = json.loads((grid / file).read_text())
    change(about)
    (grid / file).write_text(json.dumps(about))
    said = refused(grid)
    assert file in said and "is damaged" in said and message in said


def test_a_file_that_is_no_json(grid: Path) -> None:
    (grid / "environment.json").write_text("{")
    assert "environment.json is damaged" in refused(grid)
    (grid / "environment.json").write_text("[1]")
    assert "environment.json is damaged" in refused(grid)
