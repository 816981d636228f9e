"""A job, what it is given, what it tells, and what an engine promises."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyshot.errors import PolyshotError
from polyshot.util.progress import Progress


@dataclass(frozen=True)
class Resources:
    """What a job takes while it runs, where the engine shares several machines out."""

    threads: int = 1
    """Of torch, and so many cores. The same number gives the same rows on every engine."""
    gpus: float = 0.0
    """0.25: four jobs share a GPU."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise PolyshotError(f"{self.threads} threads do nothing: 1 is the least.")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus % 1):
            raise PolyshotError(
                f"{self.gpus:g} GPUs a job cannot be: take a share of one (0.25), or 1, 2, ..."
            )


@dataclass(frozen=True)
class Place:
    """Where a job runs."""

    folder: Path
    """The shared folder, or what of it the job has asked for; outputs are written in here."""
    device: torch.device
    inputs: Mapping[str, Path]
    """Content hash -> where the file or folder lies here."""
    report: Progress | None = None
    """Told of the progress inside a job, where somebody can see it."""


@dataclass(frozen=True, eq=False)
class Job:
    """Work that can be done anywhere, and again: it does what is missing."""

    key: str
    """Its name, and that of its lock: who works on it is alone with it."""
    call: Callable[..., Iterator[Any]]
    """A function of a module: ``call(place, *arguments)`` yields what there is to tell, when the
    files that belong to it are written."""
    arguments: tuple[Any, ...] = ()
    """They can be pickled, where the engine is not this process."""
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """What it reads from outside of the folder: content hash -> path."""
    reads: tuple[str, ...] = ()
    """Patterns of files in the folder that it needs, as far as they are there."""
    outputs: tuple[str, ...] = ()
    """Patterns of files in the folder that it may write."""
    needs: tuple[str, ...] = ()
    """Keys of the jobs that must be done before."""
    resources: Resources = field(default_factory=Resources)


class Failed(NamedTuple):
    """Why something could not be done."""

    message: str
    """One line."""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Failed":
        """Describe an error."""
        message = " ".join(str(error).split())
        if not isinstance(error, PolyshotError):
            message = f"{type(error).__name__}: {message}"
        return cls(message, "".join(traceback.format_exception(error)))


class Event(NamedTuple):
    """Something that a job tells, or its end."""

    job: Job
    value: Any = None
    """What it tells; at its end nothing."""
    ended: bool = False
    failed: Failed | None = None
    """At the end: why it did not get there."""


class Waiting:
    """Jobs that have not begun, and what they wait for."""

    def __init__(self, jobs: Sequence[Job]):
        self.jobs = list(jobs)
        self._known = {job.key for job in jobs}
        self._ended: dict[str, Failed | None] = {}

    def end(self, job: Job, failed: Failed | None) -> Event:
        """Note the end of a job."""
        self._ended[job.key] = failed
        return Event(job, ended=True, failed=failed)

    def give_up(self) -> Iterator[Event]:
        """End the jobs that need one that has failed."""
        for job in list(self.jobs):
            wrong = [self._ended.get(key) for key in job.needs]
            if failed := next(filter(None, wrong), None):
                self.jobs.remove(job)
                yield self.end(job, failed)

    def ready(self) -> list[Job]:
        """List the jobs that wait for nothing any more."""
        return [job for job in self.jobs if self._known.intersection(job.needs) <= set(self._ended)]


class Engine(ABC):
    """Runs jobs."""

    device: torch.device
    """Where jobs compute."""

    @abstractmethod
    def run(
        self, jobs: Sequence[Job], folder: Path, report: Progress | None = None
    ) -> Generator[Event, None, None]:
        """Run jobs whose files belong into a folder, each after those that it needs.

        Yields what jobs tell as they do, with their files in the folder by then, and the end of
        each job once. Where a job failed, those that need it end in the same way, without a start.
        Whoever stops asking stops the jobs: what was told is kept.
        """

    @abstractmethod
    def stream(
        self,
        make: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        items: Iterable[Any],
        resources: Resources,
    ) -> Iterator[Any]:
        """Put many items through workers, as they come: a result each, in any order.

        ``make(device, *arguments)`` makes a worker, once a process, which is called with an item.
        Items and results can be pickled. Memory does not grow with their number.
        """
