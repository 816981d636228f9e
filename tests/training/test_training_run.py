import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.methods.protonet import ProtoNetLearner
from polyshot.models.resnet import ResNet
from polyshot.tasks import for_prediction
from polyshot.training.base import initial_base
from polyshot.training.episodic import Learner
from polyshot.training.step import Plan
from polyshot.training.training_run import TrainingRun, settings_mark
from polyshot.util.progress import Progress
from tests.helpers import CPU, SHAPE, Steps, same_weights, with_base

PLAN = Plan(steps=4, episodes=2, learning_rate=1e-3, shape=SHAPE, validate_every=2)


def make(
    packs: list[Pack], config: Config, folder: Path, report: Progress | None = None
) -> TrainingRun:
    return TrainingRun(packs, config, folder, CPU, report)


def learner(config: Config) -> Learner:
    return ProtoNetLearner(initial_base(config), config.metric)


def test_a_run_has_a_folder_of_its_own_that_says_what_it_is(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    run = make(packs, config, tmp_path)
    assert not list(tmp_path.iterdir()), "looking at it writes nothing"
    about = json.loads((run.out / "world.json").read_text())
    assert about["sources"] == ["signs", "textures"] == run.sources
    assert about["seed"] == config.seed
    assert about["key"] == run.key
    assert run.out.name.endswith(run.key)
    assert make(packs, config, tmp_path).out == run.out
    split = packs[1].domain.split
    other = replace(split, train=split.train[1:], test=(*split.test, split.train[0]))
    changed = replace(packs[1], domain=packs[1].domain.with_split(other))
    others = [
        make(packs, replace(config, seed=1), tmp_path),
        make(packs, with_base(config, steps=8), tmp_path),
        make(packs[::-1], config, tmp_path),
        make(packs[:1], config, tmp_path),
        make([packs[0], changed], config, tmp_path),
    ]
    assert len({run.out, *(each.out for each in others)}) == 6


def test_sources_that_no_training_can_use_are_refused(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    with pytest.raises(PolyshotError, match="at least one source"):
        make([], config, tmp_path)
    with pytest.raises(PolyshotError, match="twice: signs"):
        make([packs[0], packs[0]], config, tmp_path)


def test_everything_is_trained_once_and_pools_share_the_base(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    steps = Steps()
    run = make(packs, config, tmp_path, steps)
    base = run.base()
    assert isinstance(base, ResNet)
    assert steps.updates == {"base": config.base.steps}
    assert run.base() is base
    assert not base.training
    pools = [run.pool("channel"), run.pool("conv1x1")]
    assert run.pool("channel") is pools[0]
    assert steps.updates["base"] == config.base.steps
    assert steps.updates["modulator:signs"] == 2 * config.modulator.steps
    for kind, pool in zip(("channel", "conv1x1"), pools, strict=True):
        assert pool.kind == kind
        assert pool.base is base
        # What it makes of images is made once for all methods.
        assert pool.network(0) is for_prediction(base)


def test_another_process_reads_what_this_one_trained(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    first, steps = make(packs, config, tmp_path), Steps()
    second = make(packs, config, tmp_path, steps)
    one, about = first.learned("probe", lambda: learner(config), PLAN)
    other, known = second.learned("probe", lambda: learner(config), PLAN)
    assert same_weights(one, other)
    assert known == about
    assert set(about) == {"validation", "best", "skipped"}
    assert not steps.updates
    assert not other.training
    assert not any(parameter.requires_grad for parameter in other.parameters())
    assert same_weights(second.base(), first.base())


def test_plans_and_names_tell_learners_apart(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    steps = Steps()
    run = make(packs, config, tmp_path, steps)
    one, _ = run.learned("probe", lambda: learner(config), PLAN)
    faster = replace(PLAN, learning_rate=1e-2)
    other, _ = run.learned("probe", lambda: learner(config), faster)
    assert not same_weights(one, other)
    run.learned("probe-2", lambda: learner(config), PLAN)
    assert steps.updates == {"probe": 2 * PLAN.steps, "probe-2": PLAN.steps}
    rivals = run.out / "rivals"
    assert len(list(rivals.glob("*.safetensors"))) == 3
    assert not list(rivals.glob("*.pt"))
    for file in rivals.glob("probe*-metrics.jsonl"):
        numbers = [json.loads(line)["number"] for line in file.read_text().splitlines()]
        assert numbers == [2, 4]


def test_several_at_once_train_a_thing_once(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    steps, made = Steps(), []

    def work() -> None:
        run = make(packs, config, tmp_path, steps)
        made.append(run.learned("probe", lambda: learner(config), PLAN)[0])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps.updates == {"probe": PLAN.steps}
    assert same_weights(made[0], made[1]) and same_weights(made[0], made[2])


def test_worlds_of_one_source_are_shared(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    both = make(packs, config, tmp_path)
    assert both.single(1).sources == ["textures"]
    assert both.single(1).out == make(packs[1:], config, tmp_path).single(0).out
    assert both.single(1).out != both.single(0).out
    # No network of one source knows of the base: worlds with another one share them too.
    assert both.single(1).out == make(packs, with_base(config, steps=9), tmp_path).single(1).out
    assert both.single(1).out != make(packs, replace(config, seed=1), tmp_path).single(1).out
    longer = replace(config, modulator=replace(config.modulator, steps=9))
    assert both.single(1).out != make(packs, longer, tmp_path).single(1).out
    assert same_weights(both.initial(), both.single(1).initial())


def test_choices_are_made_on_validation_classes(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    run = make(packs, config, tmp_path)
    for pack, tasks in zip(packs, run.validation, strict=True):
        assert set(tasks.classes.flatten().tolist()) <= set(pack.domain.split.val)
        assert len(tasks.classes) == config.validation_episodes
    for tasks in run.tuning_tasks:
        assert tasks.table.frozen
        assert len(tasks) == config.validation_episodes
    again = make(packs, config, tmp_path).tuning_tasks
    assert torch.equal(run.tuning_tasks[0].support, again[0].support)
    assert not torch.equal(run.tuning_tasks[0].support, run.validation[0].support)
    assert run.scale(run.initial().eval()) > 0
    assert run.images("val") is run.images("val")


def test_an_untrained_network_is_the_seeds(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    run = make(packs, config, tmp_path)
    assert same_weights(run.initial(), run.initial())
    assert not same_weights(run.initial(), make(packs, replace(config, seed=1), tmp_path).initial())


def test_a_damaged_result_is_told(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    run = make(packs, config, tmp_path)
    run.learned("probe", lambda: learner(config), PLAN)
    (file,) = (run.out / "rivals").glob("*.safetensors")
    file.write_bytes(b"nothing")
    with pytest.raises(PolyshotError, match="no safetensors file"):
        run.learned("probe", lambda: learner(config), PLAN)


def test_settings_have_a_mark() -> None:
    assert settings_mark({"a": 1, "b": 2}) == settings_mark({"b": 2, "a": 1})
    assert settings_mark({"a": 1}) != settings_mark({"a": 2})
