import copy
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from polyshot.models.backbone import walk_through
from polyshot.models.modulators import (
    Kind,
    Modulator,
    TaskModulators,
    fold,
    fold_task,
    member_parameters,
    no_weights,
    rows_of_one,
    task_modulators,
)
from polyshot.models.resnet import ResNet, ResNetConfig
from tests.helpers import (
    assert_near,
    copied,
    mixed_modulator,
    random_base,
    random_modulator,
    same_states,
)
from tests.helpers import gentle_modulator as gentle

KINDS = get_args(Kind)


def side_by_side(base: ResNet, modulators: TaskModulators, images: Tensor) -> Tensor:
    """Embed the images [E, B, 3, H, W] of tasks in one walk: [E, B, d]."""
    walk = walk_through(base)
    acts = modulators.acts(len(images))
    recording = walk.record(images.flatten(0, 1), acts)
    return walk.replay(recording, acts).view(*images.shape[:2], -1)


def weights_of(modulators: list[Modulator]) -> list[torch.nn.Parameter]:
    return [modulator.get_parameter("layer2.0.conv1.weight") for modulator in modulators]


@pytest.mark.parametrize("kind", KINDS)
def test_modulators_are_moved_side_by_side_once(kind: Kind) -> None:
    config = ResNetConfig(width=2, stem="small")
    modulators = [random_modulator(config, kind, i) for i in range(3)]
    before = copied(torch.nn.ModuleList(modulators))
    name = "bias" if kind == "channel" else "weight"
    parameters = [modulator.get_parameter(f"layer2.0.conv1.{name}") for modulator in modulators]
    moved = rows_of_one(parameters)
    assert torch.equal(moved, torch.stack(list(parameters)))
    again = rows_of_one(parameters)
    assert again.data_ptr() == moved.data_ptr() and torch.equal(again, moved)
    assert rows_of_one(parameters[:2]).data_ptr() == moved.data_ptr()
    assert same_states(torch.nn.ModuleList(modulators), before)


def test_rows_are_never_stale() -> None:
    config = ResNetConfig(width=2, stem="small")
    modulators = [random_modulator(config, "conv1x1", i) for i in range(3)]
    rows_of_one(weights_of(modulators))
    with torch.no_grad():
        weights_of(modulators)[1].add_(1)
    modulators[2].double().float()  # memory of its own again
    weights_of(modulators)[2].data.mul_(2)
    for some in (modulators, modulators[1:], modulators[::-1], copy.deepcopy(modulators)):
        assert torch.equal(rows_of_one(weights_of(some)), torch.stack(weights_of(some)))


def test_rows_of_a_pool_that_was_loaded_for_inference() -> None:
    with torch.inference_mode():
        modulators = [random_modulator(ResNetConfig(width=2), "conv1x1", i) for i in range(2)]
    together = rows_of_one(weights_of(modulators))
    assert torch.equal(together, torch.stack(weights_of(modulators)))


@settings(deadline=None, max_examples=15)
@given(
    kind=st.sampled_from(KINDS),
    stem_kind=st.sampled_from(["imagenet", "small", "small/2"]),
    width=st.sampled_from([2, 3, 4]),
    members=st.integers(0, 3),
    tasks=st.integers(1, 3),
    side=st.integers(9, 33),
    seed=st.integers(0, 99),
)
def test_each_task_is_the_base_with_its_own_blend(
    kind: Kind, stem_kind: str, width: int, members: int, tasks: int, side: int, seed: int
) -> None:
    config = ResNetConfig(width=width, stem=stem_kind)  # type: ignore[arg-type]
    base = random_base(config, seed)
    modulators = [gentle(config, kind, seed + i) for i in range(members)]
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(tasks, 2, 3, side, side, generator=draw)
    shares = torch.rand(tasks, members, generator=draw)
    with torch.no_grad():
        mixed = task_modulators(base, modulators, shares)
        found = side_by_side(base, mixed, images)
        for task in range(tasks):
            network = fold(base, mixed_modulator(modulators, shares[task])) if members else base
            assert_near(found[task], network(images[task]))
            assert_near(fold_task(base, mixed, task)(images[task]), network(images[task]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_one_is_that_modulator_and_none_at_all_the_base(kind: Kind) -> None:
    config = ResNetConfig(width=3, stem="small/2")
    base, modulators = random_base(config), [gentle(config, kind, i) for i in range(3)]
    images = torch.randn(3, 2, 3, 16, 16)
    shares = torch.tensor([[0.0, 1, 0], [0, 0, 0], [0, 0, 0.4]])
    with torch.no_grad():
        found = side_by_side(base, task_modulators(base, modulators, shares), images)
        members = [fold(base, modulators[1]), base, fold(base, modulators[2], 0.4)]
        for task, member in enumerate(members):
            assert_near(found[task], member(images[task]), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_some_tasks_are_those_tasks(kind: Kind) -> None:
    config = ResNetConfig(width=4, stem="small/2")
    base, modulators = random_base(config), [gentle(config, kind, i) for i in range(2)]
    before = copied(base)
    images, shares = torch.randn(4, 2, 3, 16, 16), torch.rand(4, 2)
    with torch.no_grad():
        mixed = task_modulators(base, modulators, shares)
        whole = side_by_side(base, mixed, images)
        rows = torch.tensor([3, 0, 3])
        part = side_by_side(base, mixed.rows(rows), images[rows])
    assert_near(part, whole[rows])
    assert same_states(base, before)


def test_gradients_reach_each_modulator_from_its_own_images() -> None:
    config = ResNetConfig(width=3, stem="small/2")
    base = random_base(config).double().requires_grad_(False)
    modulators = [gentle(config, "conv1x1", i).double() for i in range(2)]
    images = torch.randn(2, 3, 3, 16, 16, dtype=torch.float64)
    mixed = task_modulators(base, modulators, torch.eye(2, dtype=torch.float64))
    leaves = {name: weight.clone().requires_grad_() for name, weight in mixed.weights.items()}
    learned = replace(mixed, weights=leaves)
    found = side_by_side(base, learned, images)
    gradients = torch.autograd.grad(found.square().sum(), list(leaves.values()))
    for task, modulator in enumerate(modulators):
        member = member_parameters(base, modulator)
        loss = functional_call(base, member, (images[task],)).square().sum()
        own = {n: p for n, p in modulator.named_parameters() if n.endswith("weight")}
        expected: tuple[Tensor, ...] = torch.autograd.grad(loss, list(own.values()))
        for name, gradient in zip(leaves, gradients, strict=True):
            place = list(own).index(f"{name}.weight")
            assert_near(gradient[task], expected[place].flatten(1), 1e-8)


def test_no_weights_change_nothing() -> None:
    base, images = random_base(ResNetConfig(width=4, stem="small")), torch.randn(3, 2, 3, 12, 12)
    with torch.no_grad():
        plain = task_modulators(base, [], torch.zeros(3, 0))
        assert not plain.weights
        same = replace(plain, weights=no_weights(base, plain.sites))
        found = side_by_side(base, same, images)
        assert_near(found, base(images.flatten(0, 1)).view(3, 2, -1))


def test_products_under_autocast_are_narrow_and_near() -> None:
    config = ResNetConfig(width=8, stem="small/2")
    base, modulators = random_base(config), [gentle(config, "conv1x1", 1)]
    images = torch.randn(2, 3, 3, 16, 16)
    with torch.no_grad():
        mixed = task_modulators(base, modulators, torch.tensor([[1.0], [0.5]]))
        exact = side_by_side(base, mixed, images)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = side_by_side(base, mixed, images)
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, exact)
    assert_near(narrow, exact, 0.05)
