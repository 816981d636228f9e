from typing import get_args

import pytest
import torch
from torch.func import functional_call

from polyshot.errors import PolyshotError
from polyshot.models.modulators import (
    Kind,
    Modulator,
    blend,
    embed_member,
    embed_members,
    embed_stacked,
    member_parameters,
    stack,
)

from .reference import TINY, assert_near, copied, random_base, random_modulator, same_states

both_kinds = pytest.mark.parametrize("kind", get_args(Kind))


@both_kinds
def test_blend_of_one_hot_weights_is_that_modulator(kind: Kind) -> None:
    modulators = [random_modulator(TINY, kind, seed) for seed in range(3)]
    before = copied(modulators[1])
    result = blend(modulators, torch.tensor([0.0, 1.0, 0.0]))
    assert result.kind == kind
    assert same_states(result, before)
    next(result.parameters()).data.fill_(9)
    assert same_states(modulators[1], before)


@both_kinds
def test_blend_is_linear_and_its_rest_is_the_base(kind: Kind) -> None:
    a, b = random_modulator(TINY, kind, 1), random_modulator(TINY, kind, 2)
    mixed = blend([a, b], [0.3, 0.5]).state_dict()
    nested = blend([blend([a, b], [0.6, 1.0]), Modulator(TINY, kind)], [0.5, 7.0]).state_dict()
    for name, tensor in mixed.items():
        torch.testing.assert_close(nested[name], tensor)
    base, images = random_base(TINY), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert_near(
            embed_member(base, blend([a], [0.4]), images), embed_member(base, a, images, 0.4), 1e-5
        )
        assert torch.equal(embed_member(base, blend([a, b], [0, 0]), images), base(images))


def test_blend_and_stack_refuse_what_does_not_match() -> None:
    one, other = Modulator(TINY, "conv1x1"), Modulator(TINY, "channel")
    for refused in (lambda: blend([one, other], [0.5, 0.5]), lambda: stack([one, other])):
        with pytest.raises(PolyshotError, match="one kind"):
            refused()
    with pytest.raises(PolyshotError, match="none at all"):
        blend([], [])
    with pytest.raises(PolyshotError, match="as many weights"):
        blend([one, one], [1.0])


@both_kinds
def test_members_together_are_members_alone(kind: Kind) -> None:
    base = random_base(TINY)
    modulators = [random_modulator(TINY, kind, seed) for seed in range(3)]
    images = torch.randn(2, 3, 16, 16)
    together = embed_members(base, modulators, images)
    assert together.shape == (3, 2, TINY.dim)
    for embeddings, modulator in zip(together, modulators, strict=True):
        assert_near(embeddings, functional_call(base, member_parameters(base, modulator), images))


@both_kinds
def test_stacked_tasks_are_tasks_alone_and_learn_apart(kind: Kind) -> None:
    base = random_base(TINY)
    modulators = [random_modulator(TINY, kind, seed) for seed in range(3)]
    images = torch.randn(3, 2, 3, 16, 16)
    stacked = stack(modulators)
    together = embed_stacked(base, modulators[0], stacked, images)
    for i, modulator in enumerate(modulators):
        assert_near(together[i], embed_member(base, modulator, images[i]))
    together[1].sum().backward()
    bias = stacked["layer1.0.conv1.bias"].grad
    assert bias is not None
    assert bias[1].any()
    assert not bias[[0, 2]].any()
    assert all(p.grad is None for m in (base, *modulators) for p in m.parameters())
