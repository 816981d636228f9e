"""The answer `none of these`: for images that are far from every class of a task.

How near an image is: its largest cosine to a prototype (or smallest squared distance, in a pool
that compares so), the members' weighted as the rule weighs them. Examples are judged the same way,
each by prototypes made without it, so that an example and a new image can be compared; what an
adaptation learns is left out of it, because it has seen the examples and not the new image. An
image that is less near than nearly all examples were is none of these.

Of n examples and one more image like them, each is as likely as any other to be the k-th least
near. So where the k-th least near example is the threshold, at most k in n + 1 such images fall
below it: a conformal rank (Vovk et al., 2005), with each example left out in turn, as in the
jackknife (Barber et al., 2021). That is so on average over tasks, not for each task; and nearly,
since prototypes without an example are made of one image fewer, and the weights have seen all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.models import heads
from polyshot.models.heads import Metric

NONE = "none of these"
"""The answer."""
ROUNDING = 1e-5
"""An image must be less near than an example by more than this: the same picture must not fail."""


@dataclass(frozen=True)
class Threshold:
    """Below which nearness an image is none of these."""

    value: float
    rank: int
    """It is that of the rank-th least near example."""
    examples: int
    """How many could be left out: those with another of their class."""

    @property
    def rate(self) -> float:
        """Share of images like the examples that fall below it, on average: about this, or less."""
        return self.rank / (self.examples + 1)

    def below(self, nearness: Tensor) -> NDArray[np.bool_]:
        """Tell which images ``[n]`` are none of these."""
        return (nearness < self.value).numpy()


def set_threshold(nearness: Tensor, rate: float) -> Threshold:
    """Choose the highest threshold that keeps the rate of false alarms.

    `nearness` ``[n]`` is of the examples that could be left out, `rate` the share of images like
    them that may be called none of these.
    """
    count = len(nearness)
    if not count:
        raise PolyshotError(
            f"'{NONE}' is learned by leaving examples out, but no class has two images: give two "
            "or more of a class, or ask without none_rate (--none-rate)."
        )
    rank = math.floor(rate * (count + 1) + 1e-9)  # 0.29 * 100 is a hair below 29
    if not rank:
        needed = math.ceil(1 / rate - 1e-9) - 1
        least = math.ceil(1000 / (count + 1)) / 1000
        raise PolyshotError(
            f"A none_rate of {rate:g} needs {needed:,} examples that have another of their class, "
            f"there are {count:,}: give more examples, or a rate of {least:g} or more."
        )
    value = float(nearness.kthvalue(rank).values)
    return Threshold(value - ROUNDING * max(1.0, abs(value)), rank, count)


def rates(left_out: Tensor, nearness: Tensor) -> NDArray[np.float32]:
    """Tell for each image ``[n]`` the lowest rate at which `set_threshold` calls it none of these.

    `left_out` are the examples' own, each left out. It is the image's conformal p-value: its rank
    among them, of so many and itself.
    """
    floors = left_out - ROUNDING * left_out.abs().clamp(min=1.0)
    below = (floors.unsqueeze(0) <= nearness.unsqueeze(1)).sum(1)  # [n]
    return ((below + 1) / (len(left_out) + 1)).float().numpy()


@dataclass(frozen=True, eq=False)
class Nearness:
    """How near images are to the classes of one task: W classes, d entries an embedding."""

    factors: Sequence[float]
    """One a network."""
    centres: Sequence[Tensor]
    """Prototypes ``[1, W, d]``, one tensor a network."""
    metric: Metric

    def of(self, embeddings: Sequence[Tensor]) -> Tensor:
        """Judge n images by their raw embeddings ``[n, d]``, one tensor a network: ``[n]``."""
        near = [
            factor * heads.prototype_logits(query.unsqueeze(0), centres, self.metric)[0]
            for factor, query, centres in zip(self.factors, embeddings, self.centres, strict=True)
        ]
        return torch.stack(near).sum(0).amax(-1)


def learn_nearness(
    networks: Sequence[tuple[float, Tensor, float]], mask: Tensor, metric: Metric
) -> tuple[Nearness, Tensor]:
    """Learn from the examples: of each network its weight, embeddings ``[1, W, S, d]`` and scale.

    The embeddings are raw; the mask, bool ``[1, W, S]``, is True where there is an example. Returns
    also how near the examples are that have another of their class, each left out: ``[n]``.
    """
    # Cosines of different networks can be compared, distances only at their scales.
    factors = [w if metric == "cosine" else w * scale for w, _, scale in networks]
    ready = [heads.prepared(support, metric) for _, support, _ in networks]
    nearness = Nearness(factors, [heads.prototypes(support, mask) for support in ready], metric)
    if mask.shape[-1] < 2:
        return nearness, torch.zeros(0)
    near = [
        factor * heads.leave_one_out_logits(support, metric, 1.0, mask)[0]  # [W, S, W]
        for factor, support in zip(factors, ready, strict=True)
    ]
    answered = mask[0] & (mask[0].sum(1, keepdim=True) > 1)  # [W, S]
    return nearness, torch.stack(near).sum(0)[answered].amax(-1)


def check_rate(rate: float | None) -> None:
    """Refuse what is no share of false alarms."""
    number = isinstance(rate, Real) and not isinstance(rate, bool)
    if rate is not None and not (number and 0 < rate < 1):
        raise PolyshotError(
            f"none_rate is the share of false alarms that you accept, more than 0 and less than 1 "
            f"(0.05 is one in twenty), not {f'{rate:g}' if number else repr(rate)}."
        )


def check_classes(classes: NDArray[Any]) -> None:
    """Refuse a class that has the name of the answer."""
    taken = [str(name) for name in classes if str(name).strip().casefold() == NONE]
    if taken:
        raise PolyshotError(
            f"A class is called '{taken[0]}', which is the answer for images of no class: rename "
            "it, or ask without none_rate (--none-rate)."
        )


def with_none(labels: NDArray[Any], none: NDArray[np.bool_]) -> NDArray[Any]:
    """Put the answer in place of some labels ``[n]``; numbers and it make an array of objects."""
    kind = np.result_type(labels, np.array(NONE)) if labels.dtype.kind == "U" else object
    wide = labels.astype(kind)
    wide[none] = NONE
    return wide
