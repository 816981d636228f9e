"""finetune, finetune-all: what learns on the support set alone, the head or every layer.

finetune is the Baseline of *A Closer Look at Few-shot Classification* (Chen et al., 2019): a fresh
linear layer on the frozen base, learned for 100 epochs on the support set.

finetune-all is *Meta-Dataset*'s stronger baseline (Triantafillou et al., 2020): Adam on the whole
network with a cosine head. Here the head starts at the unit prototypes times ten, which is never
worse than a random start, batch norm stays, and steps take crops in turn, as those of `tsa` do
(`turns`). Many tasks learn side by side: kernels and head of
each are slices of one tensor, and no task's update reads another's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.method import Fitted, Method, Settings, in_parts, on_base, register
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric, prototypes
from polyshot.models.task_networks import embed_tasks, task_kernels
from polyshot.models.views import CROPS, VIEWS, View, Views, apply_view, over_views
from polyshot.predict.adapt.head import START_SCALE, adapt_heads, head_logits
from polyshot.predict.own_networks import tasks_at_once
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun
from polyshot.util.device import bf16_on

CLIP = 5.0
"""Largest norm of a task's gradient: no episode may diverge."""


@dataclass(eq=False)
class FittedHead(Fitted):
    """A frozen network on which a linear layer is learned for each task, then thrown away."""

    network: Backbone
    metric: Metric
    recipe: AdaptationConfig

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Learn a layer a task, then classify: probabilities [E, Q, W]."""
        support, query = tasks.embedded(self.network)
        head = adapt_heads(support, tasks.mask, self.recipe, self.metric)
        return torch.softmax(head_logits(query, *head, self.recipe, self.metric), -1)


def _fit_head(run: TrainingRun, settings: Settings) -> FittedHead:
    recipe = AdaptationConfig(
        start="random",
        head_optimiser="adam" if settings["adam"] else "sgd",
        steps=int(settings["epochs"]),
        learning_rate=settings["learning_rate"],
        pull=settings["weight_decay"],
    )
    return FittedHead(run.base(), run.config.metric, recipe)


@dataclass(eq=False)
class FineTunedNetworks(Fitted):
    """The base, all of which is learned further for each task."""

    network: Backbone
    steps: int
    rate: float
    rotate_crops: bool
    """Whether steps take crops in turn, instead of the whole image always."""

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Learn a network a task, then classify: probabilities [E, Q, W]."""
        step = tasks_at_once(self.network, tasks.way * tasks.shot, tasks.table.side, tasks.device)
        return in_parts(tasks, step, self._logits)

    def _logits(self, tasks: Tasks) -> Tensor:
        support = tasks.support_of(self.network)
        centres = prototypes(F.normalize(support, dim=-1), tasks.mask)
        weight = START_SCALE * F.normalize(centres, dim=-1)  # [E, W, d]
        learned = learn_networks(
            self.network,
            (weight, weight.new_zeros(weight.shape[:2])),
            tasks.support_images(),
            tasks.present,
            self.steps,
            self.rate,
            optimiser="adam",
            unit=True,
            crops=CROPS if self.rotate_crops else VIEWS["one"],
        )
        return learned.logits(self.network, tasks.query_images(), tasks.table.views)

    def learning_passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count three for each support image and step."""
        return 3 * self.steps * shape.way * shape.shot


def _fit_all(run: TrainingRun, settings: Settings) -> FineTunedNetworks:
    steps, rate = int(settings["steps"]), settings["learning_rate"]
    return FineTunedNetworks(run.base(), steps, rate, bool(settings["turns"]))


@dataclass(frozen=True, eq=False)
class TaskNetworks:
    """Networks of E tasks with linear heads."""

    kernels: dict[str, Tensor]
    """By the base's names, ``[E, outputs, k, k, inputs]``."""
    weight: Tensor
    """``[E, W, d]``."""
    bias: Tensor
    """``[E, W]``."""
    unit: bool = False
    """Whether heads see embeddings of unit norm."""

    def logits(self, base: Backbone, images: Tensor, views: Views = "one") -> Tensor:
        """Classify normalised images [E, B, 3, side, side] of each task: [E, B, W]."""
        with bf16_on(images.device):
            embeddings = over_views(partial(embed_tasks, base, self.kernels), images, views)
        embeddings = F.normalize(embeddings, dim=-1) if self.unit else embeddings
        return embeddings @ self.weight.mT + self.bias.unsqueeze(1)


def learn_networks(
    base: Backbone,
    start: tuple[Tensor, Tensor],
    support: Tensor,
    present: Tensor,
    steps: int,
    rate: float,
    optimiser: Literal["sgd", "adam"] = "sgd",
    unit: bool = False,
    crops: Sequence[View] = VIEWS["one"],
) -> TaskNetworks:
    """Learn every kernel and the head of each task by steps on its whole support set.

    Heads `start` at weights [E, W, d] and biases [E, W], kernels at the base's; batch norm stays as
    it is, and no gradient flows through. `support` are normalised images [E, W, S, 3, side, side],
    `present` [E, W, S] is True where there is one; steps take `crops` of them in turn. With `unit`,
    heads see embeddings of unit norm.
    """
    tasks, way, shot = support.shape[:3]
    looks = [apply_view(support.flatten(1, 2), crop) for crop in crops[:steps]]
    labels = torch.arange(way, device=support.device).repeat_interleave(shot)
    shares = present.flatten(1) / present.flatten(1).sum(1, keepdim=True)  # [E, W * S]
    with torch.enable_grad():
        kernels = task_kernels(base, tasks)
        values = [*kernels.values(), *start]
        # Copies: a single task's view would be the base's own memory, and steps are in place.
        copied = [v.detach().clone(memory_format=torch.contiguous_format) for v in values]
        leaves = [value.requires_grad_() for value in copied]
        *own, weight, bias = leaves
        networks = TaskNetworks(dict(zip(kernels, own, strict=True)), weight, bias, unit)
        adam = torch.optim.Adam(leaves, lr=rate, foreach=True) if optimiser == "adam" else None
        for _, look in zip(range(steps), cycle(looks), strict=False):
            logits = networks.logits(base, look)
            # The sum of the tasks' losses: the gradient of each task is that of its own.
            losses = F.cross_entropy(logits.mT, labels.expand(tasks, -1), reduction="none")
            gradients = torch.autograd.grad((losses * shares).sum(), leaves)
            if adam is None:
                with torch.no_grad():
                    torch._foreach_add_(leaves, _clipped(gradients), alpha=-rate)
            else:  # it does not mind the size of a gradient
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    leaf.grad = gradient
                adam.step()
    learned = {name: kernel.detach() for name, kernel in networks.kernels.items()}
    return TaskNetworks(learned, weight.detach(), bias.detach(), unit)


def _clipped(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Shorten the gradients [E, ...] of each task to a norm of `CLIP` together."""
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
    norm = torch.stack(squares).sum(0).sqrt()  # [E]
    factor = (CLIP / norm).clamp(max=1)
    return tuple(g.mul_(factor.view(-1, *[1] * (g.ndim - 1))) for g in gradients)


register(
    Method(
        name="finetune",
        paper="A Closer Look at Few-shot Classification (Chen et al., 2019), its Baseline",
        about="a fresh linear layer on the frozen base, 100 epochs on the support set",
        fit=_fit_head,
        shared=on_base,
        adaptations=("none",),  # it is nothing but adaptation
        settings={"learning_rate": 0.01, "weight_decay": 1e-3, "epochs": 100, "adam": 0},
        grid={"learning_rate": (0.01, 0.1, 1.0)},
    )
)
register(
    Method(
        name="finetune-all",
        paper="Meta-Dataset (Triantafillou et al., 2020), its fine-tuned baseline",
        about="every layer of the base and a cosine head learned on the support set",
        fit=_fit_all,
        shared=on_base,
        adaptations=("none",),  # it is nothing but adaptation
        slow=("none",),
        settings={"learning_rate": 1e-4, "steps": 50, "turns": 1},
        grid={"learning_rate": (1e-5, 3e-5, 1e-4), "steps": (25, 100)},
    )
)
