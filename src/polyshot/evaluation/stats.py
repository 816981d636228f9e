"""Means with 95 % intervals over episodes, and calibration.

The intervals are normal (1.96 standard errors) and cover the choice of episodes; they do not cover
the seed of a training, nor which classes a domain's test part happens to hold.

Calibration: whether answers given with 80 % are right 80 % of the time. The expected calibration
error (Naeini et al., 2015; Guo et al., 2017) of the first choice: queries are put into 15 bins of
equal width by the probability of the class they were given; in each bin the share of right answers
is compared with the mean of these probabilities; the absolute differences are averaged, each bin
counting as many times as it has queries. 0 is perfect, 0.1 means that probabilities are off by 10
points on average. It does not tell whether they are too high or too low, and it cannot reach 0
with few queries: chance alone leaves some difference in each bin.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from polyshot.errors import PolyshotError

Z = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


def interval(accuracies: ArrayLike) -> tuple[float, float]:
    """Return the mean of accuracies ``[n]`` and the half-width of its 95 % interval."""
    values = np.asarray(accuracies, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise PolyshotError("An interval needs at least two episodes.")
    return float(values.mean()), float(Z * values.std(ddof=1) / math.sqrt(len(values)))


def paired(a: ArrayLike, b: ArrayLike) -> tuple[float, float]:
    """Return the mean difference a - b on the same episodes, and its half-width."""
    one, other = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if one.shape != other.shape:
        raise PolyshotError(
            f"Paired differences need the same episodes, not {len(one)} and {len(other)}."
        )
    return interval(one - other)


def combined(cells: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Average means with half-widths over independent targets, each counting the same."""
    if not cells:
        raise PolyshotError("There is nothing to average.")
    means, half_widths = zip(*cells, strict=True)
    return sum(means) / len(cells), math.hypot(*half_widths) / len(cells)


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
