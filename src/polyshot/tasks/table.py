"""A table of images, and the one function that embeds: what networks make of images, made once.

n images, d entries an embedding. What a frozen network makes of a table is computed once, for all
who ask, and may be kept on disk by its content.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.models.backbone import Snapshot, fused, state_hash
from polyshot.models.views import MEAN, STD, VIEWS, Views, normalise, over_views
from polyshot.util.device import bf16_on, for_device, in_parts
from polyshot.util.files import digest, new_file
from polyshot.util.progress import Progress
from polyshot.util.tensors import write_array

Network = Callable[[Tensor], Tensor]
"""Normalised images [B, 3, H, W] to embeddings [B, d]; usually a module."""
Pixels = NDArray[np.uint8] | Tensor
"""uint8 ``[n, 3, size, size]`` (an array, also a memory map, or a tensor), or float in [0, 1]."""

BATCH = {"cpu": 80, "cuda": 2048}
"""Images of `USUAL` pixels a side that a network sees at once, views counted; of larger ones fewer.
On a CPU what a layer makes of them should stay in its caches."""
USUAL = 72
TINY, HUGE = 1e-9, 1e15
"""Between them lies the largest entry of embeddings that can be compared."""


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
    """Images that a network sees at once, views counted; by default as suits the device."""
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
            if extreme := out_of_range(made):
                raise PolyshotError(
                    f"A network's embeddings {extreme}: scale its output, so that entries are "
                    "about 1."
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
            return embed(network, self.images(positions), self.views, together=True)

        # Every pass costs launches, and brings kernels into order: all views of images are one.
        parts, passed = [], self.batch or self._batch(network)
        step = max(1, passed // len(VIEWS[self.views]))
        for part, made in in_parts(self.count, step, work):
            parts.append(made)
            if self.report:
                self.report(self.name, part.stop, self.count)
        return torch.cat(parts)

    def _batch(self, network: Network) -> int:
        """Say how many images to show a network at once; one from elsewhere may enlarge them."""
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


def out_of_range(embeddings: Tensor) -> str:
    """Say what is wrong with entries whose squares float32 cannot tell from 0 or infinity."""
    largest = float(embeddings.abs().max()) if embeddings.numel() else 0.0
    if largest == 0 or TINY <= largest <= HUGE:
        return ""
    return f"have entries of {largest:.0e} at most, which cannot be compared in single precision"


def embed(network: Network, pixels: Tensor, views: Views = "one", together: bool = False) -> Tensor:
    """Embed normalised images with a network, over the views: ``[..., 3, S, S] -> [..., d]``.

    On a GPU it computes in bf16; the embeddings are float32 in any case. No gradient flows. It sees
    the views one after the other, or all `together` (`models.views.over_views`).
    """

    def once(images: Tensor) -> Tensor:
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        made = network(images)
        return made.to(torch.promote_types(made.dtype, torch.float32))

    with torch.no_grad(), bf16_on(pixels.device):
        return over_views(once, pixels, views, together)


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
