"""Networks of a task's own: one modulator mixed from all of a pool, for each task.

As FLUTE's blender (Triantafillou et al., 2021) and tri-M (Liu et al., 2021) do with other layers:
modulators are linear in their parameters, so a weighted sum of them is one, and a task costs one
pass an image however many members the pool has. E tasks, M members, d entries an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyshot.methods.inner_loop import tasks_at_once
from polyshot.methods.tasks import TaskBatch
from polyshot.models.resnet import ResNet
from polyshot.models.task_modulators import (
    TaskModulators,
    embed_modulated,
    fold_task,
    stem,
    task_modulators,
)
from polyshot.models.views import Views, over_views
from polyshot.predict.opinions import Opinion, form_opinion
from polyshot.util.device import bf16_on

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool


@dataclass(frozen=True, eq=False)
class OwnNetworks:
    """Networks of k tasks, and what they make of the support sets."""

    base: ResNet
    modulators: TaskModulators
    rows: Tensor
    """int64 ``[k]``: which tasks of the batch."""
    opinion: Opinion
    """Of these tasks."""
    views: Views
    sharpness: Tensor
    """``[k]``: factor on the logarithms of probabilities where what was learned has a share."""

    def logits(self, tasks: TaskBatch) -> Tensor:
        """Classify the queries of the tasks `rows`: ``[k, W, Q]``."""
        return self.opinion.logits(
            embed_own(self.base, self.modulators, tasks.query_images, self.rows, self.views)
        )

    def folded(self) -> ResNet:
        """Return the network of a single task as a plain one."""
        return fold_task(self.base, self.modulators, 0)


def blended(pool: "Pool", weights: Tensor) -> TaskModulators:
    """Mix the modulators, each at its strength, by weights of the members ``[E, M]``."""
    strengths = torch.tensor(list(pool.strengths.values()), device=pool.device)
    shares = weights[:, 1:].to(pool.device) * strengths
    return task_modulators(pool.base, list(pool.modulators.values()), shares)


def blend_networks(pool: "Pool", tasks: TaskBatch, weights: Tensor, adaptation: str) -> OwnNetworks:
    """Give each task its blend; `adaptation` is one on embeddings: none, head or pa."""
    modulators = blended(pool, weights)
    rows = torch.arange(len(tasks), device=pool.device)

    def flat_support(chosen: Tensor) -> Tensor:
        return tasks.support_images(chosen).flatten(1, 2)

    support = embed_own(pool.base, modulators, flat_support, rows, pool.views)  # [E, W * S, d]
    mask = None if tasks.mask is None else tasks.mask.to(support.device)
    way = tasks.support_images(rows[:1]).shape[1]
    opinion = form_opinion(
        support.view(len(tasks), way, -1, support.shape[-1]),
        mask,
        pool.metric,
        blended_scale(pool, weights),
        adaptation,
        pool.adaptation,
    )
    as_it_is = torch.ones(len(tasks), device=pool.device)
    return OwnNetworks(pool.base, modulators, rows, opinion, pool.views, as_it_is)


def blended_scale(pool: "Pool", weights: Tensor) -> Tensor:
    """Mix the members' scales by their weights ``[E, M]``: ``[E]``, on the pool's device."""
    return (weights @ torch.tensor(pool.scales)).to(pool.device)


def embed_own(
    base: ResNet,
    modulators: TaskModulators,
    images: Callable[[Tensor], Tensor],
    rows: Tensor,
    views: Views,
) -> Tensor:
    """Embed the images ``[k, B, 3, side, side]`` of tasks, some tasks at a time: ``[k, B, d]``.

    `images` is asked for the images of some of the `rows`; the i-th modulator is that of rows[i].
    """
    parts: list[Tensor] = []
    done = 0
    with torch.no_grad(), bf16_on(rows.device):
        while done < len(rows):
            step = 1 if not parts else tasks_at_once(parts[0].shape[1], rows.device)
            cut = torch.arange(done, min(done + step, len(rows)), device=rows.device)
            own = modulators.rows(cut)

            def embed(pixels: Tensor, own: TaskModulators = own) -> Tensor:
                return embed_modulated(base, own, stem(base, pixels), len(pixels))

            parts.append(over_views(embed, images(rows[cut]), views))
            done += step
    return torch.cat(parts)
