"""The one global normalisation: statistics of a domain would give the domain away."""

from functools import cache

import torch
from torch import Tensor

MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)


def normalise(images: Tensor) -> Tensor:
    """Centre and scale images [B, 3, H, W], uint8 or float in [0, 1]: float [B, 3, H, W]."""
    if images.dtype == torch.uint8:
        images = images.to(torch.get_default_dtype()) / 255
    # A compiler writes them into its kernels, and would complain of the cache.
    constants = _constants if torch.compiler.is_compiling() else _kept_constants
    mean, std = constants(images.device, torch.get_default_dtype())
    return (images - mean) / std


def _constants(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Make mean and std [1, 3, 1, 1]."""
    mean, std = (
        torch.tensor(values, device=device, dtype=dtype).view(1, 3, 1, 1) for values in (MEAN, STD)
    )
    return mean, std


@cache
def _kept_constants(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keep them on the device: copying them there anew would wait for it."""
    with torch.inference_mode(False):  # else the first prediction would spoil them for training
        return _constants(device, dtype)
