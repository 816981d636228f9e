"""The episodes of a target with their images, drawn once for all methods and shapes.

E episodes, W ways, S shots, Q queries. Whatever embeds these images once has embedded them for
every shape: methods of one world that share a network share its embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from polyshot.data.episodes import Episodes, EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.methods.image_tasks import ImageTasks, Kept
from polyshot.models.views import Views


@dataclass(frozen=True, eq=False)
class _Row:
    sampler: EpisodeSampler
    drawn: Episodes
    tasks: ImageTasks


class TargetTasks:
    """The first episodes of a target, of several shapes.

    A shape that the target cannot serve is refused when it is asked for, the others work.

    Args:
        pack: the target.
        device: where tasks are wanted.
        shapes: of the episodes.
        episodes: how many of each shape.
        seed: another seed, other episodes.
        part: of the target's class split.
        group_disjoint: keep support and query from sharing a group, where the target has groups.
        drop_small: leave out classes too small for a shape, instead of refusing.
        views: how often networks look at an image.

    """

    def __init__(
        self,
        pack: Pack,
        device: torch.device,
        shapes: Sequence[EpisodeShape],
        episodes: int,
        seed: int = 0,
        part: str = "test",
        group_disjoint: bool = True,
        drop_small: bool = False,
        views: Views = "one",
    ):
        if episodes < 2:
            raise PolyshotError(f"{episodes} episodes give no interval: ask for at least 2.")
        self.pack, self.device, self.episodes, self.views = pack, device, episodes, views
        self._refused: dict[EpisodeShape, PolyshotError] = {}
        samplers = {}
        for shape in shapes:
            try:
                samplers[shape] = EpisodeSampler(
                    pack.domain,
                    shape,
                    part=part,
                    seed=seed,
                    group_disjoint=group_disjoint,
                    drop_small=drop_small,
                )
            except PolyshotError as error:
                self._refused[shape] = error
        self._rows: dict[EpisodeShape, _Row] = {}
        if samplers:
            self._load(samplers, part)

    def tasks(self, shape: EpisodeShape, count: int | None = None) -> ImageTasks:
        """Return the first `count` episodes, all by default."""
        return self._row(shape).tasks.part(slice(0, count))

    def alone(self, shape: EpisodeShape, count: int) -> ImageTasks:
        """Return the first episodes with no images but their own, and nothing kept of any."""
        tasks = self.tasks(shape, count)
        both = torch.cat([tasks.support.flatten(1), tasks.query], 1)
        own, positions = torch.unique(both, return_inverse=True)
        support, query = positions.split([tasks.way * tasks.shot, tasks.query.shape[1]], 1)
        return ImageTasks(
            lambda wanted: tasks.take(own[wanted]),
            len(own),
            support.reshape(tasks.support.shape),
            query,
            frozen=True,
            views=self.views,
        )

    def sampler(self, shape: EpisodeShape) -> EpisodeSampler:
        """Return what drew the episodes."""
        return self._row(shape).sampler

    def fingerprint(self, shape: EpisodeShape, count: int | None = None) -> str:
        """Hash the first `count` episodes: results with the same one may be paired."""
        drawn = self._row(shape).drawn
        first = slice(0, count)
        return Episodes(
            drawn.support[first], drawn.query[first], drawn.classes[first]
        ).fingerprint()

    def _row(self, shape: EpisodeShape) -> _Row:
        if shape in self._refused:
            raise self._refused[shape]
        return self._rows[shape]

    def _load(self, samplers: dict[EpisodeShape, EpisodeSampler], part: str) -> None:
        drawn = {shape: sampler(0, self.episodes) for shape, sampler in samplers.items()}
        flat = [ids.flatten() for row in drawn.values() for ids in (row.support, row.query)]
        used, positions = torch.unique(torch.cat(flat), return_inverse=True)
        images = Images([self.pack], part, self.device)
        places = images.places(0, used)

        def take(wanted: Tensor) -> Tensor:
            return images.bring(images.take(places[wanted.to(places.device)]))

        parts = iter(positions.to(self.device).split([len(ids) for ids in flat]))
        kept: Kept = WeakKeyDictionary()
        for shape, row in drawn.items():
            support = next(parts).view(row.support.shape)  # [E, W, S]
            query = next(parts).view(self.episodes, -1)  # [E, W * Q], class by class
            tasks = ImageTasks(take, len(used), support, query, True, self.views, kept)
            self._rows[shape] = _Row(samplers[shape], row, tasks)
