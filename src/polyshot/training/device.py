"""Where a training runs: moving modules there, seeding, and letting a GPU be fast."""

import importlib.util
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from polyshot.util import counter_rng

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def on_device(module: AnyModule, device: torch.device) -> AnyModule:
    """Move a module, kernels with their channels last in memory, as GPUs and CPUs like them."""
    return module.to(device).to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def in_one_piece(module: nn.Module) -> Tensor:
    """Lay a module's statistics (its buffers of floats) side by side in memory: flat [n].

    What concerns all of them is then one operation instead of one a layer.
    """
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    parameter = next(module.parameters())
    flat = torch.cat([buffer.flatten() for buffer in buffers] or [parameter.new_empty(0)])
    start = 0
    for buffer in buffers:
        buffer.data = flat[start : start + buffer.numel()].view(buffer.shape)
        start += buffer.numel()
    return flat


def graphed(
    module: nn.Module, shape: tuple[int, ...], device: torch.device, autocast: bool = True
) -> nn.Module:
    """Record a module's forward and backward passes as CUDA graphs, in bf16 with `autocast`.

    Launching the many small operations of a network takes longer than computing them. The graph
    answers inputs of exactly this shape, in training mode; the module's memory must not move.
    """
    # Recording happens on a stream of its own, of which every later update would be reminded.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    sample = torch.zeros(shape, device=device).contiguous(memory_format=torch.channels_last)
    precision = torch.autocast("cuda", torch.bfloat16, enabled=autocast, cache_enabled=False)
    with warnings.catch_warnings(), precision:
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")  # it sets it up then
        recorded = torch.cuda.make_graphed_callables(module, (sample,))
    module.load_state_dict(before)  # warming up has moved batch norm's statistics
    assert isinstance(recorded, nn.Module)
    return recorded


def can_compile() -> bool:
    """Tell whether torch's compiler for GPUs finds what it needs: Triton and a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    return compiler is not None and importlib.util.find_spec("triton") is not None


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed torch's generator of the CPU for the making of weights, and leave it as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(counter_rng.key(*parts))
        yield


@contextmanager
def fast(device: torch.device) -> Iterator[None]:
    """Let a GPU use TF32 and choose its convolution algorithms."""
    if device.type != "cuda":
        yield
        return
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = benchmark
