"""Means, intervals and calibration, against cases by hand and what must always hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.evaluation.stats import (
    Estimate,
    calibration_error,
    calibration_errors,
    combined,
    estimate,
    first_choices,
    interval,
    t_quantile,
)

accuracies = st.lists(st.floats(0, 1), min_size=2, max_size=50)


def test_the_interval_of_a_fair_coin() -> None:
    mean, half_width = interval([0.0, 1.0] * 50)
    assert mean == 0.5
    assert half_width == pytest.approx(1.959964 * math.sqrt(0.25 * 100 / 99) / 10)


@given(accuracies)
def test_intervals_are_numpys(values: list[float]) -> None:
    mean, half_width = interval(values)
    assert mean == pytest.approx(np.mean(values))
    expected = 1.959964 * np.std(values, ddof=1) / np.sqrt(len(values))
    assert half_width == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_intervals_cover_the_truth_nineteen_times_in_twenty() -> None:
    draw = np.random.default_rng(0)
    cells = [interval(draw.binomial(50, 0.7, 300) / 50) for _ in range(2000)]
    covered = np.mean([abs(mean - 0.7) <= half_width for mean, half_width in cells])
    assert 0.935 < covered < 0.965


@given(accuracies, st.floats(-0.5, 0.5))
def test_a_constant_gain_is_a_sure_one(values: list[float], gain: float) -> None:
    difference, half_width = interval(np.array(values) + gain - values)
    assert difference == pytest.approx(gain)
    assert half_width == pytest.approx(0, abs=1e-9)


def test_pairing_removes_what_episodes_share() -> None:
    draw = np.random.default_rng(1)
    hard, gain = draw.uniform(0, 1, 400), draw.normal(0.02, 0.01, 400)
    difference, half_width = interval(hard + gain - hard)
    assert difference == pytest.approx(gain.mean())
    assert half_width == pytest.approx(1.959964 * gain.std(ddof=1) / 20, rel=1e-6)
    assert half_width < 0.1 * interval(hard)[1]


def test_targets_count_the_same() -> None:
    found = combined([Estimate(0.4, 0.03), Estimate(0.8, 0.04)])
    assert (found.value, found.episodes) == pytest.approx((0.6, 0.025))
    assert found.trainings is None


def test_an_estimate_by_hand() -> None:
    first = estimate({0: [0.0, 1.0, 0.5, 9.0], 1: [0.2, 0.6, 0.4]})  # the fourth is of one alone
    assert first.value == pytest.approx(0.45)
    assert first[:2] == pytest.approx(interval([0.1, 0.8, 0.45]))
    assert dict(first.by_training) == pytest.approx({0: 0.5, 1: 0.4})
    assert first.trainings == pytest.approx(12.7062 * 0.05)
    second = estimate({1: [0.8, 1.0], 0: [0.9, 0.9]})
    both = combined([first, second])
    assert dict(both.by_training) == pytest.approx({0: 0.7, 1: 0.65})
    assert both.trainings == pytest.approx(12.7062 * 0.025)
    assert combined([first, estimate({0: [0.5, 0.5]})]).trainings is None  # another set of seeds


@pytest.mark.parametrize(
    ("freedom", "point"),
    [(1, 12.7062), (2, 4.3027), (10, 2.2281), (11, 2.2010), (30, 2.0423), (1000, 1.9623)],
)
def test_students_points(freedom: int, point: float) -> None:
    assert t_quantile(freedom) == pytest.approx(point, abs=1e-3)


@pytest.mark.parametrize("trainings", [2, 3, 5])
def test_both_intervals_cover_what_they_estimate(trainings: int) -> None:
    """1,000 draws of two targets, whose episodes the trainings share.

    An episode is hard for every training, a training is good on every episode and target, and they
    interact: that over episodes covers these trainings, that over trainings these episodes.
    """
    draws, targets, episodes = 1000, 2, 100
    draw = np.random.default_rng(trainings)
    good = draw.normal(0, 0.02, (draws, 1, trainings, 1))
    good_there = draw.normal(0, 0.01, (draws, targets, trainings, 1))
    hard = draw.normal(0, 0.1, (draws, targets, 1, episodes))
    both = draw.normal(0, 0.04, (draws, targets, trainings, episodes))
    values = 0.7 + good + good_there + hard + both
    with_these_trainings = 0.7 + (good + good_there).mean((1, 2, 3))
    on_these_episodes = 0.7 + hard.mean((1, 2, 3))
    covered = np.zeros(2)
    for own, new_episodes, new_trainings in zip(
        values, with_these_trainings, on_these_episodes, strict=True
    ):
        found = combined([estimate(dict(enumerate(target))) for target in own])
        assert found.trainings is not None
        covered += (
            abs(found.value - new_episodes) <= found.episodes,
            (abs(found.value - new_trainings) <= found.trainings),
        )
    assert (covered / draws >= 0.93).all() and (covered / draws <= 0.97).all(), covered


def test_trainings_as_independent_samples_would_cover_too_little() -> None:
    """What tables did before: the same episodes count three times."""
    draw = np.random.default_rng(0)
    hard, noise = draw.normal(0, 0.1, (1000, 1, 100)), draw.normal(0, 0.03, (1000, 3, 100))
    found = [combined([estimate({0: values}) for values in own]) for own in 0.7 + hard + noise]
    assert np.mean([abs(each.value - 0.7) <= each.episodes for each in found]) < 0.85


def test_what_has_no_interval_is_refused() -> None:
    with pytest.raises(PolyshotError, match="two episodes"):
        interval([0.5])
    for nothing in (lambda: combined([]), lambda: estimate({})):
        with pytest.raises(PolyshotError, match="nothing to average"):
            nothing()


# --- calibration

queries = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def split(answers: list[tuple[float, bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    sure, right = zip(*answers, strict=True)
    return torch.tensor(sure, dtype=torch.float64), torch.tensor(right)


def test_a_case_by_hand() -> None:
    # With 5 bins: two queries in (0.4, 0.6], three in (0.8, 1].
    sure = torch.tensor([0.5, 0.58, 0.9, 0.9, 1.0])
    right = torch.tensor([True, False, True, True, False])
    # |1/2 - 0.54| for 2 of 5 queries, |2/3 - 2.8/3| for 3 of 5
    expected = 2 / 5 * 0.04 + 3 / 5 * 0.8 / 3
    assert float(calibration_errors(sure, right, bins=5)) == pytest.approx(expected)
    # With 15 bins 0.5 and 0.58 part: |1 - 0.5| and |0 - 0.58|, and so do 0.9 and 1.
    expected = (0.5 + 0.58 + 2 * 0.1 + 1.0) / 5
    assert calibration_error(sure, right) == pytest.approx(expected)


def test_bins_hold_their_upper_end_and_the_first_one_zero() -> None:
    right = torch.tensor([True, False])
    apart = calibration_errors(torch.tensor([0.2, 0.2001], dtype=torch.float64), right, bins=5)
    assert float(apart) == pytest.approx((0.8 + 0.2001) / 2)
    together = calibration_errors(torch.tensor([0.0, 0.2], dtype=torch.float64), right, bins=5)
    assert float(together) == pytest.approx(abs(1 - 0.2) / 2)


def test_true_probabilities_are_calibrated_and_sharper_ones_are_not() -> None:
    draw = torch.Generator().manual_seed(0)
    sure = 0.2 + 0.8 * torch.rand(40_000, generator=draw)
    right = torch.rand(40_000, generator=draw) < sure
    assert calibration_error(sure, right) < 0.012
    assert calibration_error(sure.sqrt(), right) > 0.08


@given(queries)
def test_it_lies_between_the_whole_gap_and_one(answers: list[tuple[float, bool]]) -> None:
    sure, right = split(answers)
    error = float(calibration_errors(sure, right))
    # In one bin it is the difference of the means, which more bins only raise.
    whole = float((right.double().mean() - sure.mean()).abs())
    assert whole - 1e-9 <= error <= 1
    assert float(calibration_errors(sure, right, bins=1)) == pytest.approx(whole)


@given(queries, st.randoms(use_true_random=False))
def test_the_order_of_queries_does_not_matter(answers, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(answers)
    random.shuffle(shuffled)
    one, other = (float(calibration_errors(*split(each))) for each in (answers, shuffled))
    assert one == pytest.approx(other)


def test_rows_are_independent() -> None:
    draw = torch.Generator().manual_seed(1)
    sure, right = torch.rand(3, 2, 50, generator=draw), torch.rand(3, 2, 50, generator=draw) < 0.5
    every = calibration_errors(sure, right)
    assert every.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert every[i, j] == calibration_errors(sure[i, j], right[i, j])


def test_first_choices() -> None:
    chances = torch.tensor([[[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.0, 0.0, 1.0000001]]])
    sure, ways = first_choices(chances)
    assert ways.tolist() == [[1, 0, 2]]
    assert sure.tolist() == [pytest.approx([0.5, 0.4, 1.0])]
    assert float(sure.max()) == 1.0
