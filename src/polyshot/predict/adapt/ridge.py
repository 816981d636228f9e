"""ridge: a linear head in closed form, one small system of equations a task.

Embeddings of unit norm, less the mean of the support set, to unit norm again; then least squares
from these to the classes, with a penalty lambda on the weights (*Meta-learning with differentiable
closed-form solvers*, Bertinetto et al., 2019, who learn the embedding with it; here it is as it
is). What all images of a task have in common tells nothing about their classes, and with few images
it is most of an embedding: that is why centring pays most at one shot. Before anything else a power
below 1 may take from single large entries their say (Tukey's transform; *Free Lunch for Few-shot
Learning*, Yang et al., 2021).

E tasks, W ways, S shots, N = W * S images, d entries an embedding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

AT_ONCE = 1 << 27
"""Numbers of the systems that are solved at once."""


def powered(embeddings: Tensor, power: float) -> Tensor:
    """Raise entries to a power, each with its sign: [..., d]; unchanged where that is 1."""
    return embeddings if power == 1 else embeddings.sign() * embeddings.abs().pow(power)


def ridge_heads(
    support: Tensor,
    mask: Tensor | None,
    penalty: float,
    power: float = 1.0,
    centre: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Solve for a head of each task: weight ``[E, W, d]``, and the centre ``[E, 1, d]``.

    `support` are raw embeddings ``[E, W, S, d]``, `mask` is bool ``[E, W, S]``, True where there is
    an image. Classes count the same, however many images they have. The centre is the mean of the
    support set's unit embeddings unless it is given.
    """
    support = powered(support, power)
    if mask is None:
        mask = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
    step = max(1, AT_ONCE // min(support[0, ..., 0].numel(), support.shape[-1]) ** 2)
    with torch.no_grad(), torch.autocast(support.device.type, enabled=False):
        parts = [
            _solve(
                support[i : i + step],
                mask[i : i + step],
                penalty,
                None if centre is None else centre[i : i + step],
            )
            for i in range(0, len(support), step)
        ]
    weight, centres = (torch.cat(each) for each in zip(*parts, strict=True))
    return weight, centres


def _solve(
    support: Tensor, mask: Tensor, penalty: float, centre: Tensor | None
) -> tuple[Tensor, Tensor]:
    way, shot, dim = support.shape[1:]
    there = mask.unsqueeze(-1)  # [E, W, S, 1]
    zero = support.new_zeros(())
    unit = F.normalize(support.where(there, zero), dim=-1)
    counts = mask.sum(-1).to(unit)  # [E, W]
    if centre is None:
        centre = (unit.sum(2) / counts.unsqueeze(-1)).mean(1, keepdim=True)  # [E, 1, d]
    apart = F.normalize((unit - centre.unsqueeze(2)).where(there, zero), dim=-1).flatten(1, 2)
    classes = torch.eye(way, dtype=unit.dtype, device=unit.device).repeat_interleave(shot, 0)
    target = (classes - 1 / way) * there.flatten(1, 2)  # [E, N, W]
    # An image of a large class weighs less, which is the same as a larger penalty on it.
    own = penalty * (counts / counts.mean(1, keepdim=True)).unsqueeze(-1).expand(-1, -1, shot)
    own = own.flatten(1)  # [E, N]
    if way * shot <= dim:
        system = apart @ apart.mT + torch.diag_embed(own)  # [E, N, N]
        factors = torch.cholesky_solve(target, torch.linalg.cholesky(system))  # [E, N, W]
        return factors.mT @ apart, centre
    scaled = apart * (penalty / own).unsqueeze(-1)
    identity = penalty * torch.eye(dim, dtype=unit.dtype, device=unit.device)
    system = apart.mT @ scaled + identity  # [E, d, d]
    weight: Tensor = torch.cholesky_solve(scaled.mT @ target, torch.linalg.cholesky(system))
    return weight.mT, centre
