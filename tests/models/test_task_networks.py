import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from polyshot.models.backbone import layers_of
from polyshot.models.resnet import ResNet, ResNetConfig, Stem
from polyshot.models.task_networks import embed_tasks, task_kernels
from tests.helpers import assert_near, copied, random_base, same_states

stems = st.sampled_from(["imagenet", "small", "small/2"])


def random_kernels(base: ResNet, tasks: int, seed: int) -> dict[str, Tensor]:
    """Kernels of each task, not far from the base's."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: kernel + 0.1 * kernel.std() * torch.randn(kernel.shape, generator=draw)
        for name, kernel in task_kernels(base, tasks).items()
    }


def one_by_one(base: ResNet, kernels: dict[str, Tensor], images: Tensor) -> Tensor:
    """Each task through torch's own layers."""
    return torch.stack(
        [
            functional_call(
                base,
                {
                    f"{name}.weight": kernel[i].permute(0, 3, 1, 2)
                    for name, kernel in kernels.items()
                },
                x,
            )
            for i, x in enumerate(images)
        ]
    )


@settings(deadline=None, max_examples=25)
@given(
    stem=stems,
    width=st.sampled_from([1, 2, 3, 4, 6]),
    tasks=st.integers(1, 3),
    batch=st.integers(1, 3),
    height=st.integers(5, 33),
    across=st.integers(5, 33),
    seed=st.integers(0, 99),
    patches=st.booleans(),
)
def test_tasks_side_by_side_are_each_task_alone(
    stem: Stem,
    width: int,
    tasks: int,
    batch: int,
    height: int,
    across: int,
    seed: int,
    patches: bool,
) -> None:
    base = random_base(ResNetConfig(width=width, stem=stem), seed)
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(tasks, batch, 3, height, across, generator=draw)
    kernels = random_kernels(base, tasks, seed)
    with torch.no_grad():
        found = embed_tasks(base, kernels, images, patches)
        assert_near(found, one_by_one(base, kernels, images))


@settings(deadline=None, max_examples=10)
@given(stem=stems, side=st.integers(6, 24), seed=st.integers(0, 99), patches=st.booleans())
def test_gradients_are_those_of_each_task_alone(
    stem: Stem, side: int, seed: int, patches: bool
) -> None:
    base = random_base(ResNetConfig(width=3, stem=stem), seed).double()
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 3, 3, side, side, generator=draw, dtype=torch.float64)
    weights = torch.randn(2, 3, base.config.dim, generator=draw, dtype=torch.float64)
    kernels = {k: v.detach().requires_grad_() for k, v in random_kernels(base, 2, seed).items()}
    affine = [parameter for parameter in base.parameters() if parameter.ndim == 1]
    leaves = [images.requires_grad_(), *kernels.values(), *affine]
    expected = torch.autograd.grad((one_by_one(base, kernels, images) * weights).sum(), leaves)
    found = torch.autograd.grad(
        (embed_tasks(base, kernels, images, patches) * weights).sum(), leaves
    )
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, 1e-8)


def test_every_convolution_of_our_network_is_one_product_for_all_tasks() -> None:
    base = random_base(ResNetConfig(width=4))
    images = torch.randn(3, 2, 3, 32, 32)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        embed_tasks(base, task_kernels(base, 3), images, patches=True)
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["aten::bmm"] == len(layers_of(base))
    assert "aten::conv2d" not in counts  # one launch a task


def test_kernels_start_as_the_bases_and_gradients_flow_back_into_it() -> None:
    base = random_base(ResNetConfig(width=4, stem="small/2"))
    images = torch.randn(3, 2, 3, 16, 16)
    found = embed_tasks(base, task_kernels(base, 3), images)
    plain = base(images.flatten(0, 1)).view(3, 2, -1)
    assert_near(found.detach(), plain.detach())
    parameters = list(base.parameters())
    expected = torch.autograd.grad(plain.square().sum(), parameters)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), parameters), expected, strict=True
    ):
        assert_near(one, other, 1e-3)


def test_all_kernels_are_learned_and_nothing_else() -> None:
    base = random_base(ResNetConfig(width=4, stem="imagenet"))
    names = [site.layer for site in layers_of(base)]
    assert len(names) == 1 + 16 + 3
    assert list(task_kernels(base, 2)) == names
    for name, kernel in task_kernels(base, 2).items():
        outputs, inputs, side, _ = base.get_parameter(f"{name}.weight").shape
        assert kernel.shape == (2, outputs, side, side, inputs)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_are_the_bases_and_stay(training: bool) -> None:
    base = random_base(ResNetConfig(width=4, stem="small/2"))
    images = torch.randn(2, 3, 3, 16, 16)
    before, kernels = copied(base), task_kernels(base, 2)
    expected = embed_tasks(base, kernels, images)
    base.train(training)
    assert torch.equal(embed_tasks(base, kernels, images), expected)
    assert same_states(base, before)


def test_products_under_autocast_are_narrow_and_near() -> None:
    base = random_base(ResNetConfig(width=8, stem="small/2"))
    images = torch.randn(2, 3, 3, 16, 16)
    with torch.no_grad():
        exact = embed_tasks(base, task_kernels(base, 2), images)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = embed_tasks(base, task_kernels(base, 2), images)
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, exact)
    assert_near(narrow, exact, 0.05)
