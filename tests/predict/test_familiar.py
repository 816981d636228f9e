"""Whether a task is like those of a pool's sources, and how fast it then learns."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import SourceTasks, TaskSample
from polyshot.predict.adapt.ridge import powered
from polyshot.predict.familiar import NEARLY_ALL, Common, familiar, in_common
from polyshot.predict.predict import predict_tasks
from polyshot.predict.readout import CENTRED, fit_classifiers
from polyshot.predict.rules import Rule, rule
from polyshot.tasks import Tasks
from tests.helpers import (
    SMALL,
    answers,
    embedded_tasks,
    keep_embeddings,
    random_embeddings,
    random_tasks,
    shared_pool,
)

COUNT = 200


def around(centre: Tensor, seed: int) -> Tensor:
    """Tasks of one source, [COUNT, d]: they differ, in some directions more than in others."""
    draw = torch.Generator().manual_seed(seed)
    scatter = torch.randn(COUNT, SMALL.dim, generator=draw)
    scatter[:, : SMALL.dim // 2] *= 5
    return 20 * centre + scatter


def directions() -> Tensor:
    """Return some that are at right angles, [8, d]."""
    matrix = torch.randn(SMALL.dim, SMALL.dim, generator=torch.Generator().manual_seed(7))
    return torch.linalg.qr(matrix)[0][:8]


def remembering() -> Pool:
    """A pool that keeps tasks of three sources."""
    pool = shared_pool()

    def sample(tasks: Tensor) -> TaskSample:
        answers = torch.zeros(len(tasks), len(pool.members)).half()
        return TaskSample(tasks.half(), answers, answers)

    kept = {
        name: SourceTasks(sample(around(centre, 2 * i)), sample(around(centre, 2 * i + 1)))
        for i, (name, centre) in enumerate(zip(pool.modulators, directions(), strict=False))
    }
    return replace(pool, statistics=kept)


def told(pool: Pool, tasks: Tensor) -> Tensor:
    """Ask about tasks of one image each, [n, d]."""
    return asked(pool, tasks.view(-1, 1, 1, SMALL.dim))


def asked(pool: Pool, support: Tensor) -> Tensor:
    """Ask about tasks by what the base makes of them, [E, W, S, d]: nothing else is needed."""
    support = support.unsqueeze(0)
    return familiar(pool, keep_embeddings(pool, support, support[:, :, 0]))


def test_new_tasks_of_the_sources_are_familiar_and_others_are_not() -> None:
    pool = remembering()
    for i, centre in enumerate(directions()):
        share = float(told(pool, around(centre, 50 + i)).float().mean())
        assert abs(share - NEARLY_ALL) < 0.08 if i < len(pool.modulators) else share < 0.02


@pytest.mark.parametrize("shot", [1, 2, 20])
def test_means_of_few_images_scatter_more_and_are_as_familiar(shot: int) -> None:
    """Tasks of 25 images are kept; those of others come from the same source."""
    _check_scatter(shared_pool(), 5, shot)


@pytest.mark.parametrize("shot", [5, 20])
def test_a_pool_knows_of_how_many_images_its_tasks_are(shot: int) -> None:
    about = {"config": {"shape": {"way": 5, "shot": 20, "queries": 10}}}
    _check_scatter(replace(shared_pool(), about=about), 20, shot)


def _check_scatter(pool: Pool, kept_shot: int, shot: int) -> None:
    """Ask about tasks of so many shots, and about others of a place that was never seen."""
    centre, *others = directions()
    draw = torch.Generator().manual_seed(shot)

    def images(count: int, towards: Tensor) -> Tensor:
        shape = (COUNT, 5, count, SMALL.dim)
        return 20 * towards + 3 * torch.randn(shape, generator=draw)

    zeros = torch.zeros(COUNT, len(pool.members)).half()
    kept = [
        TaskSample(images(kept_shot, centre).mean((1, 2)).half(), zeros, zeros) for _ in range(2)
    ]
    pool = replace(pool, statistics={"one": SourceTasks(*kept)})
    share = asked(pool, images(shot, centre)).float().mean()
    assert share > 0.6  # without the correction none at one shot
    assert not asked(pool, images(shot, others[0])).any()


def test_length_does_not_count_nor_company() -> None:
    pool = remembering()
    tasks = torch.cat([around(centre, 70 + i) for i, centre in enumerate(directions())])
    whole = told(pool, tasks)
    assert torch.equal(told(pool, 3 * tasks), whole)
    assert torch.equal(torch.cat([told(pool, part) for part in tasks.split(99)]), whole)


def test_a_pool_that_keeps_no_tasks_is_familiar_with_none() -> None:
    assert not told(shared_pool(), around(directions()[0], 0)).any()


def test_tasks_that_are_all_alike_are_no_trouble() -> None:
    pool = remembering()
    same = torch.ones(5, SMALL.dim).half()
    alike = TaskSample(same, *[torch.zeros(5, len(pool.members)).half()] * 2)
    pool = replace(pool, statistics={"one": SourceTasks(alike, alike)})
    assert told(pool, same.float()).all()
    assert not told(pool, -same.float()).any()


def test_familiar_tasks_learn_at_a_rate_of_their_own() -> None:
    config = AdaptationConfig(
        updates=3,
        rates=(0.5,),
        familiar_rate=0.05,
        tsa_share=1.0,
        tsa_inverse_temperature=1.0,
        familiar_inverse_temperature=1.0,
    )
    pool = replace(shared_pool(), adaptation=config)
    tasks = random_tasks()
    means = tasks.support_of(pool.network(0)).mean((1, 2))  # [E, d]
    near = F.normalize(means[:1], dim=-1) + 1e-4 * around(torch.zeros(SMALL.dim), 3)
    zeros = torch.zeros(COUNT, len(pool.members)).half()
    kept = TaskSample(near.half(), zeros, zeros)
    knows = replace(pool, statistics={"one": SourceTasks(kept, kept)})
    known = familiar(knows, tasks)
    assert known.tolist() == [True, False, False]
    slow, fast = (
        answers(replace(pool, adaptation=replace(config, rates=(rate,))), tasks, "auto", "tsa")
        for rate in (0.05, 0.5)
    )
    found = answers(knows, tasks, "auto", "tsa")
    torch.testing.assert_close(found, slow.where(known[:, None, None], fast), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(slow, fast, atol=1e-3)
    milder = replace(config, tsa_inverse_temperature=0.5, familiar_inverse_temperature=0.8)
    mild = answers(replace(knows, adaptation=milder), tasks, "auto", "tsa")
    factor = torch.where(known, 0.8, 0.5)[:, None, None]
    torch.testing.assert_close(mild, (factor * found.log()).softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rates", [(0.5,), (0.5, 0.2)])
def test_single_images_of_strange_tasks_are_learned_from_in_a_way_of_their_own(
    rates: tuple[float, ...],
) -> None:
    """Of three tasks the first is familiar, and the last has several images in a class."""
    config = AdaptationConfig(updates=3, rates=rates, tsa_rates="average", tsa_share=0.4)
    single = {"tsa_single_rate": 0.1, "tsa_single_share": 0.7}
    mask = torch.ones(3, 4, 3, dtype=torch.bool)
    mask[:2, :, 1:] = False
    tasks = random_tasks(mask=mask)
    seen = tasks.support_of(shared_pool().network(0))[:1, :, 0].mean(1)  # [1, d]
    near = F.normalize(seen, dim=-1) + 1e-4 * around(torch.zeros(SMALL.dim), 3)
    zeros = torch.zeros(COUNT, len(shared_pool().members)).half()
    kept = TaskSample(near.half(), zeros, zeros)
    pool = replace(shared_pool(), statistics={"one": SourceTasks(kept, kept)})
    assert familiar(pool, tasks).tolist() == [True, False, False]

    def answer(**changes: object) -> Tensor:
        own = replace(config, **changes)  # type: ignore[arg-type]
        return answers(replace(pool, adaptation=own), tasks, "auto", "tsa")

    plain, before = answers(pool, tasks, "auto"), answer()
    found = answer(**single, tsa_single_inverse_temperature=0.5)
    torch.testing.assert_close(found[[0, 2]], before[[0, 2]], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(before[:2], plain[:2])
    always = {"least_shots": 1, "rates": (0.1,), "tsa_inverse_temperature": 1.0}
    learned = answer(**always, tsa_share=1.0)[1]
    expected = (0.5 * (0.7 * learned.log() + 0.3 * plain[1].log())).softmax(-1)
    torch.testing.assert_close(found[1], expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(learned, plain[1], atol=1e-3)


def test_images_have_in_common_what_tasks_of_the_nearest_source_have() -> None:
    pool = remembering()
    known = [kept.train.tasks.double() for kept in pool.statistics.values()]
    means = torch.stack([F.normalize(tasks, dim=-1).mean(0) for tasks in known])
    for i, centre in enumerate(directions()):
        support = around(centre, 50 + i)[:20].view(1, -1, 1, 1, SMALL.dim)
        tasks = keep_embeddings(pool, support, support[:, :, 0])
        seen = familiar(pool, tasks)
        wanted = means[min(i, len(means) - 1)].where(seen.unsqueeze(1), means.mean(0))
        found = in_common(pool, tasks)
        assert torch.allclose(found.direction, F.normalize(wanted, dim=-1))
        assert torch.equal(found.familiar, seen)
        assert bool(seen.any()) == (i < len(pool.modulators))


def test_prototypes_of_single_images_go_without_a_common_direction() -> None:
    """Against a loop; of tasks with several images in a class nothing is taken."""
    support, query, mask = (x[0] if x.ndim > 3 else x for x in random_embeddings(episodes=4))
    mask[:2, :, 1:] = False  # the first two tasks have single images
    common = F.normalize(torch.rand(4, SMALL.dim), dim=-1)
    config = AdaptationConfig(centre_single=1.0)
    told = Common(common.double(), torch.zeros(4, dtype=torch.bool))
    made = fit_classifiers(support, mask, "cosine", 10.0, "none", config, told)
    plain = fit_classifiers(support, mask, "cosine", 10.0)
    assert torch.allclose(made.logits(query)[2:], plain.logits(query)[2:], atol=1e-5)
    for task in range(2):
        images, asked = F.normalize(support[task, :, 0], dim=-1), F.normalize(query[task], dim=-1)
        part = (images @ common[task]).mean() * common[task]
        cosines = F.cosine_similarity((images - part)[:, None], (asked - part)[None], dim=-1)
        assert torch.allclose(made.logits(query)[task], CENTRED * 10 * cosines, atol=1e-5)


@pytest.mark.parametrize("much", [0.4, 1.0])
def test_ridge_centres_single_images_of_familiar_tasks_at_what_is_common(much: float) -> None:
    """Against a loop; other tasks are centred at the mean of their support set."""
    support, query, mask = (x[0] if x.ndim > 3 else x for x in random_embeddings(episodes=4))
    mask[:3, :, 1:] = False  # the first three tasks have single images
    direction = F.normalize(torch.rand(4, SMALL.dim), dim=-1)
    told = Common(direction.double(), torch.tensor([True, True, False, True]))
    config = AdaptationConfig(centre_single=much, ridge_power=0.7)
    made = fit_classifiers(support, mask, "cosine", 10.0, "ridge", config, told)
    plain = fit_classifiers(support, mask, "cosine", 10.0, "ridge", config)
    assert torch.allclose(made.logits(query)[2:], plain.logits(query)[2:], atol=1e-5)
    assert not torch.allclose(made.logits(query)[:2], plain.logits(query)[:2], atol=1e-2)
    for task in range(2):
        images, asked = (
            F.normalize(powered(each, 0.7), dim=-1) for each in (support[task, :, 0], query[task])
        )
        part = (images @ direction[task]).mean() * direction[task]
        centre = much * part + (1 - much) * images.mean(0)
        apart, asked = (F.normalize(each - centre, dim=-1) for each in (images, asked))
        way = len(apart)
        target = torch.eye(way) - 1 / way
        weight = torch.linalg.solve(apart @ apart.T + torch.eye(way), target).T @ apart
        expected = config.ridge_scale * weight @ asked.T
        assert torch.allclose(made.logits(query)[task], expected, atol=1e-4)


@pytest.mark.parametrize("adaptation", ["none", "ridge"])
def test_auto_alone_takes_it_away_and_at_one_shot_alone(adaptation: str) -> None:
    def by(rule: Rule, pool: Pool, tasks: Tasks) -> Tensor:
        return predict_tasks(pool, tasks, [rule], adaptation).probabilities[0]

    pool = replace(remembering(), adaptation=AdaptationConfig(centre_single=1.0))
    # Images that are familiar, and others.
    centre, other = directions()[0], directions()[-1]
    known, strange = (around(each, 90 + i)[:24] for i, each in enumerate((centre, other)))
    support = torch.cat([known[:15].view(3, 5, 1, -1), strange[:15].view(3, 5, 1, -1)])
    query = torch.cat([known[15:].view(3, 3, -1), strange[15:].view(3, 3, -1)])
    members = len(pool.members)
    one = keep_embeddings(pool, *(x.expand(members, *x.shape) for x in (support, query)))
    assert familiar(pool, one).tolist() == [True] * 3 + [False] * 3
    several = embedded_tasks(pool, shot=3, episodes=6)
    rules = [rule(name, pool) for name in ("base", "auto", "select", "average")]
    for tasks, changes in ((one, True), (several, False)):
        together = predict_tasks(pool, tasks, rules, adaptation).probabilities
        for each, answer in zip(rules, together, strict=True):
            assert torch.allclose(answer, by(each, pool, tasks), atol=1e-6)
            plain = by(replace(each, centred=False), pool, tasks)
            same = torch.allclose(answer, plain, atol=1e-6)
            assert same == (not changes or each.name != "auto")
    auto = by(rules[1], pool, one)
    alone = [by(rules[1], pool, one.part(slice(i, i + 1))) for i in range(6)]
    assert torch.allclose(torch.cat(alone), auto, atol=1e-6)
    as_before = replace(pool, adaptation=AdaptationConfig())
    plain = by(replace(rules[1], centred=False), pool, one)
    assert torch.equal(by(rules[1], as_before, one), plain)
