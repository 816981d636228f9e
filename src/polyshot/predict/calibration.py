"""How sure answers may be: prototypes of few images tell less than those of many.

A pool's scales are fitted to tasks of one number of images a class. With s images prototypes want
s / (s + 2) of the scale that they would have with very many (docs/results/adaptation.md has what
was measured). The inverse temperature changes how sure answers are, and no answer.
"""

import torch
from torch import Tensor

from polyshot.pool.pool import Pool

HALF = 2.0
"""Images a class whose prototypes want half of the scale of very many."""
UNTEMPERED = ("head",)
"""Adaptations whose answers stay as they are: heads are learned from a scale of their own."""


def inverse_temperature(pool: Pool, shots: Tensor) -> Tensor:
    """Return the factor on the logarithms of probabilities, for any numbers of images a class."""
    if pool.metric != "cosine":  # not measured
        return torch.ones_like(shots)
    usual = pool.task_shape.shot
    return (usual + HALF) / usual * shots / (shots + HALF)


def tempered(probabilities: Tensor, factor: Tensor) -> Tensor:
    """Raise probabilities ``[..., W]`` to a power; `factor` fits the axes before W."""
    if bool((factor == 1).all()):
        return probabilities
    return torch.softmax(factor.unsqueeze(-1) * probabilities.clamp(min=1e-30).log(), -1)
