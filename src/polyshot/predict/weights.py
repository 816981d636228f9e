"""What a support set tells about the members: weights of M members for E tasks, [E, M].

All of them are made from the support set alone, for all tasks at once, and lie on the CPU.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.methods.tasks import TaskBatch
from polyshot.models.heads import leave_one_out_logits, prototypes
from polyshot.models.selector import task_embedding
from polyshot.predict.familiar import familiar
from polyshot.predict.opinions import prepared

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool

LOO_SHARPNESS = 10.0
"""Weights of `leave_one_out` are the softmax of -10 x the losses (research/recipe.md §4)."""
SUR_STEPS, SUR_RATE = 40, 0.1


def uniform(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Weigh all members alike."""
    count = len(pool.members)
    return torch.full((len(tasks), count), 1 / count)


def by_selector(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Weigh members by the chances that the selector gives them; refuses a pool without one."""
    return pool.task_weights(task_embedding(tasks.support_of(0), tasks.mask))


def by_selector_or_uniform(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Weigh members by the selector, or alike where the pool has none."""
    return uniform(pool, tasks) if pool.selector is None else by_selector(pool, tasks)


def leave_one_out(pool: "Pool", tasks: TaskBatch) -> tuple[Tensor, Tensor]:
    """Weigh members by how well each support image is classified by the others.

    Returns:
        The weights, and bool ``[E]``: the tasks of which some class has two images. The others'
        weights are even, for want of anything to leave out.

    """
    held = _left_out(pool, tasks)
    if held is None:
        return uniform(pool, tasks), torch.zeros(len(tasks), dtype=torch.bool)
    logits, labels, there = held
    loss = _losses(logits, labels, there)  # [E, M]
    return torch.softmax(-LOO_SHARPNESS * loss, 1).cpu(), there.any(1).cpu()


def by_leave_one_out(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Weigh members by `leave_one_out`; at one shot by the selector, or alike without one."""
    weights, told = leave_one_out(pool, tasks)
    return _else(weights, told, pool, tasks)


def automatic(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Mean of the selector's weights and those of `leave_one_out`; without a selector, the latter.

    At one shot, where leaving out tells nothing, the selector's alone, or the base where a task is
    unlike those that the selector has learned from (`familiar`).
    """
    weights, told = leave_one_out(pool, tasks)
    if pool.selector is None:
        return weights
    chances = by_selector(pool, tasks)
    mean = (weights + chances) / 2
    if bool(told.all()):
        return mean
    base = torch.zeros_like(chances)
    base[:, 0] = 1.0
    guess = chances
    if pool.statistics:
        guess = chances.where(familiar(pool, tasks).unsqueeze(1), base)
    return mean.where(told.unsqueeze(1), guess)


def by_sur(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Fit the weights of each task: the mixed scores shall classify left-out images best.

    SUR (Dvornik et al., 2020) fits the support set to its own prototypes; leaving each image out
    keeps a member that merely remembers from winning. At one shot as `by_leave_one_out`.
    """
    held = _left_out(pool, tasks)
    if held is None:
        return by_selector_or_uniform(pool, tasks)
    logits, labels, there = held
    with torch.enable_grad():
        raw = torch.zeros(logits.shape[:2], device=logits.device, requires_grad=True)  # [E, M]
        optimiser = torch.optim.Adam([raw], lr=SUR_RATE)
        for _ in range(SUR_STEPS):
            mixed = torch.einsum("em,emnw->enw", torch.softmax(raw, 1), logits)
            loss = _losses(mixed.unsqueeze(1), labels, there).sum()  # of tasks that do not meet
            raw.grad = torch.autograd.grad(loss, raw)[0]
            optimiser.step()
    weights = torch.softmax(raw.detach(), 1).cpu()
    return _else(weights, there.any(1).cpu(), pool, tasks)


def by_attention(pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Weigh members by URT's attention to their prototypes; refuses a pool without it."""
    attention = pool.check_urt()
    every = [
        F.normalize(prototypes(prepared(tasks.support_of(member), pool.metric), tasks.mask), dim=-1)
        for member in range(len(pool.members))
    ]
    with torch.no_grad():
        weights: Tensor = attention(torch.stack(every, 1).to(pool.device))  # [E, M, W, d]
    return weights.cpu()


def _else(weights: Tensor, told: Tensor, pool: "Pool", tasks: TaskBatch) -> Tensor:
    """Let the selector weigh the tasks that leaving out tells nothing about."""
    if bool(told.all()):
        return weights
    return weights.where(told.unsqueeze(1), by_selector_or_uniform(pool, tasks))


def _left_out(pool: "Pool", tasks: TaskBatch) -> tuple[Tensor, Tensor, Tensor] | None:
    """Let each member classify every support image by the others; None with one image a class.

    Returns:
        Logits ``[E, M, N, W]`` with N = W * S, zeros where nothing can be left out; labels
        int64 ``[N]``; bool ``[E, N]``, which images count.

    """
    every = []
    for member, scale in enumerate(pool.scales):
        support = tasks.support_of(member)  # [E, W, S, d]
        if support.shape[2] < 2:
            return None
        ready = prepared(support, pool.metric)
        logits = leave_one_out_logits(ready, pool.metric, scale, tasks.mask)
        every.append(logits.flatten(1, 2))  # [E, N, W]
    logits = torch.stack(every, 1)
    there = logits[:, 0, :, 0].isfinite()  # [E, N]; the same for all members
    way = logits.shape[-1]
    labels = torch.arange(way, device=logits.device).repeat_interleave(logits.shape[2] // way)
    return logits.where(there[:, None, :, None], logits.new_zeros(())), labels, there


def _losses(logits: Tensor, labels: Tensor, there: Tensor) -> Tensor:
    """Average the cross-entropy of the images that count: logits [E, M, N, W] -> [E, M]."""
    likelihood = logits.log_softmax(-1)
    right = likelihood.gather(-1, labels.view(1, 1, -1, 1).expand(*logits.shape[:3], 1)).squeeze(-1)
    counted = there.unsqueeze(1).to(right)  # [E, 1, N]
    return -(right * counted).sum(-1) / counted.sum(-1).clamp(min=1)
