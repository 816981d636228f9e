"""Whether a task is like those of a pool's sources, and how fast it then learns."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import SourceTasks, TaskSample
from polyshot.predict.familiar import NEARLY_ALL, familiar
from tests.helpers import SMALL, answers, keep_embeddings, random_tasks, shared_pool

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
