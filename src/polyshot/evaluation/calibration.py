"""Calibration: whether answers given with 80 % are right 80 % of the time.

The expected calibration error (Naeini et al., 2015; Guo et al., 2017) of the first choice: queries
are put into 15 bins of equal width by the probability of the class they were given; in each bin the
share of right answers is compared with the mean of these probabilities; the absolute differences
are averaged, each bin counting as many times as it has queries. 0 is perfect, 0.1 means that
probabilities are off by 10 points on average. It does not tell whether they are too high or too
low, and it cannot reach 0 with few queries: chance alone leaves some difference in each bin.
"""

import torch
from torch import Tensor

BINS = 15
"""Of equal width, from 0 to 1; each holds its upper end, the first one 0 as well."""


def calibration_errors(sure: Tensor, right: Tensor, bins: int = BINS) -> Tensor:
    """Compare probabilities with shares of right answers, for each row: ``[..., n]`` -> ``[...]``.

    Args:
        sure: probability of the answer that was given, for n queries.
        right: bool of the same shape, whether it was right.
        bins: how many.

    Returns:
        float64, between 0 and 1.

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
