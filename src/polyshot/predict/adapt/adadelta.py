"""Adadelta for many tasks at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

DECAY, EPS = 0.9, 1e-6  # its usual ones


class Adadelta:
    """Adadelta (Zeiler, 2012) with a learning rate for each task."""

    def __init__(self, leaves: Sequence[Tensor], rates: Sequence[Tensor]):
        self.leaves = leaves
        self.rates = [
            rate.view(-1, *[1] * (leaf.ndim - 1)) for rate, leaf in zip(rates, leaves, strict=True)
        ]
        self.squares = [torch.zeros_like(leaf) for leaf in leaves]
        self.moves = [torch.zeros_like(leaf) for leaf in leaves]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the leaves in place."""
        every = (self.leaves, gradients, self.rates, self.squares, self.moves)
        for leaf, gradient, rate, square, move in zip(*every, strict=True):
            square.mul_(DECAY).addcmul_(gradient, gradient, value=1 - DECAY)
            change = (move + EPS).div_(square + EPS).sqrt_().mul_(gradient)
            move.mul_(DECAY).addcmul_(change, change, value=1 - DECAY)
            leaf.sub_(change.mul_(rate))
