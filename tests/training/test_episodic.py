from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import Config
from polyshot.data.augment import Augment
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.models.resnet import ResNet
from polyshot.models.views import normalise
from polyshot.tasks import Tasks
from polyshot.training.base import initial_base
from polyshot.training.episodic import EpisodeBatch, EpisodicStep, Learner
from polyshot.training.loop import learn
from polyshot.training.step import Plan, Schedule
from polyshot.training.validation import class_accuracies, validation_tasks
from tests.helpers import CPU, record_in

SHAPE = EpisodeShape(4, 2, 3)
PLAN = Plan(steps=6, episodes=3, learning_rate=1e-3, shape=SHAPE, augment=Augment())


class Probe(Learner):
    """Nearest prototypes; keeps the batches that it was given."""

    def __init__(self, base: ResNet, moves_statistics: bool = False, wants_embeddings: bool = True):
        super().__init__(base)
        self.moves_statistics, self.wants_embeddings = moves_statistics, wants_embeddings
        self.given: list[EpisodeBatch] = []

    def loss(self, batch: EpisodeBatch) -> Tensor:
        self.given.append(batch)
        if not batch.embeddings.numel():
            return self.base(batch.images.flatten(0, 2)).square().mean()
        support, query = batch.split(batch.embeddings)
        return batch.cross_entropy(prototype_logits(query, prototypes(support)))

    def probabilities(self, tasks: Tasks) -> Tensor:
        support, query = tasks.embedded(self.base)
        return prototype_logits(query, prototypes(support)).softmax(-1)


def make(
    packs: list[Pack],
    config: Config,
    plan: Plan = PLAN,
    resident: bool = True,
    **options: bool,
) -> EpisodicStep:
    learner = Probe(initial_base(config), **options)
    train = Images(packs, "train", CPU, resident)
    validation = validation_tasks(Images(packs, "val", CPU), config)
    return EpisodicStep("probe", learner, train, validation, plan, seed=1)


def probe(step: EpisodicStep) -> Probe:
    assert isinstance(step.module, Probe)
    return step.module


def test_images_are_of_the_classes_and_sources_that_the_batch_names(
    packs: list[Pack], config: Config
) -> None:
    step = make(packs, config, wants_embeddings=False)
    pictures = [torch.from_numpy(pack.images[:].copy()).float() / 255 for pack in packs]
    for number in range(PLAN.steps):
        step.loss(number)
        batch = probe(step).given[-1]
        assert batch.images.shape == (3, 4, 5, 3, 16, 16)
        assert batch.progress == number / PLAN.steps
        for episode, source in enumerate(batch.sources):
            pack = packs[source]
            assert set(batch.classes[episode].tolist()) <= set(pack.domain.split.train)
            table = normalise(pictures[source])
            for way, class_id in enumerate(batch.classes[episode].tolist()):
                own = table[torch.from_numpy(pack.domain.labels) == class_id]
                found = set()
                for image in batch.images[episode, way]:
                    apart = (own - image).abs().amax((1, 2, 3))
                    assert apart.min() < 1e-2  # resampling at rest rounds
                    found.add(int(apart.argmin()))
                assert len(found) == 5, "an image is support or query, and that once"


def test_the_loss_is_that_of_the_base_on_the_batch(packs: list[Pack], config: Config) -> None:
    step = make(packs, config)
    found = step.loss(2)
    batch = probe(step).given[-1]
    base = initial_base(config).eval()
    losses = []
    for images in batch.images:
        embeddings = base(images.flatten(0, 1)).view(4, 5, -1)
        centres = embeddings[:, :2].mean(1)
        for way in range(4):
            for query in embeddings[way, 2:]:
                logits = -(query - centres).square().sum(-1)
                losses.append(F.cross_entropy(logits, torch.tensor(way)))
    torch.testing.assert_close(found, torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)
    assert batch.labels.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]] * 3


def test_an_update_is_a_function_of_its_number_and_streaming_changes_nothing(
    packs: list[Pack], config: Config
) -> None:
    plan = replace(PLAN, augment=config.modulator.augment)
    first, streamed = make(packs, config, plan), make(packs, config, plan, resident=False)
    try:
        expected = [first.loss(number).item() for number in range(plan.steps)]
        assert [streamed.loss(number).item() for number in range(plan.steps)] == expected
        assert first.loss(3).item() == expected[3]
        assert len(set(expected)) == plan.steps
    finally:
        streamed.close()


def test_sources_are_drawn_evenly(packs: list[Pack], config: Config) -> None:
    step = make(packs, config, replace(PLAN, steps=200))
    counts = Counter(step._sources.flatten().tolist())
    assert set(counts) == {0, 1}
    assert abs(counts[0] - 300) < 75  # six standard deviations


def test_statistics_stay_unless_they_may_move(packs: list[Pack], config: Config) -> None:
    for moves in (False, True):
        step = make(packs, config, moves_statistics=moves)
        before = step.module.base.bn1.running_mean.clone()
        step.loss(0)
        assert torch.equal(before, step.module.base.bn1.running_mean) != moves
        assert step.module.training
        assert step.module.base.training == moves
        step.validate()
        assert not step.module.base.training


def test_kernels_decay_and_affine_maps_do_not(packs: list[Pack], config: Config) -> None:
    step = make(packs, config)
    step.module.base.conv1.weight.requires_grad_(False)
    decayed, kept = step.groups()
    assert decayed.decayed and not kept.decayed
    assert {p.ndim for p in decayed.parameters} == {4}
    assert {p.ndim for p in kept.parameters} == {1}
    everything = len(list(step.module.parameters()))
    assert len(decayed.parameters) + len(kept.parameters) == everything - 1


def test_validation_is_the_mean_of_the_sources(packs: list[Pack], config: Config) -> None:
    step = make(packs, config)
    sets = validation_tasks(Images(packs, "val", CPU), config)
    base = initial_base(config).eval()
    values = [class_accuracies(tasks, base, "euclidean").mean() for tasks in sets]
    expected = torch.stack(values).mean()
    assert step.validate() == pytest.approx(float(expected), abs=1e-6)


def test_the_best_state_is_kept(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    class Judged(Probe):
        """Its answers are right in a share that an outsider sets."""

        shares = (0.25, 0.75, 0.5)
        asked = 0
        seen: list[Tensor] = []  # noqa: RUF012 (of this one test)

        def probabilities(self, tasks: Tasks) -> Tensor:
            if self.asked % len(packs) == 0:
                self.seen.append(self.base.conv1.weight.detach().clone())
            share = self.shares[self.asked // len(packs)]
            self.asked += 1
            way, queries = tasks.way, tasks.query.shape[1] // tasks.way
            right = F.one_hot(torch.arange(way).repeat_interleave(queries), way).float()
            wrong = right.roll(1, -1)
            episodes = len(tasks)
            good = torch.arange(episodes) < share * episodes
            return torch.where(good[:, None, None], right, wrong)

    learner = Judged(initial_base(config))
    plan = replace(PLAN, validate_every=2)
    train = Images(packs, "train", CPU)
    tasks = validation_tasks(Images(packs, "val", CPU), config)
    step = EpisodicStep("probe", learner, train, tasks, plan, 0)
    best = learn(step, Schedule.of(plan), record_in(tmp_path), 0)
    assert (best.value, best.number, best.skipped) == (0.75, 4, 0)
    assert torch.equal(learner.base.conv1.weight, learner.seen[1])
    assert not learner.training
    assert not any(parameter.requires_grad for parameter in learner.parameters())


def test_a_learner_that_learns_gets_better(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    plan = replace(PLAN, steps=25, learning_rate=3e-3)
    learner = Probe(initial_base(config), moves_statistics=True)
    train = Images(packs, "train", CPU)
    tasks = validation_tasks(Images(packs, "val", CPU), config)
    step = EpisodicStep("probe", learner, train, tasks, plan, 0)
    learn(step, Schedule.of(plan), record_in(tmp_path), 0)
    step = make(packs, config)
    before = sum(step.loss(number).item() for number in range(PLAN.steps))
    step.module.load_state_dict(learner.state_dict())
    assert sum(step.loss(number).item() for number in range(PLAN.steps)) < before


def test_a_step_counts_its_images(packs: list[Pack], config: Config) -> None:
    assert make(packs, config).images == 3 * 4 * 5
