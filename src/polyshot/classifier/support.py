"""A user's labelled images as one task: W classes, S places in the largest, d an embedding."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.embedding import embed_batches, fused
from polyshot.errors import PolyshotError, join_names
from polyshot.models.normalise import normalise
from polyshot.models.resnet import ResNet
from polyshot.pool.pool import Pool

Label = str | int | float


class Members:
    """The networks of a pool's members, made once: images may come one at a time."""

    def __init__(self, pool: Pool, batch: int) -> None:
        self.pool, self.batch = pool, batch
        self.networks: dict[int, ResNet] = {}

    def embed(self, members: Iterable[int], images: NDArray[np.uint8]) -> dict[int, Tensor]:
        """Embed uint8 [n, 3, size, size] with some members: float32 [n, d] by member."""
        done: dict[int, Tensor] = {}
        wanted = {member: self._source(member) for member in members}
        for source in set(wanted.values()):
            if source not in self.networks:
                self.networks[source] = fused(self.pool.network(source))
            # `cat` copies them out of inference mode, also where there is one batch only
            parts = embed_batches(self.networks[source], images, self.batch, views=self.pool.views)
            done[source] = torch.cat(list(parts))
        return {member: done[source] for member, source in wanted.items()}

    def keep(self, members: Iterable[int]) -> None:
        """Forget all networks but those of these members."""
        sources = {self._source(member) for member in members}
        self.networks = {source: self.networks[source] for source in sources}

    def _source(self, member: int) -> int:
        """Return the member itself, or 0 where its modulator has no strength: it is the base."""
        return member if member and self.pool.strengths[self.pool.members[member]] else 0


class Support:
    """The support set as a batch of one task (`methods.tasks.TaskBatch`).

    Members are embedded when they are asked for: `select` takes the base and the one it chooses.
    """

    def __init__(self, members: Members, images: NDArray[np.uint8], labels: Tensor) -> None:
        """Arrange images [n, 3, size, size] by their labels [n], 0 to W - 1."""
        self.members, self.images = members, images
        counts = labels.bincount()  # [W]
        order = labels.argsort(stable=True)
        ranked = labels[order]
        place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[ranked]
        self.positions = torch.zeros(1, len(counts), int(counts.max()), dtype=torch.int64)
        self.positions[0, ranked, place] = order
        self.mask = (torch.arange(int(counts.max())) < counts[:, None]).unsqueeze(0)
        self.embeddings: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return 1

    def support_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return the raw support embeddings of one member, [1, W, S, d]."""
        if member not in self.embeddings:
            self.embeddings |= self.members.embed([member], self.images)
        support = self.embeddings[member][self.positions]
        return support if rows is None else support[rows]

    def query_of(self, member: int, rows: Tensor | None = None) -> Tensor:
        """Return no queries, [1, 0, d]: a rule weighs members by the support set alone."""
        return self.support_of(member, rows)[:, 0, :0]

    def support_images(self, rows: Tensor) -> Tensor:
        """Return the normalised images, [1, W, S, 3, size, size], on the pool's device."""
        images = torch.from_numpy(self.images)[self.positions]
        way, places = self.positions.shape[1:]
        pixels = normalise(images.flatten(0, 2).to(self.members.pool.device))
        return pixels.view(1, way, places, *pixels.shape[1:])[rows.to(pixels.device)]

    def query_images(self, rows: Tensor) -> Tensor:
        """Return no queries, [1, 0, 3, size, size]."""
        return self.support_images(rows)[:, 0, :0]


def check_labels(labels: Sequence[Label] | None, images: int) -> tuple[NDArray[Any], Tensor]:
    """Return the sorted classes and each label's place among them; refuses what is no labelling."""
    if images == 0:
        raise PolyshotError("There are no images: give at least one of each class.")
    if labels is None:
        raise PolyshotError("Labels are missing: give one for each image.")
    listed: list[Any] = [labels] if isinstance(labels, str) else list(labels)
    values = [one.item() if getattr(one, "ndim", None) == 0 else one for one in listed]
    if len(values) != images:
        raise PolyshotError(
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
        raise PolyshotError(f"Labels are missing for images[{join_names(map(str, empty))}].")
    strange = {type(one).__name__ for one in values if not isinstance(one, str | Real)}
    if strange or len({isinstance(one, str) for one in values}) > 1:
        what = join_names(sorted(strange)) if strange else "both"
        raise PolyshotError(f"Labels are all text or all numbers, not {what}.")
    classes, indices = np.unique(np.asarray(values), return_inverse=True)
    if len(classes) < 2:
        raise PolyshotError(
            f"All images have the label '{classes[0]}': give images of at least two classes."
        )
    return classes, torch.from_numpy(indices.astype(np.int64))
