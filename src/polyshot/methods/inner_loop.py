"""Learning whole networks on support sets, many tasks side by side.

Kernels and head of each task are slices of one tensor; no task's update reads another's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.models.resnet import ResNet
from polyshot.models.task_networks import embed_tasks, task_kernels
from polyshot.models.views import VIEWS, View, Views, apply_view, over_views
from polyshot.util.device import bf16_on

CLIP = 5.0
"""Largest norm of a task's gradient: no episode may diverge."""


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

    def logits(self, base: ResNet, images: Tensor, views: Views = "one") -> Tensor:
        """Classify normalised images [E, B, 3, side, side] of each task: [E, B, W]."""

        def embed(pixels: Tensor) -> Tensor:
            return embed_tasks(base, self.kernels, pixels)

        with bf16_on(images.device):
            embeddings = over_views(embed, images, views)
        embeddings = F.normalize(embeddings, dim=-1) if self.unit else embeddings
        return embeddings @ self.weight.mT + self.bias.unsqueeze(1)


def learn_networks(
    base: ResNet,
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

    Batch norm stays as it is. No gradient flows through.

    Args:
        base: where kernels start.
        start: weight [E, W, d] and bias [E, W] where the heads start.
        support: normalised images [E, W, S, 3, side, side].
        present: bool [E, W, S], True where there is an image.
        steps: how many; 0 leaves everything as it starts.
        rate: learning rate of kernels and heads.
        optimiser: plain SGD, or Adam.
        unit: whether heads see embeddings of unit norm.
        crops: what of the images steps take in turn.

    """
    tasks, way, shot = support.shape[:3]
    looks = [apply_view(support.flatten(1, 2), crop) for crop in crops[:steps]]
    labels = torch.arange(way, device=support.device).repeat_interleave(shot)
    shares = present.flatten(1) / present.flatten(1).sum(1, keepdim=True)  # [E, W * S]
    with torch.enable_grad():
        values = [*task_kernels(base, tasks).values(), *start]
        # Copies: a single task's view would be the base's own memory, and steps are in place.
        copied = [v.detach().clone(memory_format=torch.contiguous_format) for v in values]
        leaves = [value.requires_grad_() for value in copied]
        names = list(task_kernels(base, 1))
        kernels = dict(zip(names, leaves, strict=False))
        networks = TaskNetworks(kernels, leaves[-2], leaves[-1], unit)
        adam = torch.optim.Adam(leaves, lr=rate, foreach=True) if optimiser == "adam" else None
        for _, look in zip(range(steps), cycle(looks), strict=False):
            logits = networks.logits(base, look)
            # The sum of the tasks' losses: the gradient of each task is that of its own.
            losses = F.cross_entropy(logits.mT, labels.expand(tasks, -1), reduction="none")
            loss = (losses * shares).sum()
            gradients = torch.autograd.grad(loss, leaves)
            if adam is None:
                with torch.no_grad():
                    torch._foreach_add_(leaves, _clipped(gradients), alpha=-rate)
            else:  # it does not mind the size of a gradient
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    leaf.grad = gradient
                adam.step()
    return TaskNetworks(
        {name: kernel.detach() for name, kernel in kernels.items()},
        networks.weight.detach(),
        networks.bias.detach(),
        unit,
    )


def _clipped(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Shorten the gradients [E, ...] of each task to a norm of `CLIP` together."""
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
    norm = torch.stack(squares).sum(0).sqrt()  # [E]
    factor = (CLIP / norm).clamp(max=1)
    return tuple(g.mul_(factor.view(-1, *[1] * (g.ndim - 1))) for g in gradients)
