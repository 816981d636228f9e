"""Shapes of episodes: fixed N-way K-shot, and Meta-Dataset's variable one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.util.counter_rng import uniform


@dataclass(frozen=True)
class EpisodeShape:
    """N-way K-shot with the same numbers in every episode."""

    way: int = 5
    """Classes in an episode."""
    shot: int = 5
    """Support images of each class."""
    queries: int = 10
    """Query images of each class."""

    def __post_init__(self) -> None:
        if min(self.way, self.shot, self.queries) < 1:
            raise PolyshotError(f"{self} make no episode: each number must be at least 1.")

    def __str__(self) -> str:
        return f"{self.way} ways, {self.shot} shots and {self.queries} queries"


@dataclass(frozen=True)
class VariableShape:
    """Meta-Dataset's variable-way variable-shot episodes (Triantafillou et al. 2020, section 3).

    The way is uniform, classes are uniform, the support set grows with the classes' sizes up to a
    limit, shots are uneven and roughly proportional to the classes' sizes.
    """

    min_way: int = 5
    max_way: int = 50
    max_queries: int = 10
    """Queries of each class: this many, or half of the smallest class."""
    max_support: int = 500
    """Support images of all classes together."""
    max_support_per_class: int = 100
    """What one class can add to the support set's size."""

    def __post_init__(self) -> None:
        smallest = min(self.max_queries, self.max_support_per_class, self.min_way)
        if smallest < 1 or self.max_way < self.min_way or self.max_support < self.max_way:
            raise PolyshotError(f"{self!r} makes no episode.")

    def __str__(self) -> str:
        return f"{self.min_way} to {self.max_way} ways and variable shots"


def variable_numbers(
    shape: VariableShape,
    key: int,
    numbers: Tensor,
    sizes: Tensor,
    most_queries: Tensor,
    most_shots: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw each episode's way, shots and queries by Meta-Dataset's rule.

    Runs on the CPU in double precision whatever the device: a rounding must not change an episode.

    Args:
        shape: the limits.
        key: of the random stream.
        numbers: episode numbers ``[E]``.
        sizes: images of each drawn class ``[W, E]``, W the most ways there can be.
        most_queries: queries that each class can serve at most, ``[W, E]``.
        most_shots: shots that each class can serve beside q queries, ``[W, E, max_queries + 1]``.

    Returns:
        Shots and queries of each class, int64 ``[W, E]``, both 0 for the ways an episode lacks.

    """
    most_way, count = sizes.shape

    random = uniform(key, numbers, 2 + most_way).double()
    way = shape.min_way + (random[:1] * (most_way - shape.min_way + 1)).long()  # [1, E]
    absent = torch.arange(most_way)[:, None] >= way
    queries = most_queries.masked_fill(absent, shape.max_queries).amin(0)  # [E]
    room = most_shots.gather(2, queries.expand(most_way, count)[..., None])[..., 0]
    room = room.masked_fill(absent, 0)
    beta = 1 - random[1:2]  # in (0, 1]
    share = torch.ceil(beta * room.clamp(max=shape.max_support_per_class))
    total = share.sum(0, keepdim=True).clamp(max=shape.max_support)  # [1, E]
    weight = 4 ** random[2:] / 2 * sizes  # exp(U(log 1/2, log 2)) times the size
    weight = weight.masked_fill(absent, 0)
    shots = (weight / weight.sum(0, keepdim=True) * (total - way)).floor().long() + 1
    shots = torch.minimum(shots, room)
    return shots, queries.expand(most_way, count).masked_fill(absent, 0)
