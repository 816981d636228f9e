"""Processes that train together, started by ``torchrun``; one process alone is the usual case.

However many there are, they train as one would with the whole batch: an image's augmentation goes
by its place in that batch, mixing takes partners from all of it, and batch norm shares its
statistics. With statistics of its own each process would normalise by a fraction of the batch, and
what is trained would depend on how many GPUs happened to be free.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

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


class _Sum(torch.autograd.Function):
    """Sums a tensor over all processes, and its gradient likewise."""

    @staticmethod
    def forward(_: object, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SharedBatchNorm(nn.BatchNorm2d):
    """Batch norm over the images of all processes; torch's own SyncBatchNorm is for GPUs alone."""

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``[B, C, H, W]`` by the mean and variance of all processes' images."""
        if not self.training:
            return super().forward(images)
        wide = images if images.dtype == torch.float64 else images.float()
        count = wide.new_tensor(wide.numel() / wide.shape[1])
        dist.all_reduce(count)
        # The mean first: a sum of squares less the mean's would cancel.
        mean = _Sum.apply(wide.sum((0, 2, 3))) / count  # type: ignore[no-untyped-call]
        apart = wide - mean[:, None, None]
        var = _Sum.apply(apart.square().sum((0, 2, 3))) / count  # type: ignore[no-untyped-call]
        with torch.no_grad():
            assert self.num_batches_tracked is not None and self.momentum is not None
            assert self.running_mean is not None and self.running_var is not None
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (count / (count - 1)), self.momentum)
        scaled = apart * ((var + self.eps).rsqrt() * self.weight)[:, None, None]
        answer: Tensor = (scaled + self.bias[:, None, None]).to(images.dtype)
        return answer


def share_statistics(module: nn.Module) -> None:
    """Let every batch norm of a module see the images of all processes; its tensors stay."""
    for parent in list(module.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm) is nn.BatchNorm2d:
                shared = SharedBatchNorm(norm.num_features, norm.eps, norm.momentum)
                shared.__dict__.update(norm.__dict__)
                setattr(parent, name, shared)


def wait() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()
