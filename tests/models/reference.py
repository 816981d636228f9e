"""Random bases and modulators, and the member with nothing folded to check against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.models.backbone import sites_of
from polyshot.models.modulators import Kind, Modulator
from polyshot.models.resnet import ResNet, ResNetConfig

TINY = ResNetConfig(width=4, stem="small/2")


def random_base(config: ResNetConfig, seed: int = 0) -> ResNet:
    """A base in evaluation mode with random weights, affine maps and statistics."""
    torch.manual_seed(seed)
    base = ResNet(config).eval()
    for name, tensor in base.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.2, 3.0)
        elif name.endswith("running_mean") or (tensor.ndim == 1 and name.endswith("bias")):
            tensor.normal_(0, 0.5)
        elif tensor.ndim == 1:
            tensor.normal_(1, 0.3)
    return base


def random_modulator(config: ResNetConfig, kind: Kind, seed: int = 1) -> Modulator:
    torch.manual_seed(seed)
    modulator = Modulator(sites_of(ResNet(config)), kind)
    torch.manual_seed(seed)
    for parameter in modulator.parameters():
        parameter.data += torch.rand_like(parameter) - 0.5  # scales stay away from 0
    return modulator


def explicit(base: ResNet, modulator: Modulator, images: Tensor, strength: float) -> Tensor:
    """The reference: the member with its modulator as extra operations, nothing folded."""
    own = dict(modulator.named_parameters())

    def conv_bn(at: str, i: int, x: Tensor) -> Tensor:
        conv, bn = base.get_submodule(f"{at}.conv{i}"), base.get_submodule(f"{at}.bn{i}")
        key = f"{at}.conv{i}"
        if modulator.kind == "conv1x1":
            extra = F.conv2d(x, own[f"{key}.weight"], own[f"{key}.bias"], stride=conv.stride)
            return bn(conv(x) + strength * extra)
        scale = 1 + strength * (own[f"{key}.scale"] - 1)
        return scale[:, None, None] * bn(conv(x)) + strength * own[f"{key}.bias"][:, None, None]

    x = base.maxpool(torch.relu(base.bn1(base.conv1(images))))
    for stage in (1, 2, 3, 4):
        for i in (0, 1):
            at = f"layer{stage}.{i}"
            y = torch.relu(conv_bn(at, 1, x))
            x = torch.relu(conv_bn(at, 2, y) + base.get_submodule(at).downsample(x))
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def assert_near(a: Tensor, b: Tensor, relative: float = 1e-4) -> None:
    assert a.shape == b.shape
    # 0.1: an embedding may be all but zero, its activations inside are not
    assert (a - b).abs().max() <= relative * (b.abs().max() + 0.1)


def same_states(a: torch.nn.Module, b: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, b[name]) for name, tensor in a.state_dict().items())


def copied(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
