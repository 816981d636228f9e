"""Which device to compute on, and how precisely."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyshot.errors import PolyshotError


def best_device(wanted: str | None = None) -> torch.device:
    """Return the device asked for, or the GPU where there is one."""
    there = torch.cuda.is_available()
    if wanted is None:
        return torch.device("cuda" if there else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise PolyshotError(f"There is no kind of device '{wanted}': try cpu or cuda.") from None
    count = torch.cuda.device_count() if there else 0
    if device.type != "cpu" and not (device.type == "cuda" and (device.index or 0) < count):
        raise PolyshotError(f"There is no device '{wanted}' that PyTorch can use here: try cpu.")
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU thread: many small operations wait for a second one longer than they gain.

    Where other programs keep the cores busy, each wait takes milliseconds: leaving out 25 examples
    with nine members took 64 s on two threads and 0.6 s on one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def bf16_on(device: torch.device) -> torch.autocast:
    """Compute in bf16 inside, where the device is a GPU."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")
