"""Which members a task should listen to, told from their prototypes of its support set.

*A Universal Representation Transformer Layer for Few-Shot Image Classification* (Liu et al., 2021):
attention over members, with several heads. Two things differ. There the question is made of the
prototypes of all members side by side, which ties it to their number; here of their mean, so that a
pool may grow. And there each head sums embeddings; here the heads' mean weighs the members' scores,
as every other rule does.
"""

import math

import torch
from torch import Tensor, nn


class MemberAttention(nn.Module):
    """Attention over any number of members."""

    def __init__(self, dim: int, heads: int = 2, hidden: int = 128) -> None:
        super().__init__()
        self.heads = heads
        self.ask = nn.Linear(dim, heads * hidden)
        self.key = nn.Linear(dim, heads * hidden)

    def attention(self, prototypes: Tensor) -> Tensor:
        """Look at unit prototypes [E, M, W, d]: each head's weights, [E, heads, M]."""
        asked = self.ask(prototypes.mean(1, keepdim=True)).unflatten(-1, (self.heads, -1))
        keys = self.key(prototypes).unflatten(-1, (self.heads, -1))  # [E, M, W, heads, hidden]
        scores = (asked * keys).sum(-1) / math.sqrt(keys.shape[-1])  # [E, M, W, heads]
        return torch.softmax(scores, 1).mean(2).mT  # of all classes

    def forward(self, prototypes: Tensor) -> Tensor:
        """Weigh the members by unit prototypes [E, M, W, d]: [E, M], rows sum to 1."""
        weights: Tensor = self.attention(prototypes).mean(1)
        return weights
