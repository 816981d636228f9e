"""A run with an added domain: the old one to the bit, one more member, nothing trained twice."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyshot.config import Config, for_hash, to_dict
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.evaluation.targets import Target
from polyshot.methods.method import find_methods
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.training.folder import identity
from polyshot.training.training_run import TrainingRun
from polyshot.util.files import digest
from polyshot.util.progress import Progress
from tests.helpers import CPU, SHAPE, TINY, Steps, same_weights


@pytest.fixture(scope="module")
def ungrown(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained pool; tests that add to it copy it."""
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("ungrown")
    TrainingRun(packs, TINY, made, CPU).pool("conv1x1")
    return made


@pytest.fixture(scope="module")
def folder(
    ungrown: Path, packs: list[Pack], new: Pack, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder in which a domain was added."""
    made = shutil.copytree(ungrown, tmp_path_factory.mktemp("grown") / "runs")
    grown(packs, new, made).pool("conv1x1")
    return made


def grown(
    packs: list[Pack],
    new: Pack,
    folder: Path,
    report: Progress | None = None,
    config: Config = TINY,
) -> TrainingRun:
    return TrainingRun(packs, config, folder, CPU, report, added=new)


def stop_at(step: str) -> Progress:
    """Interrupt a step in its middle."""

    def report(name: str, done: int, total: int) -> None:
        if name == step and done >= total // 2:
            raise KeyboardInterrupt

    return report


def test_trained_things_are_shared_and_results_are_not(
    packs: list[Pack], new: Pack, folder: Path
) -> None:
    plain, run = TrainingRun(packs, TINY, folder, CPU), grown(packs, new, folder)
    assert run.out == plain.out
    assert [each.name for each in folder.iterdir()] == [plain.name]
    assert run.name.startswith(f"{plain.name}-added-flowers-")
    assert run.key not in (plain.key, "")
    assert run.sources == ["signs", "textures", "flowers"]
    assert plain.sources == ["signs", "textures"]
    about = json.loads((run.out / "world.json").read_text())
    assert about["sources"] == ["signs", "textures"]  # of what is in the folder


def test_the_key_of_an_ungrown_run_is_what_it_was(packs: list[Pack], tmp_path: Path) -> None:
    # Results on the disks of others are found by it: it may change with the config alone.
    config = for_hash(to_dict(TINY))
    plain = json.dumps([config, [identity(pack) for pack in packs]], sort_keys=True)
    run = TrainingRun(packs, TINY, tmp_path, CPU)
    assert run.before is run and run.addition("conv1x1") is None
    assert run.key == digest(plain)[:10]


def test_nothing_is_trained_twice(
    packs: list[Pack], new: Pack, ungrown: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(ungrown, tmp_path / "runs")
    steps = Steps()
    run = grown(packs, new, own, steps)
    pool = run.pool("conv1x1")
    assert run.pool("conv1x1") is pool
    assert {name.partition(":")[2] for name in steps.updates if ":" in name} == {"flowers"}
    assert "base" not in steps.updates and "selector" in steps.updates
    (added,) = run.out.glob("added-*")
    assert not list(added.glob("*.pt"))
    again = Steps()
    other = grown(packs, new, own, again).pool("conv1x1")
    assert again.updates == {}
    assert other.hash == pool.hash


def test_old_members_answer_to_the_bit_as_before(
    packs: list[Pack], new: Pack, folder: Path
) -> None:
    plain, run = TrainingRun(packs, TINY, folder, CPU), grown(packs, new, folder)
    old, pool = plain.pool("conv1x1"), run.pool("conv1x1")
    assert pool.members == (*old.members, "flowers")
    assert pool.member_hashes()[:3] == old.member_hashes()
    assert pool.scales[:3] == old.scales
    assert all(same_weights(old.network(i), pool.network(i)) for i in range(3))
    before, after = PoolWithRule(old, "average"), PoolWithRule(pool, "average")
    for target in (*packs, new):
        tasks = Target(target, CPU, [SHAPE], 4).tasks(SHAPE)
        assert torch.equal(
            before.member_probabilities(tasks), after.member_probabilities(tasks)[:3]
        )


def test_the_base_is_one_object_for_all(packs: list[Pack], new: Pack, folder: Path) -> None:
    run = grown(packs, new, folder)
    pool = run.pool("conv1x1")
    assert pool.base is run.base() is run.before.base()
    assert len(pool.members) == 4 and pool.network(3) is pool.network(3)
    assert (pool.network(3) is pool.network(0)) == (pool.strengths["flowers"] == 0)


def test_every_method_over_the_pool_grows(packs: list[Pack], new: Pack, folder: Path) -> None:
    run = grown(packs, new, folder)
    tasks = Target(new, CPU, [SHAPE], 2).tasks(SHAPE)
    over_pools = [method for method in find_methods() if method.pool is not None]
    assert {"select", "average", "urt", "auto", "select-channel"} <= {m.name for m in over_pools}
    for method in over_pools:
        fitted = method.fit(run, method.settings)
        assert isinstance(fitted, PoolWithRule) and fitted.pool.kind == method.pool
        assert "flowers" in fitted.pool.modulators
        answers = fitted.predict(tasks)
        torch.testing.assert_close(answers.sum(-1), torch.ones_like(answers[..., 0]))


def test_an_addition_says_how_long_it_took(packs: list[Pack], new: Pack, folder: Path) -> None:
    took = grown(packs, new, folder).addition("conv1x1")
    assert took is not None
    assert took.seconds is not None and 0 < took.seconds < 600
    assert took.device.startswith("cpu")


@pytest.mark.parametrize("step", ["modulator:flowers", "selector"])
def test_an_interrupted_addition_goes_on_and_gives_no_time(
    packs: list[Pack], new: Pack, ungrown: Path, folder: Path, tmp_path: Path, step: str
) -> None:
    own = shutil.copytree(ungrown, tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        grown(packs, new, own, stop_at(step)).pool("conv1x1")
    run = grown(packs, new, own)
    assert run.pool("conv1x1").hash == grown(packs, new, folder).pool("conv1x1").hash
    took = run.addition("conv1x1")
    assert took is not None and took.seconds is None


def test_only_the_pool_is_missing_after_a_kill(
    packs: list[Pack], new: Pack, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "runs")
    (lost,) = (tmp_path / "runs").glob("*/added-*-conv1x1/pool")
    shutil.rmtree(lost)
    steps = Steps()
    run = grown(packs, new, tmp_path / "runs", steps)
    expected = grown(packs, new, folder)
    assert run.pool("conv1x1").hash == expected.pool("conv1x1").hash
    assert "modulator:flowers" not in steps.updates  # its weights are kept
    assert run.addition("conv1x1") == expected.addition("conv1x1")


def test_another_split_of_the_domain_is_another_addition(
    packs: list[Pack], new: Pack, tmp_path: Path
) -> None:
    split = new.domain.split
    other = replace(split, train=split.train[1:], test=(*split.test, split.train[0]))
    changed = replace(new, domain=new.domain.with_split(other))
    runs = [grown(packs, each, tmp_path) for each in (new, changed)]
    assert len({run.name for run in runs}) == len({run.key for run in runs}) == 2


def test_what_cannot_be_added_is_refused(packs: list[Pack], new: Pack, tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match="twice: signs"):
        grown(packs, packs[0], tmp_path)
    split = replace(new.domain.split, val=(), test=(*new.domain.split.test, *new.domain.split.val))
    without = replace(new, domain=new.domain.with_split(split))
    with pytest.raises(PolyshotError, match="flowers"):
        grown(packs, without, tmp_path)
    assert list(tmp_path.iterdir()) == []
