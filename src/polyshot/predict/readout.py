"""Read-outs: what one network makes of support sets, ready to judge any query.

E tasks, W ways, S shots, Q queries, d entries an embedding.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.models.heads import USUAL_SCALE, Metric, prepared, prototypes
from polyshot.predict.adapt.head import adapt_heads, heads_are_unit
from polyshot.predict.adapt.pa import learn_maps
from polyshot.predict.adapt.ridge import powered, ridge_heads
from polyshot.predict.familiar import Common
from polyshot.tasks import pick

CENTRED = 0.72
"""Factor on the scale of cosines that a common direction was taken from: they lie further apart.
The likeliest on validation classes."""


@dataclass(frozen=True, eq=False)
class TaskClassifiers:
    """A linear classifier of embeddings for each task, learned from its support set."""

    weight: Tensor
    """``[E, W, d]``."""
    bias: Tensor | None
    """``[E, W]``."""
    scale: Tensor
    """``[E]``: logits are this times the scores. Prototypes compared by cosine have one, so that
    cosines can be mixed; for all others it is 1."""
    unit: bool
    """Whether queries are scaled to unit norm."""
    origin: Tensor | None = None
    """``[E, 1, d]``, taken from queries first."""
    maps: Tensor | None = None
    """``[E, d, d]``, which queries of unit norm go through first."""
    centre: Tensor | None = None
    """``[E, 1, d]``, taken from queries of unit norm, behind the map where there is one."""
    power: float = 1.0
    """Of the entries of queries, before a centre is taken from them."""
    also: "tuple[Tensor, TaskClassifiers] | None" = None
    """Others, of k tasks, and int64 ``[k]`` which: these judge by the mean of both."""
    diverged: Tensor | None = None
    """Bool ``[E]``: tasks whose learning diverged, so that they go without it; None for no task."""

    def scores(self, query: Tensor) -> Tensor:
        """Judge raw embeddings [E, Q, d]: [E, W, Q]; ways last would slow softmax tenfold."""
        x = query if self.origin is None else query - self.origin
        if self.maps is not None:
            x = F.normalize(x, dim=-1) @ self.maps.mT
        if self.centre is not None:
            x = F.normalize(powered(x, self.power), dim=-1) - self.centre
        scores = self.weight @ x.mT
        if self.unit:  # afterwards: there are fewer scores than entries of queries
            length = torch.linalg.vector_norm(x, dim=-1).clamp(min=1e-12)  # [E, Q]
            scores = scores / length.unsqueeze(1)
        if self.bias is not None:
            scores = scores + self.bias.unsqueeze(-1)
        if self.also is not None:
            rows, other = self.also
            both = (scores[rows] + other.scores(query[rows])) / 2
            scores = scores.index_copy(0, rows, both)
        return scores

    def logits(self, query: Tensor) -> Tensor:
        """Judge raw embeddings [E, Q, d]: logits [E, W, Q]."""
        return self.scores(query) * self.scale[:, None, None]


def fit_classifiers(
    support: Tensor,
    mask: Tensor | None,
    metric: Metric,
    scale: float | Tensor,
    adaptation: str = "none",
    config: AdaptationConfig | None = None,
    common: Common | None = None,
) -> TaskClassifiers:
    """Learn from support sets: raw embeddings ``[E, W, S, d]``.

    `mask`, bool ``[E, W, S]``, is True where there is an image; None where shots are even. `metric`
    and `scale` (one or ``[E]``) are of the prototypes' logits. `adaptation` is ``none``
    (prototypes), ``head``, ``ridge`` or ``pa``; `config` says how heads and maps are learned.
    `common` is what images of a task have in common: single images that are compared by cosine or
    read out by ridge go without it, as far as `config` says.
    """
    scales = torch.as_tensor(scale, device=support.device, dtype=support.dtype).expand(len(support))
    config = config or AdaptationConfig()
    if adaptation == "head":
        weight, bias = adapt_heads(support, mask, config, metric)
        unit = heads_are_unit(config, metric)
        return TaskClassifiers(weight, bias, torch.ones_like(scales), unit)
    if adaptation == "ridge":
        return by_ridge(support, mask, config, common=common)
    plain = _by_prototypes(support, mask, metric, scales, common, config.centre_single)
    if adaptation == "pa":
        return _with_maps(plain, support, mask, metric, scales, config)
    return plain


def by_ridge(
    support: Tensor,
    mask: Tensor | None,
    config: AdaptationConfig,
    maps: Tensor | None = None,
    common: Common | None = None,
) -> TaskClassifiers:
    """Learn heads in closed form, behind maps [E, d, d] where there are any.

    The mean of single images is mostly what tells them apart. Where a source says what they have in
    common, that is their centre instead; on tasks like none of the sources' it would be a guess.
    """
    seen, centre = support, None
    if maps is not None:
        seen = F.normalize(support, dim=-1) @ maps.mT.unsqueeze(1)
    elif common is not None:
        unit = F.normalize(powered(support, config.ridge_power), dim=-1)
        part, single = _in_common(unit, mask, common.direction)
        mean = prototypes(unit, mask).mean(1, keepdim=True)  # [E, 1, d]
        known = (single & common.familiar.to(single.device))[:, None, None]
        centre = mean.lerp(part, config.centre_single).where(known, mean)
    weight, centre = ridge_heads(seen, mask, config.ridge_lambda, config.ridge_power, centre)
    scale = weight.new_full((len(weight),), config.ridge_scale)
    made = TaskClassifiers(weight, None, scale, unit=True, maps=maps, centre=centre)
    return replace(made, power=config.ridge_power)


def _by_prototypes(
    support: Tensor,
    mask: Tensor | None,
    metric: Metric,
    scale: Tensor,
    common: Common | None = None,
    much: float = 1.0,
) -> TaskClassifiers:
    """Compare queries with prototypes, less so much of a common direction where there is one.

    Logits are those of `models.heads.prototype_logits`, less a number a query, which softmax takes
    away: it spares most of the work on tensors of the queries' size.
    """
    ready = prepared(support, metric)
    if metric == "cosine" and common is not None:
        centre, single = _in_common(ready, mask, common.direction)
        centre = much * centre
        apart = prepared(ready - centre.unsqueeze(2), metric)
        weight = F.normalize(prototypes(apart, mask), dim=-1)
        scale = scale.where(~single, (1 - much * (1 - CENTRED)) * scale)
        return TaskClassifiers(weight, None, scale, unit=True, centre=centre)
    centres = prototypes(ready, mask)  # [E, W, d]
    if metric == "cosine":
        return TaskClassifiers(F.normalize(centres, dim=-1), None, scale, unit=True)
    origin = centres.mean(1, keepdim=True)  # the embeddings' common mean would eat digits
    apart, ones = centres - origin, torch.ones_like(scale)
    bias = -apart.square().sum(-1) * scale.unsqueeze(-1)
    weight = 2 * apart * scale[:, None, None]
    return TaskClassifiers(weight, bias, ones, unit=False, origin=origin)


def _in_common(unit: Tensor, mask: Tensor | None, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Measure how much of a direction is in unit embeddings [E, W, S, d], where classes have one.

    Returns the part of the direction [E, 1, d] that they have on average, 0 for tasks some of whose
    classes have several images, and bool [E], which tasks have not: prototypes of several images
    lose by it.
    """
    there = torch.ones_like(unit[..., 0], dtype=torch.bool) if mask is None else mask
    single = there.sum(-1).amax(-1) == 1  # [E]
    direction = direction.to(unit)
    along = torch.einsum("ewsd,ed->ews", unit, direction).where(there, unit.new_zeros(()))
    share = along.sum((1, 2)) / there.sum((1, 2)) * single
    return (share.unsqueeze(-1) * direction).unsqueeze(1), single


def _with_maps(
    plain: TaskClassifiers,
    support: Tensor,
    mask: Tensor | None,
    metric: Metric,
    scales: Tensor,
    config: AdaptationConfig,
) -> TaskClassifiers:
    """Let the tasks that gain by it judge through a map; behind a map, always by cosine."""

    def held_out(known: Tensor, places: Tensor) -> Tensor:
        classifiers = _by_prototypes(support, known, metric, scales)
        return classifiers.logits(pick(support, places).flatten(1, 2)).log_softmax(1).mT

    by_cosine = metric == "cosine"
    usual = scales if by_cosine else torch.full_like(scales, USUAL_SCALE)
    learned = learn_maps(support, mask, usual, held_out, config)
    if not len(learned.rows):
        return replace(plain, diverged=learned.diverged)
    scale, centres = learned.scale, learned.centres
    if not by_cosine:  # the others' scores are logits
        scale, centres = torch.ones_like(scale), centres * scale[:, None, None]
    mapped = TaskClassifiers(centres, None, scale, unit=True, maps=learned.leaves[0])
    scales = plain.scale.index_copy(0, learned.rows, scale)
    return replace(plain, scale=scales, also=(learned.rows, mapped), diverged=learned.diverged)
