"""Which classes are large enough for a shape, and what to say of those that are not."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyshot.data.domain import Domain
from polyshot.data.draws import allows, most_shots
from polyshot.data.shapes import EpisodeShape, VariableShape
from polyshot.errors import PolyshotError, join_names


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
            raise PolyshotError(
                f"{self.domain.name}: {len(ids)} classes in the part '{part}', "
                f"{need} ways are asked for. Lower the way or choose another part."
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
        sizes = self._group_sizes(class_id)
        most = min(self.shape.max_queries, int(sizes.sum()) // 2)
        return next((q for q in range(most, 0, -1) if allows(sizes, 1, q)), 0)

    def most_shots(self, class_id: int, queries: int) -> int:
        """Return how many shots a class serves beside its queries."""
        return most_shots(self._group_sizes(class_id), queries)

    def _fits(self, class_id: int) -> bool:
        if isinstance(self.shape, VariableShape):
            return self.most_queries(class_id) > 0
        return allows(self._group_sizes(class_id), self.shape.shot, self.shape.queries)

    def _group_sizes(self, class_id: int) -> NDArray[np.int64]:
        """Return the sizes of a class's groups; without groups each image is one of its own."""
        ids = self.members[class_id]
        if not self.group_disjoint:
            return np.ones(len(ids), dtype=np.int64)
        assert self.domain.groups is not None
        return np.unique(self.domain.groups[ids], return_counts=True)[1]

    def _complaint(self, small: Sequence[int], remedy: str) -> str:
        def there(class_id: int) -> str:
            sizes = self._group_sizes(class_id)
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
