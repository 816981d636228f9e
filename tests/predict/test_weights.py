"""What support sets tell about the members."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import SourceTasks, TaskSample
from polyshot.predict.familiar import familiar
from polyshot.predict.rules import (
    _left_out,
    _losses,
    automatic,
    by_attention,
    by_leave_one_out,
    by_selector,
    by_sur,
    leave_one_out,
    rule,
    uniform,
)
from polyshot.tasks import Tasks
from tests.helpers import (
    embedded_tasks,
    keep_embeddings,
    random_embeddings,
    random_pool,
    shared_pool,
)


def loss_by_hand(pool: Pool, tasks: Tasks, episode: int, member: int) -> float:
    """Mean loss of the images that have another of their class, one at a time."""
    assert tasks.mask is not None
    mask, losses = tasks.mask[episode], []
    for way, place in mask.nonzero().tolist():
        rest = mask.clone()
        rest[way, place] = False
        if not rest[way].any():
            continue
        images = tasks.support_of(pool.network(member))[episode]
        if pool.metric == "cosine":
            images = F.normalize(images, dim=-1)
        centres = torch.stack([images[c][rest[c]].mean(0) for c in range(len(mask))])
        image = images[way, place]
        if pool.metric == "cosine":
            logits = F.cosine_similarity(image[None], centres)
        else:
            logits = -(image - centres).square().sum(-1)
        logits = logits * pool.scales[member]
        losses.append(float(F.cross_entropy(logits[None], torch.tensor([way]))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_leave_one_out_is_what_leaving_out_gives(metric: Metric) -> None:
    pool = shared_pool(metric=metric)
    tasks = embedded_tasks(pool, shot=4)
    losses = torch.tensor(
        [[loss_by_hand(pool, tasks, e, m) for m in range(4)] for e in range(len(tasks))]
    )
    weights, told = leave_one_out(pool, tasks)
    torch.testing.assert_close(weights, torch.softmax(-10 * losses, 1), atol=1e-4, rtol=1e-3)
    assert told.all()
    assert torch.equal(by_leave_one_out(pool, tasks), weights)


def one_shot(pool: Pool) -> Tasks:
    support, query, _ = random_embeddings()
    return keep_embeddings(pool, support[:, :, :, :1], query)


def test_at_one_shot_the_selector_decides() -> None:
    pool = shared_pool()
    tasks = one_shot(pool)
    chances = by_selector(pool, tasks)
    assert torch.equal(by_leave_one_out(pool, tasks), chances)
    assert torch.equal(by_sur(pool, tasks), chances)
    assert torch.equal(automatic(pool, tasks), chances)


def test_at_one_shot_the_base_answers_tasks_that_are_unlike_the_sources() -> None:
    pool = shared_pool()
    means = random_embeddings()[0][0, :, :, :1].mean((1, 2))  # [E, d]
    scatter = torch.randn(100, means.shape[-1], generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros(100, len(pool.members)).half()
    near = TaskSample((means[1] + 1e-3 * means[1].norm() * scatter).half(), zeros, zeros)
    pool = replace(pool, statistics={"one": SourceTasks(near, near)})
    tasks = one_shot(pool)
    known = familiar(pool, tasks)
    assert known[1] and not known.all()
    base = torch.eye(len(pool.members))[:1]
    expected = by_selector(pool, tasks).where(known.unsqueeze(1), base)
    assert torch.equal(automatic(pool, tasks), expected)


def test_a_task_among_others_may_have_one_shot() -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool)
    assert tasks.mask is not None
    mask = tasks.mask.clone()
    mask[2, :, 1:] = False
    mixed = replace(tasks, mask=mask)
    weights, told = leave_one_out(pool, mixed)
    assert told.tolist() == [True, True, False, True, True]
    assert torch.equal(weights[2], torch.full((4,), 0.25))
    chances = by_selector(pool, mixed)
    for rule_of in (automatic, by_leave_one_out, by_sur):
        found = rule_of(pool, mixed)
        assert torch.equal(found[2], chances[2])
        torch.testing.assert_close(found[3], rule_of(pool, tasks)[3])


@pytest.mark.parametrize("shot", [1, 3])
def test_without_a_selector_leaving_out_decides_or_nobody(shot: int) -> None:
    pool = random_pool(selector=False)
    tasks = embedded_tasks(pool, shot=shot)
    expected = uniform(pool, tasks) if shot == 1 else leave_one_out(pool, tasks)[0]
    for rule_of in (automatic, by_leave_one_out):
        assert torch.equal(rule_of(pool, tasks), expected)
    for name in ("select", "soft"):
        with pytest.raises(PolyshotError, match="no selector"):
            rule(name, pool)
    for name in ("auto", "loo", "sum", "sur", "blend"):
        rule(name, pool)
    assert rule("blend", pool).members(pool) == [0, 1, 2, 3]


def test_auto_is_the_mean_of_selector_and_leave_one_out() -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool, shot=4)
    expected = (by_selector(pool, tasks) + leave_one_out(pool, tasks)[0]) / 2
    torch.testing.assert_close(automatic(pool, tasks), expected)


def test_the_best_member_gets_the_weight() -> None:
    """One member tells the classes apart, the others see noise."""
    pool = shared_pool()
    support, query, _ = random_embeddings(way=4, shot=5, episodes=6)
    support = torch.rand_like(support)
    support[3] = support[0]
    support[2] = 0.1 * support[2] + torch.eye(4, support.shape[-1])[None, :, None]
    clear = keep_embeddings(pool, support, query)
    for rule_of in (by_leave_one_out, by_sur):
        weights = rule_of(pool, clear)
        assert (weights.argmax(1) == 2).all()
        assert (weights[:, 2] > 0.8).all()
    assert (automatic(pool, clear)[:, 2] > 0.4).all()


def test_sur_classifies_left_out_images_better_than_equal_weights() -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool, shot=5, episodes=8)

    def loss(weights: torch.Tensor) -> torch.Tensor:
        """Of single members with these weights in their place: an upper bound is not enough."""
        held = _left_out(pool, tasks)
        assert held is not None
        logits, labels, there = held
        mixed = torch.einsum("em,emnw->enw", weights, logits)
        return _losses(mixed.unsqueeze(1), labels, there)[:, 0]

    fitted, even = by_sur(pool, tasks), uniform(pool, tasks)
    assert (loss(fitted) < loss(even)).all()


@pytest.mark.parametrize("name", ["auto", "loo", "sur", "soft", "sum"])
def test_one_class_is_its_own_answer(name: str) -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool, way=1)
    weights = rule(name, pool).weights(pool, tasks)
    torch.testing.assert_close(weights.sum(1), torch.ones(5))


def test_attention_looks_at_unit_prototypes_of_the_images_present() -> None:
    pool = shared_pool()
    support, query, mask = random_embeddings()
    tasks = keep_embeddings(pool, support, query, mask)
    assert pool.urt is not None
    for e in range(len(tasks)):
        centres = torch.stack(
            [
                torch.stack(
                    [
                        F.normalize(
                            F.normalize(support[m, e, c][mask[e, c]], dim=-1).mean(0), dim=0
                        )
                        for c in range(4)
                    ]
                )
                for m in range(4)
            ]
        )  # [M, W, d]
        with torch.no_grad():
            expected = pool.urt(centres.unsqueeze(0))[0]
        torch.testing.assert_close(by_attention(pool, tasks)[e], expected, atol=1e-5, rtol=1e-4)
        assert expected.std() > 1e-3


def test_tasks_do_not_depend_on_their_company() -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool)
    for rule_of in (automatic, by_leave_one_out, by_sur, by_attention):
        whole = rule_of(pool, tasks)
        alone = rule_of(pool, tasks.part(slice(3, 4)))
        torch.testing.assert_close(alone, whole[3:4], atol=1e-5, rtol=1e-5)
