"""Answers of few images are less sure, and the same."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from polyshot.config import AdaptationConfig, Config, to_dict
from polyshot.data.shapes import EpisodeShape
from polyshot.pool.pool import Pool
from polyshot.predict.predict import Adaptation, fit_tasks, inverse_temperature
from polyshot.predict.rules import rule
from polyshot.tasks import Tasks
from tests.helpers import SMALL, answers, keep_embeddings, random_pool, random_tasks, shared_pool


def tasks(pool: Pool, shots: int, mask: torch.Tensor | None = None) -> Tasks:
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(4, 3, 5, shots, SMALL.dim, generator=generator)
    query = torch.randn(4, 3, 7, SMALL.dim, generator=generator)
    return keep_embeddings(pool, support, query, mask)


def trained_on(shots: int) -> Pool:
    config = Config(shape=EpisodeShape(5, shots, 10))
    return replace(shared_pool(), about={"config": to_dict(config)})


@pytest.mark.parametrize("name", ["base", "select", "average", "auto"])
def test_fewer_images_are_less_sure(name: str) -> None:
    """The same pool, as if its scales were of the tasks' own shots and of five."""
    plain, mild = (answers(pool, tasks(pool, 1), name) for pool in (trained_on(1), trained_on(5)))
    assert (plain.argmax(-1) == mild.argmax(-1)).all()
    assert (mild.amax(-1) < plain.amax(-1)).all()
    torch.testing.assert_close(mild.sum(-1), torch.ones(3, 7))
    expected = (plain.log() * (7 / 5) / 3).softmax(-1)
    torch.testing.assert_close(mild, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("adaptation", get_args(Adaptation))
def test_all_but_heads_are_tempered(adaptation: str) -> None:
    """Heads are learned from a scale of their own."""
    config = AdaptationConfig(steps=3, updates=2)
    given = random_tasks(shot=2, queries=2)
    plain, mild = (
        answers(replace(trained_on(shots), adaptation=config), given, "auto", adaptation)
        for shots in (2, 5)
    )
    expected = plain if adaptation in ("head", "ridge") else (0.7 * plain.log()).softmax(-1)
    torch.testing.assert_close(mild, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plain, (0.7 * plain.log()).softmax(-1), atol=1e-2)


def test_the_shots_of_the_scales_change_nothing() -> None:
    assert inverse_temperature(shared_pool(), torch.tensor([5.0])).item() == 1
    assert inverse_temperature(trained_on(2), torch.tensor([2.0])).item() == 1
    given = random_tasks(shot=2, queries=2)
    for shots, stays in ((2, True), (5, False)):
        pool = trained_on(shots)
        fitted = fit_tasks(pool, given, [rule("auto", pool)])
        assert (fitted.factor is None) == stays, "answers stay as they are, to the bit"


def test_it_rises_with_the_images_and_has_an_end() -> None:
    factors = inverse_temperature(shared_pool(), torch.tensor([1.0, 2.0, 5.0, 20.0, 1e6]))
    assert (factors.diff() > 0).all() and factors[-1] < 1.41


def test_squared_distances_stay_as_they_are() -> None:
    pool = replace(shared_pool(), metric="euclidean")
    assert inverse_temperature(pool, torch.tensor([1.0, 9.0])).tolist() == [1, 1]


def test_shots_are_counted_where_they_are_uneven() -> None:
    mask = torch.ones(3, 5, 4, dtype=torch.bool)
    mask[1, :, 2:] = False
    mask[2, 0, 1:] = False
    assert tasks(shared_pool(), 4, mask).shots.tolist() == pytest.approx([4, 2, 17 / 5])
    assert tasks(shared_pool(), 4).shots.tolist() == [4, 4, 4]


def test_pools_whose_scales_are_of_other_tasks_are_other_pools() -> None:
    assert trained_on(5).hash == random_pool().hash != trained_on(1).hash
