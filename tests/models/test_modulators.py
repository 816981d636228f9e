from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from polyshot.errors import PolyshotError
from polyshot.models.backbone import parameter_count, sites_of
from polyshot.models.modulators import Kind, Modulator, fold, member_parameters
from polyshot.models.resnet import ResNet, ResNetConfig, Stem
from tests.helpers import (
    SMALL,
    assert_near,
    copied,
    explicit,
    fresh_modulator,
    random_base,
    random_modulator,
    same_states,
)

KINDS = get_args(Kind)
both_kinds = pytest.mark.parametrize("kind", KINDS)


def embed_member(base: ResNet, modulator: Modulator, images: Tensor, strength: float = 1) -> Tensor:
    """As in training: gradients reach the modulator."""
    embeddings: Tensor = functional_call(
        base, member_parameters(base, modulator, strength), (images,)
    )
    return embeddings


@pytest.mark.parametrize(("kind", "one"), [("conv1x1", 1_224_448), ("channel", 7_680)])
def test_parameter_counts_of_the_paper(kind: Kind, one: int) -> None:
    modulators = [fresh_modulator(ResNetConfig(), kind) for _ in range(8)]
    assert parameter_count(modulators[0]) == one
    assert parameter_count(*modulators) == {"conv1x1": 9_795_584, "channel": 61_440}[kind]


@both_kinds
def test_state_dict_is_keyed_by_layer(kind: Kind) -> None:
    state = fresh_modulator(SMALL, kind).state_dict()
    first = "weight" if kind == "conv1x1" else "scale"
    names = [site.layer for site in sites_of(random_base())]
    assert set(state) == {f"{name}.{entry}" for name in names for entry in (first, "bias")}
    if kind == "conv1x1":
        assert state["layer2.0.conv1.weight"].shape == (8, 4, 1, 1)


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@settings(max_examples=15, deadline=None)
@given(
    config=st.builds(ResNetConfig, st.integers(1, 6), st.sampled_from(get_args(Stem))),
    kind=st.sampled_from(KINDS),
    strength=st.floats(-0.5, 1.5),
    draw=st.tuples(st.integers(7, 24), st.integers(0, 10_000)),
)
def test_folded_is_functional_is_explicit(
    dtype: torch.dtype,
    relative: float,
    *,
    config: ResNetConfig,
    kind: Kind,
    strength: float,
    draw: tuple[int, int],
) -> None:
    size, seed = draw
    base = random_base(config, seed).to(dtype)
    modulator = random_modulator(config, kind, seed + 1).to(dtype)
    before = copied(base)
    images = torch.randn(3, 3, size, size, dtype=dtype)
    with torch.no_grad():
        reference = explicit(base, modulator, images, strength)
        folded = fold(base, modulator, strength)
        assert_near(embed_member(base, modulator, images, strength), reference, relative)
        assert_near(folded(images), reference, relative)
    assert same_states(base, before)
    # a plain network: nothing but the base's tensors
    assert type(folded) is ResNet
    assert set(folded.state_dict()) == set(before)


@both_kinds
def test_identity_and_strength_zero_are_the_base(kind: Kind) -> None:
    base, images = random_base(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(embed_member(base, fresh_modulator(SMALL, kind), images), base(images))
        assert torch.equal(
            embed_member(base, random_modulator(SMALL, kind), images, 0), base(images)
        )
        assert not torch.allclose(
            embed_member(base, random_modulator(SMALL, kind), images), base(images)
        )


@both_kinds
def test_gradients_reach_only_the_modulator_and_are_the_explicit_ones(kind: Kind) -> None:
    base, modulator = random_base(), random_modulator(SMALL, kind)
    images = torch.randn(2, 3, 16, 16)
    embed_member(base, modulator, images).square().sum().backward()
    assert all(parameter.grad is None for parameter in base.parameters())
    names, own = zip(*modulator.named_parameters(), strict=True)
    expected = torch.autograd.grad(explicit(base, modulator, images, 1.0).square().sum(), own)
    for name, parameter, grad in zip(names, own, expected, strict=True):
        assert parameter.grad is not None, name
        assert_near(parameter.grad, grad, 1e-3)
        assert grad.any(), name


def test_in_training_mode_the_bias_stays_alive_and_means_the_same() -> None:
    """Once the statistics have settled on the batch, training and evaluation mode agree."""
    base, modulator = random_base().double().train(), random_modulator(SMALL, "conv1x1").double()
    images = torch.randn(16, 3, 32, 32, dtype=torch.float64)
    for module in base.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.5
    with torch.no_grad():
        for _ in range(200):
            trained = embed_member(base, modulator, images)
    embed_member(base, modulator, images).square().sum().backward()
    bias = modulator.get_parameter("layer2.0.conv1.bias")
    assert bias.grad is not None
    assert bias.grad.abs().max() > 1e-3
    with torch.no_grad():
        evaluated = embed_member(base.eval(), modulator, images)
    # running_var is the unbiased estimate, the batch's own the biased one: n / (n - 1) apart
    assert_near(evaluated, trained, 0.05)


@both_kinds
def test_channels_last_stays(kind: Kind) -> None:
    base = random_base().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    modulator = random_modulator(SMALL, kind)
    for weights in (member_parameters(base, modulator), fold(base, modulator).state_dict()):
        weight = weights["layer2.0.conv1.weight"]
        assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_modulator_of_another_base_is_refused() -> None:
    other = ResNetConfig(8, "small/2")
    with pytest.raises(PolyshotError, match=r"another network: layer1\.0\.conv1 of 8 and 8"):
        fold(random_base(), fresh_modulator(other))
    assert fresh_modulator(SMALL).fits(random_base())
    assert not fresh_modulator(other).fits(random_base())
    with pytest.raises(PolyshotError, match="Did you mean 'channel'"):
        fresh_modulator(SMALL, "chanel")  # type: ignore[arg-type]
