"""protonet: Prototypical Networks (Snell et al., 2017), trained by episodes over all sources.

It starts from the run's base, as all trained rivals do, or from random weights if
`from_scratch` is 1. Distances are squared and divided by the root of the embedding's length: with
512 numbers the softmax would saturate otherwise (research/methods.md, P6).
"""

import copy
import math

import torch
from torch import Tensor

from polyshot.methods.method import Method, Settings, register
from polyshot.methods.prototypes import Prototypes, prototypes_on
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.resnet import ResNet
from polyshot.predict.readout import fit_classifiers
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch, Learner, Plan
from polyshot.training.training_run import TrainingRun


class ProtoNetLearner(Learner):
    """A network that learns to put queries near their prototypes."""

    def __init__(self, base: ResNet, metric: Metric, moves_statistics: bool = False):
        super().__init__(base)
        self.metric = metric
        self.moves_statistics = moves_statistics

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy of squared distances from the prototypes."""
        assert batch.embeddings is not None
        support, query = batch.split(batch.embeddings)
        scale = 1 / math.sqrt(query.shape[-1])
        return batch.cross_entropy(prototype_logits(query, prototypes(support), "euclidean", scale))

    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify by the metric that is used later: [E, Q, W]."""
        support, query = tasks.embedded(self.base)
        classifiers = fit_classifiers(support, tasks.mask, self.metric, 1.0)
        return torch.softmax(classifiers.logits(query), 1).mT


def _fit(run: TrainingRun, settings: Settings) -> Prototypes:
    if settings["from_scratch"]:
        return prototypes_on(run, from_scratch(run, settings), "from random weights")
    learner, _ = run.learned(
        "protonet",
        lambda: ProtoNetLearner(trainable(run.base()), run.config.metric),
        episodic_plan(run, settings),
    )
    return prototypes_on(run, learner.base, "from the base")


def episodic_plan(run: TrainingRun, settings: Settings, pace: float = 1.0) -> Plan:
    """Plan the episodes of a rival: as many updates as a modulator gets, times `pace`."""
    own = run.config.modulator
    steps = round(pace * own.steps)
    return Plan(
        steps=steps,
        episodes=own.episodes,
        learning_rate=settings["learning_rate"],
        weight_decay=settings.get("weight_decay", 0.0),
        shape=own.shape,
        augment=own.augment,
        clip=own.clip,
        validate_every=max(1, steps // 4),
    )


def from_scratch(run: TrainingRun, settings: Settings) -> ResNet:
    """Train a network by episodes from random weights; it needs more of them."""
    learner, _ = run.learned(
        "protonet-scratch",
        lambda: ProtoNetLearner(run.initial(), run.config.metric, moves_statistics=True),
        episodic_plan(run, settings, pace=2.5),
    )
    return learner.base


def trainable(base: ResNet) -> ResNet:
    """Copy a frozen network into one that learns."""
    return copy.deepcopy(base).requires_grad_(True)


register(
    Method(
        name="protonet",
        paper="Prototypical Networks for Few-shot Learning (Snell et al., 2017)",
        about="one network for all sources, trained by episodes, from the base",
        fit=_fit,
        settings={"learning_rate": 1e-4, "from_scratch": 0},
        grid={"learning_rate": (1e-5, 1e-4, 1e-3)},
    )
)
