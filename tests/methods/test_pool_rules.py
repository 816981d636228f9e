"""The base and the rules over a pool, as methods."""

from dataclasses import replace

import pytest
import torch

from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.method import METHODS, find_methods
from polyshot.methods.pool_rules import LEARNING, PoolWithRule, with_learning
from polyshot.predict.readout import fit_classifiers
from polyshot.predict.rules import rule
from polyshot.tasks import for_prediction
from polyshot.training.training_run import TrainingRun
from tests.helpers import random_pool, tasks_of

SHAPE = EpisodeShape(4, 2, 3)
find_methods()


def fit(name: str, world: TrainingRun, **settings: float) -> object:
    return METHODS[name].fit(world, {**METHODS[name].settings, **settings})


def test_the_order_of_the_tables_does_not_depend_on_who_was_imported_first() -> None:
    names = [method.name for method in find_methods()]
    assert names[:6] == ["base", "finetune", "finetune-all", "protonet", "simple-avg", "feat"]
    pool_rules = ["select", "average", "select-channel", "average-channel"]
    assert names[-12:] == [*pool_rules, "soft", "loo", "sum", "sur", "urt", "blend", "soup", "auto"]


def test_the_base_is_read_out_by_prototypes_at_its_best_scale(
    world: TrainingRun, packs: list[Pack]
) -> None:
    fitted, tasks = fit("base", world), tasks_of(packs[0], SHAPE)
    assert isinstance(fitted, PoolWithRule)
    assert fitted.pool.network(0) is for_prediction(world.base())
    assert fitted.pool.scales == [world.scale(world.base())]
    support, query = tasks.embedded(world.base())
    classifiers = fit_classifiers(support, None, "cosine", fitted.pool.scales[0])
    expected = classifiers.logits(query).softmax(1).mT
    torch.testing.assert_close(fitted.predict(tasks), expected)


@pytest.mark.parametrize(("suffix", "kind"), [("", "conv1x1"), ("-channel", "channel")])
def test_rules_weigh_the_members_of_the_pool(
    suffix: str, kind: str, world: TrainingRun, packs: list[Pack]
) -> None:
    average, tasks = fit(f"average{suffix}", world), tasks_of(packs[0], SHAPE)
    select = fit(f"select{suffix}", world)
    assert isinstance(average, PoolWithRule) and isinstance(select, PoolWithRule)
    for part in ("base", "modulators", "selector"):
        assert getattr(average.pool, part) is getattr(select.pool, part)
    assert average.pool.kind == kind
    answers = average.member_probabilities(tasks)
    assert answers.shape == (3, 3, 12, 4)
    torch.testing.assert_close(average.predict(tasks), answers.mean(0))
    weights = select.weights(tasks)
    assert torch.equal(weights.sort(1).values, torch.tensor([[0.0, 0.0, 1.0]] * 3))
    chosen = answers[weights.argmax(1), torch.arange(3)]
    torch.testing.assert_close(select.predict(tasks), chosen)
    assert rule("select", select.pool).name == select.rule


def test_settings_become_the_pools_way_to_learn() -> None:
    pool = random_pool()
    usual = with_learning(pool, LEARNING).adaptation
    other = with_learning(
        pool, {**LEARNING, "steps": 7, "rate": 0.3, "from_base": 0, "turns": 0, "shots": 4}
    ).adaptation
    assert (other.updates, other.rates, other.tsa_start) == (7, (0.3,), "rule")
    assert not other.tsa_rotate_crops and other.least_shots == 4
    assert other.tsa_share == usual.tsa_share
    assert with_learning(pool, LEARNING).base is pool.base


def test_costs_of_the_pool(world: TrainingRun) -> None:
    select, average = fit("select", world), fit("average", world)
    assert isinstance(select, PoolWithRule) and isinstance(average, PoolWithRule)
    selector = select.pool.selector
    assert selector is not None
    extra = sum(parameter.numel() for parameter in selector.parameters())
    assert select.parameters() == average.parameters() + extra
    assert average.passes(SHAPE) == 3 * 4 * 5
    assert select.passes(SHAPE) == 4 * 5 + 4 * 2
    blend, auto, base = (fit(name, world) for name in ("blend", "auto", "base"))
    assert isinstance(blend, PoolWithRule) and isinstance(auto, PoolWithRule)
    assert isinstance(base, PoolWithRule)
    assert blend.passes(SHAPE) == select.passes(SHAPE)
    assert auto.passes(SHAPE, "pa") == auto.passes(SHAPE) == average.passes(SHAPE)
    learning = 40 * (7 / 3) * 4 * 2 + 4 * 3  # and the queries once more
    assert base.passes(SHAPE, "tsa") == pytest.approx(4 * 5 + learning)
    assert auto.passes(SHAPE, "tsa") == pytest.approx(auto.passes(SHAPE) + learning)
    rates = replace(base.pool.adaptation, rates=(0.05, 0.5))  # both on halves, then one on all
    choosing = replace(base, pool=replace(base.pool, adaptation=rates))
    assert choosing.passes(SHAPE, "tsa") == pytest.approx(4 * 5 + 3 * learning - 2 * 4 * 3)
    one = EpisodeShape(4, 1, 3)
    assert base.passes(one, "tsa") == base.passes(one)
