"""Random numbers as a pure function of counters: pinned, independent, uniform."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.data.episodes import draw_distinct
from polyshot.util import counter_rng


def test_the_numbers_are_pinned() -> None:
    """The arithmetic wraps in the same way on every machine; a change changes all episodes."""
    rows = torch.tensor([0, 1, 2**40, -1])
    assert counter_rng.key("a", 1) == 2817767603020893852
    assert counter_rng.bits(12345, rows, 3).tolist() == [
        [-160267938, 807250285, -1212938094, 51169590],
        [-504206069, -1626063595, -2014740213, -738983250],
        [-661336637, -2117597643, -1467282298, 1226860100],
    ]


@given(st.integers(0, 2**63 - 1), st.integers(1, 20), st.integers(0, 2**40))
def test_any_part_of_a_stream_can_be_made_alone(key: int, columns: int, start: int) -> None:
    rows = torch.arange(start, start + 10)
    whole = counter_rng.uniform(key, rows, 20)
    assert torch.equal(whole[:columns, 3:7], counter_rng.uniform(key, rows[3:7], columns))
    assert whole.min() >= 0 and whole.max() < 1


def test_uniform_and_uncorrelated() -> None:
    numbers = counter_rng.uniform(7, torch.arange(20_000), 8).double()  # [8, rows]
    assert (numbers.mean(1) - 0.5).abs().max() < 4 * (1 / 12 / 20_000) ** 0.5
    counts = torch.stack([torch.histc(row, 64, 0, 1) for row in numbers])
    assert ((counts - 312.5) ** 2 / 312.5).sum(1).max() < 63 + 5 * (2 * 63) ** 0.5
    correlation = torch.corrcoef(numbers) - torch.eye(8)
    assert correlation.abs().max() < 5 / 20_000**0.5
    neighbours = torch.corrcoef(torch.stack([numbers[0, :-1], numbers[0, 1:]]))[0, 1]
    assert neighbours.abs() < 5 / 20_000**0.5
    other = counter_rng.uniform(8, torch.arange(20_000), 1).double()
    assert torch.corrcoef(torch.cat([numbers[:1], other]))[0, 1].abs() < 5 / 20_000**0.5


@given(st.lists(st.integers(1, 2**24 - 1), min_size=1, max_size=10), st.booleans())
def test_draws_stay_in_range_at_the_extremes(limits: list[int], high: bool) -> None:
    """The largest random number must not round up to the limit."""
    extreme = torch.full((1, len(limits)), 1 - 2.0**-24 if high else 0.0)
    values = draw_distinct(extreme, torch.tensor(limits, dtype=torch.float32))[0].numpy()
    expected = np.array(limits) - 1 if high else np.zeros(len(limits))
    assert (values >= 0).all() and (values < np.array(limits)).all()
    assert np.abs(values - expected).max() <= 1


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 10**6))
def test_draws_are_permutations_when_all_is_drawn(count: int, more: int, seed: int) -> None:
    random = counter_rng.uniform(seed, torch.arange(50), count)
    whole = draw_distinct(random, torch.tensor(float(count)), torch.int16)
    assert torch.equal(
        whole.sort(0).values, torch.arange(count, dtype=torch.int16)[:, None].expand(-1, 50)
    )
    some = draw_distinct(random, torch.tensor(float(count + more)))
    assert all(len(column.unique()) == count for column in some.T)
    prefix = draw_distinct(random[: count // 2 + 1], torch.tensor(float(count + more)))
    assert torch.equal(prefix, some[: count // 2 + 1])
