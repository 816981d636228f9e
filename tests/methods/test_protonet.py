"""What is special about protonet, simple-avg and finetune."""

from pathlib import Path

import torch

from polyshot.config import AdaptationConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.finetune import FittedHead
from polyshot.methods.method import METHODS, find_methods
from polyshot.methods.protonet import Average, ProtoNetLearner, episodic_plan
from polyshot.methods.prototypes import Prototypes
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.predict.adapt.head import adapt_heads, head_logits
from polyshot.training.episodic import EpisodeBatch
from polyshot.training.training_run import TrainingRun, settings_mark
from tests.helpers import LEARNED, SMALL, make_run, random_base, tasks_of

SHAPE = EpisodeShape(4, 2, 3)
find_methods()


def fit(name: str, world: TrainingRun, **settings: float) -> object:
    return METHODS[name].fit(world, {**METHODS[name].settings, **settings})


def test_protonet_learns_squared_distances() -> None:
    learner, shape = ProtoNetLearner(random_base(SMALL), "cosine"), EpisodeShape(3, 2, 2)
    embeddings = torch.randn(2, 3, 4, SMALL.dim)
    batch = EpisodeBatch(
        torch.zeros(2, 3, 4, 3, 1, 1), embeddings, torch.zeros(2, 3).long(), [0, 0], shape, 0.0
    )
    query = embeddings[:, :, 2:].flatten(1, 2)
    centres = prototypes(embeddings[:, :, :2])
    logits = prototype_logits(query, centres, "euclidean", SMALL.dim**-0.5)
    labels = torch.tensor([0, 0, 1, 1, 2, 2]).repeat(2)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)
    torch.testing.assert_close(learner.loss(batch), expected)


def test_protonet_changes_a_copy_of_the_base(world: TrainingRun) -> None:
    before = {name: tensor.clone() for name, tensor in world.base().state_dict().items()}
    fitted = fit("protonet", world, fall_back=0)
    assert isinstance(fitted, Prototypes)
    assert fitted.note == "from the base"
    after = world.base().state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    trained = fitted.network.state_dict()
    assert not torch.equal(trained["conv1.weight"], before["conv1.weight"])
    kept = [name for name in before if "running" in name]
    assert all(torch.equal(trained[name], before[name]) for name in kept)


def test_protonet_from_scratch_knows_nothing_of_the_base(world: TrainingRun) -> None:
    fitted = fit("protonet", world, from_scratch=1)
    assert isinstance(fitted, Prototypes)
    assert fitted.note == "from random weights"
    start = world.initial().state_dict()
    trained = fitted.network.state_dict()
    moved = (trained["conv1.weight"] - start["conv1.weight"]).abs().max()
    assert 0 < moved < 0.1 * start["conv1.weight"].abs().max()  # a few small steps from there
    assert not torch.equal(trained["bn1.running_mean"], start["bn1.running_mean"])


def test_a_plan_is_a_modulators(world: TrainingRun) -> None:
    plan = episodic_plan(world, {"learning_rate": 0.5, "weight_decay": 0.25}, pace=2.5)
    own = LEARNED.modulator
    assert (plan.steps, plan.episodes, plan.shape) == (10, own.episodes, own.shape)
    assert (plan.learning_rate, plan.weight_decay) == (0.5, 0.25)
    assert plan.validate_every == 2
    assert not plan.from_start
    equal = episodic_plan(world, {"learning_rate": 0.5, "per_source": 1, "fall_back": 1})
    assert equal.steps == own.steps * len(world.packs)
    assert equal.from_start
    # Plans and settings of before keep their marks, so that what they trained is found again.
    assert {"schedule", "from_start"}.isdisjoint(plan.for_mark())
    assert settings_mark({"learning_rate": 1, "fall_back": 0}) == settings_mark(
        {"learning_rate": 1}
    )
    assert settings_mark({"learning_rate": 1, "fall_back": 1}) != settings_mark(
        {"learning_rate": 1}
    )


def test_simple_avg_averages_networks_of_single_sources(
    world: TrainingRun, packs: list[Pack]
) -> None:
    fitted, tasks = fit("simple-avg", world), tasks_of(packs[0], SHAPE)
    assert isinstance(fitted, Average)
    assert list(fitted.names) == ["signs", "glyphs"]
    answers = fitted.member_probabilities(tasks, "head")
    assert answers.shape == (2, 3, 12, 4)
    assert not torch.allclose(answers[0], answers[1])
    torch.testing.assert_close(fitted.predict(tasks, "head"), answers.mean(0))
    assert fitted.parameters() == 2 * fitted.members[0].parameters()
    assert fitted.passes(SHAPE) == 2 * 4 * 5


def test_worlds_share_the_networks_of_single_sources(
    world: TrainingRun, packs: list[Pack], tmp_path: Path
) -> None:
    fit("simple-avg", world)

    def refuse(step: str, done: int, total: int) -> None:
        raise AssertionError(f"{step} is trained again")

    alone = fit("simple-avg", make_run(packs[1:], world.folder, refuse, LEARNED))
    assert isinstance(alone, Average)
    assert list(alone.names) == ["glyphs"]


def test_finetune_learns_a_layer_of_a_closer_look(world: TrainingRun, packs: list[Pack]) -> None:
    fitted, tasks = fit("finetune", world, epochs=7), tasks_of(packs[0], SHAPE)
    assert isinstance(fitted, FittedHead)
    recipe = AdaptationConfig(start="random", steps=7, learning_rate=0.01, pull=1e-3)
    assert fitted.recipe == recipe
    support, query = tasks.embedded(world.base())
    weight, bias = adapt_heads(support, None, recipe, "cosine")
    expected = head_logits(query, weight, bias, recipe, "cosine").softmax(-1)
    torch.testing.assert_close(fitted.predict(tasks), expected)
