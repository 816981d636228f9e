"""The one walk: its sites, what acts there, and that nothing else changes."""

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyshot.errors import PolyshotError
from polyshot.models.backbone import (
    Site,
    affine,
    find_layers,
    fused,
    layers_of,
    sites_of,
    state_hash,
    walk_through,
)
from polyshot.models.modulators import (
    Kind,
    TaskModulators,
    fold,
    fold_task,
    member_parameters,
    no_weights,
    task_modulators,
)
from polyshot.models.passes import Act
from polyshot.models.resnet import ResNet, ResNetConfig, Stem
from polyshot.models.task_networks import embed_tasks, task_kernels
from polyshot.models.walk import Walk
from tests.helpers import (
    assert_near,
    copied,
    fresh_modulator,
    gentle_modulator,
    mixed_modulator,
    random_base,
    randomised,
    same_states,
)

SIDE = 16
STEMS = get_args(Stem)
both_kinds = pytest.mark.parametrize("kind", get_args(Kind))


class Attention(nn.Module):
    """Self-attention of one head, of plain linear layers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        result: Tensor = self.proj((query @ key.mT / x.shape[-1] ** 0.5).softmax(-1) @ value)
        return result


class TransformerBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 12), nn.Linear(12, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return result


class TinyTransformer(nn.Module):
    """Patches, two blocks with residuals, the tokens' mean."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, stride=4)
        self.blocks = nn.ModuleList([TransformerBlock(dim) for _ in range(2)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.norm(x).mean(1)
        return result


class InvertedBlock(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 3 * inputs
        self.expand, self.bn1 = nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.bn2 = nn.BatchNorm2d(wide, eps=1e-3)
        self.project, self.bn3 = nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.act = nn.SiLU()  # one for both
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.expand(x)))
        y = self.bn3(self.project(self.act(self.bn2(self.depthwise(y)))))
        return x + y if self.residual else y


class TinyEfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(
            InvertedBlock(4, 4, 1), InvertedBlock(4, 6, 2), InvertedBlock(6, 6, 1)
        )
        self.wide = nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.BatchNorm2d(8, eps=1e-2), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.bn(self.stem(images))))
        result: Tensor = self.wide(x).mean((2, 3))
        return result


def make(name: str, seed: int = 0) -> nn.Module:
    """A random network in evaluation mode by its kind."""
    torch.manual_seed(seed)
    if name == "transformer":
        return randomised(TinyTransformer())
    if name == "efficientnet":
        return randomised(TinyEfficientNet())
    return random_base(ResNetConfig(width=3, stem=name), seed)  # type: ignore[arg-type]


OTHERS = ("transformer", "efficientnet")
KINDS_OF_NETWORKS = (*STEMS, *OTHERS)
every_network = pytest.mark.parametrize("name", KINDS_OF_NETWORKS)


def images_of(tasks: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(tasks, 3, 3, SIDE, SIDE, generator=draw, dtype=torch.float64)


def side_by_side(base: nn.Module, modulators: TaskModulators, images: Tensor) -> Tensor:
    walk = walk_through(base)
    found = walk(images.flatten(0, 1), modulators.acts(len(images)))
    return found.view(*images.shape[:2], -1)


# --- sites


@pytest.mark.parametrize("stem", STEMS)
def test_what_a_resnet_declares_is_what_is_found(stem: Stem) -> None:
    base = random_base(ResNetConfig(width=3, stem=stem)).train()
    before = copied(base)
    assert find_layers(base, torch.randn(1, 3, 32, 32)) == layers_of(base)
    assert len(layers_of(base)) == 1 + 16 + 3
    sites = sites_of(base)
    assert len(sites) == 16 and {site.tap for site in sites} == {(1, 1)}
    assert all(base.get_submodule(site.layer).kernel_size == (3, 3) for site in sites)
    assert base.training and same_states(base, before), "looking for layers changed the network"


def test_sites_of_a_transformer_are_the_linear_layers_of_its_blocks() -> None:
    network = make("transformer")
    parts = ("attention.qkv", "attention.proj", "up", "down")
    sites = sites_of(network)
    assert [site.layer for site in sites] == [f"blocks.{i}.{p}" for i in (0, 1) for p in parts]
    assert all(site.axis == -1 and site.norm is None and site.takes_maps for site in sites)
    assert (sites[0].inputs, sites[0].outputs) == (6, 18)
    assert layers_of(network)[0].layer == "patch"


def test_sites_of_an_efficientnet_are_neither_its_stem_nor_depthwise() -> None:
    network = make("efficientnet")
    sites = {site.layer: site for site in sites_of(network)}
    blocks = [f"blocks.{i}.{part}" for i in (0, 1, 2) for part in ("expand", "project")]
    assert list(sites) == [*blocks, "wide.0"]
    assert sites["blocks.1.project"].norm == "blocks.1.bn3"
    assert sites["blocks.0.expand"].tap == (0, 0)
    assert (sites["wide.0"].tap, sites["wide.0"].stride) == ((1, 1), (2, 2))
    depthwise = next(s for s in layers_of(network) if s.layer == "blocks.1.depthwise")
    assert depthwise.tap is None and not depthwise.takes_maps and depthwise.stride == (2, 2)


class Small(nn.Module):
    """Two convolutions in a list, and a forward pass that a test gives."""

    def __init__(self, forward: Callable[["Small", Tensor], Tensor], **options: object) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, **options) for _ in range(2)])  # type: ignore[arg-type]
        self.bn = nn.BatchNorm2d(3)
        self._forward = forward

    def forward(self, images: Tensor) -> Tensor:
        return self._forward(self, images).mean((2, 3))


def test_a_norm_must_read_exactly_what_the_layer_made() -> None:
    plain = Small(lambda net, x: net.bn(net.convs[0](x)), padding=1)
    in_place = Small(lambda net, x: net.bn(torch.relu_(net.convs[0](x))), padding=1)
    moved = Small(lambda net, x: net.bn(net.convs[0](x) + 1), padding=1)
    assert [site.norm for site in layers_of(plain)] == ["bn"]
    assert [site.norm for site in layers_of(in_place)] == [None]
    assert [site.norm for site in layers_of(moved)] == [None]
    for network in (plain, in_place, moved):
        images = torch.randn(2, 3, 8, 8)
        randomised(network)
        torch.testing.assert_close(fused(network)(images), network(images))


def test_a_layer_that_is_called_twice_is_no_site() -> None:
    twice = Small(lambda net, x: net.convs[1](net.convs[0](net.convs[0](x))), padding=1)
    assert [site.layer for site in layers_of(twice)] == ["convs.1"]


@pytest.mark.parametrize(
    ("options", "tap"),
    [
        ({"kernel_size": 3, "padding": 1}, (1, 1)),
        ({"kernel_size": 3, "padding": 1, "stride": 2}, (1, 1)),
        ({"kernel_size": (1, 5), "padding": (0, 2)}, (0, 2)),
        ({"kernel_size": 3, "padding": 2, "dilation": 2}, (1, 1)),
        ({"kernel_size": 2, "stride": 2}, (0, 0)),
        ({"kernel_size": 3}, None),  # without padding its result is smaller
        ({"kernel_size": 3, "padding": 1, "groups": 3}, None),
    ],
)
def test_the_tap_that_reads_the_input_at_every_stride(
    options: dict[str, object], tap: tuple[int, int] | None
) -> None:
    network = nn.Sequential(nn.Conv2d(3, 3, **options))  # type: ignore[arg-type]
    (site,) = find_layers(network, torch.zeros(1, 3, 8, 8))
    assert site.tap == tap and site.takes_maps == (tap is not None)


def test_a_wrong_tap_gives_wrong_members() -> None:
    """What holds the centre tap in place: the explicit 1x1 convolution beside the layer."""
    base = random_base(ResNetConfig(width=3, stem="small/2")).double()
    site = sites_of(base)[3]
    weight = torch.randn(1, site.outputs, site.inputs, dtype=torch.float64)
    images = images_of(1)

    class Beside(Act):
        def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            return own(x) + nn.functional.conv2d(x, weight[0, :, :, None, None], None, site.stride)

    with torch.no_grad():
        expected = walk_through(base)(images[0], {site.layer: Beside()})
        slope, shift = (part[None] for part in affine(base, site))
        named = {site.layer: weight}, {site.layer: slope}, {site.layer: shift}
        for tap in ((1, 1), (0, 1), (2, 2)):
            folded = fold_task(base, TaskModulators([replace(site, tap=tap)], *named), 0)
            assert torch.allclose(folded(images[0]), expected) == (tap == (1, 1))


# --- the walk


@every_network
def test_without_acts_it_is_the_network_to_the_bit(name: str) -> None:
    network, images = make(name), torch.randn(3, 3, SIDE, SIDE)
    walk = walk_through(network)
    assert torch.equal(walk(images, {}), network(images))
    nothing = {site.layer: Act() for site in layers_of(network)}
    assert torch.equal(walk(images, nothing), network(images))


@every_network
def test_the_network_is_never_touched_and_shares_its_tensors(name: str) -> None:
    network, images = make(name), torch.randn(2, 3, SIDE, SIDE)
    before = copied(network)
    forwards = [module.forward for module in network.modules()]
    walk = walk_through(network)
    assert walk_through(network) is walk, "made twice"
    theirs = {id(t) for t in (*walk.network.parameters(), *walk.network.buffers())}
    assert theirs == {id(t) for t in (*network.parameters(), *network.buffers())}
    assert list(walk.network.state_dict()) == list(network.state_dict())
    found = walk(images, {site.layer: Act() for site in sites_of(network)})
    expected = torch.autograd.grad(network(images).square().sum(), list(network.parameters()))
    gradients = torch.autograd.grad(found.square().sum(), list(network.parameters()))
    for one, other in zip(gradients, expected, strict=True):
        assert torch.equal(one, other)
    assert any(gradient.any() for gradient in gradients)
    assert same_states(network, before)
    assert [module.forward for module in network.modules()] == forwards
    with torch.no_grad():
        next(network.parameters()).add_(0.5)
    assert torch.equal(walk(images, {}), network(images)), "a copy of what it was"


class Note(Act):
    """Adds a number to a layer's result and writes down who was called."""

    def __init__(self, amount: float = 0.0) -> None:
        self.amount = amount
        self.calls: list[str] = []

    def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self.calls.append("layer")
        return own(x) + self.amount

    def norm(self, own: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        self.calls.append("norm")
        return own(y)


def test_an_act_is_asked_at_its_layer_and_norm_and_only_for_its_own_walk() -> None:
    network, images = make("small/2"), torch.randn(2, 3, SIDE, SIDE)
    act, walk = Note(1.0), walk_through(network)
    with torch.no_grad():
        plain = network(images)
        assert not torch.allclose(walk(images, {"layer2.0.conv2": act}), plain)
        assert act.calls == ["layer", "norm"]
        assert torch.equal(walk(images, {}), plain)
        assert torch.equal(walk.network(images), plain)
    assert act.calls == ["layer", "norm"]


def test_an_act_that_fails_leaves_nothing_behind() -> None:
    network, images = make("small/2"), torch.randn(2, 3, SIDE, SIDE)
    walk = walk_through(network)

    class Failing(Act):
        def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        walk(images, {"layer2.0.conv2": Failing()})
    assert torch.equal(walk(images, {}), network(images))


@pytest.mark.parametrize("calls", [0, 2])
def test_layers_that_are_not_called_once_are_refused_in_one_line(calls: int) -> None:
    def forward(net: Small, x: Tensor) -> Tensor:
        for _ in range(calls):
            x = net.convs[0](x)
        return net.convs[1](x)

    network = Small(forward, padding=1)
    every = [Site(f"convs.{i}", None, 3, 3, tap=(1, 1)) for i in (0, 1)]
    walk = Walk(network, {site.layer: None for site in every})
    images = torch.randn(1, 3, 8, 8)
    walk(images, {"convs.1": Act()})
    with pytest.raises(PolyshotError, match=r"each of its layers once.*convs\.0") as error:
        walk(images, {site.layer: Act() for site in every})
    assert "\n" not in str(error.value) and "convs.1" not in str(error.value)


def test_a_norm_that_is_passed_by_is_refused() -> None:
    network = Small(lambda net, x: net.convs[0](x), padding=1)
    walk = Walk(network, {"convs.0": "bn"})
    with pytest.raises(PolyshotError, match=r"once in a pass.*bn"):
        walk(torch.randn(1, 3, 8, 8), {"convs.0": Act()})


def test_training_and_evaluation_mode_follow_the_network() -> None:
    network, images = make("small/2"), torch.randn(4, 3, SIDE, SIDE)
    acts = {site.layer: Act() for site in sites_of(network)}
    with torch.no_grad():
        walk_through(network)(images, acts)
        other = copy.deepcopy(network).train()
        network.train()
        assert torch.equal(walk_through(network)(images, acts), other(images))
        assert same_states(network, copied(other)), "statistics of training were not kept"
        network.eval()
        assert torch.equal(walk_through(network)(images, acts), network(images))


def test_tensors_that_are_replaced_make_a_new_walk() -> None:
    network, images = make("small/2"), torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        first = walk_through(network)
        network.double()  # replaces buffers
        found = walk_through(network)
        assert found is not first
        assert torch.equal(found(images.double(), {}), network(images.double()))
        state = copied(make("small/2", 7).double())
        network.load_state_dict(state, assign=True)  # replaces all
        assert torch.equal(walk_through(network)(images.double(), {}), network(images.double()))
        network.load_state_dict({key: value + 1 for key, value in state.items()})  # in place
        assert torch.equal(walk_through(network)(images.double(), {}), network(images.double()))


def test_two_threads_do_not_see_each_others_acts() -> None:
    network, images = make("small/2"), torch.randn(2, 3, SIDE, SIDE)
    walk, barrier, found = walk_through(network), threading.Barrier(2, timeout=30), {}

    class Meeting(Note):
        """Waits inside the walk until the other is inside, too."""

        def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            barrier.wait()
            return super().layer(own, x)

    def work(amount: float) -> None:
        with torch.no_grad():
            acts = {"layer1.0.conv1": Meeting(amount), "layer4.1.conv2": Meeting(amount)}
            found[amount] = walk(images, acts)

    threads = [threading.Thread(target=work, args=(amount,)) for amount in (1.0, -2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for amount, embeddings in found.items():
            acts = {name: Note(amount) for name in ("layer1.0.conv1", "layer4.1.conv2")}
            assert torch.equal(embeddings, walk(images, acts))
    assert not torch.allclose(found[1.0], found[-2.0])


# --- what acts at the sites


@both_kinds
@every_network
def test_a_member_is_the_walk_of_its_modulator(name: str, kind: Kind) -> None:
    base = make(name).double()
    modulator, images = gentle_modulator(base, kind).double(), images_of(1)
    with torch.no_grad():
        for strength in (1.0, 0.3):
            alone = task_modulators(base, [modulator], torch.tensor([[strength]]))
            expected = side_by_side(base, alone, images)[0]
            torch.testing.assert_close(fold(base, modulator, strength)(images[0]), expected)
            by_call = functional_call(
                base, member_parameters(base, modulator, strength), (images[0],)
            )
            torch.testing.assert_close(by_call, expected)
        assert (expected - base(images[0])).abs().max() > 1e-2
        fresh = fold(base, fresh_modulator(base, kind).double())
        assert torch.equal(fresh(images[0]), base(images[0]))


@both_kinds
@every_network
def test_tasks_side_by_side_are_each_task_alone(name: str, kind: Kind) -> None:
    base = make(name).double()
    modulators = [gentle_modulator(base, kind, seed).double() for seed in (1, 2)]
    images, shares = images_of(3), torch.rand(3, 2, dtype=torch.float64)
    with torch.no_grad():
        mixed = task_modulators(base, modulators, shares)
        found = side_by_side(base, mixed, images)
        for e in range(3):
            expected = fold(base, mixed_modulator(modulators, shares[e]))(images[e])
            torch.testing.assert_close(found[e], expected)
            torch.testing.assert_close(fold_task(base, mixed, e)(images[e]), expected)
        some = mixed.rows(torch.tensor([2, 0]))
        torch.testing.assert_close(side_by_side(base, some, images[[2, 0]]), found[[2, 0]])


@both_kinds
@every_network
def test_gradients_side_by_side_are_those_of_each_task_alone(name: str, kind: Kind) -> None:
    base = make(name).double().requires_grad_(False)
    modulators = [gentle_modulator(base, kind, seed).double() for seed in (1, 2)]
    images = images_of(2)
    mixed = task_modulators(base, modulators, torch.eye(2, dtype=torch.float64))

    def leaf(value: Tensor) -> Tensor:
        return value.expand(2, *value.shape[1:]).clone().requires_grad_()

    parts = mixed.weights, mixed.slopes, mixed.shifts
    own = [{key: leaf(value) for key, value in part.items()} for part in parts]
    learned = TaskModulators(mixed.sites, *own)
    every = [value for part in own for value in part.values()]
    together = torch.autograd.grad(side_by_side(base, learned, images).square().sum(), every)
    for e in range(2):
        alone = learned.rows(torch.tensor([e]))
        loss = side_by_side(base, alone, images[e : e + 1]).square().sum()
        expected = torch.autograd.grad(loss, every)
        for one, other in zip(together, expected, strict=True):
            torch.testing.assert_close(one[e], other[e])
            assert not other[1 - e].any(), "another task's"
        # By a network that is a plain one: the kernels' gradients of its maps.
        folded = fold_task(base, learned, e).requires_grad_()
        kernels = {site.layer: folded.get_parameter(f"{site.layer}.weight") for site in mixed.sites}
        loss = folded(images[e]).square().sum()
        grads = dict(zip(kernels, torch.autograd.grad(loss, list(kernels.values())), strict=True))
        for site, weight in ((s, own[0][s.layer]) for s in mixed.sites if s.layer in own[0]):
            place = [key is weight for key in every].index(True)
            plain = grads[site.layer]
            plain = plain if site.tap is None else plain[:, :, site.tap[0], site.tap[1]]
            if site.norm is None:  # what is folded is slope times the map
                plain = plain * own[1][site.layer][e].detach()[:, None]
            torch.testing.assert_close(together[place][e], plain)


@every_network
def test_gradients_reach_what_tasks_share(name: str) -> None:
    base = make(name).double()
    images = images_of(2)
    plain = task_modulators(base, [], torch.zeros(2, 0))
    mixed = replace(plain, weights=no_weights(base, plain.sites))
    kernels = [base.get_parameter(f"{site.layer}.weight") for site in layers_of(base)]
    expected = torch.autograd.grad(base(images.flatten(0, 1)).square().sum(), kernels)
    found = torch.autograd.grad(side_by_side(base, mixed, images).square().sum(), kernels)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.any()


@pytest.mark.parametrize("patches", [False, True])
@every_network
def test_kernels_of_each_tasks_own_are_each_task_alone(name: str, patches: bool) -> None:
    base = make(name).double()
    images = images_of(2)
    draw = torch.Generator().manual_seed(1)
    kernels = {
        key: (value + 0.1 * torch.randn(value.shape, generator=draw)).detach().requires_grad_()
        for key, value in task_kernels(base, 2).items()
    }
    assert list(kernels) == [site.layer for site in layers_of(base)]

    def alone(e: int) -> Tensor:
        own = {
            f"{key}.weight": value[e] if value.ndim == 3 else value[e].permute(0, 3, 1, 2)
            for key, value in kernels.items()
        }
        result: Tensor = functional_call(base, own, (images[e],))
        return result

    found, expected = embed_tasks(base, kernels, images, patches), torch.stack([alone(0), alone(1)])
    torch.testing.assert_close(found, expected)
    wanted = [*kernels.values(), *(p for p in base.parameters() if p.ndim == 1)]
    both = [
        torch.autograd.grad(result.square().sum(), wanted, allow_unused=True)
        for result in (found, expected)
    ]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


# --- copies for prediction


@every_network
def test_fused_networks_are_the_same_without_batch_norms(name: str) -> None:
    network, images = make(name).double(), images_of(1)[0]
    before = copied(network)
    ready = fused(network.train())
    assert network.training and not ready.training and same_states(network, before)
    assert not any(p.requires_grad for p in ready.parameters())
    kept = [m for m in ready.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not kept
    with torch.no_grad():
        torch.testing.assert_close(ready(images), network.eval()(images))


def test_hashes_tell_networks_apart_and_follow_their_values() -> None:
    network = make("small/2")
    assert isinstance(network, ResNet)
    first = state_hash(network)
    assert first == state_hash(make("small/2")) != state_hash(make("small/2", 1))
    network.bn1.num_batches_tracked += 1  # nothing depends on it
    assert state_hash(network) == first
    network.bn1.running_var[0] += 1
    assert state_hash(network) != first
    near = fused(network)
    assert_near(near(torch.ones(1, 3, 8, 8)), network(torch.ones(1, 3, 8, 8)).detach())
