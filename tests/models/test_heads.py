from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric, leave_one_out_logits, prototype_logits, prototypes

METRICS = get_args(Metric)
both_metrics = pytest.mark.parametrize("metric", METRICS)


def logit(x: Tensor, prototype: Tensor, metric: Metric, scale: float) -> Tensor:
    if metric == "cosine":
        return scale * F.cosine_similarity(x, prototype, dim=0)
    return -scale * (x - prototype).square().sum()


def uneven(shape: tuple[int, int, int]) -> Tensor:
    """A random mask with at least one image a class."""
    mask = torch.rand(shape) < 0.6
    mask[:, :, 0] = True
    return mask


@settings(max_examples=30, deadline=None)
@given(
    metric=st.sampled_from(METRICS),
    sizes=st.tuples(*[st.integers(1, 5)] * 5),
    masked=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_logits_against_a_loop(
    metric: Metric, sizes: tuple[int, int, int, int, int], masked: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    episodes, way, shot, queries, dim = sizes
    support, query = torch.randn(episodes, way, shot, dim), torch.randn(episodes, queries, dim)
    mask = uneven((episodes, way, shot)) if masked else None
    found = prototype_logits(query, prototypes(support, mask), metric, 1.7)
    assert found.shape == (episodes, queries, way)
    for e in range(episodes):
        for w in range(way):
            images = support[e, w] if mask is None else support[e, w, mask[e, w]]
            for q in range(queries):
                expected = logit(query[e, q], images.mean(0), metric, 1.7)
                torch.testing.assert_close(found[e, q, w], expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(
    metric=st.sampled_from(METRICS),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(2, 5), st.integers(1, 6)),
    masked=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_leave_one_out_against_recomputation(
    metric: Metric, sizes: tuple[int, int, int, int], masked: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    episodes, way, shot, _ = sizes
    support = torch.randn(sizes)
    mask = uneven((episodes, way, shot)) if masked else torch.ones(sizes[:3], dtype=torch.bool)
    found = leave_one_out_logits(support, metric, 1.7, mask if masked else None)
    assert found.shape == (episodes, way, shot, way)
    for e in range(episodes):
        for w in range(way):
            for s in range(shot):
                if not mask[e, w, s] or mask[e, w].sum() == 1:
                    assert found[e, w, s].isnan().all()
                    continue
                kept = mask[e].clone()
                kept[w, s] = False
                expected = torch.stack(
                    [
                        logit(support[e, w, s], support[e, v, kept[v]].mean(0), metric, 1.7)
                        for v in range(way)
                    ]
                )
                torch.testing.assert_close(found[e, w, s], expected, rtol=1e-4, atol=1e-4)


@both_metrics
def test_one_query_never_influences_another(metric: Metric) -> None:
    support, queries = torch.randn(2, 5, 3, 16), torch.randn(2, 7, 16)
    alone = prototype_logits(queries, prototypes(support), metric)
    queries[:, 1:] = torch.nan
    torch.testing.assert_close(
        prototype_logits(queries, prototypes(support), metric)[:, 0], alone[:, 0]
    )


@both_metrics
def test_empty_places_do_not_count_whatever_fills_them(metric: Metric) -> None:
    support, mask = torch.randn(2, 4, 3, 8), torch.ones(2, 4, 3, dtype=torch.bool)
    mask[:, 1, 1:] = False  # one image only
    mask[:, 2, 2:] = False
    filled = support.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    centres = prototypes(filled, mask)
    torch.testing.assert_close(centres[:, 1], support[:, 1, 0])
    logits = leave_one_out_logits(filled, metric, 1.0, mask)
    (centres.sum() + logits.nansum()).backward()
    assert filled.grad is not None
    assert filled.grad.isfinite().all()
    assert not filled.grad[~mask].any()


def test_a_class_without_images_has_no_prototype() -> None:
    mask = torch.tensor([[[True, False], [False, False]]])
    centres = prototypes(torch.randn(1, 2, 2, 3), mask)
    assert centres[0, 0].isfinite().all()
    assert centres[0, 1].isnan().all()


def test_distances_keep_their_digits_far_from_the_origin() -> None:
    support, queries = torch.randn(1, 5, 3, 64), torch.randn(1, 7, 64)
    near = prototype_logits(queries, prototypes(support))
    far = prototype_logits(queries + 100, prototypes(support + 100))
    torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-3)


@both_metrics
def test_members_may_lead_and_the_scale_learns(metric: Metric) -> None:
    support, queries = torch.randn(3, 2, 4, 2, 8), torch.randn(3, 2, 6, 8)
    scale = torch.tensor(2.0, requires_grad=True)
    together = prototype_logits(queries, prototypes(support), metric, scale)
    left_out = leave_one_out_logits(support, metric, scale)
    assert left_out.shape == (3, 2, 4, 2, 4)
    for i in range(3):
        alone = prototype_logits(queries[i], prototypes(support[i]), metric, scale)
        torch.testing.assert_close(together[i], alone)
        torch.testing.assert_close(left_out[i], leave_one_out_logits(support[i], metric, scale))
    together.sum().backward()
    assert scale.grad is not None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PolyshotError, match="Did you mean 'cosine'"):
        prototype_logits(torch.randn(1, 1, 2), torch.randn(1, 1, 2), "cosin")  # type: ignore[arg-type]
    with pytest.raises(PolyshotError, match="at least two images"):
        leave_one_out_logits(torch.randn(1, 5, 1, 2))
