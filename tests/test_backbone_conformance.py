"""What holds on every backbone: ours, a convolutional one and a transformer from elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import FOREIGN
from polyshot.models.backbone import walk_through
from polyshot.models.foreign import Backbone, Foreign
from polyshot.models.loaders import load_backbone
from polyshot.models.modulators import Kind, fold, fold_task, task_modulators
from polyshot.models.selector import MemberAttention, Selector
from polyshot.models.views import MEAN, STD, normalise
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision
from polyshot.predict.predict import Adaptation, predict_tasks
from polyshot.predict.rules import RULES, rule
from polyshot.tasks import Tasks
from tests.helpers import (
    SIZE,
    SMALL,
    double_pool,
    gentle_modulator,
    in_double,
    mixed_modulator,
    random_base,
    random_tasks,
    saved_vit,
    thin_lite0,
    uneven,
)

BACKBONES: dict[str, Callable[[Path], Backbone]] = {
    "resnet18": lambda folder: random_base(SMALL),
    "efficientnet-lite0": lambda folder: Foreign(thin_lite0(), 24, (0.5,) * 3, (0.4,) * 3),
    "vit": lambda folder: load_backbone(saved_vit(folder)),
}
ADAPTATIONS = get_args(Adaptation)
EVERY_RULE = (*RULES, "member:one", "member:off")
every_adaptation = pytest.mark.parametrize("adaptation", ADAPTATIONS)


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Two threads would only wait for each other."""


@pytest.fixture(scope="module", params=BACKBONES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return BACKBONES[request.param](tmp_path_factory.mktemp("backbone")).requires_grad_(False)


@pytest.fixture(scope="module", params=get_args(Kind))
def pool(base: Backbone, request: pytest.FixtureRequest) -> Pool:
    """Members of full, half and no strength; their maps are of low rank where they may be."""
    kind, strengths, dim = request.param, {"one": 1.0, "two": 0.5, "off": 0.0}, base.config.dim
    modulators = {
        name: gentle_modulator(base, kind, i, rank=2 + i) for i, name in enumerate(strengths)
    }
    size = base.config.size if isinstance(base, Foreign) else SIZE
    torch.manual_seed(3)
    beside = {"selector": Selector(dim, 4, hidden=8), "urt": MemberAttention(dim, hidden=8)}
    return Pool(
        *(base.config, size, kind, "cosine", base, modulators, strengths),
        **beside,  # type: ignore[arg-type]
        scales=[10.0, 8.0, 12.0, 10.0],
        adaptation=replace(FOREIGN, steps=5, updates=2, rates=(0.3,)),
    )


@pytest.fixture(scope="module")
def precise(pool: Pool) -> Pool:
    """The same in float64."""
    return double_pool(pool)


def tasks_for(pool: Pool) -> Tasks:
    """Uneven tasks of images of another size than a network from elsewhere was made for."""
    return random_tasks(way=3, shot=2, queries=2, mask=uneven(3, 3, 2))


def pixels(pool: Pool) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (4, 3, pool.size, pool.size), dtype=torch.uint8, generator=draw)


def test_embeddings_are_the_networks_own(pool: Pool) -> None:
    images, base = pixels(pool), pool.base
    foreign = isinstance(base, Foreign)
    mean, std = (base.config.mean, base.config.std) if foreign else (MEAN, STD)
    own, spread = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    network: nn.Module = base.network if foreign else base
    with torch.no_grad():
        known = network((images / 255 - own) / spread)
    torch.testing.assert_close(pool.embed(images, [0])[0], known, rtol=1e-3, atol=1e-4)
    assert torch.equal(pool.embed(images, [3])[0], pool.embed(images, [0])[0])
    assert not torch.allclose(pool.embed(images, [1])[0], known, atol=1e-2)


def test_folded_members_are_the_walk_with_acts(precise: Pool) -> None:
    base, modulators = precise.base, list(precise.modulators.values())
    images = normalise(pixels(precise).double() / 255)
    shares = torch.tensor([[1.0, 0, 0], [0, 0.4, 0], [0.2, 0.3, 0.5]]).double()
    with torch.no_grad():
        mixed, every = task_modulators(base, modulators, shares), images.repeat(3, 1, 1, 1)
        found = walk_through(base)(every, mixed.acts(3)).view(3, 4, -1)
        expected = [fold(base, modulators[0]), fold(base, modulators[1], 0.4)]
        expected.append(fold(base, mixed_modulator(modulators, shares[2])))
        for task, member in enumerate(expected):
            torch.testing.assert_close(found[task], member(images))
            torch.testing.assert_close(found[task], fold_task(base, mixed, task)(images))


@pytest.mark.parametrize("precision", get_args(Precision))
def test_a_pool_is_saved_and_loaded(pool: Pool, precision: Precision, tmp_path: Path) -> None:
    pool.save(tmp_path / "pool", precision)
    named = isinstance(pool.base, Foreign) and pool.base.config.name == "own"
    loaded = Pool.load(tmp_path / "pool", network=pool.base.network if named else None)
    assert loaded.members == pool.members and loaded.adaptation == pool.adaptation
    before, after = pool.embed(pixels(pool)), loaded.embed(pixels(pool))
    if precision == "full":
        assert loaded.hash == pool.hash and torch.equal(before, after)
    assert F.cosine_similarity(before, after, dim=-1).min() > 0.9


@every_adaptation
def test_every_rule_answers_with_chances(pool: Pool, adaptation: Adaptation) -> None:
    rules = [rule(name, pool) for name in EVERY_RULE]
    found = predict_tasks(pool, tasks_for(pool), rules, adaptation)
    assert found.probabilities.shape == (len(EVERY_RULE), 3, 6, 3)
    assert found.probabilities.isfinite().all() and (found.probabilities >= 0).all()
    torch.testing.assert_close(found.probabilities.sum(-1), torch.ones(len(EVERY_RULE), 3, 6))


@every_adaptation
def test_neither_queries_nor_tasks_change_one_another(
    precise: Pool, adaptation: Adaptation
) -> None:
    rules = [rule(name, precise) for name in ("auto", "blend")]
    with in_double():
        tasks = tasks_for(precise)

        def answers(some: Tasks) -> Tensor:
            return predict_tasks(precise, some, rules, adaptation).probabilities

        whole = answers(tasks)
        few = answers(replace(tasks, query=tasks.query[:, [4, 1]]))
        torch.testing.assert_close(few, whole[:, :, [4, 1]], atol=1e-7, rtol=0)
        alone = [answers(tasks.part(slice(e, e + 1))) for e in range(len(tasks))]
        torch.testing.assert_close(torch.cat(alone, 1), whole, atol=1e-7, rtol=0)
