"""Kernels in the order of the CPU's library: what is computed stays the same."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyshot.models import prepacked as module
from polyshot.models.backbone import fused, state_hash
from polyshot.models.modulators import fold, fold_task, task_modulators
from polyshot.models.prepacked import PrepackedConv2d, can_prepack, prepacked
from polyshot.models.resnet import ResNetConfig
from tests.helpers import SMALL, gentle_modulator, random_base, thin_lite0

where_it_is = pytest.mark.skipif(not can_prepack(), reason="PyTorch has no oneDNN here")


def member() -> nn.Module:
    return fold(random_base(), gentle_modulator(random_base(), "conv1x1"))


def blend() -> nn.Module:
    base = random_base()
    modulators = [gentle_modulator(base, "conv1x1", seed) for seed in (0, 1)]
    return fold_task(base, task_modulators(base, modulators, torch.tensor([[0.6, 0.3]])), 0)


def without_norms() -> nn.Module:
    """With convolutions of other kinds: by channel, padded by name, mirrored at the border."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(8, 4, 1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "base": random_base,
    "wide base": lambda: random_base(ResNetConfig(width=16)),
    "member": member,
    "blend": blend,
    "Lite0": thin_lite0,
    "without batch norm": without_norms,
}


def images(count: int = 3) -> Tensor:
    values = torch.rand(count, 3, 24, 24, generator=torch.Generator().manual_seed(count))
    return values.contiguous(memory_format=torch.channels_last)


def count(network: nn.Module) -> int:
    return sum(isinstance(layer, PrepackedConv2d) for layer in network.modules())


@where_it_is
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_an_ordered_network_is_the_plain_one(name: str) -> None:
    plain = NETWORKS[name]().eval()
    expected = {number: plain(images(number)) for number in (1, 3, 20)}
    network = fused(plain)
    before = state_hash(network)
    assert prepacked(network) is network and count(network)
    assert state_hash(network) == before
    for number, wanted in expected.items():
        found = network(images(number))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@where_it_is
@torch.no_grad()
def test_only_plain_convolutions_are_prepacked() -> None:
    network = without_norms()
    assert [type(layer) for layer in prepacked(network).children()][:6] == [
        PrepackedConv2d,
        nn.Conv2d,
        nn.ReLU,
        nn.Conv2d,
        nn.Conv2d,
        PrepackedConv2d,
    ]
    assert not count(prepacked(without_norms().double()))


@where_it_is
def test_a_network_in_training_is_untouched() -> None:
    """Gradients reach images and weights as those of the plain network do."""
    plain = random_base().train()
    network = prepacked(copy.deepcopy(plain))
    for each in (plain, network):
        each(images()).square().sum().backward()
    own = dict(network.named_parameters())
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(own[name].grad, parameter.grad)


@where_it_is
@torch.no_grad()
def test_other_weights_are_not_answered_by_the_copy_of_the_first() -> None:
    network = prepacked(fused(random_base()))
    doubled = {name: 2 * weight for name, weight in network.named_parameters()}
    plain = fused(random_base())
    expected = functional_call(plain, doubled, (images(),))
    torch.testing.assert_close(functional_call(network, doubled, (images(),)), expected)
    torch.testing.assert_close(network.double()(images().double()).float(), plain(images()))


@where_it_is
@torch.no_grad()
def test_copies_and_pickles_answer_alike() -> None:
    network, file = prepacked(fused(random_base())), io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    for other in (copy.deepcopy(network), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(images()), network(images()))


def test_where_pytorch_has_no_onednn_networks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_prepack", lambda: False)
    assert not count(prepacked(random_base(SMALL)))
