"""Walks from the middle: what is recorded, and that replaying is the plain walk to the bit."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.models.backbone import sites_of, walk_through
from polyshot.models.efficientnet import EfficientNetLite
from polyshot.models.foreign import Foreign
from polyshot.models.modulators import TaskModulators, task_modulators
from polyshot.models.passes import Act
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.walk import Walk
from tests.helpers import gentle_modulator, randomised, thin_lite0

TASKS, IMAGES = 2, 3


class TinyViT(nn.Module):
    """A ViT of transformers whose first token is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.ViTConfig(
            hidden_size=12,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=32,
            patch_size=8,
        )
        self.vit = transformers.ViTModel(config, add_pooling_layer=False)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.vit(pixel_values=images).last_hidden_state[:, 0]
        return result


class Encoder(nn.Module):
    """torch's own transformer, which has a fused path."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.encoder(self.patch(images).flatten(2).mT).mean(1)
        return result


def network_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    made = {
        "resnet": lambda: ResNet(ResNetConfig(width=8)),
        "lite0": lambda: Foreign(randomised(EfficientNetLite()), 48),
        "thin lite0": lambda: Foreign(thin_lite0(), 48),
        "vit": lambda: Foreign(TinyViT().eval(), 32),
        "encoder": lambda: Foreign(Encoder().eval(), 32),
    }[name]()
    return made.eval().requires_grad_(False) if name != "resnet" else randomised(made)


def images_of(count: int = TASKS * IMAGES, side: int = 32, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, side, side, generator=draw)
    return images.contiguous(memory_format=torch.channels_last)


def blends(network: nn.Module, learning: list[str]) -> tuple[TaskModulators, list[Tensor]]:
    """Modulators of two tasks at all sites, of which some learn."""
    modulators = [gentle_modulator(network, "conv1x1", seed, 0.1) for seed in (1, 2)]
    mixed = task_modulators(network, modulators, torch.eye(TASKS))
    weights = {
        name: weight.clone().requires_grad_(name in learning)
        for name, weight in mixed.weights.items()
    }
    return replace(mixed, weights=weights), [weights[name] for name in learning]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("name", ["resnet", "lite0", "vit", "encoder"])
def test_replaying_is_the_plain_walk_to_the_bit(name: str, share: float, autocast: bool) -> None:
    if autocast and name == "lite0":  # without bf16 in hardware the whole one takes seconds
        name = "thin lite0"
    network, images = network_of(name), images_of()
    names = [site.layer for site in sites_of(network) if site.takes_maps]
    learning = names[round(share * (len(names) - 1)) :]
    mixed, leaves = blends(network, learning)
    walk, acts = walk_through(network), mixed.acts(TASKS)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        recording = walk.record(images, learning, acts)
        expected = walk(images, acts)
        found = [walk.replay(recording, acts) for _ in range(2)]
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    for each in found:
        assert torch.equal(each, expected)
        for one, other in zip(
            torch.autograd.grad(each.square().sum(), leaves), wanted, strict=True
        ):
            assert torch.equal(one, other)
    assert all(gradient.any() for gradient in wanted)
    assert not any(tensor.requires_grad for tensor in recording.tensors)
    assert torch.equal(walk(images, {}), network(images)), "something stayed behind"


def read(walk: Walk, images: Tensor, first: str) -> list[str]:
    """The modules whose results are kept."""
    return [kept.module for kept in walk.record(images, [first]).plan if kept.read]


def test_only_what_is_read_is_kept() -> None:
    network, images = network_of("resnet"), images_of(4)
    walk = walk_through(network)
    assert read(walk, images, "layer1.0.conv1") == ["maxpool"]
    assert read(walk, images, "layer3.0.conv1") == ["layer2"]
    # The block's input is needed for its shortcut.
    assert read(walk, images, "layer4.1.conv2") == ["layer4.0", "layer4.1.bn1"]
    recording = walk.record(images, ["layer1.0.conv1"])
    assert recording.nbytes < 4 * (4 * 8 * 8 * 8) + 64  # 8 channels of 8 x 8, little else
    lite0 = walk_through(network_of("lite0"))
    assert read(lite0, images, "network.blocks.5.project_conv") == ["network.blocks.5.bn1"]


def test_without_layers_that_learn_the_embedding_is_kept() -> None:
    network, images = network_of("resnet"), images_of(3)
    walk = walk_through(network)
    recording = walk.record(images, [])
    assert torch.equal(walk.replay(recording, {}), network(images))
    assert recording.nbytes < 3 * 64 * 4 + 64
    act = {"layer2.0.conv1": Act()}
    assert torch.equal(walk.replay(walk.record(images, [], act), act), network(images))


# --- networks that make it hard


class Odd(nn.Module):
    """Layers, and a forward pass that a test gives."""

    def __init__(self, forward: Callable[["Odd", Tensor], Tensor]) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)])
        self.bn, self.relu = nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.wasteful = Wasteful()
        self._forward = forward
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self._forward(self, images).mean((2, 3))


class Wasteful(nn.Module):
    """Changes what it is given, and returns something else."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu_() * 2


def one_module_in_place(net: Odd, x: Tensor) -> Tensor:
    y = net.relu(net.bn(net.convs[0](x)))
    z = net.relu(net.convs[1](y))
    z += y  # changes what the activation has made
    y *= 2  # and what is kept
    return net.convs[2](z) + y


def in_place_afterwards(net: Odd, x: Tensor) -> Tensor:
    y = net.convs[0](x)
    y += net.convs[2](y)
    return net.convs[3](y)


def ignored_result(net: Odd, x: Tensor) -> Tensor:
    y = net.convs[0](x)
    net.relu(y)
    return net.convs[2](y) + y


def unseen_by_autograd(net: Odd, x: Tensor) -> Tensor:
    gate = net.convs[0](x).detach() > 0
    return net.convs[2](net.convs[1](x)) * gate


def changed_behind_the_back(net: Odd, x: Tensor) -> Tensor:
    y = net.convs[0](x)
    return net.convs[2](net.wasteful(y)) + y


def pair(net: Odd, x: Tensor) -> Tensor:
    return net.convs[2](net.convs[0](x)) + net.convs[1](x * 2) + x


@pytest.mark.parametrize(
    ("forward", "kept"),
    [
        # No gradient flows through what they change: autograd cannot tell what is read.
        (one_module_in_place, ["", "convs.0", "bn", "convs.1"]),
        (in_place_afterwards, ["", "convs.0"]),
        (ignored_result, ["convs.0"]),
        (unseen_by_autograd, ["", "convs.0", "convs.1"]),
        (changed_behind_the_back, [""]),
        (pair, ["", "convs.0"]),
    ],
)
def test_code_between_modules_may_do_anything(
    forward: Callable[[Odd, Tensor], Tensor], kept: list[str]
) -> None:
    torch.manual_seed(0)
    network, images = randomised(Odd(forward)).requires_grad_(False), images_of(3, side=8)
    before = images.clone()
    walk = Walk(network, {"convs.2": None, "convs.3": None})
    recording, acts = walk.record(images, ["convs.2"]), {"convs.2": Act()}
    assert [each.module for each in recording.plan if each.read] == kept
    expected = network(images)
    for _ in range(3):
        assert torch.equal(walk.replay(recording, acts), expected)
    assert torch.equal(images, before)


def test_a_pass_that_differs_is_refused_in_one_line() -> None:
    def restless(net: Odd, x: Tensor) -> Tensor:
        return net.convs[2](net.convs[int(net.calls > 6)](x))

    walk = Walk(randomised(Odd(restless)), {"convs.2": None})
    images = images_of(2, side=8)
    with pytest.raises(PolyshotError, match="differs from one time to another") as error:
        for _ in range(9):
            walk.record(images, ["convs.2"])
    assert "\n" not in str(error.value)


def test_a_first_layer_that_is_not_called_is_refused() -> None:
    walk = Walk(randomised(Odd(in_place_afterwards)), {"convs.1": None})
    with pytest.raises(PolyshotError, match=r"each of its layers once.*convs\.1"):
        walk.record(images_of(2, side=8), ["convs.1"])


def test_networks_that_are_trained_are_not_tried() -> None:
    network = network_of("resnet").train()
    with pytest.raises(AssertionError, match="statistics"):
        walk_through(network).record(images_of(2), ["layer1.0.conv1"])


# --- what a walk leaves behind


class Failing(Act):
    def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        raise ValueError("on the way")


def test_a_failure_leaves_nothing_behind() -> None:
    network, images = network_of("encoder"), images_of(2)
    walk = walk_through(network)
    early, late = "network.encoder.layers.0.linear1", "network.encoder.layers.1.linear1"
    recording = walk.record(images, [late])
    with pytest.raises(ValueError, match="on the way"):
        walk.record(images, [late], {early: Failing()})
    with pytest.raises(ValueError, match="on the way"):
        walk.replay(recording, {late: Failing()})
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(walk(images, {}), network(images))
    act = {late: Act()}
    assert torch.equal(walk.replay(recording, act), walk(images, act))


def test_the_fused_path_of_transformers_is_off_only_inside() -> None:
    network, images = network_of("encoder"), images_of(2)
    seen = []

    class Looking(Act):
        def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            seen.append(torch.backends.mha.get_fastpath_enabled())
            return own(x)

    acts = {site.layer: Looking() for site in sites_of(network)}
    with torch.no_grad():
        torch.testing.assert_close(walk_through(network)(images, acts), network(images))
    assert seen and not any(seen)
    assert torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        walk_through(network)(images, acts)
        assert not torch.backends.mha.get_fastpath_enabled(), "what the user chose is kept"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_threads_record_and_replay_side_by_side() -> None:
    network = network_of("encoder")
    walk, barrier = walk_through(network), threading.Barrier(2, timeout=30)
    name, found = "network.encoder.layers.1.linear1", {}

    class Meeting(Act):
        def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            barrier.wait()
            return own(x)

    def work(seed: int) -> None:
        images = images_of(2, seed=seed)
        early = {"network.encoder.layers.0.linear2": Meeting()}
        recording = walk.record(images, [name], early)
        found[seed] = walk.replay(recording, {name: Meeting(), **early})

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.backends.mha.get_fastpath_enabled()
    for seed in (1, 2):
        torch.testing.assert_close(found[seed], network(images_of(2, seed=seed)))


def test_bytes_of_what_modules_make() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))
    walk = Walk(network.eval(), {})
    assert walk.nbytes(torch.zeros(2, 3, 5, 5)) == 3 * (2 * 4 * 5 * 5) * 4
