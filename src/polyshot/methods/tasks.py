"""Batches of tasks as embeddings: what rules and read-outs see, never an image.

E episodes, W ways, S shots, Q queries, M members, d entries an embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from polyshot.errors import PolyshotError


class TaskBatch(Protocol):
    """Anything that gives the embeddings of one member, of all episodes or of some `rows`."""

    @property
    def mask(self) -> Tensor | None:
        """Bool [E, W, S], True where there is an image; None where shots are even."""

    def __len__(self) -> int: ...

    def support_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the raw support embeddings of one member, [E, W, S, d]."""

    def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the raw query embeddings of one member, [E, Q, d]."""


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks whose embeddings lie side by side."""

    support: Tensor
    """Float [M, E, W, S, d], raw embeddings."""
    query: Tensor
    """Float [M, E, Q, d]."""
    mask: Tensor | None = None
    """Bool [E, W, S], True where there is an image."""

    def __post_init__(self) -> None:
        if self.support.shape[:2] != self.query.shape[:2]:
            raise PolyshotError(
                f"Support {list(self.support.shape)} and query {list(self.query.shape)} differ in "
                "members or episodes."
            )
        _check_mask(self.mask, self.support[0, ..., 0])

    def __len__(self) -> int:
        return self.support.shape[1]

    def support_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the raw support embeddings of one member, [E, W, S, d]."""
        return self.support[member] if rows is None else self.support[member, rows]

    def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the raw query embeddings of one member, [E, Q, d]."""
        return self.query[member] if rows is None else self.query[member, rows]


@dataclass(frozen=True, eq=False)
class IndexedTasks:
    """Tasks as positions in a table of embeddings; only what is asked for is gathered."""

    embeddings: Mapping[int, Tensor]
    """Float [n, d] by member; members that no rule asks for may be missing."""
    support: Tensor
    """int64 [E, W, S], positions in the table; what the mask hides may be any number."""
    query: Tensor
    """int64 [E, Q]."""
    mask: Tensor | None = None
    """Bool [E, W, S], True where there is an image."""

    def __post_init__(self) -> None:
        _check_mask(self.mask, self.support)

    def __len__(self) -> int:
        return len(self.support)

    def support_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Gather the raw support embeddings of one member, [E, W, S, d]."""
        positions = self.support if self.mask is None else self.support.where(self.mask, 0)
        return self._gather(member, positions, rows)

    def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Gather the raw query embeddings of one member, [E, Q, d]."""
        return self._gather(member, self.query, rows)

    def _gather(self, member: int, positions: Tensor, rows: Tensor | None) -> Tensor:
        if rows is not None:
            positions = positions[rows]
        table = self.embeddings[member]
        return table.index_select(0, positions.flatten()).view(*positions.shape, -1)


def _check_mask(mask: Tensor | None, support: Tensor) -> None:
    """Refuse classes without a support image; `support` is any [E, W, S]."""
    if mask is not None and mask.shape != support.shape:
        raise PolyshotError(f"The mask must be {list(support.shape)}, not {list(mask.shape)}.")
    empty = support.shape[-1] == 0 if mask is None else not bool(mask.any(-1).all())
    if empty:
        raise PolyshotError("A class has no support image: give each class at least one.")
