"""Networks whose kernels differ from task to task, run side by side.

E tasks each have a network of their own: one walk through all of them instead of E. A convolution
becomes a matrix product over the image's patches, so that E of them are one batched product. cuDNN
runs the groups of a grouped convolution one by one, and `torch.func.vmap` makes one of each layer:
on an H200 this is several times as fast (`benchmarks/task_networks.py`). Inside a layer channels
stand last: images are [E, B, H, W, C], kernels [E, outputs, k, k, inputs].
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from polyshot.models.backbone import Site, affine, layers_of, walk_through
from polyshot.models.passes import Act
from polyshot.models.resnet import Pointwise

Kernels = Mapping[str, Tensor]
"""By the layers' names: [E, outputs, k, k, inputs] of a convolution, [E, outputs, inputs] else."""


def task_kernels(base: nn.Module, tasks: int) -> dict[str, Tensor]:
    """Give every task the base's kernels, all that it may learn; batch norm and biases stay.

    Gradients flow into the base's, summed over the tasks.
    """
    kernels = {}
    for site in layers_of(base):
        weight: Tensor = base.get_submodule(site.layer).get_parameter("weight")
        weight = weight.permute(0, 2, 3, 1) if site.axis == 1 else weight
        kernels[site.layer] = weight.expand(tasks, *weight.shape)
    return kernels


def embed_tasks(
    base: nn.Module, kernels: Kernels, images: Tensor, patches: bool | None = None
) -> Tensor:
    """Embed normalised images [E, B, 3, H, W], those of a task with its kernels: [E, B, d].

    Batch norm is that of the base, with its statistics. Under autocast the products are bf16.
    `patches` takes convolutions as batched products. By default only a GPU does: a CPU has no
    launches to save, and its own convolutions, task by task, are 1.5 to 2 times as fast
    (`benchmarks/task_networks.py patches`).
    """
    cut = images.is_cuda if patches is None else patches
    acts = {site.layer: KernelAct(base, site, kernels[site.layer], cut) for site in layers_of(base)}
    flat = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return walk_through(base)(flat, acts).view(*images.shape[:2], -1)


@dataclass(frozen=True, eq=False)
class KernelAct(Act):
    """A layer with a kernel for each task; its norm keeps its statistics."""

    base: nn.Module
    site: Site
    kernel: Tensor
    patches: bool

    def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply each task's kernel to its images: [E * B, C, H, W] -> [E * B, outputs, H', W']."""
        tasks, own_layer = len(self.kernel), self.base.get_submodule(self.site.layer)
        bias = own_layer.bias
        if self.site.axis == -1:
            y = torch.bmm(x.reshape(tasks, -1, self.site.inputs), self.kernel.mT)
            y = y.view(*x.shape[:-1], -1)
            return y + bias if isinstance(bias, Tensor) else y
        rows = x.permute(0, 2, 3, 1)
        rows = rows.reshape(tasks, -1, *rows.shape[1:])  # [E, B, H, W, C]
        assert isinstance(own_layer, nn.Conv2d)
        y = _convolve(rows, self.kernel, own_layer, self.patches)
        y = y.flatten(0, 1).permute(0, 3, 1, 2)
        return y + bias.view(1, -1, 1, 1) if isinstance(bias, Tensor) else y

    def norm(self, own: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """Normalise by the base's statistics, in training too."""
        slope, shift = affine(self.base, self.site)
        sizes = [1] * y.ndim
        sizes[self.site.axis] = -1
        return torch.addcmul(shift.to(y.dtype).view(sizes), y, slope.to(y.dtype).view(sizes))


def _convolve(x: Tensor, kernel: Tensor, layer: nn.Conv2d, patches: bool) -> Tensor:
    if not (patches and _cuts(layer)):
        # Unbound, not indexed: the gradient of each x[task] would be as large as all of x.
        each = zip(x.unbind(), kernel.unbind(), strict=True)
        return torch.stack([_plain(images, own, layer) for images, own in each])
    if torch.is_autocast_enabled(x.device.type):
        kind = torch.get_autocast_dtype(x.device.type)
        x, kernel = x.to(kind), kernel.to(kind)
    result: Tensor = _Convolution.apply(x, kernel, layer.stride[0])  # type: ignore[no-untyped-call]
    return result


def _cuts(layer: nn.Conv2d) -> bool:
    """Tell whether patches are cut as this layer reads them: around each place, at every stride."""
    side = layer.kernel_size[0]
    square = layer.kernel_size == (side, side) and layer.stride[0] == layer.stride[1]
    centred = side % 2 == 1 and layer.padding == (side // 2, side // 2)
    usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    # Others may compute something else, as convolutions that pad by the image's size.
    return square and centred and usual and type(layer) in (nn.Conv2d, Pointwise)


def _plain(x: Tensor, kernel: Tensor, layer: nn.Conv2d) -> Tensor:
    """Convolve the images [B, H, W, C] of one task with its kernel [outputs, k, k, inputs]."""
    weights = {"weight": kernel.permute(0, 3, 1, 2)}
    if layer.bias is not None:  # added for all tasks together
        weights["bias"] = torch.zeros_like(layer.bias)
    result: Tensor = functional_call(layer, weights, (x.permute(0, 3, 1, 2),))
    return result.permute(0, 2, 3, 1)


class _Convolution(torch.autograd.Function):
    """Convolution as a product with patches; its gradient for the images is one too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
        tasks, outputs, side = kernel.shape[:3]
        columns, (height, width) = _patches(x, side, stride)
        flat = kernel.reshape(tasks, outputs, -1)
        ctx.save_for_backward(columns, kernel)
        ctx.stride, ctx.shape = stride, x.shape
        return torch.bmm(columns, flat.mT).view(tasks, x.shape[1], height, width, outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        columns, kernel = ctx.saved_tensors
        tasks, outputs, side = kernel.shape[:3]
        flat = gradient.reshape(tasks, -1, outputs)
        for_kernel = torch.bmm(flat.mT, columns).view(kernel.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_kernel, None
        if ctx.stride == 1:  # the same convolution, of the gradient, with kernels turned around
            taps = torch.arange(side * side - 1, -1, -1, device=kernel.device)
            turned = kernel.flatten(2, 3).transpose(1, 2).index_select(1, taps)  # one copy
            columns, _ = _patches(gradient, side, 1)
            result = torch.bmm(columns, turned.flatten(1, 2))
            return result.view(ctx.shape), for_kernel, None
        columns = torch.bmm(flat, kernel.reshape(tasks, outputs, -1))
        return _sum_of_patches(columns, ctx.shape, side, ctx.stride), for_kernel, None


def _patches(x: Tensor, side: int, stride: int) -> tuple[Tensor, tuple[int, int]]:
    """Cut zero-padded images [E, B, H, W, C] into patches [E, B * H' * W', side * side * C]."""
    tasks, _, *_, channels = x.shape
    if side == 1:
        x = x[:, :, ::stride, ::stride]
        return x.reshape(tasks, -1, channels), (x.shape[2], x.shape[3])
    pad = side // 2
    x = F.pad(x, (0, 0, pad, pad, pad, pad))
    wide = _widest(x)
    cut = wide.unfold(2, side, stride).unfold(3, side, stride)  # [E, B, H', W', C, side, side]
    height, width = cut.shape[2:4]
    columns = cut.permute(0, 1, 2, 3, 5, 6, 4).reshape(tasks, -1, side * side * wide.shape[-1])
    return columns.view(x.dtype), (height, width)


def _widest(x: Tensor) -> Tensor:
    """View the channels [..., C] as fewer, wider numbers: copying takes its time by the number."""
    for kind in (torch.complex128, torch.int64, torch.int32):
        if x.shape[-1] * x.element_size() % kind.itemsize == 0 and kind.itemsize > x.element_size():
            return x.view(kind)
    return x


def _sum_of_patches(columns: Tensor, shape: Iterable[int], side: int, stride: int) -> Tensor:
    """Add patches [E, B * H' * W', side * side * C] up where they overlap: [E, B, H, W, C]."""
    tasks, batch, height, width, channels = shape
    pad = side // 2
    rows, cols = ((n + 2 * pad - side) // stride + 1 for n in (height, width))
    parts = columns.view(tasks, batch, rows, cols, side, side, channels)
    total = columns.new_zeros(tasks, batch, height + 2 * pad, width + 2 * pad, channels)
    for i in range(side):
        for j in range(side):
            ends = i + stride * (rows - 1) + 1, j + stride * (cols - 1) + 1
            total[:, :, i : ends[0] : stride, j : ends[1] : stride] += parts[:, :, :, :, i, j]
    return total[:, :, pad : pad + height, pad : pad + width]
