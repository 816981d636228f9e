"""Tasks with their images: what a method is given to classify.

E episodes, W ways, S shots, Q queries, d entries an embedding. Images lie in a table on the device
or are streamed to it; embeddings of frozen networks are made once for all who ask.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from polyshot.models.normalise import normalise
from polyshot.models.views import Views, over_views
from polyshot.util.device import bf16_on

Kept = WeakKeyDictionary[nn.Module, dict[Views, Tensor]]
"""Embeddings ``[n, d]`` of a table by networks."""

BATCH = {"cpu": 512, "cuda": 2048}
"""Images embedded at once."""


@dataclass(frozen=True, eq=False)
class ImageTasks:
    """E tasks as positions in a table of n images."""

    take: Callable[[Tensor], Tensor]
    """Positions int64 ``[k]`` -> uint8 images ``[k, 3, side, side]`` on the device."""
    count: int
    """n, the length of the table."""
    support: Tensor
    """int64 ``[E, W, S]`` positions, on the device."""
    query: Tensor
    """int64 ``[E, Q]`` positions."""
    frozen: bool = False
    """Whether networks stay as they are between calls, so that their embeddings may be kept."""
    views: Views = "one"
    """How often networks look at an image."""
    _kept: Kept = field(default_factory=WeakKeyDictionary)

    def __len__(self) -> int:
        return len(self.support)

    @property
    def way(self) -> int:
        """Classes of an episode."""
        return self.support.shape[1]

    @property
    def shot(self) -> int:
        """Support images of a class."""
        return self.support.shape[2]

    def part(self, rows: slice) -> "ImageTasks":
        """Return some of the tasks; what is kept of embeddings is shared."""
        return replace(self, support=self.support[rows], query=self.query[rows])

    def chunks(self, size: int) -> Iterator["ImageTasks"]:
        """Cut the tasks into parts of at most `size`."""
        for start in range(0, len(self), max(1, size)):
            yield self.part(slice(start, start + max(1, size)))

    def support_images(self) -> Tensor:
        """Return the normalised support images, class by class: ``[E, W * S, 3, side, side]``."""
        return self._images(self.support.flatten(1))

    def query_images(self) -> Tensor:
        """Return the normalised query images: ``[E, Q, 3, side, side]``."""
        return self._images(self.query)

    def table(self, network: nn.Module) -> Tensor:
        """Embed all images of the table with a network in evaluation mode: float32 ``[n, d]``."""
        kept = self._kept.setdefault(network, {}) if self.frozen else {}
        if self.views in kept:
            return kept[self.views]
        device, parts = self.support.device, []

        def embed(pixels: Tensor) -> Tensor:
            raw: Tensor = network(pixels.contiguous(memory_format=torch.channels_last))
            return raw.float()

        all_of_them = torch.arange(self.count, device=device)
        with torch.no_grad(), bf16_on(device):
            for positions in torch.split(all_of_them, BATCH[device.type]):
                pixels = normalise(self.take(positions))
                parts.append(over_views(embed, pixels, self.views))
        kept[self.views] = torch.cat(parts)
        return kept[self.views]

    def embedded(self, network: nn.Module) -> tuple[Tensor, Tensor]:
        """Embed with a network: support ``[E, W, S, d]`` and query ``[E, Q, d]``."""
        table = self.table(network)
        return _gather(table, self.support), _gather(table, self.query)

    def _images(self, positions: Tensor) -> Tensor:
        pixels = normalise(self.take(positions.flatten()))
        return pixels.view(*positions.shape, *pixels.shape[1:])


def _gather(table: Tensor, positions: Tensor) -> Tensor:
    return table.index_select(0, positions.flatten()).view(*positions.shape, -1)
