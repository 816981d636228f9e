"""A classifier's examples, as it keeps them: to learn from again, and to look at.

Embeddings are kept as they are, and images in the sizes of the networks: small ones (`LOSSLESS`)
without loss, larger ones as good photographs. So whoever goes on from a saved classifier learns
from what its first fit has seen. n examples, d entries an embedding.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, features
from torch import Tensor

from polyshot.data.images import BadImage, decode
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.tasks import Table, Tasks
from polyshot.util.device import cores

LOSSLESS = 96
"""Side length in pixels up to which images are kept without loss, about 9 KB each at 72."""
QUALITY = 90
"""Of larger ones, WebP's: about 15 KB each at 224."""


@dataclass(eq=False)
class Examples:
    """n labelled images and what networks make of them."""

    labels: Tensor
    """int64 ``[n]``: places among the classes."""
    names: list[str]
    """Of files, for people; empty where an image came from elsewhere."""
    embeddings: list[list[Tensor]]
    """Of each pool and each of its networks that has a say, raw ``[n, d]``, on the CPU."""
    images: Mapping[int, "Pictures"]
    """By side length; none where users bring embeddings."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def task(self) -> Tasks:
        """The one task that they are, on a table without images."""
        return Tasks.of_examples(Table(None, len(self), torch.device("cpu")), self.labels)

    def support(self, pool: int) -> list[Tensor]:
        """Return what a pool's networks see in the task: ``[1, W, S, d]`` each."""
        places = self.task.support[0]
        return [own[places].unsqueeze(0) for own in self.embeddings[pool]]

    def table(self, pool: Pool, batch: int | None) -> Table:
        """Return the table of their images, as a pool looks at them; decoded when it is asked."""
        if pool.size not in self.images:
            return Table(None, len(self), pool.device)
        pictures = self.images[pool.size]

        def take(positions: Tensor) -> Tensor:
            return torch.from_numpy(pictures.pixels[positions.cpu().numpy()]).to(pool.device)

        return Table(take, len(self), pool.device, pool.views, batch=batch)


class Pictures:
    """Images of one size, each as pixels ``[3, size, size]`` or as the bytes of a small file.

    They are decoded and encoded when they are asked for, once.
    """

    def __init__(self, size: int, items: Iterable[NDArray[np.uint8] | bytes]) -> None:
        self.size = size
        self._items = list(items)

    def joined(self, rows: Sequence[int], more: "Pictures | None") -> "Pictures":
        """Return some of these images, and others behind them."""
        others = [] if more is None else more._items
        return Pictures(self.size, [*(self._items[row] for row in rows), *others])

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """``[n, 3, size, size]``."""
        with ThreadPoolExecutor(cores()) as threads:
            made = list(threads.map(self._decoded, self._items))
        return np.stack(made)

    def _decoded(self, item: NDArray[np.uint8] | bytes) -> NDArray[np.uint8]:
        made = decode(item, self.size) if isinstance(item, bytes) else item
        if isinstance(made, BadImage):
            raise PolyshotError("Its examples cannot be read: the file is damaged.")
        return made

    @cached_property
    def files(self) -> list[bytes]:
        """As files, one an image."""
        with ThreadPoolExecutor(cores()) as threads:
            return list(threads.map(_encoded, self._items))


def _encoded(item: NDArray[np.uint8] | bytes) -> bytes:
    return item if isinstance(item, bytes) else encode(item)


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """Write an image [3, size, size] as a small file; without loss where it is small itself."""
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    options: dict[str, Any] = {"lossless": True, "quality": 60, "method": 4}
    if len(pixels[0]) > LOSSLESS:
        options = {"quality": QUALITY, "method": 4}
    kind = "WEBP" if features.check("webp") else "PNG"
    file = io.BytesIO()
    image.save(file, kind, **(options if kind == "WEBP" else {"optimize": True}))
    return file.getvalue()


def rows_of(support: Tensor, tasks: Tasks) -> Tensor:
    """Bring what a network sees in the only task, ``[1, W, S, d]``, into the table's order."""
    there, rows = tasks.present[0].cpu(), tasks.support[0].cpu()
    made = support.new_zeros(tasks.table.count, support.shape[-1], device="cpu")
    made[rows[there]] = support[0].cpu()[there]
    return made
