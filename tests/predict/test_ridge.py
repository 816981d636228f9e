"""The closed-form head: against a plain solution, whatever the shape of the tasks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.predict.adapt import ridge
from polyshot.predict.adapt.ridge import ridge_heads
from polyshot.predict.readout import by_ridge, fit_classifiers
from tests.helpers import answers, random_tasks, shared_pool


def one_by_one(support: np.ndarray, mask: np.ndarray, penalty: float) -> tuple[np.ndarray, ...]:
    """Solve one task [W, S, d] by numpy's least squares, image by image."""
    way = len(support)

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x)

    kept = [[unit(support[c, s]) for s in np.flatnonzero(mask[c])] for c in range(way)]
    centre = np.mean([np.mean(each, 0) for each in kept], 0)
    usual = np.mean([len(each) for each in kept])
    rows, targets = [], []
    for c, each in enumerate(kept):
        weight = np.sqrt(usual / len(each))
        for x in each:
            rows.append(weight * unit(x - centre))
            targets.append(weight * (np.eye(way)[c] - 1 / way))
    dim = support.shape[-1]
    rows += list(np.sqrt(penalty) * np.eye(dim))
    targets += [np.zeros(way)] * dim
    weight = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0].T
    return weight, centre


def some(way: int, shot: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    support = torch.randn(3, way, shot, dim, generator=generator, dtype=torch.float64) + 0.5
    mask = torch.rand(3, way, shot, generator=generator) > 0.3
    mask[:, :, 0] = True
    return support, mask


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5), st.sampled_from([4, 9, 40]), st.integers(0, 99))
def test_it_is_least_squares(way: int, shot: int, dim: int, seed: int) -> None:
    """With fewer images than entries, and with more; shots may be uneven."""
    support, mask = some(way, shot, dim, seed)
    weight, centre = ridge_heads(support, mask, 0.3)
    for e in range(3):
        expected = one_by_one(support[e].numpy(), mask[e].numpy(), 0.3)
        np.testing.assert_allclose(weight[e].numpy(), expected[0], atol=1e-9)
        np.testing.assert_allclose(centre[e, 0].numpy(), expected[1], atol=1e-12)


def test_empty_places_and_company_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    support, mask = some(4, 3, 20, 1)
    weight, _ = ridge_heads(support, mask, 1.0)
    spoilt = support.where(mask.unsqueeze(-1), torch.full((), torch.nan, dtype=torch.float64))
    assert torch.equal(ridge_heads(spoilt, mask, 1.0)[0], weight)
    monkeypatch.setattr(ridge, "AT_ONCE", 1)
    torch.testing.assert_close(ridge_heads(support, mask, 1.0)[0], weight, atol=1e-12, rtol=0)


def test_queries_are_centred_as_the_support_set_is() -> None:
    support, mask = some(4, 3, 20, 2)
    config = AdaptationConfig(ridge_lambda=0.5, ridge_scale=7.0)
    classifiers = fit_classifiers(support, mask, "cosine", 1.0, "ridge", config)
    query = torch.randn(3, 6, 20, dtype=torch.float64)
    weight, centre = ridge_heads(support, mask, 0.5)
    seen = torch.nn.functional.normalize(query, dim=-1) - centre
    expected = 7 * torch.nn.functional.normalize(seen, dim=-1) @ weight.mT
    torch.testing.assert_close(classifiers.logits(query).mT, expected)
    maps = torch.eye(20, dtype=torch.float64).expand(3, -1, -1)
    torch.testing.assert_close(by_ridge(support, mask, config, maps).logits(query).mT, expected)


@pytest.mark.parametrize("name", ["base", "select", "average", "auto", "blend", "sur"])
@pytest.mark.parametrize("shot", [1, 3])
def test_every_rule_reads_out_by_it(name: str, shot: int) -> None:
    pool, tasks = shared_pool(), random_tasks(shot=shot, queries=2)
    made = answers(pool, tasks, name, "ridge")
    assert made.isfinite().all() and torch.allclose(made.sum(-1), torch.ones(()))
    assert not torch.allclose(made, answers(pool, tasks, name, "none"), atol=1e-3)


def test_a_power_is_taken_of_every_entry_with_its_sign() -> None:
    support = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(5)).double()
    query = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(6)).double()
    config = AdaptationConfig(ridge_lambda=0.5, ridge_power=0.5)

    def root(x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) * x.abs().sqrt()

    plain = replace(config, ridge_power=1.0)
    expected = by_ridge(root(support), None, plain).logits(root(query))
    torch.testing.assert_close(by_ridge(support, None, config).logits(query), expected)
    assert not torch.allclose(by_ridge(support, None, plain).logits(query), expected, atol=1e-3)
