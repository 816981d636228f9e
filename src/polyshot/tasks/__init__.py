"""Tasks: the one type that rules, adaptations and methods see; a table of images lies below them.

E tasks, W ways, S shots, Q queries, d entries an embedding. A task is positions into a table of
images. A user's own examples are a batch of one task.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.views import Views
from polyshot.tasks.table import (
    BATCH,
    MAKING,
    EmbeddingCache,
    Network,
    Pixels,
    Table,
    embed,
    for_prediction,
    out_of_range,
)

__all__ = [
    "BATCH",
    "MAKING",
    "EmbeddingCache",
    "Network",
    "Pixels",
    "Queries",
    "Table",
    "Tasks",
    "draw_tasks",
    "embed",
    "for_prediction",
    "out_of_range",
    "pick",
]


@dataclass(frozen=True, eq=False)
class Queries:
    """Images to classify, task by task."""

    table: Table
    query: Tensor
    """int64 ``[E, Q]`` positions in the table, on its device."""

    def __len__(self) -> int:
        return len(self.query)

    def viewed(self, views: Views) -> Self:
        """Return the same, with images looked at in another way."""
        return replace(self, table=self.table.viewed(views))

    def query_of(self, network: Network, rows: Tensor | None = None) -> Tensor:
        """Embed queries with a network, of all tasks or of some: raw ``[E, Q, d]``."""
        return _gather(self.table.embed(network), self.query, rows)

    def of_task(self, row: Tensor) -> "Queries":
        """Return the queries of the task ``[1]``, on a table without other images."""
        table, places = self.table, _rows(self.query, row)
        count = places.shape[1]
        if table.take is None or count >= table.count:
            return Queries(table, places)
        take = table.take

        def some(positions: Tensor) -> Tensor:
            return take(places[0, positions])

        own = replace(table, take=some, count=count, cache=None, content="")
        return Queries(own, torch.arange(count, device=places.device).unsqueeze(0))

    def query_images(self, rows: Tensor | None = None) -> Tensor:
        """Return the normalised query images of some tasks: ``[E, Q, 3, side, side]``."""
        return self.table.images(_rows(self.query, rows))


@dataclass(frozen=True, eq=False)
class Tasks(Queries):
    """E tasks of W classes: support sets, and queries beside them."""

    support: Tensor
    """int64 ``[E, W, S]`` positions; what the mask hides may be any number."""
    mask: Tensor | None = None
    """Bool ``[E, W, S]``, True where there is an image; None where shots are even."""
    labels: Tensor | None = None
    """int64 ``[E, Q]``, the way of each query, -1 where there is none; None where queries stand
    class by class, equally many of each."""
    classes: Tensor | None = None
    """int64 ``[E, W]`` class ids in the domain, where these are known."""

    def __post_init__(self) -> None:
        support, mask = self.support, self.mask
        if mask is not None and mask.shape != support.shape:
            raise PolyshotError(f"The mask must be {list(support.shape)}, not {list(mask.shape)}.")
        empty = support.shape[-1] == 0 if mask is None else not bool(mask.any(-1).all())
        if empty:
            raise PolyshotError("A class has no support image: give each class at least one.")

    @classmethod
    def of_examples(cls, table: Table, labels: Tensor) -> Self:
        """Make one task without queries of a table's images, by their labels [n], 0 to W - 1."""
        counts = labels.bincount()  # [W]
        order = labels.argsort(stable=True)
        ranked = labels[order]
        place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[ranked]
        longest = int(counts.max())
        support = torch.zeros(1, len(counts), longest, dtype=torch.int64)
        support[0, ranked, place] = order
        mask = (torch.arange(longest) < counts[:, None]).unsqueeze(0)
        nothing = torch.zeros(1, 0, dtype=torch.int64, device=table.device)
        return cls(table, nothing, support.to(table.device), mask.to(table.device))

    @property
    def way(self) -> int:
        """Classes of a task."""
        return self.support.shape[1]

    @property
    def shot(self) -> int:
        """Places of a class: its support images where shots are even, else those of the largest."""
        return self.support.shape[2]

    @property
    def device(self) -> torch.device:
        """Where the tasks are."""
        return self.support.device

    @property
    def present(self) -> Tensor:
        """The mask, bool ``[E, W, S]``, also where shots are even."""
        if self.mask is not None:
            return self.mask
        return torch.ones(self.support.shape, dtype=torch.bool, device=self.device)

    @property
    def shots(self) -> Tensor:
        """How many images a class of each task has, on average: float ``[E]``.

        On the CPU where shots are even: nobody waits for a GPU to know them.
        """
        if self.mask is None:
            return torch.full((len(self),), float(self.shot))
        return self.present.sum(-1).to(torch.get_default_dtype()).mean(-1)

    @property
    def truth(self) -> Tensor:
        """The way of each query: int64 ``[E, Q]``, -1 where there is none."""
        if self.labels is not None:
            return self.labels
        ways = torch.arange(self.way, device=self.device)
        return ways.repeat_interleave(self.query.shape[1] // self.way).expand(len(self), -1)

    def part(self, rows: slice | Tensor) -> Self:
        """Return some of the tasks; the table is shared."""

        def some(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        mask, labels, classes = some(self.mask), some(self.labels), some(self.classes)
        support, query = self.support[rows], self.query[rows]
        return replace(
            self, support=support, query=query, mask=mask, labels=labels, classes=classes
        )

    def trimmed(self) -> Self:
        """Leave out the last places of the support set that no class of these tasks fills."""
        if self.mask is None:
            return self
        longest = 1 + int(self.mask.flatten(0, 1).any(0).nonzero().max())
        return replace(self, support=self.support[..., :longest], mask=self.mask[..., :longest])

    def chunks(self, size: int) -> Iterator[Self]:
        """Cut the tasks into parts of at most `size`."""
        for start in range(0, len(self), max(1, size)):
            yield self.part(slice(start, start + max(1, size)))

    def held_out(self, known: Tensor, places: Tensor) -> Self:
        """Let some support images, those in `known` ``[E, W, S]``, classify others.

        `places` int64 ``[E, W, K]`` are those in each class of the images that are queries now,
        Q = W * K, class by class.
        """
        query = self._positions.gather(2, places).flatten(1)
        return replace(self, mask=known, query=query, labels=None)

    def support_of(self, network: Network, rows: Tensor | None = None) -> Tensor:
        """Embed support sets with a network, of all tasks or of some: raw ``[E, W, S, d]``."""
        return _gather(self.table.embed(network), self._positions, rows)

    def support_alone(self, network: Network, row: Tensor) -> Tensor:
        """Embed the support set of the task ``[1]``, no other image: raw ``[1, W, S, d]``."""
        only = Queries(self.table, self._positions.flatten(1)).of_task(row)
        return only.query_of(network).view(1, *self.support.shape[1:], -1)

    def embedded(self, network: Network) -> tuple[Tensor, Tensor]:
        """Embed with a network: support ``[E, W, S, d]`` and query ``[E, Q, d]``, raw."""
        table = self.table.embed(network)  # once, also where it is not kept
        return _gather(table, self._positions, None), _gather(table, self.query, None)

    def support_images(self, rows: Tensor | None = None) -> Tensor:
        """Return the normalised support images of some tasks: ``[E, W, S, 3, side, side]``.

        Where the mask hides a place, it holds any image.
        """
        return self.table.images(_rows(self._positions, rows))

    @property
    def _positions(self) -> Tensor:
        return self.support if self.mask is None else self.support.where(self.mask, 0)


def pick(values: Tensor, places: Tensor) -> Tensor:
    """Pick places int64 [E, W, K] of [E, W, S, ...]: [E, W, K, ...]."""
    places = places.to(values.device)
    index = places.view(*places.shape, *[1] * (values.ndim - 3))
    return values.gather(2, index.expand(*places.shape, *values.shape[3:]))


def draw_tasks(
    images: Images,
    source: int,
    sampler: EpisodeSampler,
    count: int,
    views: Views = "one",
    frozen: bool = False,
) -> Tasks:
    """Draw the first episodes of one of the packs whose images are at hand.

    With `frozen`, for networks that stay as they are, so that their embeddings are kept.
    """
    drawn = sampler(0, count)
    ids = torch.cat([drawn.support, drawn.query], 2)  # [E, W, S + Q]
    needed, positions = torch.unique(ids, return_inverse=True)
    take, positions = images.taker(images.places(source, needed)), positions.to(images.device)
    shot = drawn.support.shape[2]
    table = Table(take, len(needed), images.device, views, frozen)
    query = positions[..., shot:].flatten(1)
    return Tasks(table, query, positions[..., :shot], classes=drawn.classes)


def _rows(positions: Tensor, rows: Tensor | None) -> Tensor:
    return positions if rows is None else positions[rows.to(positions.device)]


def _gather(table: Tensor, positions: Tensor, rows: Tensor | None) -> Tensor:
    positions = _rows(positions, rows)
    return table.index_select(0, positions.flatten()).view(*positions.shape, -1)
