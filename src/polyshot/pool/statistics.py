"""What a pool remembers of the tasks its selector was trained on, so that it can grow later.

A bounded sample of each source's tasks, as the selector sees them, with how each member did on
them. No image can be made from it. A member that came later was never asked: its answers are NaN.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from polyshot.errors import PolyshotError

Part = Literal["train", "val"]

KEPT: dict[Part, int] = {"train": 128, "val": 48}
"""Tasks kept of each source; in half precision, with 512 entries an embedding, about 190 KB."""


class TaskSample(NamedTuple):
    """T tasks and how M members do on them, all float16 on the CPU."""

    tasks: Tensor
    """``[T, d]`` mean base embedding of the support set, as the selector sees it."""
    accuracy: Tensor
    """``[T, M]`` on the queries; NaN where the member was never asked."""
    likelihood: Tensor
    """``[T, M]`` mean log probability of the right answer; NaN likewise."""

    def with_members(self, columns: Sequence[int | None]) -> "TaskSample":
        """Pick the members by their columns, in this order; None is one that was never asked."""
        unknown = self.accuracy.new_full((len(self.tasks), 1), torch.nan)
        last = self.accuracy.shape[1]
        index = [last if column is None else column for column in columns]
        answers = (self.accuracy, self.likelihood)
        return TaskSample(self.tasks, *(torch.cat([a, unknown], 1)[:, index] for a in answers))


class SourceTasks(NamedTuple):
    """What is kept of one source."""

    train: TaskSample
    """Tasks of training classes, which the selector learns."""
    val: TaskSample
    """Tasks of validation classes, on which its best state is chosen."""

    def with_members(self, columns: Sequence[int | None]) -> "SourceTasks":
        """Pick the members by their columns, in this order; None is one that was never asked."""
        return SourceTasks(self.train.with_members(columns), self.val.with_members(columns))


Statistics = Mapping[str, SourceTasks]
"""By source."""


def sample(part: Part, tasks: Tensor, accuracy: Tensor, likelihood: Tensor) -> TaskSample:
    """Keep some of the tasks [T, d], evenly spaced, with members' answers [T, M]."""
    count = min(len(tasks), KEPT[part])
    rows = torch.linspace(0, len(tasks) - 1, count).round().long()
    return TaskSample(*(each.cpu()[rows].half() for each in (tasks, accuracy, likelihood)))


def to_tensors(statistics: Statistics) -> dict[str, Tensor]:
    """Lay the statistics out for a file: ``<source>.train.tasks`` and so on."""
    return {
        f"{source}.{part}.{name}": tensor
        for source, both in statistics.items()
        for part, kept in both._asdict().items()
        for name, tensor in kept._asdict().items()
    }


def from_tensors(sources: Sequence[str], tensors: Mapping[str, Tensor]) -> dict[str, SourceTasks]:
    """Read back what `to_tensors` laid out; KeyError where something is missing."""

    def sample_of(source: str, part: str) -> TaskSample:
        names = [f"{source}.{part}.{name}" for name in TaskSample._fields]
        return TaskSample(*(tensors[name].half() for name in names))

    return {
        source: SourceTasks(*(sample_of(source, part) for part in get_args(Part)))
        for source in sources
    }


def check_statistics(statistics: Statistics, dim: int, members: int) -> None:
    """Refuse statistics that are not of this many members over a base of this width."""
    for source, both in statistics.items():
        for kept in both:
            count = len(kept.tasks)
            shapes = [(count, dim), (count, members), (count, members)]
            if [tuple(tensor.shape) for tensor in kept] != shapes:
                raise PolyshotError(
                    f"The statistics of the tasks of '{source}' do not fit a pool of {members} "
                    f"members with embeddings of {dim} entries."
                )
