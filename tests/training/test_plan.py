"""Small domains of a user's own: which classes and tasks, and how long without a GPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyshot.config import preset, to_dict
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.training.edit import grow
from polyshot.training.growth import growth_config
from polyshot.training.plan import BUDGET, plan_addition
from tests.helpers import SIZE, random_pool


def own_data(folder: Path, classes: int, each: int) -> Pack:
    pixels = np.random.default_rng(0).integers(0, 256, (classes * each, 3, SIZE, SIZE), np.uint8)
    names = tuple(f"class {i}" for i in range(classes))
    with PackWriter(folder / "birds", SIZE) as writer:
        writer.append(pixels)
        labels = np.repeat(np.arange(classes), each)
        return writer.finish(Domain("birds", names, labels), {"reader": "test"})


@pytest.fixture
def pool() -> Pool:
    pool = random_pool(selector=False)
    pool.about = {"config": to_dict(preset("strong"))}
    return pool


def test_a_small_domain_is_split_and_a_cpu_learns_from_fewer_images(
    pool: Pool, tmp_path: Path
) -> None:
    pack = own_data(tmp_path, 24, 16)
    plan = plan_addition(pool, pack)
    assert plan.pack.domain.split.sizes == (14, 5, 5)
    own, full = growth_config(pool, plan.options).modulator, growth_config(pool).modulator
    images = own.steps * own.episodes * own.shape.way * (own.shape.shot + own.shape.queries)
    assert 0.9 * BUDGET * 72**2 / SIZE**2 < images <= BUDGET * 72**2 / SIZE**2
    assert own.validate_every <= own.steps and full.steps == 1500
    (said,) = plan.remarks
    assert said.startswith(f"birds: {own.steps:,} updates of 385 images take about ")
    assert "on a CPU. The whole training" in said and "--set modulator.steps=1500" in said


def test_who_says_how_long_is_heard(pool: Pool, tmp_path: Path) -> None:
    pack = own_data(tmp_path, 24, 16)
    plan = plan_addition(pool, pack, ["modulator.steps=7"], timed=False)
    assert growth_config(pool, plan.options).modulator.steps == 7
    assert growth_config(pool, plan.options).modulator.episodes == 10 and plan.remarks == ()


def test_too_few_classes_are_all_used_and_that_is_said(pool: Pool, tmp_path: Path) -> None:
    pack = own_data(tmp_path, 8, 6)
    assert pack.domain.split.rule == "target-only"
    plan = plan_addition(pool, pack, timed=False)
    assert plan.pack.domain.split.sizes == (4, 4, 0)
    assert pack.domain.split.rule == "target-only"  # on the disk it stays as it is
    config = growth_config(pool, plan.options)
    assert (config.shape.way, config.shape.shot, config.shape.queries) == (4, 4, 2)
    shape = config.modulator.shape
    assert (shape.way, shape.shot, shape.queries) == (4, 1, 5)
    assert plan.remarks[0] == (
        "birds: all 8 classes are used, 4 to train on and 4 to choose by; measure the gain on "
        "images of others."
    )
    assert "tasks of 4 ways, 1 shots and 5 queries instead of" in plan.remarks[1]


def test_tasks_keep_groups_apart(pool: Pool, tmp_path: Path) -> None:
    pack = own_data(tmp_path, 8, 6)
    grouped = replace(pack.domain, groups=np.arange(48) // 3)  # two films of three frames a class
    plan = plan_addition(pool, replace(pack, domain=grouped), timed=False)
    shape = growth_config(pool, plan.options).shape
    assert (shape.way, shape.shot, shape.queries) == (4, 3, 1)
    for part in ("train", "val"):
        EpisodeSampler(plan.pack.domain, shape, part=part)(0, 3)


def test_parts(pool: Pool, tmp_path: Path) -> None:
    pack = own_data(tmp_path, 24, 16)
    assert plan_addition(pool, pack, part="all", timed=False).pack.domain.split.sizes == (19, 5, 0)
    with pytest.raises(PolyshotError, match=r"There is no part 'trian'.*Did you mean 'train'"):
        plan_addition(pool, pack, part="trian")
    everything = replace(pack.domain.split, train=(), val=(), test=tuple(range(24)))
    target = replace(pack, domain=pack.domain.with_split(everything))
    with pytest.raises(PolyshotError, match=r"fewer than two have two images.*--part all"):
        plan_addition(pool, target, part="train")


def test_eight_classes_of_six_images_are_added(pool: Pool, tmp_path: Path) -> None:
    pool.save(tmp_path / "pool")
    quick = ["modulator.steps=2", "modulator.validate_every=1", "modulator.episodes=1"]
    quick += ["validation_episodes=4", "selector.tasks=4", "selector.steps=2"]
    told: list[str] = []
    pack = own_data(tmp_path, 8, 6)
    grown = grow(tmp_path / "pool", pack, tmp_path / "new", quick, False, "cpu", tell=told.append)
    assert grown.members[-1] == "birds" and len(told) == 4
    assert Pool.load(tmp_path / "new").hash == grown.hash
