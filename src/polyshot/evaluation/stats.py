"""Means with 95 % intervals over episodes.

The intervals are normal (1.96 standard errors) and cover the choice of episodes; they do not cover
the seed of a training, nor which classes a domain's test part happens to hold.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

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
