"""Whether a task is like those of a pool's sources, told from its support set alone.

A pool keeps a sample of each source's tasks (`task_statistics`). A task is familiar if it is as
near to the mean of some source's training tasks as nearly all tasks of that source's validation
classes are: nobody trained on these, so the limit holds for new classes. Near is meant in units of
how much tasks of one source differ (Mahalanobis). E tasks, d entries an embedding.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.methods.tasks import TaskBatch
from polyshot.models.selector import task_embedding

if TYPE_CHECKING:
    from polyshot.pool import Pool

NEARLY_ALL = 0.95
"""Share of a source's validation tasks that are familiar."""
ROUND = 0.5
"""Weight of a round spread in that of the tasks: there are hardly more tasks than entries."""


def familiar(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Tell which tasks are familiar: bool ``[E]`` on the CPU; none where the pool keeps nothing.

    Means of fewer images than the kept tasks have scatter more: small tasks look less familiar.
    """
    if not pool.statistics:
        return torch.zeros(len(tasks), dtype=torch.bool)
    known = [_directions(kept.train.tasks) for kept in pool.statistics.values()]
    centres = torch.stack([each.mean(0) for each in known])  # [sources, d]
    spread = torch.cat([each - centre for each, centre in zip(known, centres, strict=True)])
    covariance = spread.T @ spread / len(spread)
    size = covariance.diagonal().mean().clamp(min=1e-12)
    covariance = (1 - ROUND) * covariance + ROUND * size * torch.eye(len(covariance)).to(covariance)
    root = torch.linalg.cholesky(covariance)

    def distances(directions: Tensor) -> Tensor:
        """Measure from each source: directions [n, d] -> [n, sources]."""
        apart = directions.unsqueeze(1) - centres  # [n, sources, d]
        white: Tensor = torch.linalg.solve_triangular(root, apart.flatten(0, 1).T, upper=False)
        return white.square().sum(0).view(apart.shape[:2])

    limits = torch.stack(
        [
            distances(_directions(kept.val.tasks))[:, i].quantile(NEARLY_ALL)
            for i, kept in enumerate(pool.statistics.values())
        ]
    )
    found = distances(_directions(task_embedding(tasks.support_of(0), tasks.mask)))
    return (found <= limits).any(1)


def _directions(tasks: Tensor) -> Tensor:
    return F.normalize(tasks.detach().cpu().double(), dim=-1)
