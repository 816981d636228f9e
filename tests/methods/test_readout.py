from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError
from polyshot.methods.tasks import IndexedTasks, Tasks, shots_of
from polyshot.models.heads import Metric
from polyshot.models.modulators import Kind
from polyshot.predict.readout import Adaptation, predict, predict_tasks
from polyshot.predict.rules import RULES, rule
from polyshot.predict.temperature import sureness, tempered

from ..pools import random_pool, random_tasks

METRICS = get_args(Metric)
ADAPTATIONS = tuple(name for name in get_args(Adaptation) if name != "tsa")
"""Those that embeddings are enough for."""
EVERY_RULE = (*(name for name in RULES if name != "blend"), "member:one", "member:off")
EVERY_HEAD = (
    AdaptationConfig(steps=15, updates=3),
    AdaptationConfig(start="random", steps=3, updates=2, rates=(0.5,)),
)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(EVERY_RULE),
    adaptation=st.sampled_from(ADAPTATIONS),
    metric=st.sampled_from(METRICS),
    kind=st.sampled_from(get_args(Kind)),
    head=st.sampled_from(EVERY_HEAD),
    seed=st.integers(0, 99),
    order=st.permutations(range(6)),
    kept=st.integers(1, 6),
    added=st.integers(0, 3),
)
def test_no_query_changes_the_answer_to_another(
    name: str,
    adaptation: str,
    metric: Metric,
    kind: Kind,
    head: AdaptationConfig,
    seed: int,
    order: list[int],
    kept: int,
    added: int,
) -> None:
    pool, tasks = random_pool(kind, metric, head), random_tasks(seed)
    whole = predict(pool, tasks, name, adaptation)
    assert whole.shape == (5, 6, 4)
    torch.testing.assert_close(whole.sum(-1), torch.ones(5, 6))
    chosen = order[:kept]
    strangers = 50 * random_tasks(seed + 1).query[:, :, :added]
    others = torch.cat([strangers, tasks.query[:, :, chosen]], 2)
    answers = predict(pool, Tasks(tasks.support, others, tasks.mask), name, adaptation)
    torch.testing.assert_close(answers[:, added:], whole[:, chosen], atol=1e-5, rtol=0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("adaptation", ADAPTATIONS)
@pytest.mark.parametrize("name", EVERY_RULE)
def test_episodes_do_not_depend_on_their_company(
    name: str, adaptation: str, metric: Metric
) -> None:
    pool, tasks = random_pool(metric=metric), random_tasks()
    assert tasks.mask is not None
    whole = predict(pool, tasks, name, adaptation)
    for rows in ([3], [4, 0, 2]):
        part = Tasks(tasks.support[:, rows], tasks.query[:, rows], tasks.mask[rows])
        answers = predict(pool, part, name, adaptation)
        torch.testing.assert_close(answers, whole[rows], atol=1e-5, rtol=0)


def by_hand(tasks: Tasks, member: int, metric: Metric, scale: float) -> Tensor:
    """Prototype probabilities of one member, one query and class at a time."""
    assert tasks.mask is not None
    episodes, way = tasks.mask.shape[:2]
    logits = torch.empty(episodes, tasks.query.shape[2], way)
    for e in range(episodes):
        for c in range(way):
            images = tasks.support[member, e, c][tasks.mask[e, c]]
            if metric == "cosine":
                images = F.normalize(images, dim=-1)
            centre = images.mean(0)
            for q, query in enumerate(tasks.query[member, e]):
                if metric == "cosine":
                    logits[e, q, c] = scale * F.cosine_similarity(query, centre, dim=0)
                else:
                    logits[e, q, c] = -scale * (query - centre).square().sum()
    return logits.softmax(-1)


@pytest.mark.parametrize("metric", METRICS)
def test_rules_mix_the_opinions_of_members(metric: Metric) -> None:
    pool, tasks = random_pool(metric=metric), random_tasks()
    alone = torch.stack([by_hand(tasks, m, metric, pool.scales[m]) for m in range(4)])
    factor = sureness(pool, shots_of(tasks)).unsqueeze(-1)

    def check(name: str, expected: Tensor) -> None:
        found = predict(pool, tasks, name)
        torch.testing.assert_close(found, tempered(expected, factor), atol=1e-5, rtol=0.0)

    check("base", alone[0])
    check("member:two", alone[2])
    check("average", alone.mean(0))
    chosen = rule("select", pool).weights(pool, tasks).argmax(1)
    assert len(chosen.unique()) > 1, "the test wants a selector that is undecided"
    check("select", alone[chosen, torch.arange(5)])


@pytest.mark.parametrize("adaptation", ADAPTATIONS)
def test_many_rules_at_once_are_each_rule_alone(adaptation: str) -> None:
    pool, tasks = random_pool(), random_tasks()
    rules = [rule(name, pool) for name in EVERY_RULE]
    together = predict_tasks(pool, tasks, rules, adaptation).probabilities
    for name, answers in zip(EVERY_RULE, together, strict=True):
        torch.testing.assert_close(answers, predict(pool, tasks, name, adaptation))


def test_members_without_weight_are_not_asked() -> None:
    pool, tasks = random_pool(), random_tasks()
    asked: list[int] = []

    class Watched(Tasks):
        def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
            asked.append(member)
            return super().query_of(member, rows)

    watched = Watched(tasks.support, tasks.query, tasks.mask)
    predict(pool, watched, "member:two")
    assert asked == [2]
    asked.clear()
    predict(pool, watched, "select", "head")
    assert asked == rule("select", pool).weights(pool, tasks).argmax(1).unique().tolist()


@pytest.mark.parametrize("adaptation", ADAPTATIONS)
def test_positions_in_a_table_are_the_same_tasks(adaptation: str) -> None:
    pool, tasks = random_pool(), random_tasks()
    episodes, way, shot = tasks.support.shape[1:4]
    table = torch.cat([tasks.support.flatten(1, 3), tasks.query.flatten(1, 2)], 1)
    support = torch.arange(episodes * way * shot).view(episodes, way, shot)
    query = support.numel() + torch.arange(episodes * 6).view(episodes, 6)
    assert tasks.mask is not None
    indexed = IndexedTasks(dict(enumerate(table)), support.where(tasks.mask, -1), query, tasks.mask)
    for name in EVERY_RULE:
        torch.testing.assert_close(
            predict(pool, indexed, name, adaptation), predict(pool, tasks, name, adaptation)
        )


def test_classes_without_support_and_shapes_that_differ_are_refused() -> None:
    tasks = random_tasks()
    assert tasks.mask is not None
    mask = tasks.mask.clone()
    mask[2, 1] = False
    with pytest.raises(PolyshotError, match="no support image"):
        Tasks(tasks.support, tasks.query, mask)
    with pytest.raises(PolyshotError, match="no support image"):
        Tasks(tasks.support[..., :0, :], tasks.query)
    with pytest.raises(PolyshotError, match="mask must be"):
        Tasks(tasks.support, tasks.query, mask[:, :, :1])
    with pytest.raises(PolyshotError, match="differ in members or episodes"):
        Tasks(tasks.support, tasks.query[:, :2])


def test_unknown_adaptations_are_refused() -> None:
    with pytest.raises(PolyshotError, match="Did you mean 'head'"):
        predict(random_pool(), random_tasks(), "base", "haed")
