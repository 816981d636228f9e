"""Precision: how many bits a stored weight takes.

Kernels and matrices may be rounded, vectors (batch norm, biases, channel modulators) never are:
they are few, and variances may be small. An 8-bit tensor ``name`` is int8, one row an output
channel, with a float32 factor for each row beside it under ``name.factor``: half precision would
lose the factors of weak modulators, which lie near its smallest number. A 6-bit tensor is the same
with fewer steps, deflated into uint8, with its shape under ``name.shape``: weights are bell-shaped,
so that 5.1 bits are left of each.
"""

import zlib
from collections.abc import Mapping
from math import inf, prod
from typing import Any, Literal

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.models.modulators import read_tensors
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.util.tensors import tensor_bytes

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
            stored |= _coded(name, *_rounded(whole, STEPS[precision]), precision)
    return stored


def to_exact(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring tensors into the smallest form on disk that gives them back to the bit.

    What was rounded once (`to_stored`) is found out and coded again; the rest stays as it is.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        stored |= _exactly(name, whole) or {name: whole}
    return stored


def rounded(tensors: Mapping[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """Round tensors as a file of this precision would, and keep their kind of float."""
    back = from_stored(to_stored(tensors, precision))
    return {name: back[name].to(tensor) for name, tensor in tensors.items()}


def _exactly(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Code a tensor so that nothing is lost, or return None."""
    if tensor.ndim < 2 or tensor.dtype != torch.float32 or not tensor.numel():
        return None
    for precision, most in reversed(STEPS.items()):
        if (found := _steps_of(tensor, most)) is not None:
            return _coded(name, *found, precision)
    half = tensor.half()
    return {name: half} if torch.equal(half.float(), tensor) else None


def _steps_of(tensor: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """Find int8 and factors [outputs] whose products are exactly a tensor's rows, if there are any.

    The largest entry of a row is `most` times its factor, rounded: the factor itself is that entry
    divided by `most`, or a neighbour of it.
    """
    rows = tensor.flatten(1)
    guess = rows.abs().amax(1) / most
    factor, steps = guess.clone(), torch.zeros_like(rows)
    left = torch.arange(len(rows))
    for move in (0, 1, -1, 2, -2):
        near = guess[left]
        for _ in range(abs(move)):
            near = torch.nextafter(near, torch.full_like(near, inf if move > 0 else -inf))
        codes = _divided(rows[left], near).round()
        exact = (codes * near.unsqueeze(1) == rows[left]).all(1) & (codes.abs() <= most).all(1)
        factor[left[exact]], steps[left[exact]] = near[exact], codes[exact]
        left = left[~exact]
        if not len(left):
            return steps.to(torch.int8).view_as(tensor), factor
        if not move and len(left) > len(rows) // 2 + 1:  # rounded once, most rows fit at once
            return None
    return None


def _coded(name: str, steps: Tensor, factor: Tensor, precision: str) -> dict[str, Tensor]:
    """Lay out int8 and its factors."""
    if precision != "six":
        return {name: steps, name + FACTOR: factor}
    # Weights do not repeat: codes of the letters alone are smaller than those of repeated stretches
    # too, and made in a seventh of the time.
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    packed = bytearray(packer.compress(steps.numpy().tobytes()) + packer.flush())
    return {
        name: torch.frombuffer(packed, dtype=torch.uint8),
        name + FACTOR: factor,
        name + SHAPE: torch.tensor(steps.shape),
    }


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
    steps = _divided(rows, factor)
    return steps.round().clamp(-most, most).to(torch.int8).view_as(tensor), factor


def _inflated(name: str, packed: Tensor, shape: Tensor) -> Tensor:
    """Bring back int8 of this shape from uint8 [bytes]."""
    sizes = [int(size) for size in shape]
    try:
        data = bytearray(zlib.decompressobj().decompress(packed.numpy().tobytes(), prod(sizes) + 1))
        return torch.frombuffer(data, dtype=torch.int8).view(sizes)
    except (zlib.error, ValueError, RuntimeError) as error:
        raise PolyshotError(f"{name} cannot be unpacked: {error}.") from None


def _divided(rows: Tensor, factor: Tensor) -> Tensor:
    return rows / factor.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)


# --- a pool in a pickle


def pickled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Bring a pool's fields into a small form: weights as `to_exact` stores them.

    A base from elsewhere stays as it is.
    """
    base = fields["base"]
    own = isinstance(base, ResNet)
    return {
        **fields,
        "base": _small(base) if own else base,
        "modulators": {
            name: (modulator.sites, modulator.kind, _small(modulator))
            for name, modulator in fields["modulators"].items()
        },
    }


def unpickled(state: Mapping[str, Any]) -> dict[str, Any]:
    """Bring back a pool's fields, to the bit."""
    fields = dict(state)
    if isinstance(state["config"], ResNetConfig):
        weights = from_stored(safetensors.load(state["base"]))
        fields["base"] = _with_weights(ResNet(state["config"]), weights)
    fields["modulators"] = {}
    for name, (sites, kind, stored) in state["modulators"].items():
        tensors = from_stored(safetensors.load(stored))
        fields["modulators"][name] = _with_weights(read_tensors(sites, kind, tensors), tensors)
    return fields


def _small(module: nn.Module) -> bytes:
    return tensor_bytes(to_exact(module.state_dict()), {})


def _with_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    module.to(next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()))
    module.load_state_dict(dict(tensors))
    return module
