"""What a pass through the base costs, in multiply-adds."""

from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from polyshot.models.resnet import ResNet, ResNetConfig


@cache
def pass_cost(config: ResNetConfig, size: int) -> int:
    """Count the multiply-adds of one forward pass of one image of so many pixels a side."""
    with torch.device("meta"):  # shapes are all that counting needs
        network, image = ResNet(config).eval(), torch.empty(1, 3, size, size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(image)
    return int(counter.get_total_flops()) // 2  # it counts an addition and a multiplication
