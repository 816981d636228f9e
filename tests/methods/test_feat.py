import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.methods import feat
from polyshot.methods.feat import Feat, FeatLearner, QueryAttention, wanted_attention
from polyshot.models.heads import Metric
from polyshot.models.resnet import ResNetConfig
from polyshot.predict.adapt.head import adapt_heads, head_logits
from polyshot.training.episodic import EpisodeBatch
from tests.helpers import random_base, tasks_of

SMALL = ResNetConfig(width=2, stem="small/2")
SHAPE = EpisodeShape(4, 3, 2)


def attention(dim: int = 6, seed: int = 0) -> QueryAttention:
    torch.manual_seed(seed)
    block = QueryAttention(dim).eval()
    for parameter in block.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return block


def of_one_set(block: QueryAttention, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The block as its paper writes it, on one set [n, d]: vectors [n, d], attention [n, n]."""
    asks, keys, values = (vectors @ layer.weight.T for layer in (block.ask, block.key, block.value))
    weights = torch.softmax(asks @ keys.T / math.sqrt(vectors.shape[-1]), -1)
    mixed = block.out(weights @ values)
    return block.norm(vectors + mixed), weights


@settings(deadline=None, max_examples=25)
@given(
    episodes=st.integers(1, 3),
    count=st.integers(1, 6),
    queries=st.integers(1, 4),
    dim=st.integers(2, 9),
    seed=st.integers(0, 99),
)
def test_all_queries_at_once_are_each_set_alone(
    episodes: int, count: int, queries: int, dim: int, seed: int
) -> None:
    block = attention(dim, seed)
    context, query = torch.randn(episodes, count, dim), torch.randn(episodes, queries, dim)
    seen, own, log_attention = block(context, query)
    for e in range(episodes):
        for q in range(queries):
            vectors, weights = of_one_set(block, torch.cat([context[e], query[e, q : q + 1]]))
            torch.testing.assert_close(seen[e, q], vectors[:-1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(own[e, q], vectors[-1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(log_attention[e, q].exp(), weights, atol=1e-5, rtol=1e-4)


def test_gradients_flow_through_values_and_attention() -> None:
    block = attention().double()
    context = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    query = torch.randn(2, 2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(block, (context, query))


def test_only_training_drops_out() -> None:
    block, context, query = attention(), torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    assert torch.equal(block(context, query)[0], block(context, query)[0])
    block.train()
    assert not torch.equal(block(context, query)[0], block(context, query)[0])


def test_the_attention_wanted_is_half_at_the_own_class() -> None:
    target = wanted_attention(torch.tensor([[1, 0]]), way=3)
    assert target[0, 0].tolist() == [
        [1, 0, 0, 0],
        [0, 0.5, 0, 0.5],
        [0, 0, 1, 0],
        [0, 0.5, 0, 0.5],
    ]
    assert torch.equal(target.sum(-1), torch.ones(1, 2, 4))
    assert target[0, 1, 0].tolist() == [0.5, 0, 0, 0.5]


def learner(pull: float = 10.0) -> FeatLearner:
    made = FeatLearner(random_base(SMALL), pull)
    made.attention = attention(SMALL.dim)
    return made.eval()


def batch(embeddings: Tensor) -> EpisodeBatch:
    episodes = len(embeddings)
    images = torch.zeros(*embeddings.shape[:3], 3, 1, 1)
    classes = torch.arange(SHAPE.way).expand(episodes, -1)
    return EpisodeBatch(images, embeddings, classes, [0] * episodes, SHAPE, 0.0)


def test_the_loss_by_hand() -> None:
    made = learner(pull=3.0)
    embeddings = torch.randn(2, SHAPE.way, SHAPE.shot + SHAPE.queries, SMALL.dim)
    losses, divergences = [], []
    for episode in embeddings:
        centres = episode[:, : SHAPE.shot].mean(1)
        for c in range(SHAPE.way):
            for query in episode[c, SHAPE.shot :]:
                vectors, weights = of_one_set(made.attention, torch.cat([centres, query[None]]))
                distances = (vectors[:-1] - vectors[-1]).square().sum(-1)
                losses.append(F.cross_entropy(-4 / SMALL.dim * distances, torch.tensor(c)))
                target = wanted_attention(torch.tensor([[c]]), SHAPE.way)[0, 0]
                logs = torch.where(target > 0, (target / weights).log(), 0)
                divergences.append((target * logs).sum(-1).mean())
    expected = torch.stack(losses).mean() + 3 * torch.stack(divergences).mean()
    torch.testing.assert_close(made.loss(batch(embeddings)), expected, atol=1e-4, rtol=1e-4)


def test_the_attention_learns_where_to_look() -> None:
    made = learner()
    made.attention = QueryAttention(SMALL.dim)
    centres = 3 * torch.randn(2, SHAPE.way, 1, SMALL.dim)
    episodes = batch(centres + torch.randn(2, SHAPE.way, SHAPE.shot + SHAPE.queries, SMALL.dim))
    optimiser = torch.optim.Adam(made.attention.parameters(), lr=0.01)
    before = made.loss(episodes).item()
    for _ in range(60):
        optimiser.zero_grad()
        made.loss(episodes).backward()
        optimiser.step()
    assert made.loss(episodes).item() < before / 2


def test_everything_learns_once_and_what_is_new_faster() -> None:
    made = learner().train()
    paces = {id(p): g.pace for g in made.groups() for p in g.parameters}
    assert sum(len(g.parameters) for g in made.groups()) == len(list(made.parameters()))
    for name, parameter in made.named_parameters():
        assert paces[id(parameter)] == (1.0 if name.startswith("base.") else 10.0)
    assert not made.base.training


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("start", ["prototypes", "random"])
def test_heads_of_all_queries_are_each_head_alone(
    start: str, metric: Metric, packs: list[Pack]
) -> None:
    recipe = AdaptationConfig(start=start, steps=5)
    made = learner()
    fitted = Feat(made, metric, recipe)
    tasks = tasks_of(packs[0], SHAPE, count=2)
    support, query = tasks.embedded(made.base)
    answers = fitted.predict(tasks, "head")
    for e in range(2):
        for q in range(query.shape[1]):
            both = torch.cat([support[e].flatten(0, 1), query[e, q : q + 1]])
            vectors, _ = of_one_set(made.attention, both)
            images = vectors[:-1].view(1, SHAPE.way, SHAPE.shot, -1)
            weight, bias = adapt_heads(images, None, recipe, metric)
            logits = head_logits(vectors[None, -1:], weight, bias, recipe, metric)
            torch.testing.assert_close(answers[e, q], logits[0, 0].softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("adaptation", ["none", "head"])
def test_parts_are_the_whole(
    adaptation: str, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = Feat(learner(), "cosine", AdaptationConfig(steps=5))
    tasks = tasks_of(packs[0], SHAPE, count=5)
    whole = fitted.predict(tasks, adaptation)
    for floats in (1, 2 * SHAPE.way * SHAPE.queries * (SHAPE.way + 1) * SMALL.dim):
        monkeypatch.setattr(feat, "FLOATS", {"cpu": floats})
        torch.testing.assert_close(fitted.predict(tasks, adaptation), whole, atol=1e-5, rtol=0)
