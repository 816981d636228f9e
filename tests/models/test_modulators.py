from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.models.modulators import (
    Kind,
    Modulator,
    embed_member,
    fold,
    member_parameters,
    unfold,
)
from polyshot.models.resnet import ResNet, ResNetConfig, Stem, modulated_layers

from .reference import (
    TINY,
    assert_near,
    copied,
    explicit,
    random_base,
    random_modulator,
    same_states,
)

KINDS = get_args(Kind)
both_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(("kind", "one"), [("conv1x1", 1_224_448), ("channel", 7_680)])
def test_parameter_counts_of_the_paper(kind: Kind, one: int) -> None:
    modulators = [Modulator(ResNetConfig(), kind) for _ in range(8)]
    assert sum(p.numel() for p in modulators[0].parameters()) == one
    eight = sum(p.numel() for m in modulators for p in m.parameters())
    assert eight == {"conv1x1": 9_795_584, "channel": 61_440}[kind]


@both_kinds
def test_state_dict_is_keyed_by_layer(kind: Kind) -> None:
    state = Modulator(TINY, kind).state_dict()
    first = "weight" if kind == "conv1x1" else "scale"
    names = [layer.conv for layer in modulated_layers(TINY)]
    assert set(state) == {f"{name}.{entry}" for name in names for entry in (first, "bias")}
    if kind == "conv1x1":
        assert state["layer2.0.conv1.weight"].shape == (8, 4, 1, 1)


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@settings(max_examples=25, deadline=None)
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
        assert_near(unfold(folded, modulator, strength)(images), base(images), relative)
    assert same_states(base, before)
    # a plain network: nothing but the base's tensors
    assert type(folded) is ResNet
    assert set(folded.state_dict()) == set(before)


@both_kinds
def test_unfold_returns_the_bases_weights(kind: Kind) -> None:
    base, modulator = random_base(TINY), random_modulator(TINY, kind)
    again = unfold(fold(base, modulator, 0.7), modulator, 0.7).state_dict()
    for name, tensor in base.state_dict().items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-4, atol=1e-5)


def test_unfold_refuses_a_lost_base() -> None:
    modulator = Modulator(TINY, "channel")
    modulator.get_parameter("layer3.1.conv2.scale").data[2] = 0
    with pytest.raises(PolyshotError, match=r"layer3\.1\.conv2"):
        unfold(fold(random_base(TINY), modulator), modulator)


@both_kinds
def test_identity_and_strength_zero_are_the_base(kind: Kind) -> None:
    base, images = random_base(TINY), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(embed_member(base, Modulator(TINY, kind), images), base(images))
        assert torch.equal(
            embed_member(base, random_modulator(TINY, kind), images, 0), base(images)
        )
        assert not torch.allclose(
            embed_member(base, random_modulator(TINY, kind), images), base(images)
        )


@both_kinds
def test_gradients_reach_only_the_modulator_and_are_the_explicit_ones(kind: Kind) -> None:
    base, modulator = random_base(TINY), random_modulator(TINY, kind)
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
    base, modulator = random_base(TINY).double().train(), random_modulator(TINY, "conv1x1").double()
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
    base = random_base(TINY).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    modulator = random_modulator(TINY, kind)
    for weights in (member_parameters(base, modulator), fold(base, modulator).state_dict()):
        weight = weights["layer2.0.conv1.weight"]
        assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_modulator_of_another_base_is_refused() -> None:
    with pytest.raises(PolyshotError, match="width=8"):
        fold(random_base(TINY), Modulator(ResNetConfig(8, "small/2")))
    with pytest.raises(PolyshotError, match="Did you mean 'channel'"):
        Modulator(TINY, "chanel")  # type: ignore[arg-type]
