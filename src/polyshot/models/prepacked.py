"""Convolutions whose weights are prepacked: in the order in which a CPU's library computes.

oneDNN, which convolves on CPUs, has an order in memory of its own for every kernel, and PyTorch
brings kernels into it anew at every call: for a network that is shown five images at a time a
quarter of its work, with a hundred still some hundredths. PyTorch's compiler does it once. This
asks for the compiler's two functions, which are not public; without them all stays as it was.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polyshot.models.walk import AnyNetwork


class PrepackedConv2d(nn.Conv2d):
    """A convolution that has its kernel in oneDNN's order, too: [B, C, H, W] -> [B, C', H', W'].

    It is a layer's own weight and bias in another class, of a network that stays as it is. Where
    that order is of no use (while gradients are recorded or a graph is traced, for other weights or
    another precision, in a copy) it convolves as the layer did.
    """

    kernel: tuple[Tensor, Tensor] | None
    """The weight, and the same in oneDNN's order."""

    @classmethod
    def of(cls, layer: nn.Conv2d) -> "PrepackedConv2d":
        """Make one of a layer, to stand in its place."""
        made = cls.__new__(cls)
        vars(made).update(vars(layer))
        weight = layer.weight.detach().to_mkldnn()
        order = torch._C._nn.mkldnn_reorder_conv2d_weight
        made.kernel = layer.weight, order(weight, *made._how())
        return made

    def _how(self) -> tuple[Any, ...]:
        return self.padding, self.stride, self.dilation, self.groups

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if (
            self.kernel is None
            or self.kernel[0] is not self.weight
            or not all(each.is_cpu and each.dtype == torch.float32 for each in (x, self.weight))
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
        ):
            return super().forward(x)
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            *(x, self.kernel[1], self.bias, *self._how()),
            *("none", [], ""),  # nothing is done to what comes out
        )
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles have: that order belongs to this process."""
        return {**vars(self), "kernel": None}


def prepacked(network: AnyNetwork) -> AnyNetwork:
    """Prepack a network's kernels for oneDNN, where it computes; returns the network itself.

    It is for networks that answer many times, since each kernel then takes its memory twice.
    """
    if can_prepack():
        for name, layer in list(network.named_modules()):
            if _fits(layer):
                network.set_submodule(name, PrepackedConv2d.of(layer))
    return network


def can_prepack() -> bool:
    """Tell whether PyTorch has oneDNN here, uses it, and has the functions that its compiler asks.

    On Macs it has none.
    """
    return (
        torch._C._has_mkldnn
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch._C._nn, "mkldnn_reorder_conv2d_weight")
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    )


def _fits(layer: nn.Module) -> bool:
    """Whether it is a plain convolution on the CPU; a subclass may have a forward of its own."""
    return (
        type(layer) is nn.Conv2d
        and (layer.weight.device.type, layer.weight.dtype) == ("cpu", torch.float32)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )
