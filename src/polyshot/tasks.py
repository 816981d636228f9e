"""Tasks: the one type that rules, adaptations and methods see, and the one function that embeds.

E tasks, W ways, S shots, Q queries, d entries an embedding. A task is positions into a table of
images. What a frozen network makes of the table is computed once, for all who ask; a user's own
examples are a batch of one task.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.backbone import Snapshot, fused, state_hash
from polyshot.models.views import MEAN, STD, Views, normalise, over_views
from polyshot.util.device import bf16_on, for_device, in_parts
from polyshot.util.files import digest, new_file, write_array
from polyshot.util.progress import Progress

Network = Callable[[Tensor], Tensor]
"""Normalised images [B, 3, H, W] to embeddings [B, d]; usually a module."""
Pixels = NDArray[np.uint8] | Tensor
"""uint8 ``[n, 3, size, size]`` (an array, also a memory map, or a tensor), or float in [0, 1]."""

BATCH = {"cpu": 80, "cuda": 2048}
"""Images of `USUAL` pixels a side that are embedded at once; of larger ones fewer. On a CPU what a
layer makes of them should stay in its caches."""
USUAL = 72


class EmbeddingCache:
    """A folder of ``<key>.npy`` files, each float32 ``[n, d]``; it may be deleted at any time."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> Tensor | None:
        """Return what is kept under a key, or None."""
        file = self.folder / f"{key}.npy"
        if not file.is_file():
            return None
        try:
            return torch.from_numpy(np.load(file))
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise PolyshotError(
                f"The cached embeddings {file} are damaged ({error}): delete this file."
            ) from None

    def put(self, key: str, embeddings: Tensor) -> None:
        """Keep embeddings under a key; a reader sees all of them or nothing."""
        with new_file(self.folder / f"{key}.npy") as file:
            write_array(file, embeddings.cpu().numpy())


@dataclass(eq=False)
class Table:
    """n images, and what networks make of them."""

    take: Callable[[Tensor], Tensor] | None
    """Positions int64 ``[k]`` -> images ``[k, 3, side, side]`` on the device, uint8 or float in
    [0, 1]; None where there are embeddings alone (`keep`)."""
    count: int
    """n."""
    device: torch.device
    views: Views = "one"
    """How often networks look at an image."""
    frozen: bool = True
    """Whether networks stay as they are between calls, so that their embeddings may be kept."""
    name: str = "images"
    """For progress: what is embedded."""
    report: Progress | None = None
    """Told how many images of how many a network has embedded."""
    batch: int | None = None
    """Images embedded at once; by default as suits the device."""
    cache: EmbeddingCache | None = None
    content: str = ""
    """Hash of the images, for the cache."""

    def __post_init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()
        self._siblings: dict[Views, Table] = {}

    @classmethod
    def of(
        cls,
        images: Pixels,
        device: torch.device,
        views: Views = "one",
        batch: int | None = None,
        report: Progress | None = None,
    ) -> "Table":
        """Make a table of images that are at hand."""

        def take(positions: Tensor) -> Tensor:
            if isinstance(images, Tensor):
                return images[positions.to(images.device)].to(device)
            # A copy out of the memory map: torch has no read-only tensors.
            return torch.from_numpy(np.array(images[positions.cpu().numpy()])).to(device)

        return cls(take, len(images), device, views, batch=batch, report=report)

    def embed(self, network: Network) -> Tensor:
        """Embed all images with a network in evaluation mode: float32 ``[n, d]`` on the device."""
        if not (self.frozen and isinstance(network, nn.Module)):
            return self._embed(network)
        ready = for_prediction(network)
        if ready not in self._kept:
            made = self._embed(ready) if self.cache is None else self._cached(ready)
            if not bool(made.isfinite().all()):
                raise PolyshotError(
                    "A network's embeddings are no finite numbers: its weights or strengths are "
                    "damaged or far too large. Take another pool."
                )
            self._kept[ready] = made
        return self._kept[ready]

    @cached_property
    def side(self) -> int:
        """Side length of the images in pixels."""
        return self.images(torch.zeros(1, dtype=torch.int64, device=self.device)).shape[-1]

    def viewed(self, views: Views) -> "Table":
        """Return the same images, looked at in another way; the same table each time."""
        if views == self.views:
            return self
        if views not in self._siblings:
            self._siblings[views] = replace(self, views=views)
        return self._siblings[views]

    def keep(self, network: nn.Module, embeddings: Tensor) -> None:
        """Take embeddings ``[n, d]`` that were made elsewhere for a network's."""
        self._kept[for_prediction(network)] = embeddings.to(self.device)

    def images(self, positions: Tensor) -> Tensor:
        """Return normalised images by their positions, ``[...]`` -> ``[..., 3, side, side]``."""
        if self.take is None:
            raise PolyshotError(
                "'blend' and 'tsa' run networks of the task's own on its images, but these tasks "
                "are embeddings alone: give their images, or take another rule and adaptation."
            )
        pixels = normalise(self.take(positions.flatten()))
        return pixels.view(*positions.shape, *pixels.shape[1:])

    def _embed(self, network: Network) -> Tensor:
        def work(part: slice) -> Tensor:
            positions = torch.arange(part.start, part.stop, device=self.device)
            return embed(network, self.images(positions), self.views)

        parts, step = [], self.batch or self._batch(network)
        for part, made in in_parts(self.count, step, work):
            parts.append(made)
            if self.report:
                self.report(self.name, part.stop, self.count)
        return torch.cat(parts)

    def _batch(self, network: Network) -> int:
        """Say how many images to embed at once; a network from elsewhere may enlarge them."""
        own = getattr(getattr(network, "config", None), "size", 0)
        side = max(self.side, own, USUAL)
        return max(1, for_device(BATCH, self.device) * USUAL**2 // side**2)

    def _cached(self, network: nn.Module) -> Tensor:
        assert self.cache is not None
        precision = "bfloat16" if self.device.type == "cuda" else "float32"
        key = digest(self.content, network_hash(network), self.views, precision)
        made = self.cache.get(key)
        if made is None or len(made) != self.count:
            made = self._embed(network)
            self.cache.put(key, made)
        return made.to(self.device)


def embed(network: Network, pixels: Tensor, views: Views = "one") -> Tensor:
    """Embed normalised images with a network, over the views: ``[..., 3, S, S] -> [..., d]``.

    On a GPU it computes in bf16; the embeddings are float32 in any case. No gradient flows.
    """

    def once(images: Tensor) -> Tensor:
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        made = network(images)
        return made.to(torch.promote_types(made.dtype, torch.float32))

    with torch.no_grad(), bf16_on(pixels.device):
        return over_views(once, pixels, views)


def for_prediction(network: nn.Module) -> nn.Module:
    """Return a network's copy with batch norms folded away, made once as long as it stays as it is.

    Such a copy of a copy is itself.
    """
    if getattr(network, "for_prediction", False):
        return network
    with MAKING:
        known = _READY.get(network)
        if known is None or not known[0].holds():
            ready = fused(network)
            ready.for_prediction = True  # type: ignore[assignment]
            known = _READY[network] = Snapshot(network), ready
        return known[1]


MAKING = threading.RLock()
"""Held by who makes a network that others ask for, too: threads must get the same one."""
_READY: WeakKeyDictionary[nn.Module, tuple[Snapshot, nn.Module]] = WeakKeyDictionary()
_HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def network_hash(network: nn.Module) -> str:
    """Hash what the embeddings of a network for prediction depend on, once: it never changes.

    These are its weights, and how images are normalised.
    """
    if network not in _HASHES:
        _HASHES[network] = digest(repr((MEAN, STD)), state_hash(network))
    return _HASHES[network]


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
        """How many images a class of each task has, on average: float ``[E]``."""
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
