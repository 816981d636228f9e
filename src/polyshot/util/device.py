"""Where things are computed: the device, its precision and memory, and repeatable seeds."""

import gc
import importlib.util
import os
import shutil
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.util import counter_rng

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Done = TypeVar("Done")
Value = TypeVar("Value")


def best_device(wanted: str | None = None) -> torch.device:
    """Return the device asked for, or the GPU where there is one that does what is needed."""
    there = torch.cuda.is_available()
    if wanted is None:
        return torch.device("cuda" if there else "mps" if mps_works() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        kinds = "cpu, cuda or mps"
        raise PolyshotError(f"There is no kind of device '{wanted}': try {kinds}.") from None
    counts = {"cpu": 1, "cuda": torch.cuda.device_count() if there else 0}
    counts["mps"] = int(torch.backends.mps.is_available())
    if (device.index or 0) >= counts.get(device.type, 0):
        raise PolyshotError(f"There is no device '{wanted}' that PyTorch can use here: try cpu.")
    return device


@cache
def mps_works() -> bool:
    """Try what answering and learning need on Apple's GPU; False where it is not there.

    PyTorch implements most of its operations there, and takes others to the CPU where it was told
    so before it was imported (`polyshot/__init__.py`). What fails or differs from the CPU's answer
    stays on the CPU.
    """
    if not torch.backends.mps.is_available():
        return False
    try:
        found, expected = _probe(torch.device("mps")), _probe(torch.device("cpu"))
    except (NotImplementedError, RuntimeError, TypeError):  # TypeError: of float64
        return False
    return all(
        torch.allclose(a, b, atol=1e-3, rtol=1e-3) for a, b in zip(found, expected, strict=True)
    )


def _probe(device: torch.device) -> list[Tensor]:
    """Run the less usual operations of views, `ridge` and `tsa`, on numbers that are the same."""
    numbers = counter_rng.uniform(counter_rng.key("probe"), torch.arange(2), 3 * 8 * 8)
    images = numbers.T.reshape(2, 3, 8, 8).contiguous().to(device)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    grid = F.affine_grid(
        torch.tensor([[0.8, 0, 0.2], [0, 0.8, -0.2]]).expand(2, 2, 3),
        [2, 3, 8, 8],
        align_corners=False,
    ).to(device)
    seen = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    small = F.interpolate(seen, (6, 6), mode="bilinear", antialias=True)
    kernel = torch.linspace(-1, 1, 4 * 27, device=device).view(4, 3, 3, 3)
    rows = F.conv2d(small, kernel, stride=2, padding=1).flatten(1)  # [2, 36]
    system = rows @ rows.mT + torch.eye(2, device=device)
    solved = torch.cholesky_solve(rows, torch.linalg.cholesky(system))
    (slope,) = torch.autograd.grad(rows.square().sum(), images)
    placed = torch.zeros_like(solved).index_add_(0, torch.tensor([1, 0], device=device), solved)
    return [each.detach().cpu() for each in (solved, slope, placed.kthvalue(3).values)]


def for_device(values: Mapping[str, Value], device: torch.device) -> Value:
    """Look up what suits a kind of device; one that nobody measured on is treated as a CPU."""
    return values.get(device.type, values["cpu"])


def cores() -> int:
    """How many cores this process may use: fewer than the machine has, inside a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU thread: many small operations wait for a second one longer than they gain.

    Where other programs keep the cores busy, each wait takes milliseconds: leaving out 25 examples
    with nine members took 64 s on two threads and 0.6 s on one.
    """
    with _Threads.lock:
        if not _Threads.users:
            _Threads.before = torch.get_num_threads()
        _Threads.users += 1
        before = _Threads.before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _Threads.lock:
            _Threads.users -= 1
            torch.set_num_threads(before)


class _Threads:
    """Who computes on one thread, and how many there were before: several may do so at once."""

    lock = threading.Lock()
    users = 0
    before = 1


def bf16_on(device: torch.device) -> torch.autocast:
    """Compute in bf16 inside, where the device is a GPU."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")


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


def in_parts(count: int, step: int, work: Callable[[slice], Done]) -> Iterator[tuple[slice, Done]]:
    """Work on so many tasks, at most `step` at a time, on half as many where memory is too small.

    How much is free depends on the GPU and on who else uses it, so that no fixed number suits all.
    The work on a slice is done again from its start where memory was full. Yields each part, in
    order, and what was done with it.
    """
    start = 0
    while start < count:
        part = slice(start, min(start + max(1, step), count))
        try:
            done = work(part)
        except torch.OutOfMemoryError as error:
            if part.stop - part.start == 1:
                raise PolyshotError(
                    "The GPU's memory does not hold a single task: end other programs that use it, "
                    "or take --device cpu."
                ) from None
            step = (part.stop - part.start) // 2
            forget(error)
        else:
            yield part, done
            start = part.stop


def forget(error: Exception) -> None:
    """Free what the work that has failed held: its frames have the tensors that were too many."""
    traceback.clear_frames(error.__traceback__)
    free_memory()


def free_memory() -> None:
    """Give memory that nothing uses any more back to the GPU, where other programs want it, too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
