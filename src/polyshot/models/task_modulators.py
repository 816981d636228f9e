"""One base whose modulator differs from task to task, run side by side.

E tasks share the base's 3x3 kernels and each has a modulator of its own. The shared convolutions
are plain ones over the images of all tasks together; what differs is a product of matrices for each
task (`conv1x1`), or a factor and a shift for each channel. Nothing is cut into patches, and the
base needs no gradients of its kernels, so this is the fastest way to learn many modulators.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyshot.models.modulators import Modulator
from polyshot.models.resnet import BN_EPS, Block, ResNet, modulated_layers


@dataclass(frozen=True, eq=False)
class TaskModulators:
    """The modulators of E tasks; a leading axis of 1 stands for all of them."""

    weights: Mapping[str, Tensor]
    """``[E, outputs, inputs]`` by the convolution's name; empty where there are none."""
    slopes: Mapping[str, Tensor]
    """``[E, outputs]``: what the convolution's sum is multiplied by, batch norm included."""
    shifts: Mapping[str, Tensor]
    """``[E, outputs]``: what is added then."""

    def rows(self, rows: Tensor) -> "TaskModulators":
        """Return some of the tasks, int64 ``[k]``; tasks may come more than once."""
        return TaskModulators(
            *(
                {name: value if len(value) == 1 else value[rows] for name, value in part.items()}
                for part in (self.weights, self.slopes, self.shifts)
            )
        )


def task_modulators(
    base: ResNet, modulators: Sequence[Modulator], shares: Tensor
) -> TaskModulators:
    """Blend modulators of one kind for each task.

    Args:
        base: what they modulate.
        modulators: M of them, perhaps none.
        shares: ``[E, M]`` of each in a task's blend, strengths included; what is missing to 1 goes
            to the base.

    """
    weights, slopes, shifts = {}, {}, {}

    def mixed(conv: str, name: str) -> Tensor:
        """Return the weighted sum of a parameter, [E, ...]."""
        together = rows_of_one([getattr(each.holders[conv], name) for each in modulators])
        total: Tensor = torch.tensordot(shares.to(together), together, 1)
        return total

    with torch.no_grad():
        for conv, bn, *_ in modulated_layers(base.config):
            norm = base.get_submodule(bn)
            variance, mean = norm.get_buffer("running_var"), norm.get_buffer("running_mean")
            slope = norm.get_parameter("weight") * torch.rsqrt(variance + BN_EPS)  # [outputs]
            shift = norm.get_parameter("bias") - mean * slope
            slopes[conv], shifts[conv] = slope.unsqueeze(0), shift.unsqueeze(0)
            if modulators and modulators[0].kind == "conv1x1":
                weights[conv] = mixed(conv, "weight").flatten(2)  # [E, outputs, inputs]
                shifts[conv] = shift + slope * mixed(conv, "bias")
            elif modulators:
                of_base = 1 - shares.to(slope).sum(1, keepdim=True)  # [E, 1]: its scale is 1
                scale = of_base + mixed(conv, "scale")
                slopes[conv] = slope * scale
                shifts[conv] = shift * scale + mixed(conv, "bias")
    return TaskModulators(weights, slopes, shifts)


def rows_of_one(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return parameters of one shape as the rows of one tensor ``[M, ...]``.

    The first time their values are moved there, and the parameters are its rows from then on:
    mixing a hundred modulators is one product over memory that lies in order, without copying them
    for every task, and changing a parameter changes its row.
    """
    first = parameters[0]
    size = first.numel() * first.element_size()
    start, memory = first.data_ptr(), first.untyped_storage()
    # Rows stand behind each other in the first one's own memory.
    room = memory.data_ptr() + memory.nbytes() - start
    if room >= size * len(parameters) and all(
        each.data_ptr() == start + i * size and each.is_contiguous()
        for i, each in enumerate(parameters)
    ):
        values = first.detach().contiguous()
        shape = len(parameters), *first.shape
        return values.as_strided(shape, (first.numel(), *values.stride()))
    if first.is_inference():  # such a one cannot be moved
        return torch.stack(list(parameters))
    with torch.inference_mode(False), torch.no_grad():
        together = torch.stack(list(parameters))
        for row, each in zip(together, parameters, strict=True):
            each.data = row
    return together


def no_weights(base: ResNet) -> dict[str, Tensor]:
    """Return `conv1x1` weights that change nothing: ``[1, outputs, inputs]``, zeros."""
    device = base.conv1.weight.device
    return {
        layer.conv: torch.zeros(1, layer.outputs, layer.inputs, device=device)
        for layer in modulated_layers(base.config)
    }


def stem(base: ResNet, images: Tensor) -> Tensor:
    """Run the layers before the first modulated one: images [E, B, 3, H, W] -> [E * B, C, h, w].

    They are the same for every task, and whoever learns on the same images needs them once.
    """
    x = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    features: Tensor = base.maxpool(torch.relu(base.bn1(base.conv1(x))))
    return features


def embed_modulated(
    base: ResNet, modulators: TaskModulators, features: Tensor, tasks: int
) -> Tensor:
    """Embed what `stem` made of the images of so many tasks: [E * B, C, h, w] -> [E, B, d].

    Batch norm keeps the base's statistics. Under autocast the products are bf16; the embeddings
    never are.
    """
    each = len(features) // tasks

    def by_image(values: Tensor, like: Tensor) -> Tensor:
        """Give each image its task's numbers: [E or 1, C] -> [E * B or 1, C, 1, 1]."""
        values = values.to(like.dtype)
        values = values if len(values) == 1 else values.repeat_interleave(each, 0)
        return values[:, :, None, None]

    def layer(x: Tensor, conv: str, convolution: nn.Conv2d) -> Tensor:
        y = convolution(x)
        if conv in modulators.weights:
            y = y + _pointwise(x, modulators.weights[conv], convolution.stride[0], tasks)
        slope, shift = (by_image(v[conv], y) for v in (modulators.slopes, modulators.shifts))
        return torch.addcmul(shift, y, slope)

    x = features
    for at, block in base.named_modules():
        if isinstance(block, Block):  # in the order of the forward pass
            y = torch.relu(layer(x, f"{at}.conv1", block.conv1))
            x = torch.relu(layer(y, f"{at}.conv2", block.conv2) + block.downsample(x))
    embeddings: Tensor = x.mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))
    return embeddings.view(tasks, each, -1)


def _pointwise(x: Tensor, weight: Tensor, stride: int, tasks: int) -> Tensor:
    """Convolve each task's images by its own 1x1 kernel [E or 1, outputs, inputs], in one product.

    Channels stand last in memory, so that the images of a task are one matrix.
    """
    x = x[:, :, ::stride, ::stride]
    images, inputs, height, width = x.shape
    flat = x.permute(0, 2, 3, 1).reshape(tasks, -1, inputs)
    y = torch.bmm(flat, weight.mT.expand(tasks, -1, -1))
    return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def fold_task(base: ResNet, modulators: TaskModulators, task: int) -> ResNet:
    """Return one task's network as a plain one; the base stays as it is."""
    folded = copy.deepcopy(base)
    with torch.no_grad():
        for conv, bn, *_ in modulated_layers(base.config):
            norm = folded.get_submodule(bn)
            variance, mean = norm.get_buffer("running_var"), norm.get_buffer("running_mean")
            slope, shift = (
                part[conv][task if len(part[conv]) > 1 else 0]
                for part in (modulators.slopes, modulators.shifts)
            )
            norm.get_parameter("weight").copy_(slope * torch.sqrt(variance + BN_EPS))
            norm.get_parameter("bias").copy_(shift + mean * slope)
            if conv in modulators.weights:
                weight = modulators.weights[conv]
                own = weight[task if len(weight) > 1 else 0]
                kernel = folded.get_submodule(conv).get_parameter("weight")
                kernel[:, :, 1, 1] += own  # a 1x1 kernel is the centre tap of a 3x3 one
    return folded
