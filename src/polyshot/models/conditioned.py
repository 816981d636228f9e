"""A base whose channels are scaled and shifted from task to task (TADAM: Oreshkin et al., 2018).

A small network reads a task's representation and says, for each of the 16 3x3 convolutions, how its
channels change after batch norm: h -> (1 + gamma) h + beta. Both are multiplied by learned numbers
that start at 0, so that a training starts from the base itself.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.models.resnet import BN_EPS, Block, ResNet, ResNetConfig, modulated_layers

MOST_HIDDEN = 128
"""Widest hidden layer: one as wide as the convolution would hold as much as the base itself."""

Conditions = Mapping[str, tuple[Tensor, Tensor]]
"""Gamma and beta, [E, channels] each, by the names of batch norms: ``layer1.0.bn1``."""


class TaskConditions(nn.Module):
    """The task embedding network: two residual networks of three layers for each convolution."""

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.layers = modulated_layers(config)
        self.networks = nn.ModuleList(_Pair(config.dim, layer.outputs) for layer in self.layers)
        self.strengths = nn.Parameter(torch.zeros(2 * len(self.layers)))
        """How much each layer is scaled and shifted: gamma_0 and beta_0, layer by layer."""

    def forward(self, task: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Turn representations of tasks [E, d] into conditions."""
        task = F.layer_norm(task, task.shape[-1:])  # sources differ in size, and training moves it
        result = {}
        strengths = self.strengths.view(-1, 2, 1, 1)
        for layer, network, strength in zip(self.layers, self.networks, strengths, strict=True):
            gamma, beta = strength * network(task)  # [E, channels] each
            result[layer.bn] = gamma, beta
        return result


class _Pair(nn.Module):
    """Two networks side by side: [E, d] -> [2, E, channels]."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        hidden = min(outputs, MOST_HIDDEN)
        sizes = ((inputs, hidden), (hidden, hidden), (hidden, outputs))
        self.weights = nn.ParameterList(
            torch.randn(2, *size) / math.sqrt(size[0]) for size in sizes
        )
        # Of one axis, as all that weight decay leaves alone.
        self.biases = nn.ParameterList(torch.zeros(2 * size[1]) for size in sizes)

    def forward(self, task: Tensor) -> Tensor:
        x = F.silu(self._layer(0, task.expand(2, -1, -1)))  # [2, E, hidden]
        x = x + F.silu(self._layer(1, x))
        return self._layer(2, x)

    def _layer(self, number: int, x: Tensor) -> Tensor:
        return torch.baddbmm(self.biases[number].view(2, 1, -1), x, self.weights[number])


def embed_conditioned(base: ResNet, conditions: Conditions, images: Tensor) -> Tensor:
    """Embed normalised images [E, B, 3, H, W], those of a task under its conditions: [E, B, d].

    Batch norm keeps its statistics, in training too. One pass, for all tasks together.
    """
    tasks, each = images.shape[:2]

    def normalised(x: Tensor, name: str, norm: nn.BatchNorm2d) -> Tensor:
        """Apply batch norm and the conditions at once: both are linear by channel."""
        variance, mean = norm.get_buffer("running_var"), norm.get_buffer("running_mean")
        slope = norm.weight * torch.rsqrt(variance + BN_EPS)  # [channels]
        gamma, beta = conditions[name]
        scale = (1 + gamma) * slope
        shift = (1 + gamma) * (norm.bias - mean * slope) + beta  # [E, channels]
        scale, shift = (
            t.to(x.dtype).repeat_interleave(each, 0)[:, :, None, None] for t in (scale, shift)
        )
        return torch.addcmul(shift, x, scale)

    flat = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    x = base.maxpool(torch.relu(base.bn1(base.conv1(flat))))
    for at, block in base.named_modules():
        if isinstance(block, Block):  # in the order of the forward pass
            y = torch.relu(normalised(block.conv1(x), f"{at}.bn1", block.bn1))
            y = normalised(block.conv2(y), f"{at}.bn2", block.bn2)
            x = torch.relu(y + block.downsample(x))
    embeddings: Tensor = x.mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))
    return embeddings.view(tasks, each, -1)
