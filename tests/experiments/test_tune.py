"""Tuning on validation classes: the best point wins, and none is tried twice."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.experiments.tune import BAR, points, tune
from polyshot.methods.method import METHODS, Fitted, Method, Settings, find_methods
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun
from polyshot.util.files import read_json
from tests.helpers import files_of

from .small_worlds import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")


class Skilled(Fitted):
    """Knows the answers of the first so many ways."""

    def __init__(self, ways: float):
        self.ways = int(ways)

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        assert adaptation == "none"
        answers = torch.arange(tasks.way).repeat_interleave(tasks.query.shape[1] // tasks.way)
        answers[answers >= self.ways] = 0
        return torch.eye(tasks.way)[answers].expand(len(tasks), -1, -1)

    def parameters(self) -> int:
        return 1

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        return 1


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Registers a method whose points are known, and notes which are tried."""
    find_methods()
    noted: list[Settings] = []

    def fit(_: TrainingRun, settings: Settings) -> Fitted:
        noted.append(settings)
        return Skilled(settings["ways"] - settings["less"])

    method = Method(
        "skilled",
        "paper",
        "about",
        fit,
        settings={"ways": 1, "less": 0, "other": 7},
        grid={"ways": (2, 4, 3), "less": (1, 0)},
    )
    monkeypatch.setitem(METHODS, "skilled", method)
    return noted


def noted(out: Path) -> dict[str, dict[str, object]]:
    return read_json(out / "tuned.json")


def test_points_are_the_product_of_the_grid(tried: list[Settings]) -> None:
    found = points(METHODS["skilled"])
    assert [(point["ways"], point["less"]) for point in found] == [
        (2, 1), (2, 0), (4, 1), (4, 0), (3, 1), (3, 0),
    ]  # fmt: skip
    assert all(point["other"] == 7 for point in found)


def test_the_best_point_is_chosen_and_none_tried_twice(
    packs: list[Pack], tmp_path: Path, tried: list[Settings]
) -> None:
    told: list[tuple[str, int, int]] = []
    found = tune(
        ["skilled"], packs, SMALL, tmp_path, report=lambda *news: told.append(news), command="it"
    )
    assert [point.settings for point in found if point.best] == [{"ways": 4, "less": 0, "other": 7}]
    assert [point.validation for point in found] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.4, 0.6])
    entry = noted(tmp_path)["tiny"]["skilled"]
    assert isinstance(entry, dict)
    assert entry["settings"] == {"ways": 4, "less": 0, "other": 7}
    assert entry["validation"] == pytest.approx(0.8)
    assert len(entry["tried"]) == len(tried) == 6
    assert [news for news in told if news[0] == BAR] == [(BAR, number, 6) for number in range(7)]
    before = files_of(tmp_path)
    assert tune(["skilled"], packs, SMALL, tmp_path, command="it") == found
    assert len(tried) == 6
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("best", "beyond"),
    [
        (1e-2, []),  # inside
        (1e-4, [1e-4, 1e-5]),  # the best is beyond the lower end, and is passed
        (30.0, [1.0, 10.0, 100.0]),  # until it gets worse
        (1e5, [1.0, 10.0, 100.0, 1000.0]),  # or enough is enough
    ],
)
def test_a_grid_goes_on_beyond_the_end_that_is_best(
    packs: list[Pack],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    best: float,
    beyond: list[float],
) -> None:
    """Ways that are known fall with the distance from the best rate; what has no factor stays."""
    find_methods()

    def fit(_: TrainingRun, settings: Settings) -> Fitted:
        apart = abs(math.log10(settings["rate"] / best)) + abs(settings["switch"] - 1)
        return Graded(apart)

    method = Method(
        "graded",
        "paper",
        "about",
        fit,
        settings={"rate": 1.0, "switch": 0},
        grid={"rate": (1e-3, 1e-2, 1e-1), "switch": (0, 1)},
    )
    monkeypatch.setitem(METHODS, "graded", method)
    found = tune(["graded"], packs, SMALL, tmp_path)
    assert [point.settings for point in found[:6]] == points(method)
    assert [point.settings["rate"] for point in found[6:]] == beyond
    assert all(point.settings["switch"] == 1 for point in found[6:])
    assert tune(["graded"], packs, SMALL, tmp_path) == found
    chosen = noted(tmp_path)["tiny"]["graded"]
    assert [point.settings for point in found if point.best] == [chosen["settings"]]


class Graded(Skilled):
    """Right on a share of the queries that falls with what it is given."""

    def __init__(self, apart: float):
        self.apart = apart

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        right = torch.arange(tasks.way).repeat_interleave(tasks.query.shape[1] // tasks.way)
        known = round(tasks.query.shape[1] * (1 - self.apart / 10))
        right[known:] = (right[known:] + 1) % tasks.way
        return torch.eye(tasks.way)[right].expand(len(tasks), -1, -1)


def test_heads_are_searched_on_the_base(packs: list[Pack], tmp_path: Path) -> None:
    found = tune(["base"], packs, SMALL, tmp_path)
    rates = [point.settings["head_rate"] for point in found]
    assert rates[:4] == list(METHODS["base"].grid["head_rate"])
    assert len({point.validation for point in found}) > 1
    assert len(list(tmp_path.glob("worlds/*/pool-*/steps/base.safetensors"))) == 1


def test_an_interrupted_tuning_goes_on(
    packs: list[Pack], tmp_path: Path, tried: list[Settings]
) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(["skilled"], packs, SMALL, tmp_path, report=stop)
    tune(["skilled"], packs, SMALL, tmp_path)
    assert tried == points(METHODS["skilled"])


def test_other_presets_and_methods_stay_and_other_data_start_anew(
    packs: list[Pack], tmp_path: Path, tried: list[Settings]
) -> None:
    tune(["skilled"], packs, SMALL, tmp_path)
    tune(["skilled"], packs, replace(SMALL, preset="paper"), tmp_path)
    tune(["finetune"], packs, SMALL, tmp_path)
    assert {preset: set(each) for preset, each in noted(tmp_path).items()} == {
        "tiny": {"skilled", "finetune"},
        "paper": {"skilled"},
    }
    tune(["skilled"], packs[:1], SMALL, tmp_path)
    assert len(tried) == 18


def test_real_methods_are_trained_once_a_point(packs: list[Pack], tmp_path: Path) -> None:
    found = tune(["protonet"], packs, SMALL, tmp_path)
    declared = METHODS["protonet"].grid["learning_rate"]
    assert [point.settings["learning_rate"] for point in found][: len(declared)] == list(declared)
    assert all(0 <= point.validation <= 1 for point in found)
    assert sum(point.best for point in found) == 1
    assert len(list(tmp_path.glob("worlds/*/rivals/protonet-*.safetensors"))) == len(found)


@pytest.mark.parametrize(
    ("name", "message"), [("select", "nothing to tune in select"), ("protnet", "Did you mean")]
)
def test_what_cannot_be_tuned_is_refused(
    packs: list[Pack], tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(PolyshotError, match=message):
        tune([name], packs, SMALL, tmp_path)


def test_a_damaged_outcome_is_named(
    packs: list[Pack], tmp_path: Path, tried: Callable[..., object]
) -> None:
    (tmp_path / "tuned.json").write_text("{")
    with pytest.raises(PolyshotError, match=r"tuned.json cannot be read .*: delete it"):
        tune(["skilled"], packs, SMALL, tmp_path)
