from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from polyshot.errors import PolyshotError
from polyshot.models.backbone import parameter_count, sites_of, walk_through
from polyshot.models.efficientnet import EfficientNetLite
from polyshot.models.foreign import Foreign
from polyshot.models.modulators import (
    Kind,
    Modulator,
    fold,
    fold_task,
    member_parameters,
    read_tensors,
    task_modulators,
)
from polyshot.models.resnet import ResNet, ResNetConfig, Stem
from tests.helpers import (
    SMALL,
    assert_near,
    copied,
    explicit,
    fresh_modulator,
    gentle_modulator,
    mixed_modulator,
    random_base,
    random_modulator,
    same_states,
    thin_lite0,
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


# --- maps of low rank


def test_maps_beside_pointwise_layers_are_of_low_rank_where_that_is_smaller() -> None:
    modulator = fresh_modulator(Foreign(thin_lite0(), 16), rank=4)
    shapes = {name: tuple(value.shape) for name, value in modulator.named_parameters()}
    head, small = "network.conv_head", "network.blocks.0.project_conv"
    assert (shapes[f"{head}.up"], shapes[f"{head}.down"]) == ((24, 4), (4, 12))
    assert shapes[f"{small}.weight"] == (8, 8, 1, 1)  # two matrices of rank 4 were as large
    assert not modulator.get_parameter(f"{head}.up").any()
    assert modulator.get_parameter(f"{head}.down").all()
    full = fresh_modulator(Foreign(thin_lite0(), 16), rank=0)
    assert all(name.endswith((".weight", ".bias")) for name, _ in full.named_parameters())
    assert parameter_count(modulator) < parameter_count(full)


def test_parameter_counts_on_lite0() -> None:
    lite0 = Foreign(EfficientNetLite(), 64)
    counts = [parameter_count(fresh_modulator(lite0, "conv1x1", rank)) for rank in (16, 0)]
    assert counts == [376_048, 3_158_128]


def test_maps_of_low_rank_fold_act_and_blend_alike() -> None:
    base, images = (
        Foreign(thin_lite0(), 16).double(),
        torch.randn(3, 4, 3, 16, 16, dtype=torch.float64),
    )
    modulators = [gentle_modulator(base, "conv1x1", i, rank=i).double() for i in range(3)]
    shares = torch.tensor([[0.0, 1, 0], [0, 0, 0.3], [0.2, 0.5, 0.4]], dtype=torch.float64)
    with torch.no_grad():
        mixed = task_modulators(base, modulators, shares)
        found = walk_through(base)(images.flatten(0, 1), mixed.acts(3)).view(3, 4, -1)
        folded = [fold(base, modulators[1]), fold(base, modulators[2], 0.3)]
        folded.append(fold(base, mixed_modulator(modulators, shares[2])))
        for task, member in enumerate(folded):
            torch.testing.assert_close(found[task], member(images[task]))
            torch.testing.assert_close(fold_task(base, mixed, task)(images[task]), found[task])
            assert (found[task] - base(images[task])).abs().max() > 1e-3


def test_shapes_tell_the_rank() -> None:
    base = Foreign(thin_lite0(), 16)
    for rank in (0, 1, 3):
        modulator = random_modulator(base, "conv1x1", rank=rank)
        read = read_tensors(sites_of(base), "conv1x1", modulator.state_dict())
        read.load_state_dict(modulator.state_dict())
        assert same_states(read, copied(modulator))
