"""Where jobs run: by processes of this machine, or by a cluster that Ray operates.

The door is `Engine.run`: jobs go in, what they tell comes out. Who hands jobs in does not know
which engine it is, and an engine does not know what a job does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from polyshot.engines.job import Engine, Event, Failed, Job, Place, Resources
from polyshot.engines.local import Local
from polyshot.errors import PolyshotError, unknown
from polyshot.util.device import best_device

__all__ = ["Engine", "Event", "Failed", "Job", "Place", "Resources", "chosen_engine"]

ENGINES = ("local", "ray")


@contextmanager
def chosen_engine(
    name: str,
    device: str | None = None,
    address: str = "",
    threads: int = 1,
    gpus: float | None = None,
    store: str = "",
    processes: int | None = None,
) -> Iterator[tuple[Engine, Resources]]:
    """Have an engine for a while, and what each job takes of it; refuses options of the other."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "local":
        given = {"--address": address, "--store": store, "--gpus": gpus, "--threads": threads != 1}
        if told := [option for option, value in given.items() if value not in ("", None, False)]:
            raise PolyshotError(f"{told[0]} is for --engine ray: name that, or leave it out.")
        yield Local(best_device(device)), Resources()
        return
    if processes is not None:
        raise PolyshotError("--processes is for --engine local: ray runs as many jobs as fit.")
    asked = Resources(threads, gpus or 0.0)
    from polyshot.engines.ray import Ray  # noqa: PLC0415 (an extra)

    with Ray(address, device, store) as engine:
        whole = 1.0 if engine.device.type == "cuda" else 0.0
        yield engine, Resources(asked.threads, whole if gpus is None else gpus)
