import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.training.loop import MOST_SKIPPED, learn
from polyshot.training.step import Best, Group, Schedule, Step
from tests.helpers import record_in

QUICK = Schedule(
    steps=12, optimiser="sgd", learning_rate=0.1, weight_decay=0.01, clip=5.0, validate_every=4
)


class Line(Step):
    """Fits a line through batch norm and dropout; the batch of an update depends on its number."""

    name = section = "line"
    shared = True
    memory = ("line.batch", 64)
    images = 8

    def __init__(self) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(3)
            self.module = nn.Sequential(
                nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1)
            )
        self.bad: set[int] = set()
        self.values: list[float] = []
        self.numbers: list[int] = []

    def groups(self) -> list[Group]:
        parameters = list(self.module.parameters())
        return [Group(parameters[:2], decayed=True), Group(parameters[2:], decayed=False)]

    def loss(self, number: int) -> Tensor:
        self.numbers.append(number)
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(number))
        if number in self.bad:
            x[0, 0] = math.nan
        return (self.module(x)[:, 0] - x.sum(1)).square().mean()

    def validate(self) -> float:
        if self.values:
            return self.values.pop(0)
        return -sum(float(p.detach().abs().sum()) for p in self.module.parameters())


def fit(step: Line, folder: Path, schedule: Schedule = QUICK, **more: object) -> Best:
    return learn(step, schedule, record_in(folder, **more), seed=0)  # type: ignore[arg-type]


def weights(step: Line) -> list[Tensor]:
    return [tensor.clone() for tensor in step.module.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_an_interrupted_loop_goes_on_to_the_same_bits(optimiser: str, tmp_path: Path) -> None:
    schedule = Schedule(12, optimiser, 0.1, 0.01, 5.0, 4, 2)  # type: ignore[arg-type]
    whole = Line()
    fit(whole, tmp_path / "whole", schedule)
    for at in range(1, 12):

        def stop(name: str, done: int, total: int, at: int = at) -> None:
            assert total == 12 * 8
            if done == at * 8:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(Line(), tmp_path / str(at), schedule, report=stop)
        again = Line()
        fit(again, tmp_path / str(at), schedule)
        assert again.numbers == list(range(at, 12))
        assert same(weights(again), weights(whole))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_an_update_waits_for_its_end(
    number: signal.Signals, tmp_path: Path
) -> None:
    class Hit(Line):
        def loss(self, update: int) -> Tensor:
            if update == 6:
                os.kill(os.getpid(), number)
            return super().loss(update)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        fit(Hit(), tmp_path)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["number"] == 7
    assert signal.getsignal(number) is before
    whole, again = Line(), Line()
    fit(whole, tmp_path / "whole")
    fit(again, tmp_path)
    assert same(weights(again), weights(whole))


def test_a_signal_during_the_last_validation_is_not_lost(tmp_path: Path) -> None:
    class Late(Line):
        looks = 0

        def validate(self) -> float:
            self.looks += 1
            if self.looks == 3:  # 4, 8, 12: the last
                os.kill(os.getpid(), signal.SIGINT)
            return super().validate()

    with pytest.raises(KeyboardInterrupt):
        fit(Late(), tmp_path)
    again = Line()
    assert fit(again, tmp_path).number in (4, 8, 12)
    assert again.numbers == []  # nothing is left to do


def test_the_generator_of_the_caller_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fit(Line(), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_an_update_with_nan_changes_nothing_at_all(optimiser: str, tmp_path: Path) -> None:
    """The very first one included, where momentum does not exist yet."""
    schedule = Schedule(3, optimiser, 0.1, 0.01, 5.0, 99)  # type: ignore[arg-type]
    step = Line()
    step.bad = {0, 1, 2}
    before = weights(step)
    best = fit(step, tmp_path, schedule)
    after = dict(zip(step.module.state_dict(), weights(step), strict=True))
    assert best.skipped == 3
    for (name, now), old in zip(after.items(), before, strict=True):
        assert name.endswith("num_batches_tracked") or torch.equal(now, old)


def test_a_few_updates_with_nan_are_survived(tmp_path: Path) -> None:
    step = Line()
    step.bad = {0, 5, 6}
    best = fit(step, tmp_path)
    assert best.skipped == 3
    assert all(tensor.isfinite().all() for tensor in weights(step))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("skipped") for line in lines] == [1, 3, 3]
    assert all(math.isfinite(line["loss"]) for line in lines)


def test_too_many_in_a_row_stop_and_name_a_learning_rate(tmp_path: Path) -> None:
    step, schedule = Line(), Schedule(100, "sgd", 0.1, 0.0, 5.0, 7)
    step.bad = set(range(10, 100))
    with pytest.raises(PolyshotError, match=r"not a finite number.*line\.learning_rate=0\.025"):
        fit(step, tmp_path, schedule)
    assert len(step.numbers) == 10 + MOST_SKIPPED
    again = Line()  # an interruption does not hide the row
    again.bad = step.bad
    with pytest.raises(PolyshotError, match="not a finite number"):
        fit(again, tmp_path, schedule)
    assert len(again.numbers) < MOST_SKIPPED


def test_the_best_state_by_validation_is_kept(tmp_path: Path) -> None:
    step, states = Line(), []
    original = step.validate
    step.values = [0.3, 0.9, 0.9]

    def validate() -> float:
        states.append(weights(step))
        return original()

    step.validate = validate  # type: ignore[method-assign]
    assert fit(step, tmp_path) == Best(0.9, 8, 0)
    assert same(weights(step), states[1])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["validation"], line["best"]) for line in lines] == [
        (0.3, True),
        (0.9, True),
        (0.9, False),
    ]


def test_gradients_are_clipped(tmp_path: Path) -> None:
    def moved(clip: float) -> float:
        step = Line()
        before = weights(step)
        fit(step, tmp_path / str(clip), Schedule(1, "sgd", 1.0, 0.0, clip, 1))
        parameters = [i for i, name in enumerate(step.module.state_dict()) if "." in name]
        kinds = list(step.module.state_dict())
        change = [
            (weights(step)[i] - before[i]).square().sum()
            for i in parameters
            if "running" not in kinds[i] and "tracked" not in kinds[i]
        ]
        return math.sqrt(float(sum(change)))

    # Nesterov's first step is 1.9 times the gradient.
    assert moved(0.01) == pytest.approx(0.019, rel=1e-4)
    assert moved(1e9) > 0.1
    assert moved(0.0) == moved(1e9)  # nothing is clipped


def test_a_full_memory_names_what_to_lower(tmp_path: Path) -> None:
    class Greedy(Line):
        def loss(self, number: int) -> Tensor:
            raise torch.OutOfMemoryError

    with pytest.raises(PolyshotError, match=r"memory is full.*line\.batch=32"):
        fit(Greedy(), tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"nonsense")
    with pytest.raises(PolyshotError, match=r"checkpoint.pt is damaged.*delete it"):
        fit(Line(), tmp_path)


@given(st.integers(1, 300), st.integers(0, 50))
def test_the_rate_warms_up_and_falls_to_zero(steps: int, warm_up: int) -> None:
    schedule = Schedule(steps + warm_up, "sgd", 0.4, 0.0, 5.0, 1, warm_up)
    rates = [schedule.rate(number) for number in range(steps + warm_up + 1)]
    assert max(rates) == pytest.approx(0.4)
    assert rates[: warm_up + 1] == sorted(rates[: warm_up + 1])
    assert rates[warm_up:] == sorted(rates[warm_up:], reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert min(rates[:-1]) > 0
    level = replace(schedule, course="constant")
    assert [level.rate(n) for n in range(warm_up)] == rates[:warm_up]
    assert {level.rate(n) for n in range(warm_up, steps + warm_up)} == {0.4}


def test_the_start_may_be_the_best_state(tmp_path: Path) -> None:
    """It is looked at once, also where the training is interrupted and goes on."""
    schedule = replace(QUICK, from_start=True)
    step = Line()
    start, step.values = weights(step), [0.9, 0.3, 0.5, 0.2]
    assert fit(step, tmp_path, schedule) == Best(0.9, 0, 0)
    assert same(weights(step), start)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["number"], line["validation"]) for line in lines] == [
        (0, 0.9), (4, 0.3), (8, 0.5), (12, 0.2),
    ]  # fmt: skip

    def stop(name: str, done: int, total: int) -> None:
        if done == 5 * Line.images:
            raise KeyboardInterrupt

    first, again = Line(), Line()
    first.values, again.values = [0.9, 0.3], [0.5, 0.2]
    with pytest.raises(KeyboardInterrupt):
        fit(first, tmp_path / "resumed", schedule, report=stop)
    assert fit(again, tmp_path / "resumed", schedule) == Best(0.9, 0, 0)
    assert same(weights(again), start)
