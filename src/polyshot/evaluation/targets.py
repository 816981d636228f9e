"""The episodes of a target with their images, drawn once for all methods and shapes.

E episodes, W ways, S shots, Q queries. Whatever embeds these images once has embedded them for
every shape: methods that share a network share its embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from polyshot.data.episodes import Episodes, EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape, VariableShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.views import Views
from polyshot.tasks import EmbeddingCache, Table, Tasks
from polyshot.util.files import digest
from polyshot.util.progress import Progress

Shape = EpisodeShape | VariableShape
Groups = list[tuple[Tensor, Tasks]]
"""Episodes as tasks of one way each: their numbers ``[k]``, and these."""


@dataclass(eq=False)
class Target:
    """The first episodes of a target, of several shapes.

    A shape that the target cannot serve is refused when it is asked for, the others work.
    """

    pack: Pack
    device: torch.device
    """Where tasks are wanted."""
    shapes: Sequence[Shape]
    episodes: int
    """Of each shape; how they are drawn, see `EpisodeSampler`."""
    seed: int = 0
    part: str = "test"
    group_disjoint: bool = True
    drop_small: bool = False
    views: Views = "one"
    cache: EmbeddingCache | None = None
    report: Progress | None = None

    def __post_init__(self) -> None:
        if self.episodes < 2:
            raise PolyshotError(f"{self.episodes} episodes give no interval: ask for at least 2.")
        self._refused: dict[Shape, PolyshotError] = {}
        self._samplers: dict[Shape, EpisodeSampler] = {}
        for shape in self.shapes:
            try:
                self._samplers[shape] = EpisodeSampler(
                    self.pack.domain,
                    shape,
                    part=self.part,
                    seed=self.seed,
                    group_disjoint=self.group_disjoint,
                    drop_small=self.drop_small,
                )
            except PolyshotError as error:
                self._refused[shape] = error
        if len(self.shapes) == 1 and self._refused:
            raise self._refused[self.shapes[0]]
        self._groups = self._load() if self._samplers else {}

    def tasks(self, shape: EpisodeShape, count: int | None = None) -> Tasks:
        """Return the first `count` episodes of a fixed shape, all by default."""
        ((_, tasks),) = self.groups(shape, count)
        return tasks

    def groups(self, shape: Shape, count: int | None = None) -> Groups:
        """Return the first episodes, all by default.

        Where shots or queries are uneven, tasks have a mask, and -1 as the label of no query.
        """
        self.sampler(shape)  # refuses what cannot be
        wanted = self.episodes if count is None else count
        found = []
        for rows, tasks in self._groups[shape]:
            few = int((rows < wanted).sum())  # they stand in order
            if few:
                found.append((rows[:few], tasks.part(slice(0, few))))
        return found

    def alone(self, shape: Shape, count: int) -> Tasks:
        """Return some of the first episodes with no images but their own, nothing kept of any."""
        _, tasks = max(self.groups(shape, count), key=lambda group: len(group[0]))
        take = tasks.table.take
        assert take is not None
        both = torch.cat([tasks.support.flatten(1), tasks.query], 1)
        own, positions = torch.unique(both, return_inverse=True)
        support, query = positions.split([tasks.way * tasks.shot, tasks.query.shape[1]], 1)
        table = Table(lambda wanted: take(own[wanted]), len(own), self.device, self.views)
        support = support.reshape(tasks.support.shape)
        return replace(tasks, table=table, query=query, support=support)

    def sampler(self, shape: Shape) -> EpisodeSampler:
        """Return what drew the episodes."""
        if shape in self._refused:
            raise self._refused[shape]
        return self._samplers[shape]

    def fingerprint(self, shape: Shape, count: int | None = None) -> str:
        """Hash the first `count` episodes: results with the same one may be paired."""
        return self.sampler(shape)(0, count or self.episodes).fingerprint()

    @cached_property
    def _images(self) -> Images:
        return Images([self.pack], self.part, self.device)

    def _load(self) -> dict[Shape, Groups]:
        drawn = {shape: sampler(0, self.episodes) for shape, sampler in self._samplers.items()}
        flat = [ids.flatten() for row in drawn.values() for ids in (row.support, row.query)]
        used = torch.unique(torch.cat(flat))
        used = used[used >= 0]
        if self.cache is not None:
            # All images of the classes, so that other seeds and shapes find them in the cache;
            # unless the episodes touch only a small share of a large target.
            classes = sorted({i for sampler in self._samplers.values() for i in sampler.class_ids})
            every = np.flatnonzero(np.isin(self.pack.domain.labels, classes))
            if len(every) <= 2 * len(used):
                used = torch.from_numpy(every)
        position_of = torch.full((len(self.pack.domain.labels),), -1)
        position_of[used] = torch.arange(len(used))

        def take(wanted: Tensor) -> Tensor:
            ids = used[wanted.to(used.device)]
            return self._images.bring(self._images.take(self._images.places(0, ids)))

        table = Table(
            take,
            len(used),
            self.device,
            self.views,
            name=f"embed {self.pack.domain.name}",
            report=self.report,
            cache=self.cache,
            content=digest(self.pack.hash, used.numpy().astype("<i8").tobytes()),
        )
        return {shape: self._grouped(row, position_of, table) for shape, row in drawn.items()}

    def _grouped(self, drawn: Episodes, position_of: Tensor, table: Table) -> Groups:
        """Part episodes by their way; -1 pads ways, shots and queries where these vary."""
        ways = (drawn.classes >= 0).sum(1)  # the ways that an episode has come first
        groups = []
        for way in torch.unique(ways).tolist():
            rows = (ways == way).nonzero().flatten()
            support, query = drawn.support[rows, :way], drawn.query[rows, :way]
            mask, asked = support >= 0, query >= 0
            even = bool(mask.all() and asked.all())
            labels = torch.arange(way)[:, None].expand(query.shape).where(asked, -1)
            tasks = Tasks(
                table,
                position_of[query].flatten(1).where(asked.flatten(1), 0).to(self.device),
                position_of[support].to(self.device),
                None if even else mask.to(self.device),
                None if even else labels.flatten(1).to(self.device),
                drawn.classes[rows, :way],
            )
            groups.append((rows, tasks))
        return groups
