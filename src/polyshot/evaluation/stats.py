"""Means with 95 % intervals, for new episodes and for new trainings, and calibration.

An `Estimate` has two intervals, which answer two questions. *New episodes with these trainings*:
trainings that were measured on the same episodes are no independent samples of these, so each
episode is averaged over the trainings first, then over the episodes (clustered by episode; normal,
1.96 standard errors); targets are independent. *New trainings on these episodes*: each training is
averaged over all episodes and targets, then over the trainings (Student's t, as they are few). None
covers which classes a domain's test part happens to hold.

Calibration: whether answers given with 80 % are right 80 % of the time. The expected calibration
error (Naeini et al., 2015; Guo et al., 2017) of the first choice: queries are put into 15 bins of
equal width by the probability of the class they were given; in each bin the share of right answers
is compared with the mean of these probabilities; the absolute differences are averaged, each bin
counting as many times as it has queries. 0 is perfect, 0.1 means that probabilities are off by 10
points on average. It does not tell whether they are too high or too low, and it cannot reach 0
with few queries: chance alone leaves some difference in each bin.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from polyshot.errors import PolyshotError

Z = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


class Estimate(NamedTuple):
    """A mean, or a difference, over targets, trainings and episodes."""

    value: float
    episodes: float
    """Half-width of the 95 % interval for new episodes with these trainings."""
    by_training: tuple[tuple[Hashable, float], ...] = ()
    """Each training's own value, where all targets have the same trainings."""

    @property
    def trainings(self) -> float | None:
        """Half-width of the 95 % interval for new trainings; None where there is only one."""
        values = np.array([value for _, value in self.by_training])
        if len(values) < 2:
            return None
        return t_quantile(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def estimate(trainings: Mapping[Hashable, ArrayLike]) -> Estimate:
    """Average one target over trainings: training -> a number for each episode, ``[n]``.

    The episodes are the same for all of them; those that not all have are left out.
    """
    runs = [np.asarray(values, dtype=np.float64) for values in trainings.values()]
    if not runs:
        raise PolyshotError("There is nothing to average.")
    shared = min(map(len, runs))
    table = np.stack([values[:shared] for values in runs])  # [trainings, n]
    each = zip(trainings, table.mean(1).tolist(), strict=True)
    return Estimate(*interval(table.mean(0)), tuple(each))


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """Average over targets, each counting the same; their episodes are independent."""
    if not estimates:
        raise PolyshotError("There is nothing to average.")
    count = len(estimates)
    value = math.fsum(each.value for each in estimates) / count
    every = [dict(each.by_training) for each in estimates]
    alike = all(own.keys() == every[0].keys() for own in every)
    means = {key: math.fsum(own[key] for own in every) / count for key in every[0]} if alike else {}
    half_width = math.hypot(*(each.episodes for each in estimates)) / count
    return Estimate(value, half_width, tuple(means.items()))


def t_quantile(freedom: int) -> float:
    """Return the two-sided 95 % point of Student's t."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z, n = Z, freedom  # Cornish and Fisher's expansion, right to 0.001 from here on
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + (z**3 + z) / (4 * n) + second + third


STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Two-sided 95 % points for 1 to 10 degrees of freedom."""


def interval(accuracies: ArrayLike) -> tuple[float, float]:
    """Return the mean of accuracies ``[n]`` and the half-width of its 95 % interval."""
    values = np.asarray(accuracies, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise PolyshotError("An interval needs at least two episodes.")
    return float(values.mean()), float(Z * values.std(ddof=1) / math.sqrt(len(values)))


BINS = 15
"""Of equal width, from 0 to 1; each holds its upper end, the first one 0 as well."""


def calibration_errors(sure: Tensor, right: Tensor, bins: int = BINS) -> Tensor:
    """Compare probabilities with shares of right answers, for each row: ``[..., n]`` -> ``[...]``.

    `sure` are the probabilities of the answers that were given to n queries, `right`, bool, tells
    whether these were right. Returns float64, between 0 and 1.
    """
    sure, right = sure.double(), right.double()
    place = (sure * bins).ceil().long().clamp(1, bins) - 1  # [..., n]
    # A bin's number of queries times its difference is the sum of the queries' differences.
    apart = sure.new_zeros(*sure.shape[:-1], bins)
    apart.scatter_add_(-1, place, right - sure)
    return apart.abs().sum(-1) / sure.shape[-1]


def calibration_error(sure: Tensor, right: Tensor) -> float:
    """Return the error of all queries together, whatever their shape, rounded to four digits."""
    return round(float(calibration_errors(sure.flatten(), right.flatten())), 4)


def first_choices(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Take the likeliest way of each query: ``[..., Q, W]`` -> its probability and way, [..., Q].

    Rounding may lift a probability above 1 by a hair, which is taken away.
    """
    # Predictions lie ways first in memory: along that axis it is several times faster.
    sure, ways = torch.max(probabilities.mT, -2)
    return sure.clamp(max=1.0), ways
