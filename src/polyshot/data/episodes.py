"""Episodes: N-way K-shot tasks as index tensors, thousands at once, the same on every machine.

An episode is a pure function of (domain, part of its class split, shape, seed, number): any slice
of episodes can be made alone, on CPU or GPU, with the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.data.pack import Domain
from polyshot.data.shapes import Capacity, EpisodeShape, VariableShape, most_shots, variable_numbers
from polyshot.errors import PolyshotError
from polyshot.util import counter_rng
from polyshot.util.counter_rng import bits, uniform
from polyshot.util.files import digest, new_file

CHUNK = 1 << 21
"""Elements of a working tensor: small enough for the caches, large enough to amortise a call."""


@dataclass(frozen=True)
class Episodes:
    """A slice of episodes as positions in the domain's pack; -1 pads them to the widest one."""

    support: Tensor
    """int64 ``[E, way, shot]``."""
    query: Tensor
    """int64 ``[E, way, queries]``."""
    classes: Tensor
    """int64 ``[E, way]`` class ids in the domain."""

    def __len__(self) -> int:
        return len(self.support)

    def fingerprint(self) -> str:
        """Hash of the indices: two machines with the same one have drawn the same episodes."""
        tensors = vars(self).values()
        return digest(*(tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors))

    def save(self, path: Path) -> None:
        """Write the indices as ``support``, ``query`` and ``classes`` of a numpy archive."""
        with new_file(path) as file:
            arrays = {name: tensor.cpu().numpy() for name, tensor in vars(self).items()}
            np.savez_compressed(file, **arrays)


class EpisodeSampler:
    """Draws the episodes of one domain: ``sampler(0, 600)`` makes the first 600.

    `part` is ``train``, ``val``, ``test`` or ``all`` of its classes. With `group_disjoint`, support
    and query never share a group, where the domain has groups. With `drop_small`, classes that are
    too small for the shape are left out, instead of refused. `device` is where the tensors are
    made; the answer is the same everywhere.
    """

    def __init__(
        self,
        domain: Domain,
        shape: EpisodeShape | VariableShape | None = None,
        *,
        part: str = "test",
        seed: int = 0,
        group_disjoint: bool = True,
        drop_small: bool = False,
        device: torch.device | str = "cpu",
    ):
        self.domain, self.shape, self.part, self.seed = domain, shape or EpisodeShape(), part, seed
        self.group_disjoint = group_disjoint and domain.groups is not None
        self.device = torch.device(device)
        capacity = Capacity(domain, self.shape, self.group_disjoint)
        self.class_ids = capacity.usable_classes(part, drop_small)
        self._make_tables(capacity)
        self.key = counter_rng.key(
            domain.layout_hash, self.class_ids, self.shape, seed, self.group_disjoint
        )

    def __call__(self, start: int, stop: int) -> Episodes:
        """Make the episodes ``start`` to ``stop - 1``."""
        if not 0 <= start < stop:
            raise PolyshotError(f"There are no episodes from {start} to {stop}.")
        step = max(1, CHUNK // self._elements_per_episode())
        parts = [self._make(first, min(first + step, stop)) for first in range(start, stop, step)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _make(self, start: int, stop: int) -> Episodes:
        with torch.inference_mode():  # spares autograd's bookkeeping, a fifth of the time
            numbers = torch.arange(start, stop, device=self.device)
            if isinstance(self.shape, VariableShape):
                chosen, places, shots, queries = self._draw_variable(numbers, self.shape)
            else:
                chosen, places = self._draw_fixed(numbers, self.shape)
        # Looked up outside of it, so that the result can be used in training.
        order = self._order
        ids = places.to(torch.int64, copy=True) if order is None else _at(order, places)
        # Views, episodes last in memory: a copy would take as long as the drawing.
        ids, classes = ids.permute(2, 1, 0), _at(self._class_ids, chosen).T
        if isinstance(self.shape, VariableShape):
            shot = int(shots.max())
            return _padded(Episodes(ids[..., :shot], ids[..., shot:], classes), shots, queries)
        return Episodes(ids[..., : self.shape.shot], ids[..., self.shape.shot :], classes)

    def _draw_fixed(self, numbers: Tensor, shape: EpisodeShape) -> tuple[Tensor, Tensor]:
        """Return the classes drawn, ``[way, E]``, and places in ``_order``, ``[m, way, E]``."""
        if self.group_disjoint:
            chosen = draw_distinct(uniform(self.key, numbers, shape.way), self._class_count)
            wanted = (torch.full_like(chosen, each) for each in (shape.shot, shape.queries))
            return chosen, self._draw_grouped(numbers, chosen, *wanted)
        # Row 0 draws the classes, the others the images: one stream, so one call.
        columns = (1 + shape.shot + shape.queries) * shape.way
        random = uniform(self.key, numbers, columns).view(-1, shape.way, len(numbers))
        chosen = draw_distinct(random[0], self._class_count)
        # Where all classes have one size, one number is a smaller tensor than one a class.
        limit = self._sizes[0] if self._even else _at(self._sizes, chosen)
        images = draw_distinct(random[1:], limit, self._position_type)
        return chosen, images + _at(self._starts, chosen)

    def _draw_variable(
        self, numbers: Tensor, shape: VariableShape
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return classes, places, and the shots and queries of each class, ``[way, E]``."""
        way = min(shape.max_way, len(self.class_ids))
        chosen = draw_distinct(uniform(self.key, numbers, way), self._class_count)
        limits = [table[chosen.cpu()] for table in (self._sizes.cpu(), *self._limits)]
        drawn = variable_numbers(shape, counter_rng.key(self.key, "shape"), numbers.cpu(), *limits)
        shots, queries = (tensor.to(self.device) for tensor in drawn)
        if self.group_disjoint:
            return chosen, self._draw_grouped(numbers, chosen, shots, queries), shots, queries
        count = 1 + int((shots + queries).max())
        random = uniform(self.key, numbers, count * way).view(-1, way, len(numbers))
        sizes = _at(self._sizes, chosen)
        images = draw_distinct(random[1:], sizes, self._position_type)
        # What will be padding may be any number: keep it inside its class.
        images = images.clamp_(min=0).minimum(sizes.to(images.dtype) - 1)
        after = shots + torch.arange(int(queries.max()), device=self.device)[:, None, None]
        query = images.gather(0, after.clamp(max=len(images) - 1))
        places = torch.cat([images[: int(shots.max())], query]) + _at(self._starts, chosen)
        return chosen, places, shots, queries

    def _draw_grouped(
        self, numbers: Tensor, chosen: Tensor, shots: Tensor, queries: Tensor
    ) -> Tensor:
        """Return places in ``_order``, ``[most shots + most queries, way, E]``."""
        ways = torch.arange(len(chosen), device=self.device)[:, None]
        stream, rows = counter_rng.key(self.key, "groups"), (numbers * len(chosen) + ways).flatten()
        groups, wanted = self._groups[chosen].flatten(0, 1), (shots.flatten(), queries.flatten())
        support, query = draw_group_disjoint(stream, rows, groups, *wanted)
        images = torch.cat([support, query], 1).T.reshape(-1, *chosen.shape)
        # Padding may point past the class's end, but never past the table's.
        return (images + _at(self._starts, chosen)).clamp_(max=len(self.domain.labels) - 1)

    def _elements_per_episode(self) -> int:
        shape = self.shape
        if isinstance(shape, VariableShape):
            way, drawn = shape.max_way, shape.max_support + shape.max_queries
        else:
            way, drawn = shape.way, shape.shot + shape.queries
        return way * (self._groups.shape[1] if self.group_disjoint else drawn)

    def _make_tables(self, capacity: Capacity) -> None:
        """Tabulate each usable class: where its images start in ``_order``, how many, groups."""
        members = [capacity.members[i] for i in self.class_ids]
        sizes = np.array([len(ids) for ids in members])
        ends = np.cumsum(self.domain.class_sizes)[list(self.class_ids)]
        order = np.concatenate(capacity.members)
        # A pack that lists its images class by class needs no table.
        sorted_already = bool((order == np.arange(len(order))).all())
        self._order = None if sorted_already else torch.from_numpy(order).to(self.device)
        self._sizes = torch.from_numpy(sizes.astype(np.float32)).to(self.device)
        self._starts = torch.from_numpy((ends - sizes).astype(np.int32)).to(self.device)
        self._class_ids = torch.tensor(self.class_ids, device=self.device)
        self._class_count = torch.tensor(float(len(members)), device=self.device)
        fits = [kind for kind in (torch.int8, torch.int16) if sizes.max() <= torch.iinfo(kind).max]
        self._position_type = fits[0] if fits else torch.int32  # a smaller type draws faster
        self._even = sizes.min() == sizes.max()
        if self.group_disjoint:
            assert self.domain.groups is not None
            groups = np.full((len(members), sizes.max()), -1)
            for row, ids in zip(groups, members, strict=True):
                row[: len(ids)] = np.unique(self.domain.groups[ids], return_inverse=True)[1]
            self._groups = torch.from_numpy(groups).to(self.device)
        if isinstance(self.shape, VariableShape):
            widths = range(self.shape.max_queries + 1)
            queries = [capacity.most_queries(i) for i in self.class_ids]
            groups_of = [capacity.group_sizes(i) for i in self.class_ids]
            shots = [[most_shots(own, q) for q in widths] for own in groups_of]
            self._limits = torch.tensor(queries), torch.tensor(shots)


def _at(table: Tensor, positions: Tensor) -> Tensor:
    """Look positions of any shape up in a table ``[n]``, in a third of plain indexing's time."""
    return table.index_select(0, positions.flatten()).view(positions.shape)


def _padded(episodes: Episodes, shots: Tensor, queries: Tensor) -> Episodes:
    """Write -1 over what lies beyond each class's own ``[way, E]`` shots and queries."""
    for ids, wanted in ((episodes.support, shots), (episodes.query, queries)):
        places = torch.arange(ids.shape[2], device=ids.device)
        ids[places >= wanted.T[:, :, None]] = -1
    episodes.classes[(shots == 0).T] = -1
    return episodes


def _joined(parts: Sequence[Episodes]) -> Episodes:
    """Put slices together, padded to the widest."""

    def join(tensors: Sequence[Tensor]) -> Tensor:
        width = max(tensor.shape[-1] for tensor in tensors)
        return torch.cat([F.pad(t, (0, width - t.shape[-1]), value=-1) for t in tensors])

    support, query = join([part.support for part in parts]), join([part.query for part in parts])
    return Episodes(support, query, torch.cat([part.classes for part in parts]))


FAR = torch.iinfo(torch.int64).max


def draw_distinct(random: Tensor, limit: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """Draw ordered samples without replacement, uniformly, at a cost that does not grow with limit.

    The i-th number is drawn below ``limit - i``: its rank among what is left. Such ranks are a
    Lehmer code; decoding it from the last to the first turns ranks into values. A prefix of the
    sample does not depend on how long the sample is.

    `random` is float32 ``[m, ...]`` in ``[0, 1)``. `limit` float32 ``[...]``, how many there are to
    draw from, is below 2^24 (a product of 24 bits and such a number never rounds up to the number),
    and at least m where the result is used: integers ``[m, ...]``, distinct along the first axis. A
    small `dtype` is faster, where every limit fits.
    """
    left = torch.arange(len(random), dtype=torch.float32, device=random.device)
    values = (random * (limit - left.view(-1, *[1] * (random.ndim - 1)))).to(dtype)
    rows, reached = values.unbind(), torch.empty_like(values)
    for i in range(len(rows) - 2, -1, -1):
        later = values[i + 1 :]
        # Into a tensor of the same type: faster than adding booleans.
        later += torch.ge(later, rows[i], out=reached[i + 1 :])
    return values


def draw_group_disjoint(
    key: int, numbers: Tensor, groups: Tensor, shots: Tensor, queries: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw support and query images of a class so that they share no group.

    Support images are taken in random order; an image of a new group is passed over if too few
    images for the queries would be left in the groups not yet touched. Without such a squeeze this
    is a uniform draw. The queries are drawn uniformly from the untouched groups. Rows must allow it
    (see `shapes.allows`).

    `numbers` ``[R]`` name each row's part of the random stream `key`. `groups` ``[R, n]`` is the
    group of each image of the row's class, numbered from 0 within the class, -1 where it has fewer
    than n images; `shots` and `queries` ``[R]`` are how many are wanted. Returns positions in the
    class, int64 ``[R, max shots]`` and ``[R, max queries]``; what lies beyond a row's own numbers
    is arbitrary.
    """
    rows, count = groups.shape
    positions = torch.arange(count, device=groups.device)
    exists = groups >= 0
    # 32 random bits above the position: a random order without ties, whose outcome would depend
    # on the device.
    order = (bits(key, numbers, count).T.long() + 2**31 << 24) + positions
    sizes = torch.zeros(rows, count, dtype=torch.int64, device=groups.device)
    sizes.scatter_add_(1, groups.clamp(min=0), exists.long())
    own_group_size = sizes.gather(1, groups.clamp(min=0))  # [R, n]
    left = exists.sum(1)  # images in untouched groups, [R]
    touched = torch.zeros_like(exists)
    free = exists.clone()
    support = []
    for shot in range(int(shots.max())):
        fits = touched | (left[:, None] - own_group_size >= queries[:, None])
        pick = torch.where(free & fits, order, FAR).argmin(1, keepdim=True)  # [R, 1]
        support.append(pick)
        active = (shot < shots)[:, None]
        opened = active & ~touched.gather(1, pick)  # [R, 1]
        left -= torch.where(opened, own_group_size.gather(1, pick), 0)[:, 0]
        touched |= active & (groups == groups.gather(1, pick)) & exists
        free &= ~(active & (positions == pick))
    untouched = torch.where(exists & ~touched, order, FAR)
    query = untouched.topk(int(queries.max()), dim=1, largest=False, sorted=True).indices
    return torch.cat(support, 1), query
