"""Batches of tasks: what rules and read-outs see, as embeddings and, where they must, as images.

E episodes, W ways, S shots, Q queries, M members, d entries an embedding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.models.normalise import normalise


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

    def support_images(self, rows: Tensor) -> Tensor:
        """Return the normalised support images of some episodes, [E, W, S, 3, side, side].

        Where the mask hides a place, it holds any image.
        """

    def query_images(self, rows: Tensor) -> Tensor:
        """Return the normalised query images of some episodes, [E, Q, 3, side, side]."""


def shots_of(tasks: TaskBatch, member: int = 0) -> Tensor:
    """Return how many images a class of each task has, on average: float [E].

    `member` is one that has embedded the support sets; it is asked only where shots are even.
    """
    if tasks.mask is not None:
        return tasks.mask.sum(-1).float().mean(-1)
    first = torch.arange(min(1, len(tasks)))  # one tells: embeddings are not picked for nothing
    return torch.full((len(tasks),), float(tasks.support_of(member, first).shape[2]))


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

    def support_images(self, rows: Tensor) -> Tensor:
        """Refuse: there are none."""
        raise _no_images()

    def query_images(self, rows: Tensor) -> Tensor:
        """Refuse: there are none."""
        raise _no_images()


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
    take: Callable[[Tensor], Tensor] | None = None
    """Positions int64 [k] -> uint8 images [k, 3, side, side], on the networks' device."""

    def __post_init__(self) -> None:
        _check_mask(self.mask, self.support)

    def __len__(self) -> int:
        return len(self.support)

    def support_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Gather the raw support embeddings of one member, [E, W, S, d]."""
        return self._gather(member, self._support(), rows)

    def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Gather the raw query embeddings of one member, [E, Q, d]."""
        return self._gather(member, self.query, rows)

    def support_images(self, rows: Tensor) -> Tensor:
        """Take the normalised support images of some episodes, [E, W, S, 3, side, side]."""
        return self._images(self._support()[rows.to(self.support.device)])

    def query_images(self, rows: Tensor) -> Tensor:
        """Take the normalised query images of some episodes, [E, Q, 3, side, side]."""
        return self._images(self.query[rows.to(self.query.device)])

    def _support(self) -> Tensor:
        return self.support if self.mask is None else self.support.where(self.mask, 0)

    def _images(self, positions: Tensor) -> Tensor:
        if self.take is None:
            raise _no_images()
        pixels = normalise(self.take(positions.flatten()))
        return pixels.view(*positions.shape, *pixels.shape[1:])

    def _gather(self, member: int, positions: Tensor, rows: Tensor | None) -> Tensor:
        if rows is not None:
            positions = positions[rows]
        table = self.embeddings[member]
        return table.index_select(0, positions.flatten()).view(*positions.shape, -1)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Tasks made from the support sets of others: some images classify others."""

    whole: TaskBatch
    mask: Tensor
    """Bool [E, W, S]: the support images that are left."""
    places: Tensor
    """int64 [E, W, K]: places in each class of the images that are queries now, Q = W * K."""

    def __len__(self) -> int:
        return len(self.whole)

    def support_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the whole support set of one member, [E, W, S, d]; the mask hides the rest."""
        return self.whole.support_of(member, rows)

    def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the raw embeddings of the images that were left out, [E, Q, d]."""
        return self._pick(self.whole.support_of(member, rows), rows)

    def support_images(self, rows: Tensor) -> Tensor:
        """Return the whole support set of some episodes, [E, W, S, 3, side, side]."""
        return self.whole.support_images(rows)

    def query_images(self, rows: Tensor) -> Tensor:
        """Return the images that were left out, [E, Q, 3, side, side]."""
        return self._pick(self.whole.support_images(rows), rows)

    def _pick(self, values: Tensor, rows: Tensor | None) -> Tensor:
        """Pick from [E, W, S, ...]: [E, W * K, ...]."""
        places = self.places if rows is None else self.places[rows.to(self.places.device)]
        return pick(values, places).flatten(1, 2)


def pick(values: Tensor, places: Tensor) -> Tensor:
    """Pick places int64 [E, W, K] of [E, W, S, ...]: [E, W, K, ...]."""
    places = places.to(values.device)
    index = places.view(*places.shape, *[1] * (values.ndim - 3))
    return values.gather(2, index.expand(*places.shape, *values.shape[3:]))


def _no_images() -> PolyshotError:
    return PolyshotError(
        "'blend' and 'tsa' run networks of the task's own on its images, but these tasks are "
        "embeddings alone: give their images, or take another rule and adaptation."
    )


def _check_mask(mask: Tensor | None, support: Tensor) -> None:
    """Refuse classes without a support image; `support` is any [E, W, S]."""
    if mask is not None and mask.shape != support.shape:
        raise PolyshotError(f"The mask must be {list(support.shape)}, not {list(mask.shape)}.")
    empty = support.shape[-1] == 0 if mask is None else not bool(mask.any(-1).all())
    if empty:
        raise PolyshotError("A class has no support image: give each class at least one.")
