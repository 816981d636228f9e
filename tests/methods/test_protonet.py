"""What is special about protonet, simple-avg, finetune and the pool's rules."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyshot.config import AdaptationConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.finetune import FittedHead
from polyshot.methods.method import METHODS, find_methods
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.methods.protonet import ProtoNetLearner, episodic_plan
from polyshot.methods.prototypes import Prototypes
from polyshot.methods.simple_avg import Average
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.models.modulators import fold
from polyshot.predict.adapt.head import adapt_heads, head_logits
from polyshot.predict.readout import opinion
from polyshot.predict.rules import rule
from polyshot.training.episodic import EpisodeBatch
from polyshot.training.world import World

from ..models.reference import TINY as TINY_NET
from ..models.reference import random_base
from .conftest import TINY, make_world, tasks_of

SHAPE = EpisodeShape(4, 2, 3)
find_methods()


def fit(name: str, world: World, **settings: float) -> object:
    return METHODS[name].fit(world, {**METHODS[name].settings, **settings})


def test_the_order_of_the_tables_does_not_depend_on_who_was_imported_first() -> None:
    names = [method.name for method in find_methods()]
    assert names[:6] == ["base", "finetune", "finetune-all", "protonet", "simple-avg", "feat"]
    pool_rules = ["select", "average", "select-channel", "average-channel"]
    assert names[-11:] == [*pool_rules, "soft", "loo", "sum", "sur", "urt", "blend", "auto"]


def test_the_base_is_read_out_by_prototypes_at_its_best_scale(
    world: World, packs: list[Pack]
) -> None:
    fitted, tasks = fit("base", world), tasks_of(packs[0], SHAPE)
    assert isinstance(fitted, PoolWithRule)
    assert fitted.networks == [world.base()]
    assert fitted.pool.scales == [world.scale(world.base())]
    support, query = tasks.embedded(world.base())
    expected = opinion(support, query, None, "cosine", fitted.pool.scales[0], None).mT
    assert torch.equal(fitted.predict(tasks), expected)


def test_protonet_learns_squared_distances() -> None:
    learner, shape = ProtoNetLearner(random_base(TINY_NET), "cosine"), EpisodeShape(3, 2, 2)
    embeddings = torch.randn(2, 3, 4, TINY_NET.dim)
    batch = EpisodeBatch(
        torch.zeros(2, 3, 4, 3, 1, 1), embeddings, torch.zeros(2, 3).long(), [0, 0], shape, 0.0
    )
    query = embeddings[:, :, 2:].flatten(1, 2)
    centres = prototypes(embeddings[:, :, :2])
    logits = prototype_logits(query, centres, "euclidean", TINY_NET.dim**-0.5)
    labels = torch.tensor([0, 0, 1, 1, 2, 2]).repeat(2)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)
    torch.testing.assert_close(learner.loss(batch), expected)


def test_protonet_changes_a_copy_of_the_base(world: World) -> None:
    before = {name: tensor.clone() for name, tensor in world.base().state_dict().items()}
    fitted = fit("protonet", world)
    assert isinstance(fitted, Prototypes)
    assert fitted.note == "from the base"
    after = world.base().state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    trained = fitted.network.state_dict()
    assert not torch.equal(trained["conv1.weight"], before["conv1.weight"])
    kept = [name for name in before if "running" in name]
    assert all(torch.equal(trained[name], before[name]) for name in kept)


def test_protonet_from_scratch_knows_nothing_of_the_base(world: World) -> None:
    fitted = fit("protonet", world, from_scratch=1)
    assert isinstance(fitted, Prototypes)
    assert fitted.note == "from random weights"
    start = world.initial().state_dict()
    trained = fitted.network.state_dict()
    moved = (trained["conv1.weight"] - start["conv1.weight"]).abs().max()
    assert 0 < moved < 0.1 * start["conv1.weight"].abs().max()  # a few small steps from there
    assert not torch.equal(trained["bn1.running_mean"], start["bn1.running_mean"])


def test_a_plan_is_a_modulators(world: World) -> None:
    plan = episodic_plan(world, {"learning_rate": 0.5, "weight_decay": 0.25}, pace=2.5)
    own = TINY.modulator
    assert (plan.steps, plan.episodes, plan.shape) == (10, own.episodes, own.shape)
    assert (plan.learning_rate, plan.weight_decay) == (0.5, 0.25)
    assert plan.validate_every == 2


def test_simple_avg_averages_networks_of_single_sources(world: World, packs: list[Pack]) -> None:
    fitted, tasks = fit("simple-avg", world), tasks_of(packs[0], SHAPE)
    assert isinstance(fitted, Average)
    assert list(fitted.names) == ["signs", "glyphs"]
    opinions = fitted.opinions(tasks, "head")
    assert opinions.shape == (2, 3, 12, 4)
    assert not torch.allclose(opinions[0], opinions[1])
    torch.testing.assert_close(fitted.predict(tasks, "head"), opinions.mean(0))
    assert fitted.parameters() == 2 * fitted.members[0].parameters()
    assert fitted.passes(SHAPE) == 2 * 4 * 5


def test_worlds_share_the_networks_of_single_sources(
    world: World, packs: list[Pack], tmp_path: Path
) -> None:
    fit("simple-avg", world)

    def refuse(step: str, done: int, total: int) -> None:
        raise AssertionError(f"{step} is trained again")

    alone = fit("simple-avg", make_world(packs[1:], world.folder, refuse))
    assert isinstance(alone, Average)
    assert list(alone.names) == ["glyphs"]


def test_finetune_learns_a_layer_of_a_closer_look(world: World, packs: list[Pack]) -> None:
    fitted, tasks = fit("finetune", world, epochs=7), tasks_of(packs[0], SHAPE)
    assert isinstance(fitted, FittedHead)
    recipe = AdaptationConfig(start="random", steps=7, learning_rate=0.01, pull=1e-3)
    assert fitted.recipe == recipe
    support, query = tasks.embedded(world.base())
    weight, bias = adapt_heads(support, None, recipe, "cosine")
    expected = head_logits(query, weight, bias, recipe, "cosine").softmax(-1)
    torch.testing.assert_close(fitted.predict(tasks), expected)


@pytest.mark.parametrize(("suffix", "kind"), [("", "conv1x1"), ("-channel", "channel")])
def test_rules_weigh_the_members_of_the_pool(
    suffix: str, kind: str, world: World, packs: list[Pack]
) -> None:
    average, tasks = fit(f"average{suffix}", world), tasks_of(packs[0], SHAPE)
    select = fit(f"select{suffix}", world)
    assert isinstance(average, PoolWithRule) and isinstance(select, PoolWithRule)
    for part in ("base", "modulators", "selector"):
        assert getattr(average.pool, part) is getattr(select.pool, part)
    assert average.pool.kind == kind
    opinions = average.opinions(tasks)
    assert opinions.shape == (3, 3, 12, 4)
    torch.testing.assert_close(average.predict(tasks), opinions.mean(0))
    weights = select.weights(tasks)
    assert torch.equal(weights.sort(1).values, torch.tensor([[0.0, 0.0, 1.0]] * 3))
    chosen = opinions[weights.argmax(1), torch.arange(3)]
    torch.testing.assert_close(select.predict(tasks), chosen)
    assert rule("select", select.pool).name == select.rule


def test_members_are_the_folded_modulators_and_the_base_itself(world: World) -> None:
    pool = world.pool("conv1x1")
    pool = replace(pool, strengths={"signs": 1.0, "glyphs": 0.0})
    other = World(world.packs, world.config, world.folder, world.device)
    other._pools["conv1x1"] = pool
    base, signs, glyphs = other.members("conv1x1")
    assert base is other.base() and glyphs is base
    folded = fold(other.base(), pool.modulators["signs"])
    for name, tensor in signs.state_dict().items():
        torch.testing.assert_close(tensor, folded.state_dict()[name])


def test_costs_of_the_pool(world: World) -> None:
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
