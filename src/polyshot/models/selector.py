"""Which member suits a task, told from its support set: the selector, and URT's attention."""

import math

import torch
from torch import Tensor, nn


def task_embedding(support: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average the support set: [E, W, S, d] -> [E, d]; every image counts the same.

    `mask` [E, W, S] is True where there is an image, for uneven shots.
    """
    if mask is None:
        return support.mean((-3, -2))
    present = mask.unsqueeze(-1)  # [E, W, S, 1]
    total = support.where(present, support.new_zeros(())).sum((-3, -2))  # [E, d]
    return total / present.sum((-3, -2))


class Selector(nn.Module):
    """Two-layer perceptron from a task embedding to one logit a member.

    The input is standardised by two buffers, which change nothing until `standardise` is called.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int, outputs: int, hidden: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, outputs)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("std", torch.ones(dim))

    def standardise(self, tasks: Tensor) -> None:
        """Take mean and standard deviation from task embeddings [T, d].

        Entries that hardly vary are only centred: dividing would blow them up elsewhere.
        """
        std, mean = torch.std_mean(tasks.detach(), dim=0, correction=0)
        self.mean.copy_(mean)
        self.std.copy_(std.where(std > 0.01 * std.mean(), torch.ones_like(std)))

    def forward(self, tasks: Tensor) -> Tensor:
        """Score the members: task embeddings [E, d] -> logits [E, outputs]."""
        x = (tasks - self.mean) / self.std
        x = self.dropout(torch.relu(self.hidden(x)))  # [E, hidden]
        logits: Tensor = self.output(x)
        return logits


class MemberAttention(nn.Module):
    """Attention over any number of members, told from their prototypes of the support set.

    *A Universal Representation Transformer Layer for Few-Shot Image Classification* (Liu et al.,
    2021) has several heads. Two things differ. There the question is made of the prototypes of all
    members side by side, which ties it to their number; here of their mean, so that a pool may
    grow. And there each head sums embeddings; here the heads' mean weighs the members' scores, as
    every other rule does.
    """

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
        return self.attention(prototypes).mean(1)
