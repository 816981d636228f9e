"""The end of step 1: the base learns by episodes of all sources, compared by prototypes.

Supervised learning tells the training classes apart; episodes make of that what tasks of new
classes ask for (Meta-Baseline, Chen et al., 2021). The rival protonet learns in the same way.
"""

import torch
from torch import Tensor

from polyshot.config import Config, MetaConfig
from polyshot.data.table import Images
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric
from polyshot.predict.readout import fit_classifiers
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch, EpisodicStep, Learner
from polyshot.training.step import Plan
from polyshot.training.validation import class_accuracies, validation_tasks


class PrototypeLearner(Learner):
    """A network that learns to put queries near their prototypes."""

    def __init__(
        self,
        base: Backbone,
        metric: Metric,
        moves_statistics: bool = False,
        loss_metric: Metric = "euclidean",
    ):
        super().__init__(base)
        self.metric, self.loss_metric = metric, loss_metric
        self.moves_statistics = moves_statistics

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy of squared distances from the prototypes, or of cosines with them."""
        return batch.prototype_loss(self.loss_metric)

    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify by the metric that is used later: [E, Q, W]."""
        support, query = tasks.embedded(self.base)
        classifiers = fit_classifiers(support, tasks.mask, self.metric, 1.0)
        return torch.softmax(classifiers.logits(query), 1).mT


class MetaStep(EpisodicStep):
    """What the loop needs to train a base further by episodes."""

    module: PrototypeLearner

    def __init__(self, base: Backbone, train: Images, val: Images, config: Config):
        own = config.meta
        base.requires_grad_(True)
        learner = PrototypeLearner(base, config.metric, loss_metric=own.loss_metric)
        tasks = validation_tasks(val, config)
        super().__init__("meta", learner, train, tasks, plan_of(own), config.seed)
        self._metric, self._shots = config.metric, own.shots

    def validate(self) -> float:
        """Mean over sources of the accuracy on episodes of validation classes."""
        self.module.eval()
        values = [
            class_accuracies(tasks, self.module.base, self._metric, self._shots).mean()
            for tasks in self._validation
        ]
        return float(torch.stack(values).mean())


def plan_of(own: MetaConfig) -> Plan:
    """Say how the episodes are learned from."""
    return Plan(
        steps=own.steps,
        episodes=own.episodes,
        learning_rate=own.learning_rate,
        weight_decay=own.weight_decay,
        shape=own.shape,
        augment=own.augment,
        clip=own.clip,
        validate_every=own.validate_every,
        schedule=own.schedule,
        from_start=True,
    )
