import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.evaluation.stats import combined, interval, paired

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
    difference, half_width = paired(np.array(values) + gain, values)
    assert difference == pytest.approx(gain)
    assert half_width == pytest.approx(0, abs=1e-9)


def test_pairing_removes_what_episodes_share() -> None:
    draw = np.random.default_rng(1)
    hard, gain = draw.uniform(0, 1, 400), draw.normal(0.02, 0.01, 400)
    difference, half_width = paired(hard + gain, hard)
    assert difference == pytest.approx(gain.mean())
    assert half_width == pytest.approx(1.959964 * gain.std(ddof=1) / 20, rel=1e-6)
    assert half_width < 0.1 * interval(hard)[1]


def test_targets_count_the_same() -> None:
    mean, half_width = combined([(0.4, 0.03), (0.8, 0.04)])
    assert mean == pytest.approx(0.6)
    assert half_width == pytest.approx(0.025)


def test_what_has_no_interval_is_refused() -> None:
    with pytest.raises(PolyshotError, match="two episodes"):
        interval([0.5])
    with pytest.raises(PolyshotError, match="same episodes, not 3 and 2"):
        paired([0.1, 0.2, 0.3], [0.1, 0.2])
    with pytest.raises(PolyshotError, match="nothing to average"):
        combined([])
