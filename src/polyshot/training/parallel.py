"""Processes that train together, started by ``torchrun``; one process alone is the usual case."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from polyshot.util.device import best_device

PATIENCE = timedelta(days=1)
"""How long processes wait for the first one while it validates or learns modulators."""


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the group that torchrun describes in the environment, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=PATIENCE, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Return the number of this process; the first, 0, is the one that writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def own_device(asked: torch.device | str | None = None) -> torch.device:
    """Return the device asked for, or a GPU if there is one; of several, the one torchrun meant."""
    device = asked if isinstance(asked, torch.device) else best_device(asked)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def average(values: Tensor) -> Tensor:
    """Average a tensor over all processes, in place."""
    dist.all_reduce(values)
    values /= world_size()
    return values


def wait() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()
