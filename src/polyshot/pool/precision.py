"""How many bits a weight takes on disk.

Kernels and matrices may be rounded, vectors (batch norm, biases, channel modulators) never are:
they are few, and variances may be small. An 8-bit tensor ``name`` is int8, one row an output
channel, with a float32 factor for each row beside it under ``name.factor``: half precision would
lose the factors of weak modulators, which lie near its smallest number. A 6-bit tensor is the same
with fewer steps, deflated into uint8, with its shape under ``name.shape``: weights are bell-shaped,
so that 5.3 bits are left of each.
"""

import zlib
from collections.abc import Mapping
from math import prod
from typing import Literal

import torch
from torch import Tensor

from polyshot.errors import PolyshotError

Precision = Literal["full", "half", "eight", "six"]
"""Bits of a weight: 32 (to the bit as trained), 16, 8, or 6."""
FACTOR, SHAPE = ".factor", ".shape"
STEPS = {"eight": 127, "six": 31}
"""Steps from 0 to the largest weight of a row; symmetric, so -128 and -32 are never used."""


def to_stored(tensors: Mapping[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """Bring tensors into the form on disk."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        if precision == "full" or whole.ndim < 2 or not whole.is_floating_point():
            stored[name] = whole
        elif precision == "half":
            stored[name] = whole.half()
        else:
            steps, stored[name + FACTOR] = _rounded(whole, STEPS[precision])
            stored[name] = steps
            if precision == "six":
                packed = bytearray(zlib.compress(steps.numpy().tobytes(), 9))
                stored[name] = torch.frombuffer(packed, dtype=torch.uint8)
                stored[name + SHAPE] = torch.tensor(steps.shape)
    return stored


def from_stored(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring tensors back into float32; inverse of `to_stored` up to its rounding."""
    tensors = {}
    for name, tensor in stored.items():
        factor, shape = (stored.get(name + beside) for beside in (FACTOR, SHAPE))
        if factor is not None:
            steps = tensor if shape is None else _inflated(name, tensor, shape)
            if factor.shape != steps.shape[:1]:
                raise PolyshotError(
                    f"{name} has wrong shapes: {list(factor.shape)} factors for "
                    f"{list(steps.shape)} weights."
                )
            tensors[name] = steps.float() * factor.view(-1, *[1] * (steps.ndim - 1))
        elif not name.endswith((FACTOR, SHAPE)):
            tensors[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return tensors


def _rounded(tensor: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Round a kernel or matrix [outputs, ...] to int8 and its factors [outputs]."""
    rows = tensor.float().flatten(1)
    factor = rows.abs().amax(1) / most  # [outputs]; 0 for a row of zeros
    steps = rows / factor.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    return steps.round().clamp(-most, most).to(torch.int8).view_as(tensor), factor


def _inflated(name: str, packed: Tensor, shape: Tensor) -> Tensor:
    """Bring back int8 of this shape from uint8 [bytes]."""
    sizes = [int(size) for size in shape]
    try:
        data = bytearray(zlib.decompressobj().decompress(packed.numpy().tobytes(), prod(sizes) + 1))
        return torch.frombuffer(data, dtype=torch.int8).view(sizes)
    except (zlib.error, ValueError, RuntimeError) as error:
        raise PolyshotError(f"{name} cannot be unpacked: {error}.") from None
