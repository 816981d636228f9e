"""A classifier's examples: as users hand them in, and as it keeps them, to learn from again.

Embeddings are kept as they are, and images in the sizes of the networks: small ones (`LOSSLESS`)
without loss, larger ones as good photographs. So whoever goes on from a saved classifier learns
from what its first fit has seen. n examples, d entries an embedding.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, features
from torch import Tensor

from polyshot.data.images import BadImage, decode
from polyshot.errors import PolyshotError, join_names
from polyshot.pool.pool import Pool
from polyshot.tasks import Table, Tasks, out_of_range
from polyshot.util.checks import BadValueError
from polyshot.util.device import cores

Label = str | int | float
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
            return list(threads.map(encode, self._items))


def encode(item: NDArray[np.uint8] | bytes) -> bytes:
    """Write an image [3, size, size] as a small file, which a file is already.

    Without loss where it is small itself.
    """
    if isinstance(item, bytes):
        return item
    image = Image.fromarray(np.ascontiguousarray(item.transpose(1, 2, 0)))
    options: dict[str, Any] = {"lossless": True, "quality": 60, "method": 4}
    if len(item[0]) > LOSSLESS:
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


def check_labels(labels: Sequence[Label] | None, images: int) -> list[Any]:
    """Return labels as plain text or numbers, one an image; refuses what is no labelling."""
    if images == 0:
        raise BadValueError("There are no images: give at least one of each class.")
    if labels is None:
        raise BadValueError("Labels are missing: give one for each image.")
    listed: list[Any]
    if hasattr(labels, "__array__") and not isinstance(labels, Tensor):
        listed = list(np.asarray(labels))
    elif isinstance(labels, str) or not isinstance(labels, Iterable):
        listed = [labels]
    else:
        listed = list(labels)
    values = [one.item() if getattr(one, "ndim", None) == 0 else one for one in listed]
    if len(values) != images:
        raise BadValueError(
            f"There are {len(values)} labels for {images} images: give one for each image."
        )
    # NaN, a table's empty cell, differs from itself.
    empty = [
        i
        for i, one in enumerate(values)
        if one is None
        or (isinstance(one, str) and not one.strip())
        or (isinstance(one, Real) and one != one)  # noqa: PLR0124
    ]
    if empty:
        raise BadValueError(f"Labels are missing for images[{join_names(map(str, empty))}].")
    strange = {type(one).__name__ for one in values if not isinstance(one, str | Real)}
    if strange or len({isinstance(one, str) for one in values}) > 1:
        what = join_names(sorted(strange)) if strange else "both"
        raise BadValueError(f"Labels are all text or all numbers, not {what}.")
    # The same as of class folders: a terminal would take some of these for commands.
    if hidden := sorted({one for one in values if isinstance(one, str) and not one.isprintable()}):
        raise BadValueError(
            f"There are classes whose names cannot be shown: rename {join_names(hidden)}."
        )
    return values


def find_classes(labels: Sequence[Any]) -> tuple[NDArray[Any], Tensor]:
    """Return the sorted classes and each label's place among them; there are at least two."""
    classes, indices = np.unique(np.asarray(labels), return_inverse=True)
    if len(classes) < 2:
        raise BadValueError(
            f"All images have the label '{classes[0]}', which is one class: give images of at "
            "least two."
        )
    return classes, torch.from_numpy(indices.astype(np.int64))


def embedding_length(given: Any) -> int:
    """Tell the length of embeddings ``[n, d]`` that come without a pool that knows it."""
    made = _as_tensor(given, "d")
    if made.ndim != 2:
        raise BadValueError(
            f"Embeddings are one array of floats [n, d], not {list(made.shape)}. Reshape your data."
        )
    if not made.shape[1]:
        raise BadValueError(
            f"Embeddings have 0 feature(s) (shape={tuple(made.shape)}) while a minimum of 1 is "
            "required."
        )
    return made.shape[1]


def _as_tensor(given: Any, dim: object) -> Tensor:
    if hasattr(given, "tocsr"):
        raise BadValueError(
            f"Sparse matrices are not supported: give dense embeddings [n, {dim}], .toarray()."
        )
    try:
        if isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
            given = torch.stack(list(given))
        if isinstance(given, Tensor):
            return given
        array = np.asarray(given)
        if array.dtype == object:
            if not array.ndim:
                raise TypeError("no rows")
            array = array.astype(np.float32)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError, RuntimeError):  # paths, pictures, rows of many lengths
        raise BadValueError(
            f"This pool takes embeddings, one array of floats [n, {dim}], not a "
            f"{type(given).__name__} of something else."
        ) from None


def check_embeddings(given: Any, dim: int) -> Tensor:
    """Return embeddings ``[n, d]`` as float32; refuses what are none of this length."""
    made = _as_tensor(given, dim)
    made = made.unsqueeze(0) if made.ndim == 1 and len(made) == dim else made
    if made.is_complex():
        raise BadValueError(f"Complex data not supported: embeddings are floats [n, {dim}].")
    if made.ndim != 2 or made.shape[1] != dim or made.dtype == torch.bool:
        raise BadValueError(
            f"This pool takes embeddings [n, {dim}], not {list(made.shape)} of "
            f"{str(made.dtype).removeprefix('torch.')}."
        )
    made = made.detach().float()
    if not len(made):
        raise BadValueError("There are no embeddings: give at least one.")
    if strange := (~made.isfinite().all(1)).nonzero().flatten().tolist():
        raise BadValueError(
            f"Embeddings are finite numbers, but not those of rows {join_names(strange)} (NaN or "
            "inf)."
        )
    if extreme := out_of_range(made):
        raise BadValueError(f"These embeddings {extreme}: scale them, so that entries are about 1.")
    return made


def example_tensors(examples: Examples) -> dict[str, Tensor]:
    """Lay examples out as named tensors."""
    tensors = {"labels": examples.labels}
    for i, pool in enumerate(examples.embeddings):
        for j, embeddings in enumerate(pool):
            tensors[f"embeddings.{i}.{j}"] = embeddings
    for size, pictures in examples.images.items():
        lengths = torch.tensor([len(file) for file in pictures.files])
        data = torch.frombuffer(bytearray(b"".join(pictures.files)), dtype=torch.uint8)
        tensors |= {f"images.{size}.lengths": lengths, f"images.{size}.data": data}
    return tensors


def read_examples(
    names: Sequence[str], sizes: Sequence[int], pools: int, tensors: Mapping[str, Tensor]
) -> Examples:
    """Read back what `example_tensors` laid out, for so many pools and images of these sizes."""
    embeddings: list[list[Tensor]] = []
    for i in range(pools):
        own: list[Tensor] = []
        while (each := tensors.get(f"embeddings.{i}.{len(own)}")) is not None:
            own.append(each)
        embeddings.append(own)
    images = {}
    for size in sizes:
        data = tensors[f"images.{size}.data"].numpy().tobytes()
        ends = tensors[f"images.{size}.lengths"].cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        files = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        images[size] = Pictures(size, files)
    labels = tensors["labels"]
    counts = {len(labels), len(names), *(len(e) for own in embeddings for e in own)}
    if len(counts) != 1:
        raise ValueError("numbers of examples differ")
    return Examples(labels, list(names), embeddings, images)
