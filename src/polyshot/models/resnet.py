"""The base: ResNet-18 (He et al., 2016) without its classifier, keyed as torchvision's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.errors import PolyshotError, join_names, unknown
from polyshot.models.backbone import Site

Stem = Literal["imagenet", "small", "small/2"]

OURS = "resnet18"
"""Its name among backbones."""
STAGES = 4
BLOCKS = 2  # residual blocks a stage: 2 makes it ResNet-18
NARROW = 8
"""Channels below which torch 2.13 writes out of bounds in the backward pass of a strided 1x1
convolution, channels last, on CPUs without AVX-512 (oneDNN's brgconv_strided:avx2)."""


@dataclass(frozen=True)
class ResNetConfig:
    """The shape of a base; pools are only compatible when theirs are equal."""

    width: int = 64
    """Channels of the first stage; each later stage doubles them. 64 is the standard."""
    stem: Stem = "imagenet"
    """`imagenet`: 7x7 convolution, stride 2, then max-pooling (the paper). `small`: 3x3, stride 1,
    no pooling, for small images. `small/2`: the same with stride 2."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise PolyshotError(f"The width of a ResNet must be at least 1, not {self.width}.")
        if self.stem not in get_args(Stem):
            raise unknown("stem", self.stem, get_args(Stem))

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return 8 * self.width


def resnet_layers(config: ResNetConfig) -> list[Site]:
    """List all convolutions with their batch norms, in the order of the forward pass."""
    first = 7 if config.stem == "imagenet" else 3
    stride = 1 if config.stem == "small" else 2
    layers = [Site("conv1", "bn1", 3, config.width, 1, (stride, stride), (first // 2, first // 2))]
    inputs = config.width
    for stage in range(STAGES):
        outputs = config.width * 2**stage
        for block in range(BLOCKS):
            at = f"layer{stage + 1}.{block}"
            step = 2 if stage and not block else 1
            layers += [
                Site(f"{at}.conv1", f"{at}.bn1", inputs, outputs, 1, (step, step), (1, 1)),
                Site(f"{at}.conv2", f"{at}.bn2", outputs, outputs, 1, (1, 1), (1, 1)),
            ]
            if step == 2 or inputs != outputs:
                names = f"{at}.downsample.0", f"{at}.downsample.1"
                layers.append(
                    Site(*names, inputs, outputs, 1, (step, step), (0, 0), pointwise=True)
                )
            inputs = outputs
    return layers


class Pointwise(nn.Conv2d):
    """A strided 1x1 convolution, as of shortcuts."""

    def forward(self, x: Tensor) -> Tensor:
        """Run it: [B, inputs, H, W] -> [B, outputs, H / stride, ...]."""
        if self.in_channels >= NARROW:
            return super().forward(x)
        height, width = self.stride
        return F.conv2d(x[:, :, ::height, ::width], self.weight, self.bias)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: [B, inputs, H, W] -> [B, outputs, H / stride, ...]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            pointwise = Pointwise(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(pointwise, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        total: Tensor = y + self.downsample(x)
        return total.relu_()


class ResNet(nn.Module):
    """ResNet-18 up to its embedding; with the default config torchvision's, less `fc`."""

    def __init__(self, config: ResNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ResNetConfig()
        width, side = config.width, 7 if config.stem == "imagenet" else 3
        stride = 1 if config.stem == "small" else 2
        self.conv1 = nn.Conv2d(3, width, side, stride, padding=side // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if config.stem == "imagenet" else nn.Identity()
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1))
        self.layers = resnet_layers(config)
        """All convolutions; modulators act at the 3x3 ones of the blocks (`sites_of`)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He initialisation; batch norms start as 1 and 0
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised float images: [B, 3, H, W] -> [B, 8 * width], always float32."""
        x = self.bn1(self.conv1(images))  # [B, width, H/2, W/2] (`small`: H, W)
        # The largest of what ReLU makes is what it makes of the largest: a quarter of the numbers.
        x = self.layer1(torch.relu(self.maxpool(x)))  # [B, width, H/4, W/4]
        x = self.layer2(x)  # [B, 2 width, H/8, W/8]
        x = self.layer3(x)  # [B, 4 width, H/16, W/16]
        x = self.layer4(x)  # [B, 8 width, H/32, W/32]
        # global average pooling: [B, 8 width]
        embedding: Tensor = x.mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))
        return embedding


def load_base(model: ResNet, state_dict: Mapping[str, Tensor]) -> None:
    """Copy weights with torchvision's keys into `model`; `fc.*`, the classifier, is left out.

    Nothing is copied unless everything fits. Old files without `num_batches_tracked` are welcome:
    batch norm with a fixed momentum never reads it.
    """
    given = {name: tensor for name, tensor in state_dict.items() if not name.startswith("fc.")}
    wanted = model.state_dict()
    missing = [k for k in wanted if k not in given and not k.endswith(".num_batches_tracked")]
    strange = [k for k in given if k not in wanted]
    shapes = [
        f"{k} (is {list(given[k].shape)}, should be {list(wanted[k].shape)})"
        for k in wanted
        if k in given and given[k].shape != wanted[k].shape
    ]
    faults = {"missing keys": missing, "unknown keys": strange, "wrong shapes": shapes}
    found = "; ".join(f"{fault}: {join_names(keys, 3)}" for fault, keys in faults.items() if keys)
    if found:
        raise PolyshotError(
            f"These weights do not fit a ResNet-18 of width {model.config.width} with the "
            f"'{model.config.stem}' stem: {found}."
        )
    model.load_state_dict(given, strict=False)
