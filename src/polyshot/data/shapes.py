"""Shapes of episodes, N-way K-shot and Meta-Dataset's variable one; which classes serve them."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.data.pack import Domain
from polyshot.errors import PolyshotError, join_names
from polyshot.util.counter_rng import uniform

LARGEST = 100_000
"""Ways, shots or queries of an episode at most."""


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
        if max(self.way, self.shot, self.queries) > LARGEST:
            raise PolyshotError(f"An episode has at most {LARGEST:,} ways, shots or queries.")

    def __str__(self) -> str:
        return f"{self.way} ways, {self.shot} shots and {self.queries} queries"


META_DATASET = "meta-dataset"
"""What commands and results call tasks of a `VariableShape`."""


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
        return f"{self.min_way} to {self.max_way} ways, uneven shots"


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
    Of episodes `numbers` ``[E]`` in the random stream `key`, with W the most ways there can be,
    `sizes` ``[W, E]`` are the images of each drawn class, `most_queries` ``[W, E]`` the queries
    that it can serve at most, `most_shots` ``[W, E, max_queries + 1]`` the shots beside q queries.
    Returns shots and queries of each class, int64 ``[W, E]``, both 0 for the ways an episode lacks.
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


class Capacity:
    """What each class of a domain can serve; where groups must stay apart, with that in mind."""

    def __init__(self, domain: Domain, shape: EpisodeShape | VariableShape, group_disjoint: bool):
        self.domain, self.shape, self.group_disjoint = domain, shape, group_disjoint
        order = np.argsort(domain.labels, kind="stable")
        self.members = np.split(order, np.cumsum(domain.class_sizes)[:-1])
        """Image ids of each class, ascending."""

    def usable_classes(self, part: str, drop_small: bool) -> tuple[int, ...]:
        """Find the classes large enough for the shape; refuse small ones unless dropped."""
        ids = self.domain.split.part(part)
        need = self.shape.min_way if isinstance(self.shape, VariableShape) else self.shape.way
        if len(ids) < need:
            fixed = isinstance(self.shape, EpisodeShape)
            remedy = "Lower the way" if fixed else "Take a fixed shape with fewer ways"
            raise PolyshotError(
                f"{self.domain.name}: {len(ids)} classes in the part '{part}', "
                f"{need} ways are asked for. {remedy} or choose another part."
            )
        small = [i for i in ids if not self._fits(i)]
        if small and not drop_small:
            raise PolyshotError(self._complaint(small, "pass --drop-small to leave them out"))
        usable = tuple(i for i in ids if i not in set(small))
        if len(usable) < need:
            left = f"{len(usable)} classes are left for {need} ways"
            raise PolyshotError(self._complaint(small, left))
        return usable

    def most_queries(self, class_id: int) -> int:
        """Return how many queries a class serves in a variable episode: at most half its images."""
        assert isinstance(self.shape, VariableShape)
        sizes = self.group_sizes(class_id)
        most = min(self.shape.max_queries, int(sizes.sum()) // 2)
        return next((q for q in range(most, 0, -1) if allows(sizes, 1, q)), 0)

    def _fits(self, class_id: int) -> bool:
        if isinstance(self.shape, VariableShape):
            return self.most_queries(class_id) > 0
        return allows(self.group_sizes(class_id), self.shape.shot, self.shape.queries)

    def group_sizes(self, class_id: int) -> NDArray[np.int64]:
        """Return the sizes of a class's groups; without groups each image is one of its own."""
        ids = self.members[class_id]
        if not self.group_disjoint:
            return np.ones(len(ids), dtype=np.int64)
        assert self.domain.groups is not None
        return np.unique(self.domain.groups[ids], return_counts=True)[1]

    def _complaint(self, small: Sequence[int], remedy: str) -> str:
        def there(class_id: int) -> str:
            sizes = self.group_sizes(class_id)
            grouped = f" in {len(sizes)} groups" if self.group_disjoint else ""
            return f"'{self.domain.class_names[class_id]}' has {sizes.sum()} images{grouped}"

        shape = self.shape
        needed = f"{shape.shot} + {shape.queries}" if isinstance(shape, EpisodeShape) else "2"
        apart = ", with no group in both support and query" if self.group_disjoint else ""
        return (
            f"{self.domain.name}: {len(small)} classes are too small, {needed} images are needed"
            f"{apart}: {join_names(map(there, small), limit=3)}. Lower the shots or queries, or "
            f"{remedy}."
        )


def allows(group_sizes: NDArray[np.int64], shots: int, queries: int) -> bool:
    """Whether a class can serve support and query that share no group, in whatever order drawn.

    At most ``shots - 1`` images are touched when the next group is opened, so a group of at most
    ``n - (shots - 1) - queries`` images may always be opened; such groups must hold enough images.
    Without groups each image is a group of one, and this says ``n >= shots + queries``.
    """
    largest = group_sizes.sum() - (shots - 1) - queries
    return bool(group_sizes[group_sizes <= largest].sum() >= shots)


def most_shots(group_sizes: NDArray[np.int64], queries: int) -> int:
    """Largest number of shots that the class allows beside its queries; 0 if none."""
    shots = range(1, int(group_sizes.sum()) + 1)
    return bisect_left(shots, True, key=lambda shot: not allows(group_sizes, shot, queries))


MOST_CLASSES = 0.8
"""Share of the classes that must be large enough: a few small ones must not make tasks small."""


def fitting_classes(
    domain: Domain, shape: EpisodeShape, part: str = "all", group_disjoint: bool = True
) -> tuple[int, ...]:
    """List the classes of a part that are large enough for a shape."""
    one = EpisodeShape(1, shape.shot, shape.queries)
    capacity = Capacity(domain, one, group_disjoint and domain.groups is not None)
    try:
        return capacity.usable_classes(part, drop_small=True)
    except PolyshotError:  # not even one
        return ()


def largest_shape(
    domain: Domain,
    most: EpisodeShape,
    part: str = "all",
    group_disjoint: bool = True,
    wished: Callable[[EpisodeShape], EpisodeShape] = lambda shape: shape,
) -> EpisodeShape | None:
    """Find the largest tasks, no larger than `most`, that most classes of a part allow.

    Two thirds of the images of a small class are support, one third queries; `wished` changes what
    is tried. None where fewer than two classes have two images each.
    """
    usable = len(fitting_classes(domain, EpisodeShape(1, 1, 1), part, group_disjoint))
    if usable < 2:
        return None
    shape = most
    for images in range(most.shot + most.queries, 1, -1):
        shot = min(most.shot, images - max(1, images // 3))
        queries = min(most.queries, images - shot)
        shape = wished(EpisodeShape(min(most.way, usable), shot, queries))
        needed = max(shape.way, ceil(MOST_CLASSES * usable))
        if len(fitting_classes(domain, shape, part, group_disjoint)) >= needed:
            break
    return shape  # where even the last is too large, the sampler says why
