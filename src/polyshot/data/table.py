"""Images of several packs on the device, and the batches of step 1.

They lie there as uint8 when they fit, and are streamed from the memory maps when not: the batches
are the same. A *place* numbers the chosen images of all packs in one row.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.util import counter_rng

ROOM = 0.4
"""Share of the free memory that images may take; networks and activations need the rest."""
CHUNK = 2048
"""Images copied at once."""
AHEAD = 2
"""Batches that are read before they are asked for."""

Made = TypeVar("Made")


class Images:
    """The images of one part, ``train``, ``val`` or ``test``, of several packs of one size.

    `device` is where batches are wanted, `resident` whether to hold all images there; None decides
    by the free memory.
    """

    def __init__(
        self, packs: Sequence[Pack], part: str, device: torch.device, resident: bool | None = None
    ):
        self.packs, self.device = tuple(packs), device
        domains = [pack.domain for pack in packs]
        self.ids = [np.flatnonzero(np.isin(of.labels, of.split.part(part))) for of in domains]
        self.sizes = [len(ids) for ids in self.ids]
        self.starts = [0, *np.cumsum(self.sizes).tolist()]
        side = packs[0].size
        self._shape = (3, side, side)
        fits = self.starts[-1] * 3 * side * side <= ROOM * _free_memory(device)
        self.resident = fits if resident is None else resident
        self.index_device = device if self.resident else torch.device("cpu")
        """Where places are wanted."""
        self.classes = 0
        """Number of classes of all packs together."""
        labels, self._table = [], []
        for pack, ids, start in zip(self.packs, self.ids, self.starts[:-1], strict=True):
            classes = pack.domain.split.part(part)
            labels.append(self.classes + np.searchsorted(classes, pack.domain.labels[ids]))
            self.classes += len(classes)
            place_of_id = np.full(len(pack.domain.labels), -1, dtype=np.int64)
            place_of_id[ids] = start + np.arange(len(ids))
            self._table.append(torch.from_numpy(place_of_id).to(self.index_device))
        self.labels = torch.from_numpy(np.concatenate(labels)).to(self.index_device, torch.int64)
        """int64 ``[places]`` over the classes of all packs."""
        if self.resident:
            self._pixels = self._load()

    def places(self, source: int, ids: Tensor) -> Tensor:
        """Turn ids of one pack into places, of the same shape."""
        return self._table[source][ids.to(self.index_device)]

    def take(self, places: Tensor) -> Tensor:
        """Return uint8 ``[B, 3, S, S]``: on the device if resident, else in host memory."""
        if self.resident:
            return self._pixels.index_select(0, places)
        wanted = places.numpy()
        pinned = self.device.type == "cuda"
        batch = torch.empty((len(wanted), *self._shape), dtype=torch.uint8, pin_memory=pinned)
        source_of = np.searchsorted(self.starts, wanted, side="right") - 1
        for source in np.unique(source_of):
            rows = np.flatnonzero(source_of == source)
            ids = self.ids[source][wanted[rows] - self.starts[source]]
            batch.numpy()[rows] = self.packs[source].images[ids]
        return batch

    def bring(self, tensor: Tensor) -> Tensor:
        """Move what `take` returned, or indices, to the device."""
        return tensor.to(self.device, non_blocking=True)

    def taker(self, places: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what brings images to the device by their positions among these places."""
        return lambda wanted: self.bring(self.take(places[wanted.to(places.device)]))

    def _load(self) -> Tensor:
        pixels = torch.empty((self.starts[-1], *self._shape), dtype=torch.uint8, device=self.device)
        for pack, ids, start in zip(self.packs, self.ids, self.starts[:-1], strict=True):
            for first in range(0, len(ids), CHUNK):
                chunk = torch.from_numpy(pack.images[ids[first : first + CHUNK]])
                pixels[start + first : start + first + len(chunk)] = chunk
        return pixels


class Prefetch(Generic[Made]):
    """Makes the things of the next updates in a thread, unless not `ahead`: each when asked for."""

    def __init__(self, make: Callable[[int], Made], last: int, ahead: bool = True):
        self.make, self.last, self.ahead = make, last, ahead
        self._thread = ThreadPoolExecutor(1, "polyshot-images")
        self._coming: dict[int, Future[Made]] = {}

    def __call__(self, number: int) -> Made:
        """Return what belongs to an update."""
        if not self.ahead:
            return self.make(number)
        for each in range(number, min(number + AHEAD, self.last) + 1):
            if each not in self._coming:
                self._coming[each] = self._thread.submit(self.make, each)
        return self._coming.pop(number).result()

    def close(self) -> None:
        """Stop reading."""
        self._thread.shutdown(wait=True, cancel_futures=True)


class Batch(NamedTuple):
    """Images of one update, or one process's share of them."""

    images: Tensor
    """uint8 ``[B, 3, S, S]``."""
    labels: Tensor
    """int64 ``[B]`` over the classes of all packs."""
    sources: Tensor
    """int64 ``[B]`` which pack."""
    mirror: Tensor
    """bool ``[B]`` whether the domain allows mirroring."""


class Batches:
    """Random batches: a source of n images is drawn from with weight n ** sampling.

    The batch of an update is a function of (seed, number) alone; each process takes its slice, so
    that it does not depend on how many there are. With
    `sources` int64 [B], rows are of these instead.
    """

    def __init__(
        self,
        images: Images,
        batch: int,
        sampling: float,
        seed: int,
        last: int,
        rank: int = 0,
        world: int = 1,
        sources: Tensor | None = None,
    ):
        self.images, self.seed = images, seed
        self.slice = slice(rank * batch // world, (rank + 1) * batch // world)
        where = images.index_device
        sizes = torch.tensor(images.sizes, dtype=torch.float64)
        # Without the last bound, 1, which no random number reaches.
        shares = (sizes**sampling).cumsum(0) / (sizes**sampling).sum()
        self._bounds = shares[:-1].to(where, torch.float32)
        self._sizes = sizes.to(where, torch.float32)
        self._starts = torch.tensor(images.starts[:-1], device=where)
        self._mirror = torch.tensor([pack.domain.mirror for pack in images.packs], device=where)
        self._every = torch.arange(batch, device=where)
        self.rows = self._every[self.slice]
        """int64 ``[B]``: places of this process's images in the batch of all."""
        self._sources = None if sources is None else sources.to(where)
        self._made = Prefetch(self._make, last, ahead=not images.resident)

    def draw(self, number: int) -> Batch:
        """Return the batch of an update, on the device."""
        return Batch(*(self.images.bring(tensor) for tensor in self._made(number)))

    def partners(self, number: int, partner: Callable[[Tensor], Tensor]) -> tuple[Batch, Tensor]:
        """Return the images that others of an update are mixed with, and their places.

        ``partner(sources [joint batch])`` says for each place which one.
        """
        if len(self.rows) == len(self._every):
            raise ValueError("One process has all images of the batch.")
        sources = self._drawn(number, self._every)[0]
        places = partner(sources)[self.slice]
        return Batch(*(self.images.bring(tensor) for tensor in self._make(number, places))), places

    def close(self) -> None:
        """Stop reading ahead."""
        self._made.close()

    def _make(self, number: int, rows: Tensor | None = None) -> Batch:
        sources, random = self._drawn(number, self.rows if rows is None else rows)
        # 24 bits times a size below 2^24 never rounds up to the size.
        within = (random * self._sizes[sources]).to(torch.int64)
        places, mirror = self._starts[sources] + within, self._mirror[sources]
        return Batch(self.images.take(places), self.images.labels[places], sources, mirror)

    def _drawn(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the sources of some places of an update's batch, and a number in [0, 1) for each."""
        stream, sources = counter_rng.key("batch", self.seed, number), self._sources
        random = counter_rng.uniform(stream, rows, 2)  # [2, B]
        if sources is None:
            sources, random = torch.searchsorted(self._bounds, random[0], right=True), random[1:]
        else:
            sources = sources[rows]
        return sources, random[0]


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
