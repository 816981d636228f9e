"""Embedding images with one network as fast as the device goes."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from polyshot.errors import PolyshotError
from polyshot.models.normalise import normalise
from polyshot.models.resnet import Block, ResNet
from polyshot.models.views import Views, over_views
from polyshot.util.device import bf16_on

Images = NDArray[np.uint8] | Tensor
"""uint8 ``[n, 3, size, size]`` (an array, also a memory map, or a tensor), or float in [0, 1]."""


def fused(network: ResNet) -> ResNet:
    """Copy a network for prediction: batch norms inside the convolutions, channels last."""
    network = copy.deepcopy(network).eval().requires_grad_(False)
    _fuse(network, "conv1", "bn1")
    for module in network.modules():
        if isinstance(module, Block):
            _fuse(module, "conv1", "bn1")
            _fuse(module, "conv2", "bn2")
            if isinstance(module.downsample, nn.Sequential):
                _fuse(module.downsample, "0", "1")
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def embed_batches(
    network: ResNet,
    images: Images,
    batch: int,
    ids: NDArray[np.int64] | None = None,
    views: Views = "one",
) -> Iterator[Tensor]:
    """Embed images [n, 3, H, W] in batches: float32 [<= batch, d] each, on the CPU.

    `ids` are the rows to embed, in this order, where not all are wanted.
    """
    device = next(network.parameters()).device
    for start in range(0, len(images if ids is None else ids), batch):
        part = slice(start, start + batch)
        chunk = images[part if ids is None else ids[part]]
        # A copy out of the memory map: torch has no read-only tensors.
        tensor = chunk if isinstance(chunk, Tensor) else torch.from_numpy(np.array(chunk))
        try:
            embeddings = _embed(network, tensor.to(device), views)
        except torch.OutOfMemoryError:
            raise PolyshotError(
                f"The device's memory does not hold {len(chunk)} images at once: "
                f"try a batch of {max(1, len(chunk) // 2)}."
            ) from None
        yield embeddings


def _embed(network: ResNet, images: Tensor, views: Views) -> Tensor:
    def raw(pixels: Tensor) -> Tensor:
        embeddings: Tensor = network(pixels.to(memory_format=torch.channels_last))
        return embeddings.float()

    with torch.inference_mode(), bf16_on(images.device):
        return over_views(raw, normalise(images), views).cpu()


def _fuse(parent: nn.Module, conv: str, bn: str) -> None:
    convolution, norm = parent.get_submodule(conv), parent.get_submodule(bn)
    assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    setattr(parent, conv, fuse_conv_bn_eval(convolution, norm))
    setattr(parent, bn, nn.Identity())
