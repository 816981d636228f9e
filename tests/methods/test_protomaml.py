"""ProtoMAML's start, its first-order gradient, and tasks learned side by side."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from polyshot.config import AdaptationConfig
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.finetune import learn_networks
from polyshot.methods.protomaml import ProtoMaml, ProtoMamlLearner
from polyshot.methods.prototypes import Prototypes
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.views import CROPS, VIEWS, View, Views
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch
from tests.helpers import from_table

SIDE = 16


def network(seed: int = 0) -> ResNet:
    torch.manual_seed(seed)
    base = ResNet(ResNetConfig(width=4, stem="small"))
    base(torch.rand(32, 3, SIDE, SIDE))  # batch norm's statistics
    return base.eval().requires_grad_(False)


def tasks(episodes: int, way: int = 3, shot: int = 2, queries: int = 4) -> Tasks:
    generator = torch.Generator().manual_seed(7)
    count = episodes * way * (shot + queries)
    table = torch.randint(0, 256, (count, 3, SIDE, SIDE), generator=generator).to(torch.uint8)
    places = torch.randperm(count, generator=generator).view(episodes, way, -1)
    support, query = places[..., :shot], places[..., shot:].flatten(1)
    return from_table(table, support, query)


def batch(given: Tasks, shape: EpisodeShape) -> EpisodeBatch:
    support = given.support_images()
    query = given.query_images().unflatten(1, (shape.way, -1))
    images = torch.cat([support, query], 2)
    return EpisodeBatch(images, torch.empty(0), given.support[..., 0], [0] * len(given), shape, 0.0)


def test_without_steps_it_is_protonet() -> None:
    base, given = network(), tasks(5)
    support, query = given.embedded(base)
    scale = 1 / math.sqrt(query.shape[-1])
    wanted = prototype_logits(query, prototypes(support), "euclidean", scale)
    found = ProtoMaml(ProtoMamlLearner(base, 0, 0.01), 0, 2).predict(given)
    torch.testing.assert_close(found, torch.softmax(wanted, -1), rtol=1e-4, atol=1e-6)
    # The logits themselves differ by a number a query, which softmax does not see.
    weight, bias = ProtoMamlLearner(base, 0, 0.01).head(given.support_images())
    apart = query @ weight.mT + bias.unsqueeze(1) - wanted
    torch.testing.assert_close(apart, apart[..., :1].expand_as(apart), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("views", ["one", "five"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_without_steps_it_is_prototypes_with_the_same_views(metric: Metric, views: Views) -> None:
    base, given = network(), tasks(4, way=4, shot=3)
    given = replace(given, table=replace(given.table, views=views))
    scale = 10.0 if metric == "cosine" else 1 / math.sqrt(base.config.dim)
    wanted = Prototypes(base, metric, scale, AdaptationConfig()).predict(given)
    found = ProtoMaml(ProtoMamlLearner(base, 0, 0.01, metric), 0, 2).predict(given)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    once = replace(given, table=replace(given.table, views="one"))
    assert views == "one" or not torch.allclose(
        found, ProtoMaml(ProtoMamlLearner(base, 0, 0.01, metric), 0, 2).predict(once), atol=1e-3
    )


def test_by_cosine_its_steps_fit_the_support_set_and_train_the_base() -> None:
    given, shape = tasks(2), EpisodeShape(3, 2, 4)
    learner = ProtoMamlLearner(network().requires_grad_(True), 2, 0.05, "cosine")
    learner.eval()
    gradient = torch.autograd.grad(learner.loss(batch(given, shape)), learner.base.conv1.weight)[0]
    assert float(gradient.norm()) > 0
    images, labels = given.support_images(), torch.arange(3).repeat_interleave(2).repeat(2)
    start = tuple(value.detach() for value in learner.head(images))
    losses = []
    for steps in (0, 20):
        learned = learner._learned(start, images, given.present, steps)  # type: ignore[arg-type]
        logits = learned.logits(learner.base, images.flatten(1, 2)).flatten(0, 1)
        losses.append(float(F.cross_entropy(logits, labels).detach()))
    assert losses[1] < losses[0]


def one_by_one(base: ResNet, images: Tensor, query: Tensor, steps: int, rate: float) -> Tensor:
    """One task, as the recipe says it, with gradients for the outer update."""
    parameters = dict(base.named_parameters())
    learned = [name for name, parameter in parameters.items() if parameter.ndim == 4]
    way = 3
    labels = torch.arange(way).repeat_interleave(len(images) // way)
    centres = functional_call(base, parameters, (images,)).unflatten(0, (way, -1)).mean(1)
    scale = 1 / math.sqrt(centres.shape[1])
    weight, bias = 2 * scale * centres, -scale * centres.square().sum(1)
    kernels = {name: parameters[name] for name in learned}
    for _ in range(steps):
        now = {name: kernel.detach().requires_grad_() for name, kernel in kernels.items()}
        head = [weight.detach().requires_grad_(), bias.detach().requires_grad_()]
        embeddings = functional_call(base, {**parameters, **now}, (images,))
        loss = F.cross_entropy(embeddings @ head[0].T + head[1], labels)
        gradients = torch.autograd.grad(loss, [*now.values(), *head])
        for name, gradient in zip(learned, gradients, strict=False):
            kernels[name] = kernels[name] - rate * gradient
        weight, bias = weight - rate * gradients[-2], bias - rate * gradients[-1]
    embeddings = functional_call(base, {**parameters, **kernels}, (query,))
    return embeddings @ weight.T + bias


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_loss_and_outer_gradient_are_those_of_the_recipe(steps: int) -> None:
    shape, rate = EpisodeShape(3, 2, 4), 0.05
    given = tasks(2)
    learner = ProtoMamlLearner(network().requires_grad_(True), steps, rate)
    learner.eval()
    loss = learner.loss(batch(given, shape))
    found = torch.autograd.grad(loss, list(learner.base.parameters()))

    base = copy.deepcopy(learner.base)
    labels = torch.arange(3).repeat_interleave(4)
    losses = []
    for images, query in zip(
        given.support_images().flatten(1, 2), given.query_images(), strict=True
    ):
        losses.append(F.cross_entropy(one_by_one(base, images, query, steps, rate), labels))
    wanted_loss = torch.stack(losses).mean()
    wanted = torch.autograd.grad(wanted_loss, list(base.parameters()))
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-4, atol=1e-5)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4 * float(other.abs().max()))


def test_the_gradient_flows_through_the_start_of_the_head() -> None:
    """Without that path the outer gradient is another one: what the recipe warns of."""
    shape, given = EpisodeShape(3, 2, 4), tasks(2)
    learner = ProtoMamlLearner(network().requires_grad_(True), 1, 0.05)
    learner.eval()
    whole = torch.autograd.grad(learner.loss(batch(given, shape)), learner.base.conv1.weight)[0]
    head = learner.head
    learner.head = lambda images: tuple(t.detach() for t in head(images))  # type: ignore[method-assign, assignment]
    cut = torch.autograd.grad(learner.loss(batch(given, shape)), learner.base.conv1.weight)[0]
    assert float((whole - cut).norm() / whole.norm()) > 0.01


def test_steps_fit_the_support_set() -> None:
    base, given = network(), tasks(3)
    images = given.support_images()
    labels = torch.arange(3).repeat_interleave(2).repeat(3)
    start = ProtoMamlLearner(base, 0, 0.0).head(images)
    losses = []
    for steps in (0, 5, 20):
        learned = learn_networks(base, start, images, given.present, steps, 0.01)
        logits = learned.logits(base, images.flatten(1, 2)).flatten(0, 1)
        losses.append(float(F.cross_entropy(logits, labels)))
    assert losses[0] > losses[1] > losses[2]


def test_steps_may_take_crops_in_turn() -> None:
    base, given = network(), tasks(2)
    images = given.support_images()
    start = ProtoMamlLearner(base, 0, 0.0).head(images)

    def bias(steps: int, crops: Sequence[View]) -> Tensor:
        return learn_networks(base, start, images, given.present, steps, 0.01, crops=crops).bias

    whole = VIEWS["one"]
    assert torch.equal(bias(1, CROPS), bias(1, whole))  # the whole image comes first
    assert not torch.allclose(bias(2, CROPS), bias(2, whole), atol=1e-6)


def test_batch_norm_and_base_stay_as_they_are() -> None:
    base, given = network(), tasks(2)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    ProtoMaml(ProtoMamlLearner(base, 3, 0.05), 3, 5).predict(given, "steps-100")
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_passes_count_backward_passes_twice() -> None:
    fitted = ProtoMaml(ProtoMamlLearner(network(), 3, 0.01), 3, 100)
    shape = EpisodeShape(5, 5, 10)
    assert fitted.passes(shape) == 25 * 10 + 50
    assert fitted.passes(shape, "steps-100") == 25 * 301 + 50


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_what_the_mask_hides_is_not_learned(optimiser: Literal["sgd", "adam"]) -> None:
    """Tasks of uneven shots are learned as each class had its own images alone."""
    base, given = network(), tasks(2, shot=3)
    images, present = given.support_images(), given.present.clone()
    present[0, 1, 1:] = present[1, 2, 2:] = False
    start = ProtoMamlLearner(base, 0, 0.0).head(images, present)
    found = learn_networks(base, start, images, present, 3, 0.01, optimiser)
    noise = torch.where(present[..., None, None, None], images, torch.randn_like(images))
    other = learn_networks(base, start, noise, present, 3, 0.01, optimiser)
    torch.testing.assert_close(other.weight, found.weight)
    for task in range(2):
        own = [images[task, way][present[task, way]] for way in range(3)]
        flat, labels = torch.cat(own), torch.arange(3).repeat_interleave(present[task].sum(-1))
        names = [name for name, p in base.named_parameters() if p.ndim == 4]
        kernels = [base.get_parameter(name).detach().clone().requires_grad_() for name in names]
        head = [value[task].detach().clone().requires_grad_() for value in start]
        adam = torch.optim.Adam([*kernels, *head], lr=0.01)
        for _ in range(3):
            given_ = dict(zip(names, kernels, strict=True))
            logits = functional_call(base, given_, (flat,)) @ head[0].T + head[1]
            gradients = torch.autograd.grad(F.cross_entropy(logits, labels), [*kernels, *head])
            norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            for leaf, gradient in zip([*kernels, *head], gradients, strict=True):
                leaf.grad = gradient
                if optimiser == "sgd":
                    with torch.no_grad():
                        leaf.sub_(0.01 * gradient * min(1.0, 5.0 / float(norm)))
            if optimiser == "adam":
                adam.step()
        torch.testing.assert_close(found.bias[task], head[1].detach(), atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(found.weight[task], head[0].detach(), atol=2e-3, rtol=1e-2)
