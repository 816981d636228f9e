import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.methods import tadam
from polyshot.methods.tadam import (
    Tadam,
    TadamLearner,
    TaskConditions,
    auxiliary_share,
    convergence,
    embed_conditioned,
)
from polyshot.models.backbone import sites_of
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.modulators import Modulator
from polyshot.models.resnet import ResNet, ResNetConfig, Stem
from polyshot.predict.readout import fit_classifiers
from polyshot.tasks import table
from polyshot.training.episodic import EpisodeBatch
from tests.helpers import assert_near, copied, explicit, random_base, same_states, tasks_of

SMALL = ResNetConfig(width=2, stem="small/2")
SHAPE = EpisodeShape(3, 2, 2)
CLASSES = [(0, 2, 3, 7), (1, 2, 4)]
"""Training classes of two sources."""


def learner(metric: Metric = "cosine", strength: float = 0.0) -> TadamLearner:
    torch.manual_seed(0)
    made = TadamLearner(random_base(SMALL), metric, CLASSES, auxiliary=2.0)
    made.conditions.strengths.data += strength * torch.randn_like(made.conditions.strengths)
    made.heads.weight.data.normal_()
    made.heads.bias.data.normal_()
    return made.eval()


def batch(made: TadamLearner, progress: float = 0.0) -> EpisodeBatch:
    images = torch.randn(3, SHAPE.way, SHAPE.shot + SHAPE.queries, 3, 8, 8)
    embeddings = made.base(images.flatten(0, 2)).view(*images.shape[:3], -1)
    classes = torch.tensor([[7, 0, 3], [4, 1, 2], [2, 3, 0]])
    return EpisodeBatch(images, embeddings, classes, [0, 1, 0], SHAPE, progress)


@pytest.mark.parametrize("stem", ["imagenet", "small", "small/2"])
def test_conditions_are_a_modulator_by_channel_of_each_task(stem: Stem) -> None:
    config = ResNetConfig(width=3, stem=stem)
    base, images = random_base(config), torch.randn(2, 4, 3, 20, 20)
    conditions = {
        site.layer: (0.3 * torch.randn(2, site.outputs), 0.3 * torch.randn(2, site.outputs))
        for site in sites_of(base)
    }
    found = embed_conditioned(base, conditions, images)
    for task in range(2):
        modulator = Modulator(sites_of(base), "channel")
        for site in sites_of(base):
            gamma, beta = conditions[site.layer]
            modulator.get_parameter(f"{site.layer}.scale").data.copy_(1 + gamma[task])
            modulator.get_parameter(f"{site.layer}.bias").data.copy_(beta[task])
        assert_near(found[task], explicit(base, modulator, images[task], 1.0))


def test_at_the_start_there_are_no_conditions_but_gradients() -> None:
    made = learner()
    images = torch.randn(2, 3, 3, 16, 16)
    conditions = made.conditions(torch.randn(2, SMALL.dim))
    found = embed_conditioned(made.base, conditions, images)
    assert_near(found.detach(), made.base(images.flatten(0, 1)).view(2, 3, -1).detach())
    found.square().sum().backward()
    assert made.conditions.strengths.grad is not None
    assert (made.conditions.strengths.grad != 0).any()


def test_tasks_have_conditions_of_their_own_whatever_their_size() -> None:
    network, tasks = learner(strength=0.5).conditions, torch.randn(3, SMALL.dim)
    together = network(tasks)
    assert list(together) == [site.layer for site in sites_of(ResNet(SMALL))]
    assert len(together) == 16
    for i in range(3):
        for name, alone in network(5 * tasks[i : i + 1]).items():
            for one, other in zip(alone, together[name], strict=True):
                torch.testing.assert_close(one[0], other[i], atol=1e-4, rtol=1e-4)


def test_the_task_network_is_light() -> None:
    base = ResNet(ResNetConfig())
    parameters = sum(p.numel() for p in TaskConditions(sites_of(base), 512).parameters())
    assert parameters < 11_176_512 / 3


@pytest.mark.parametrize("training", [False, True])
def test_statistics_stay(training: bool) -> None:
    made = learner(strength=0.3).train(training)
    before = copied(made.base)
    made.loss(batch(made)).backward()
    assert same_states(made.base, before)


def by_hand(made: TadamLearner, given: EpisodeBatch) -> Tensor:
    """Cross-entropy of the auxiliary heads, one image at a time."""
    assert given.embeddings is not None
    first = (0, len(CLASSES[0]))
    losses = []
    for episode, source in enumerate(given.sources):
        rows = slice(first[source], first[source] + len(CLASSES[source]))
        for way, class_id in enumerate(given.classes[episode].tolist()):
            for embedding in given.embeddings[episode, way]:
                logits = made.heads.weight[rows] @ embedding + made.heads.bias[rows]
                label = torch.tensor(CLASSES[source].index(class_id))
                losses.append(F.cross_entropy(logits, label))
    return torch.stack(losses).mean()


def test_each_source_has_an_auxiliary_head_of_its_own() -> None:
    made = learner()
    given = batch(made)
    torch.testing.assert_close(made.auxiliary_loss(given), by_hand(made, given))
    alone = EpisodeBatch(given.images, given.embeddings, given.classes, [0, 0, 0], SHAPE, 0.0)
    alone.classes[1] = torch.tensor([0, 2, 7])
    made.auxiliary_loss(alone).backward()
    assert made.heads.weight.grad is not None
    assert made.heads.weight.grad[:4].any()
    assert not made.heads.weight.grad[4:].any()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_loss_is_the_sum_of_its_parts(metric: Metric) -> None:
    made = learner(metric, strength=0.4)
    given = batch(made, progress=0.5)
    assert given.embeddings is not None
    support, query = [], []
    for images, plain in zip(given.images, given.embeddings, strict=True):
        task = plain[:, : SHAPE.shot].mean((0, 1))
        conditions = made.conditions(task[None])
        own = embed_conditioned(made.base, conditions, images.flatten(0, 1)[None])
        own = own.view(SHAPE.way, -1, SMALL.dim)
        own = F.normalize(own, dim=-1) if metric == "cosine" else own
        support.append(own[:, : SHAPE.shot])
        query.append(own[:, SHAPE.shot :].flatten(0, 1))
    centres = prototypes(torch.stack(support))
    scale = 10.0 if metric == "cosine" else SMALL.dim**-0.5
    logits = prototype_logits(torch.stack(query), centres, metric, scale)
    pull = 0.01 * made.conditions.strengths.square().sum()
    expected = given.cross_entropy(logits) + 2 * 0.9**11 * by_hand(made, given) + pull
    torch.testing.assert_close(made.loss(given), expected, atol=1e-4, rtol=1e-4)


def test_the_auxiliary_share_decays_in_steps() -> None:
    shares = [auxiliary_share(step / 1000) for step in range(1000)]
    assert shares[0] == 0.9
    assert shares[-1] == pytest.approx(0.9**20)
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 20


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_before_training_it_answers_as_the_base(metric: Metric, packs: list[Pack]) -> None:
    made, recipe = learner(metric), AdaptationConfig(steps=5)
    fitted = Tadam(made, recipe, note="")
    tasks = tasks_of(packs[0], SHAPE, count=7)
    support, query = tasks.embedded(made.base)
    scale = float(made.log_scale.detach().exp())
    for adaptation in ("none", "head"):
        classifiers = fit_classifiers(support, None, metric, scale, adaptation, recipe)
        expected = classifiers.logits(query).softmax(1).mT
        answers = fitted.predict(tasks, adaptation)
        torch.testing.assert_close(answers, expected, atol=1e-4, rtol=0)


def test_parts_are_the_whole(packs: list[Pack], monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Tadam(learner(strength=0.3), AdaptationConfig(), note="")
    tasks = tasks_of(packs[0], SHAPE, count=5)
    whole = fitted.predict(tasks)
    for images in (1, 30):
        monkeypatch.setattr(tadam, "BATCH", {"cpu": images})
        monkeypatch.setattr(table, "BATCH", {"cpu": images})
        torch.testing.assert_close(fitted.predict(tasks), whole, atol=1e-5, rtol=0)


def test_it_is_validated_on_a_third_of_the_episodes(packs: list[Pack]) -> None:
    made, tasks = learner(strength=0.3), tasks_of(packs[0], SHAPE, count=7)
    answers = made.probabilities(tasks)
    assert len(answers) == 3
    torch.testing.assert_close(answers, made.answers(tasks, None)[:3], atol=1e-5, rtol=0)


def test_everything_learns_once_and_the_base_slower() -> None:
    made = learner().train()
    groups = {id(p): g for g in made.groups() for p in g.parameters}
    assert sum(len(g.parameters) for g in made.groups()) == len(list(made.parameters()))
    for name, parameter in made.named_parameters():
        assert groups[id(parameter)].pace == (1.0 if name.startswith("base.") else 10.0)
    assert not groups[id(made.conditions.strengths)].decayed
    assert not made.base.training


def test_the_auxiliary_heads_do_not_count() -> None:
    made = learner()
    heads = sum(p.numel() for p in made.heads.parameters())
    fitted = Tadam(made, AdaptationConfig(), note="")
    assert fitted.parameters() == sum(p.numel() for p in made.parameters()) - heads
    assert fitted.passes(EpisodeShape(5, 5, 10)) == 25 + 75


def test_its_note_tells_how_the_training_went() -> None:
    assert convergence(0.712, 0.7349) == "validation 71.2 before, 73.5 after"
    lost = "validation 71.2 before, 70.9 after: did not improve on the base"
    assert convergence(0.712, 0.709) == lost
    assert convergence(0.712, 0.712).endswith("did not improve on the base")
