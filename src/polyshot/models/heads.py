"""Prototype heads (Snell et al., 2017), batched over episodes.

E episodes, W ways, S shots, Q queries, d entries an embedding. Further leading axes, such as one
over members, may stand before E. For the cosine of unit embeddings to their mean, normalise the
embeddings first: these functions average what they are given. Call them outside of autocast.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.errors import PolyshotError, unknown

Metric = Literal["euclidean", "cosine"]
USUAL_SCALE = 20.0
"""Of cosines, where nothing was fitted."""


def prepared(embeddings: Tensor, metric: Metric) -> Tensor:
    """Scale embeddings [..., d] to unit norm where the metric is cosine; else leave them raw."""
    return F.normalize(embeddings, dim=-1) if metric == "cosine" else embeddings


def prototypes(support: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average each class: support [E, W, S, d] -> [E, W, d].

    `mask` [E, W, S] is True where there is an image, for uneven shots. A class without any image
    has a prototype of NaN: no answer rather than a wrong one.
    """
    if mask is None:
        return support.mean(-2)
    present = mask.unsqueeze(-1)  # [E, W, S, 1]
    # `where`, not a product: whatever fills the empty places, NaN too, must not count
    return support.where(present, support.new_zeros(())).sum(-2) / present.sum(-2)


def prototype_logits(
    queries: Tensor, prototypes: Tensor, metric: Metric = "euclidean", scale: float | Tensor = 1.0
) -> Tensor:
    """Compare queries [E, Q, d] with prototypes [E, W, d]: logits [E, Q, W].

    `euclidean`: negative squared distance; `cosine`: cosine similarity; both times `scale`. A
    query's logits depend on the support set and on that query alone.
    """
    if metric == "cosine":
        return scale * (F.normalize(queries, dim=-1) @ F.normalize(prototypes, dim=-1).mT)
    if metric == "euclidean":
        # |q - p|^2 = |q|^2 - 2 q p + |p|^2, without a tensor [E, Q, W, d]. Embeddings share a large
        # mean that would eat the digits of these three terms, so the prototypes' mean goes first.
        origin = prototypes.mean(-2, keepdim=True).detach()  # [E, 1, d]
        q, p = queries - origin, prototypes - origin
        cross = q @ p.mT  # [E, Q, W]
        return scale * (
            2 * cross - q.square().sum(-1)[..., :, None] - p.square().sum(-1)[..., None, :]
        )
    raise unknown("metric", metric, get_args(Metric))


def leave_one_out_logits(
    support: Tensor,
    metric: Metric = "euclidean",
    scale: float | Tensor = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Classify each support image by the others: support [E, W, S, d] -> logits [E, W, S, W].

    An image is compared with the prototypes of all classes, its own class's without itself. With
    `mask` [E, W, S], an empty place and the only image of a class have logits of NaN.
    """
    way, shot = support.shape[-3:-1]
    if shot < 2:
        raise PolyshotError("Leave-one-out needs at least two images a class.")
    if mask is None:
        mask = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
    support = support.where(mask.unsqueeze(-1), support.new_zeros(()))
    count = mask.sum(-1)[..., None, None]  # [E, W, 1, 1]
    centres = prototypes(support, mask)  # [E, W, d]
    # The mean of the others, from the mean of all: [E, W, S, d]. The clamp keeps the gradients of
    # the only image of a class finite; its logits are blanked below.
    others = (count * centres.unsqueeze(-2) - support) / (count - 1).clamp(min=1)
    own = prototype_logits(support.unsqueeze(-2), others.unsqueeze(-2), metric, scale)
    own = own.squeeze(-1)  # [E, W, S, 1, 1] -> [E, W, S, 1]
    every = prototype_logits(support.flatten(-3, -2), centres, metric, scale)  # [E, W * S, W]
    is_own = torch.eye(way, dtype=torch.bool, device=support.device).unsqueeze(-2)  # [W, 1, W]
    logits = own.where(is_own, every.reshape(*support.shape[:-1], way))  # [E, W, S, W]
    answered = mask.unsqueeze(-1) & (count > 1)  # [E, W, S, 1]
    return logits.where(answered, logits.new_full((), torch.nan))
