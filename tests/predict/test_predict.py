from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.classifier.estimate import mix
from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.models.modulators import Kind
from polyshot.predict.predict import (
    Adaptation,
    fit_tasks,
    inverse_temperature,
    mixed_answers,
    predict_tasks,
    tempered,
)
from polyshot.predict.rules import RULES, rule
from polyshot.tasks import Queries, Table, Tasks
from tests.helpers import (
    CPU,
    answers,
    embedded_tasks,
    keep_embeddings,
    random_embeddings,
    random_tasks,
    shared_pool,
    uneven,
)

METRICS = get_args(Metric)
ADAPTATIONS = tuple(name for name in get_args(Adaptation) if name != "tsa")
"""Those that embeddings are enough for."""
ON_EMBEDDINGS = [name for name in RULES if RULES[name].mixes != "modulators"]
EVERY_RULE = (*ON_EMBEDDINGS, "member:one", "member:off")
EVERY_HEAD = (
    AdaptationConfig(steps=15, updates=3),
    AdaptationConfig(start="random", steps=3, updates=2, rates=(0.5,)),
)


@settings(deadline=None, max_examples=40)
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
    pool = shared_pool(kind, metric, head)
    support, query, mask = random_embeddings(seed)
    whole = answers(pool, keep_embeddings(pool, support, query, mask), name, adaptation)
    assert whole.shape == (5, 6, 4)
    torch.testing.assert_close(whole.sum(-1), torch.ones(5, 6))
    chosen = order[:kept]
    strangers = 50 * random_embeddings(seed + 1)[1][:, :, :added]
    others = torch.cat([strangers, query[:, :, chosen]], 2)
    found = answers(pool, keep_embeddings(pool, support, others, mask), name, adaptation)
    torch.testing.assert_close(found[:, added:], whole[:, chosen], atol=1e-5, rtol=0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("adaptation", ADAPTATIONS)
def test_episodes_do_not_depend_on_their_company(adaptation: str, metric: Metric) -> None:
    """Of all rules at once, which answer as each alone does: that is tested below."""
    pool = shared_pool(metric=metric)
    tasks, rules = embedded_tasks(pool), [rule(name, pool) for name in EVERY_RULE]
    whole = predict_tasks(pool, tasks, rules, adaptation).probabilities
    for rows in ([3], [4, 0, 2]):
        found = predict_tasks(pool, tasks.part(torch.tensor(rows)), rules, adaptation)
        for name, one, other in zip(EVERY_RULE, found.probabilities, whole[:, rows], strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0, msg=lambda m, n=name: n + m)


def scores_by_hand(support: Tensor, query: Tensor, mask: Tensor, metric: Metric) -> Tensor:
    """Compare one query with one class at a time: [E, W, S, d], [E, Q, d] -> [E, Q, W]."""
    episodes, way = mask.shape[:2]
    scores = torch.empty(episodes, query.shape[1], way)
    for e in range(episodes):
        for c in range(way):
            images = support[e, c][mask[e, c]]
            if metric == "cosine":
                images = F.normalize(images, dim=-1)
            centre = images.mean(0)
            for q, x in enumerate(query[e]):
                if metric == "cosine":
                    scores[e, q, c] = F.cosine_similarity(x, centre, dim=0)
                else:
                    scores[e, q, c] = -(x - centre).square().sum()
    return scores


@pytest.mark.parametrize("metric", METRICS)
def test_rules_mix_what_members_say(metric: Metric) -> None:
    pool = shared_pool(metric=metric)
    support, query, mask = random_embeddings()
    tasks = keep_embeddings(pool, support, query, mask)
    scores = torch.stack([scores_by_hand(support[m], query[m], mask, metric) for m in range(4)])
    scales = torch.tensor(pool.scales).view(4, 1, 1, 1)
    alone = (scales * scores).softmax(-1)  # [M, E, Q, W]
    factor = inverse_temperature(pool, tasks.shots).unsqueeze(-1)
    assert (factor != 1).any() == (metric == "cosine")

    def check(name: str, expected: Tensor) -> None:
        found = answers(pool, tasks, name)
        torch.testing.assert_close(found, tempered(expected, factor), atol=1e-5, rtol=0.0)

    check("base", alone[0])
    check("member:two", alone[2])
    check("average", alone.mean(0))
    chosen = rule("select", pool).weights(pool, tasks).argmax(1)
    assert len(chosen.unique()) > 1, "the test wants a selector that is undecided"
    check("select", alone[chosen, torch.arange(5)])
    for name in ("soft", "auto", "loo", "sur", "sum", "urt"):
        weights = rule(name, pool).weights(pool, tasks).T[:, :, None, None]  # [M, E, 1, 1]
        if name == "soft":
            check(name, (weights * alone).sum(0))
        elif metric == "cosine":  # cosines are mixed by themselves, and so are their scales
            check(name, ((weights * scores).sum(0) * (weights * scales).sum(0)).softmax(-1))
        else:  # logits are
            check(name, (weights * scales * scores).sum(0).softmax(-1))


@pytest.mark.parametrize("mixes", ["scores", "probabilities"])
def test_what_the_estimate_mixes_is_mixed_alike(mixes: str) -> None:
    scored = [(0.75, torch.randn(4, 3), 5.0), (0.25, torch.randn(4, 3), 9.0)]
    if mixes == "scores":
        expected = (0.75 * scored[0][1] + 0.25 * scored[1][1]) * (0.75 * 5 + 0.25 * 9)
        expected = expected.softmax(-1)
    else:
        expected = sum(w * (s * scale).softmax(-1) for w, s, scale in scored)
    torch.testing.assert_close(mix(scored, mixes), expected)  # type: ignore[arg-type]


def test_learned_answers_have_their_share_of_the_logarithms() -> None:
    learned, plain = torch.randn(2, 5, 3), torch.rand(2, 5, 3).softmax(-1)
    factor = torch.tensor([0.5, 2.0]).view(2, 1, 1)
    for e, power in enumerate((0.5, 2.0)):
        for q in range(5):
            chances = learned[e, q].softmax(0) ** 0.3 * plain[e, q] ** 0.7
            expected = chances**power / (chances**power).sum()
            found = mixed_answers(learned, plain, 0.3, factor)[e, q]
            torch.testing.assert_close(found, expected)
    whole = mixed_answers(learned, None, 1.0, torch.ones(2, 1, 1))
    torch.testing.assert_close(whole, learned.softmax(-1))
    sure = torch.tensor([[[1.0, 0.0, 0.0]]])  # a probability of 0 leaves a way back
    assert mixed_answers(learned[:1, :1], sure, 0.3, torch.ones(1, 1, 1)).isfinite().all()


@pytest.mark.parametrize("adaptation", ADAPTATIONS)
def test_many_rules_at_once_are_each_rule_alone(adaptation: str) -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool)
    rules = [rule(name, pool) for name in EVERY_RULE]
    together = predict_tasks(pool, tasks, rules, adaptation).probabilities
    for name, found in zip(EVERY_RULE, together, strict=True):
        torch.testing.assert_close(found, answers(pool, tasks, name, adaptation))


def test_members_without_weight_are_not_asked() -> None:
    pool = shared_pool()
    tasks, asked = embedded_tasks(pool), []

    class Watched(Tasks):
        def query_of(self, network: object, rows: Tensor | None = None) -> Tensor:
            asked.append(network)
            return super().query_of(network, rows)  # type: ignore[arg-type]

    watched = Watched(tasks.table, tasks.query, tasks.support, tasks.mask)
    answers(pool, watched, "member:two")
    assert asked == [pool.network(2)]
    asked.clear()
    answers(pool, watched, "select", "head")
    chosen = rule("select", pool).weights(pool, tasks).argmax(1).unique().tolist()
    assert asked == [pool.network(member) for member in chosen]


FEW = AdaptationConfig(steps=5, updates=2)


@pytest.mark.parametrize("adaptation", get_args(Adaptation))
@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_batch_of_tasks_is_the_tasks_one_by_one(kind: Kind, adaptation: str) -> None:
    """A single task goes other ways: one thread, its network folded, its own shots."""
    pool = shared_pool(kind, "cosine", FEW)
    tasks = random_tasks(mask=uneven(), queries=2)
    rules = [rule(name, pool) for name in (*RULES, "member:two")]
    together = predict_tasks(pool, tasks, rules, adaptation)
    for e in range(len(tasks)):
        row = torch.tensor([e])
        count = int(tasks.present[e].sum(-1).max())  # no wider than its own largest class
        part = tasks.part(row)
        assert part.mask is not None
        alone = Tasks(
            Table.of(tasks.table.take(torch.arange(tasks.table.count)), CPU),  # type: ignore[misc]
            part.query,
            part.support[..., :count],
            part.mask[..., :count],
        )
        found = predict_tasks(pool, alone, rules, adaptation)
        torch.testing.assert_close(
            found.probabilities[:, 0], together.probabilities[:, e], atol=2e-5, rtol=0
        )
        assert torch.equal(found.diverged[:, 0], together.diverged[:, e])


@pytest.mark.parametrize("adaptation", get_args(Adaptation))
def test_what_was_fitted_answers_queries_of_another_table(adaptation: str) -> None:
    pool = shared_pool("conv1x1", "cosine", FEW)
    tasks = random_tasks(mask=uneven(), queries=2)
    rules = [rule(name, pool) for name in ("auto", "select", "blend")]
    fitted = fit_tasks(pool, tasks, rules, adaptation)
    assert tasks.table.take is not None
    order = torch.tensor([5, 0, 3])
    asked = tasks.query[:, order]  # [E, 3]
    elsewhere = Table.of(tasks.table.take(asked.flatten()), CPU)
    queries = Queries(elsewhere, torch.arange(asked.numel()).view_as(asked))
    expected = fitted.probabilities(tasks)
    torch.testing.assert_close(fitted.probabilities(queries), expected[:, :, order])
    torch.testing.assert_close(
        expected, predict_tasks(pool, tasks, rules, adaptation).probabilities
    )


def test_unknown_adaptations_are_refused() -> None:
    pool = shared_pool()
    with pytest.raises(PolyshotError, match="Did you mean 'head'"):
        answers(pool, embedded_tasks(pool), "base", "haed")
