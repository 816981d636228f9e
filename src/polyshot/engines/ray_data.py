"""Many items through actors of a Ray cluster, by Ray Data: what the engine's `stream` does there.

Items go in waves, so that this process never holds all of them. Each is a block of its own: what a
lost actor or machine was at is done again, and nothing else.
"""

import itertools
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from polyshot.engines.job import Resources
from polyshot.errors import PolyshotError

WAVE = 512
"""Items that Ray Data is given at once."""
BEGUN = 2
"""Items that an actor is given at once, so that the next is there when one is done."""


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


def stream(
    ray: Any,
    device: torch.device,
    make: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
    items: Iterable[Any],
    resources: Resources,
) -> Iterator[Any]:
    """Yield a result an item, in the order in which they come."""
    from ray import data  # noqa: PLC0415 (an extra)

    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # progress is the caller's
    made = ray.put((make, arguments))
    left = iter(items)
    while wave := [{"item": pickle.dumps(item)} for item in itertools.islice(left, WAVE)]:
        workers = max(1, int(ray.cluster_resources().get("CPU", 1) / resources.threads))
        if resources.gpus:
            gpus = ray.cluster_resources().get("GPU", 0) / resources.gpus
            workers = max(1, min(workers, int(gpus)))
        answered = data.from_items(wave, override_num_blocks=len(wave)).map_batches(
            Worker,
            fn_constructor_args=(resources.threads, device.type, made),
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
