"""The engine of many machines: jobs are tasks of a Ray cluster.

This process, the driver, holds the folder. What a job reads of it travels to the job's machine by
content hash, once a machine, and lies there in a folder of its own for this grid; what the job
writes comes back with what it tells, and is written here, whole, before anybody hears of it. So a
machine that is lost takes nothing along but the jobs that it was at, which others do again.

Many items go through actors, by Ray Data, in waves, so that this process never holds all of them.
Each is a block of its own: what a lost actor or machine was at is done again, and nothing else.
"""

import itertools
import logging
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import torch

from polyshot.engines.job import Engine, Event, Failed, Job, Resources, Waiting
from polyshot.engines.ray_work import (
    Order,
    Reference,
    Sent,
    Store,
    connect,
    import_ray,
    matching,
    remove,
    work,
)
from polyshot.errors import PolyshotError
from polyshot.util import __version__
from polyshot.util.files import digest, write_bytes
from polyshot.util.progress import Progress

TRIES = 4
"""How often a job is begun whose processes or machines are lost."""
LOOK = 1.0
"""Seconds between two looks at jobs that have told nothing."""
AHEAD = 3
"""Jobs for each core of the cluster that are handed to Ray at once."""
BAR = "jobs"
"""Name of the progress of the jobs."""
WAVE = 512
"""Items that Ray Data is given at once."""
BEGUN = 2
"""Items that an actor is given at once, so that the next is there when one is done."""


class Ray(Engine):
    """Runs jobs on a cluster: that of an address, else one that it starts on this machine.

    `store` is a path or URL (fsspec) that all machines reach, by which files travel; without one
    they travel through Ray's object store.
    """

    def __init__(self, address: str = "", device: str | None = None, store: str = ""):
        self.ray = import_ray()
        self.address = address or os.environ.get("RAY_ADDRESS", "")
        self.store = Store(store)
        self._asked = device
        self._own = False
        self.tries = Counter[str]()
        """How often each job was begun."""
        self.device = torch.device("cpu")

    def __enter__(self) -> Self:
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._own = connect(self.ray, self.address)
        gpus = self.ray.cluster_resources().get("GPU", 0)
        self.device = torch.device(self._asked or ("cuda" if gpus else "cpu"))
        if self.device.type == "cuda" and not gpus:
            raise PolyshotError("No machine of the cluster has a GPU: leave out --device cuda.")
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._own:
            self.ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, self._on_sigterm
            )  # Ray sets one of its own, and leaves it

    def run(
        self, jobs: Sequence[Job], folder: Path, report: Progress | None = None
    ) -> Generator[Event, None, None]:
        """Run jobs as soon as what they need is done, as many at once as the cluster holds."""
        grid, waiting = _Grid(self, folder), Waiting(jobs)
        running: dict[Any, Job] = {}
        self.tries.clear()
        try:
            while waiting.jobs or running:
                for job in waiting.ready():
                    if len(running) >= self._room(job):
                        break
                    waiting.jobs.remove(job)
                    self.tries[job.key] += 1
                    running[grid.start(job)] = job
                for task, sent in grid.told(list(running)):
                    job = running[task]
                    if isinstance(sent, Sent) and not sent.ended:
                        yield Event(job, sent.value)
                        continue
                    del running[task]
                    if isinstance(sent, Sent):
                        yield waiting.end(job, sent.failed)
                    elif self.tries[job.key] < TRIES:
                        waiting.jobs.insert(0, job)  # others have waited no longer
                    else:
                        yield waiting.end(job, _lost(sent))
                yield from waiting.give_up()
                if report:
                    report(BAR, len(jobs) - len(waiting.jobs) - len(running), len(jobs))
        finally:
            grid.stop(list(running))

    def stream(
        self,
        make: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        items: Iterable[Any],
        resources: Resources,
    ) -> Iterator[Any]:
        """Put items through actors, as many as the cluster holds, by Ray Data."""
        from ray import data  # noqa: PLC0415 (an extra)

        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # progress is the caller's
        made = self.ray.put((make, arguments))
        left = iter(items)
        while wave := [{"item": pickle.dumps(item)} for item in itertools.islice(left, WAVE)]:
            cluster = self.ray.cluster_resources()
            workers = max(1, int(cluster.get("CPU", 1) / resources.threads))
            if resources.gpus:
                workers = max(1, min(workers, int(cluster.get("GPU", 0) / resources.gpus)))
            answered = data.from_items(wave, override_num_blocks=len(wave)).map_batches(
                Worker,
                fn_constructor_args=(resources.threads, self.device.type, made),
                batch_size=1,
                num_cpus=resources.threads,
                num_gpus=resources.gpus or None,
                compute=data.ActorPoolStrategy(
                    min_size=1,
                    max_size=min(workers, len(wave)),
                    max_tasks_in_flight_per_actor=BEGUN,
                ),
            )
            for row in answered.iter_rows():
                result = pickle.loads(row["result"])  # noqa: S301 (our own worker's)
                if isinstance(result, PolyshotError):
                    raise result
                yield result

    def _room(self, job: Job) -> int:
        """Count the jobs that Ray may hold: what runs, and some that wait for their turn."""
        cores = self.ray.cluster_resources().get("CPU", 1)
        return max(1, int(AHEAD * cores / job.resources.threads))


class _Grid:
    """The files of one run on their way to the cluster and back."""

    def __init__(self, engine: Ray, folder: Path):
        self.engine, self.ray, self.folder = engine, engine.ray, folder
        self.name = uuid4().hex[:12]
        self._kept: dict[str, Any] = {}
        """Content hash -> where the store keeps it."""
        self._hashes: dict[Path, tuple[tuple[int, int], str]] = {}
        self._packs: dict[str, tuple[str, dict[str, Any]]] = {}
        self._arguments: dict[int, tuple[Any, Any]] = {}
        alone = len([node for node in self.ray.nodes() if node["Alive"]]) == 1
        self._travels = bool(engine.address) or not alone

    def start(self, job: Job) -> Any:
        """Hand a job to Ray; returns what stands for it."""
        order = Order(
            self.name,
            __version__,
            job.call,
            [self._argument(each) for each in job.arguments],
            {key: self._input(key, path) for key, path in job.inputs.items()},
            {name: self._file(self.folder / name) for name in matching(self.folder, job.reads)},
            job.outputs,
            job.resources.threads,
            self.engine.device.type,
            self.engine.store,
        )
        task = self.ray.remote(work).options(
            num_cpus=job.resources.threads,
            num_gpus=job.resources.gpus,
            num_returns="streaming",
            max_retries=0,
            name=job.key,
        )
        return task.remote(order)

    def told(self, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Wait for what jobs tell, with its files written; an error where a job is lost."""
        if not tasks:
            return
        ready, _ = self.ray.wait(tasks, num_returns=1, timeout=LOOK, fetch_local=False)
        for task in ready:
            try:
                sent = self.ray.get(next(task))
            except StopIteration:  # its last word was its end
                sent = _EndError("its process ended without a word")
            except (self.ray.exceptions.RayError, OSError) as error:
                sent = error
            if isinstance(sent, Sent):
                self._write(sent.files)
            yield task, sent

    def stop(self, tasks: Sequence[Any]) -> None:
        """End what still runs, and remove what machines hold of this grid."""
        for task in tasks:
            self.ray.cancel(task, force=True)
        where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
        clean = self.ray.remote(num_cpus=0, max_retries=0)(remove)
        gone = [
            clean.options(scheduling_strategy=where(node, soft=False)).remote(self.name)
            for node in nodes
        ]
        if gone:  # a machine that does not answer loses the folder when it restarts
            self.ray.wait(gone, num_returns=len(gone), timeout=10)

    def _argument(self, value: Any) -> Any:
        """Keep an argument that many jobs share once; small ones travel with the job."""
        if isinstance(value, str | int | float | tuple | list):
            return value
        if id(value) not in self._arguments:
            self._arguments[id(value)] = value, self.ray.put(value)
        return Reference(self._arguments[id(value)][1])

    def _input(self, key: str, path: Path) -> tuple[str, dict[str, Any]]:
        if key not in self._packs:
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            kept = {}
            if self._travels:
                kept = {file.name: self.engine.store.put(file.read_bytes()) for file in files}
            self._packs[key] = str(path.resolve()), kept
        return self._packs[key]

    def _file(self, path: Path) -> tuple[str, Any]:
        status = path.stat()
        seen = status.st_mtime_ns, status.st_size
        if self._hashes.get(path, ((0, 0), ""))[0] != seen:
            data = path.read_bytes()
            found = digest(data)
            self._hashes[path] = seen, found
            if found not in self._kept:
                self._kept[found] = self.engine.store.put(data)
        found = self._hashes[path][1]
        return found, self._kept[found]

    def _write(self, files: Mapping[str, Any]) -> None:
        for name, kept in files.items():
            path = self.folder / name
            write_bytes(path, self.engine.store.get(kept))


class _EndError(RuntimeError):
    """A job that ended in no way that jobs end in."""


def _lost(error: Exception) -> Failed:
    name = type(error).__name__
    return Failed(
        f"The job's process or machine was lost {TRIES} times ({name}), perhaps for want of "
        "memory: look at the cluster's logs.",
        str(error),
    )


class Worker:
    """An actor's own worker: made once, asked often."""

    def __init__(self, threads: int, device: str, made: Any):
        import ray  # noqa: PLC0415 (an extra)

        torch.set_num_threads(threads)
        make, arguments = ray.get(made)
        self.work: Callable[[Any], Any] = make(torch.device(device), *arguments)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        """Work on pickled items; an error that a user can mend travels as a result."""
        results = []
        for item in batch["item"]:
            try:
                made = self.work(pickle.loads(item))  # noqa: S301 (our own, through the cluster)
                results.append(pickle.dumps(made))
            except PolyshotError as error:
                results.append(pickle.dumps(error))
        return {"result": results}
