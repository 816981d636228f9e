"""finetune: *A Closer Look at Few-shot Classification* (Chen et al., 2019), its Baseline.

A fresh linear layer on the frozen base, learned for 100 epochs on the support set.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.methods.method import Fitted, Method, Settings, register
from polyshot.models.backbone import parameter_count
from polyshot.models.heads import Metric
from polyshot.models.resnet import ResNet
from polyshot.predict.adapt.head import adapt_heads, head_logits
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun


@dataclass(eq=False)
class FittedHead(Fitted):
    """A frozen network on which a linear layer is learned for each task."""

    network: ResNet
    metric: Metric
    recipe: AdaptationConfig

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Learn a layer a task, then classify: probabilities [E, Q, W]."""
        support, query = tasks.embedded(self.network)
        weight, bias = adapt_heads(support, tasks.mask, self.recipe, self.metric)
        logits = head_logits(query, weight, bias, self.recipe, self.metric)
        return torch.softmax(logits, -1)

    def parameters(self) -> int:
        """Count the network's; the layer is thrown away after each task."""
        return parameter_count(self.network)


def _fit(run: TrainingRun, settings: Settings) -> FittedHead:
    recipe = AdaptationConfig(
        start="random",
        steps=int(settings["epochs"]),
        learning_rate=settings["learning_rate"],
        pull=settings["weight_decay"],
    )
    return FittedHead(run.base(), run.config.metric, recipe)


register(
    Method(
        name="finetune",
        paper="A Closer Look at Few-shot Classification (Chen et al., 2019), its Baseline",
        about="a fresh linear layer on the frozen base, 100 epochs on the support set",
        fit=_fit,
        adaptations=("none",),  # it is nothing but adaptation
        settings={"learning_rate": 0.01, "weight_decay": 1e-3, "epochs": 100},
        grid={"learning_rate": (0.01, 0.1, 1.0)},
    )
)
