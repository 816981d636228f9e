import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.models.heads import Metric
from polyshot.predict.adapt.head import adapt_heads, head_inputs, head_logits
from polyshot.util import counter_rng

RECIPES = {
    "prototypes": AdaptationConfig(steps=40),
    "random": AdaptationConfig(start="random", steps=12, learning_rate=0.01, pull=1e-3),
    "random by adam": AdaptationConfig(
        start="random", head_optimiser="adam", steps=30, learning_rate=0.003, pull=1e-3
    ),
}
every_recipe = pytest.mark.parametrize("start", RECIPES)


def embeddings(*shape: int, seed: int = 0) -> Tensor:
    """Positive, as after a ReLU, with classes [..., W, S, d] that differ."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(*shape[:-2], 1, shape[-1], generator=draw)
    return (centres + torch.randn(shape, generator=draw)).relu()


def uneven(episodes: int, way: int, shot: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(episodes, way, shot, generator=draw) < 0.6
    mask[..., 1] = True
    return mask


def by_autograd(images: Tensor, labels: Tensor, config: AdaptationConfig) -> Tensor:
    """One head from the prototypes, learned with torch's own Adam."""
    way = int(labels.max()) + 1
    means = torch.stack([images[labels == c].mean(0) for c in range(way)])
    start = 10 * F.normalize(means, dim=-1)
    weight = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=config.learning_rate)
    for _ in range(config.steps):
        loss = F.cross_entropy(images @ weight.T, labels)
        loss = loss + config.pull * (weight - start).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return weight.detach()


def fresh_layer(way: int, dim: int) -> nn.Linear:
    """The layer that every random head starts from."""
    layer = nn.Linear(dim, way)
    rows = torch.arange(way)
    values = (2 * counter_rng.uniform(counter_rng.key("head"), rows, dim + 1).T - 1) / dim**0.5
    layer.weight.data, layer.bias.data = values[:, :dim].clone(), values[:, dim].clone()
    assert values.abs().max() <= 1 / math.sqrt(dim)
    return layer


def by_adam(support: Tensor, mask: Tensor, config: AdaptationConfig) -> tuple[Tensor, Tensor]:
    """One head by torch's own linear layer and Adam, all images in every update."""
    way, shot, dim = support.shape
    layer = fresh_layer(way, dim)
    optimiser = torch.optim.Adam(
        layer.parameters(), lr=config.learning_rate, weight_decay=config.pull
    )
    images, labels = support[mask], torch.arange(way)[:, None].expand(way, shot)[mask]
    for _ in range(config.steps):
        optimiser.zero_grad()
        F.cross_entropy(layer(images), labels).backward()
        optimiser.step()
    return layer.weight.detach(), layer.bias.detach()


def by_sgd(support: Tensor, mask: Tensor, config: AdaptationConfig) -> tuple[Tensor, Tensor]:
    """One head as A Closer Look learns it, with torch's own linear layer and SGD."""
    way, shot, dim = support.shape
    layer, rows = fresh_layer(way, dim), torch.arange(way)
    optimiser = torch.optim.SGD(
        layer.parameters(),
        lr=config.learning_rate,
        momentum=0.9,
        dampening=0.9,
        weight_decay=config.pull,
    )
    images, labels = support[mask], torch.arange(way)[:, None].expand(way, shot)[mask]
    for step in range(config.steps):
        lots = counter_rng.uniform(counter_rng.key("head order", step), rows, shot).T[mask]
        for batch in lots.argsort().split(4):
            optimiser.zero_grad()
            F.cross_entropy(layer(images[batch]), labels[batch]).backward()
            optimiser.step()
    return layer.weight.detach(), layer.bias.detach()


@pytest.mark.parametrize("shot", [1, 3])
def test_prototype_heads_are_those_of_autograd_and_adam(shot: int) -> None:
    support, config = embeddings(6, 4, shot, 20), RECIPES["prototypes"]
    weight, bias = adapt_heads(support, None, config, "cosine")
    assert bias.shape == (6, 4) and not bias.any()
    labels = torch.arange(4).repeat_interleave(shot)
    for e in range(6):
        images = F.normalize(support[e].flatten(0, 1), dim=-1)
        expected = by_autograd(images, labels, config)
        torch.testing.assert_close(weight[e], expected, atol=2e-3, rtol=1e-3)


def test_random_heads_are_those_of_a_linear_layer_and_sgd() -> None:
    support, mask, config = embeddings(6, 4, 3, 20), uneven(6, 4, 3), RECIPES["random"]
    assert len({int(m.sum()) for m in mask}) > 2
    weight, bias = adapt_heads(support, mask, config, "euclidean")
    for e in range(6):
        expected = by_sgd(support[e], mask[e], config)
        torch.testing.assert_close(weight[e], expected[0], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(bias[e], expected[1], atol=1e-4, rtol=1e-3)


def test_random_heads_by_adam_are_those_of_a_linear_layer() -> None:
    support, mask, config = embeddings(6, 4, 3, 20), uneven(6, 4, 3), RECIPES["random by adam"]
    weight, bias = adapt_heads(support, mask, config, "euclidean")
    for e in range(6):
        expected = by_adam(support[e], mask[e], config)
        torch.testing.assert_close(weight[e], expected[0], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(bias[e], expected[1], atol=1e-4, rtol=1e-3)


@every_recipe
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_heads_do_not_depend_on_their_company(start: str, metric: Metric) -> None:
    support, mask, config = embeddings(9, 4, 3, 20), uneven(9, 4, 3), RECIPES[start]
    together = adapt_heads(support, mask, config, metric)
    for rows in ([4], [8, 4, 0]):
        alone = adapt_heads(support[rows], mask[rows], config, metric)
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a, b[rows], atol=1e-5, rtol=1e-5)


@every_recipe
def test_padding_and_what_fills_it_change_nothing(start: str) -> None:
    support, config = embeddings(3, 4, 2, 20), RECIPES[start]
    plain = adapt_heads(support, None, config, "cosine")
    wide = torch.cat([support, torch.full((3, 4, 2, 20), torch.nan)], 2)
    mask = torch.arange(4).expand(3, 4, 4) < 2
    for a, b in zip(adapt_heads(wide, mask, config, "cosine"), plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@every_recipe
def test_further_leading_axes_are_heads_of_their_own(start: str) -> None:
    support, mask, config = embeddings(2, 3, 4, 2, 20), uneven(3, 4, 2), RECIPES[start]
    weight, bias = adapt_heads(support, mask, config, "cosine")
    assert weight.shape == (2, 3, 4, 20) and bias.shape == (2, 3, 4)
    for member in range(2):
        alone = adapt_heads(support[member], mask, config, "cosine")
        torch.testing.assert_close(weight[member], alone[0], atol=1e-5, rtol=1e-5)


@every_recipe
def test_a_head_learns_its_support_set(start: str) -> None:
    support = embeddings(8, 5, 4, 64)
    config = replace(RECIPES[start], learning_rate=0.01)
    labels = torch.arange(5).repeat_interleave(4)

    def loss(steps: int) -> float:
        chosen = replace(config, steps=steps)
        heads = adapt_heads(support, None, chosen, "euclidean")
        logits = head_logits(support.flatten(1, 2), *heads, chosen, "euclidean")
        return float(F.cross_entropy(logits.flatten(0, 1), labels.repeat(8)))

    assert loss(100) < 0.5 * loss(0)


def test_a_strong_pull_keeps_the_head_at_the_prototypes() -> None:
    support = embeddings(4, 3, 5, 20)
    start, _ = adapt_heads(support, None, AdaptationConfig(steps=0), "cosine")
    torch.testing.assert_close(start.norm(dim=-1), torch.full((4, 3), 10.0))
    free, _ = adapt_heads(support, None, AdaptationConfig(steps=200, pull=0.0), "cosine")
    held, _ = adapt_heads(support, None, AdaptationConfig(steps=200, pull=1.0), "cosine")
    assert (held - start).norm() < 0.2 * (free - start).norm()


def test_inputs_are_unit_where_the_recipe_says_so() -> None:
    x = embeddings(2, 3, 2, 20)
    assert torch.equal(head_inputs(x, RECIPES["random"], "euclidean"), x)
    for config, metric in ((RECIPES["random"], "cosine"), (RECIPES["prototypes"], "euclidean")):
        unit = head_inputs(x, config, metric)  # type: ignore[arg-type]
        torch.testing.assert_close(unit.norm(dim=-1), torch.ones(2, 3, 2))
