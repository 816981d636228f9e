"""Whether a task is like those of a pool's sources, told from its support set alone.

A pool keeps a sample of each source's tasks (`task_statistics`). A task is familiar if it is as
near to the mean of some source's training tasks as nearly all tasks of that source's validation
classes are: nobody trained on these, so the limit holds for new classes. Near is meant in units of
how much tasks of one source differ (Mahalanobis). The nearest source also says what the images of a
task have in common, which tells nothing about their classes. E tasks, d entries an embedding.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.models.selector import task_embedding
from polyshot.pool.pool import Pool
from polyshot.tasks import Tasks

NEARLY_ALL = 0.95
"""Share of a source's validation tasks that are familiar."""
ROUND = 0.5
"""Weight of a round spread in that of the tasks: there are hardly more tasks than entries."""


class Common(NamedTuple):
    """What the images of tasks should have in common, on the CPU."""

    direction: Tensor
    """Unit vectors ``[E, d]``, float64."""
    familiar: Tensor
    """Bool ``[E]``: it is that of the nearest source; of all sources for other tasks."""

    def of(self, rows: Tensor) -> "Common":
        """Return that of some tasks, int64 ``[k]``."""
        return Common(self.direction[rows], self.familiar[rows])


class Distances(NamedTuple):
    """How far tasks are from the sources whose tasks a pool keeps, all float64 on the CPU."""

    centres: Tensor
    """``[sources, d]``, the mean direction of each source's tasks."""
    away: Tensor
    """``[E, sources]``."""
    limits: Tensor
    """``[sources]``, within which nearly all of a source's validation tasks lie."""


def familiar(pool: Pool, tasks: Tasks) -> Tensor:
    """Tell which tasks are familiar: bool ``[E]`` on the CPU; none where the pool keeps nothing."""
    if not pool.statistics:
        return torch.zeros(len(tasks), dtype=torch.bool)
    _, away, limits = _distances(pool, tasks)
    return (away <= limits).any(1)


def in_common(pool: Pool, tasks: Tasks) -> Common:
    """Return what the images of a task should have in common.

    It is the mean direction of the tasks of the nearest source; of all sources where a task is not
    familiar. The pool must keep tasks.
    """
    centres, away, limits = _distances(pool, tasks)
    known = (away <= limits).any(1)
    nearest = centres[away.argmin(1)].where(known.unsqueeze(1), centres.mean(0))
    return Common(F.normalize(nearest, dim=-1), known)


def _distances(pool: Pool, tasks: Tasks) -> Distances:
    """Measure the distances of tasks from the sources.

    Means of fewer images than those of the kept tasks scatter more. By how much, a support set
    shows itself, and that is taken off its distances; a single image shows nothing.
    """
    known = [_directions(kept.train.tasks) for kept in pool.statistics.values()]
    centres = torch.stack([each.mean(0) for each in known])  # [sources, d]
    spread = torch.cat([each - centre for each, centre in zip(known, centres, strict=True)])
    covariance = spread.T @ spread / len(spread)
    size = covariance.diagonal().mean().clamp(min=1e-12)
    covariance = (1 - ROUND) * covariance + ROUND * size * torch.eye(len(covariance)).to(covariance)
    root = torch.linalg.cholesky(covariance)

    def squares(apart: Tensor) -> Tensor:
        """Measure differences, squared: [..., d] -> [...]."""
        white: Tensor = torch.linalg.solve_triangular(root, apart.flatten(0, -2).T, upper=False)
        return white.square().sum(0).view(apart.shape[:-1])

    def distances(directions: Tensor) -> Tensor:
        """Measure from each source: directions [n, d] -> [n, sources]."""
        return squares(directions.unsqueeze(1) - centres)

    limits = [
        distances(_directions(kept.val.tasks))[:, i].quantile(NEARLY_ALL)
        for i, kept in enumerate(pool.statistics.values())
    ]
    mask = tasks.present.cpu()
    support = tasks.support_of(pool.network(0)).detach().cpu().double()  # [E, W, S, d]
    support = support.where(mask.unsqueeze(-1), support.new_zeros(()))
    shape = pool.task_shape
    means = task_embedding(support, mask)  # [E, d]
    apart, freedom = _scattered(support, mask)
    scatter = squares(apart / means.norm(dim=-1)[:, None, None, None]).sum((1, 2)) / freedom
    excess = scatter * (1 / mask.sum((1, 2)) - 1 / (shape.way * shape.shot))
    away = distances(_directions(means)) - excess.unsqueeze(1)  # [E, sources]
    return Distances(centres, away, torch.stack(limits))


def _scattered(support: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Take from each image the mean of its class, or of the task where all classes have only one.

    Returns the differences [E, W, S, d], 0 where there is no image, and how many of them a task has
    that are free, [E], at least 1.
    """
    there = mask.unsqueeze(-1)  # [E, W, S, 1]
    by_class = support.sum(2, keepdim=True) / there.sum(2, keepdim=True).clamp(min=1)
    by_task = support.sum((1, 2), keepdim=True) / there.sum((1, 2), keepdim=True).clamp(min=1)
    images, classes = mask.sum((1, 2)), mask.any(2).sum(1)  # [E]
    single = images == classes
    apart = support - by_task.where(single[:, None, None, None], by_class)
    free = (images - classes).where(~single, images - 1).clamp(min=1)
    return apart.where(there, apart.new_zeros(())), free


def _directions(tasks: Tensor) -> Tensor:
    return F.normalize(tasks.detach().cpu().double(), dim=-1)
