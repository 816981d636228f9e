"""Modulators: the few weights that turn the base into the member of one domain.

Both kinds of the paper act at the sites of a network (`models.backbone`) and are linear in their
parameters, so a member is the plain base with some of its tensors replaced (`fold`), and costs
exactly one plain forward pass, in training as in prediction:

- `conv1x1` (residual adapters): y = BN(conv3x3(x) + conv1x1(x) + bias). A 1x1 convolution is a 3x3
  convolution that is zero but for its centre tap, so its weight adds to the 3x3 kernel; beside a
  linear layer it is a linear map. Beside a pointwise layer a full map were as large as the layer
  itself: there it is the product of two thin matrices (LoRA, Hu et al. 2021).
- `channel` (FiLM): y = scale * BN(conv3x3(x)) + bias, which is BN with another affine map.

The bias of `conv1x1` goes into batch norm's bias, as gamma * bias / sqrt(running_var + eps). With
batch norm in evaluation mode this is exact. It could also go into `running_mean`, but no gradient
flows there. In training mode an explicit bias would be cancelled by the batch mean and learn
nothing; here the statistics are those of the convolutions alone, so the bias stays alive and the
member means the same in both modes.

Modulators that differ from task to task (`TaskModulators`) run side by side: the shared layers are
plain ones over the images of all tasks together, what differs is a product of matrices for each
task, or a factor and a shift for each channel. Nothing is cut into patches, and the base needs no
gradients of its kernels, so this is the fastest way to learn many modulators.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.errors import PolyshotError, unknown
from polyshot.models.backbone import NORMS, Site, affine, by_image, same_tensors, sites_of
from polyshot.models.passes import Act
from polyshot.models.walk import AnyNetwork, copied

Kind = Literal["conv1x1", "channel"]
RANK = 16
"""Of the maps beside pointwise layers."""


class Modulator(nn.Module):
    """The parameters of one domain, keyed by site; at the start its member equals the base.

    `conv1x1`: `layer1.0.conv1.weight` [outputs, inputs, 1, 1] (beside a linear layer [outputs,
    inputs]) and `.bias` [outputs], zeros. Where that is larger than a map of low rank beside a
    pointwise layer, it has `.up` [outputs, rank], zeros, and `.down` [rank, inputs], random,
    instead; rank 0 is for full maps everywhere. `channel`: `layer1.0.conv1.scale` [outputs], ones,
    and `.bias` [outputs], zeros.
    """

    def __init__(self, sites: Sequence[Site], kind: Kind = "conv1x1", rank: int = RANK) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise unknown("kind of modulator", kind, get_args(Kind))
        self.sites = _sites(sites, kind)
        self.kind = kind
        self.holders: dict[str, nn.Module] = {}
        """The module that holds a site's parameters, by the layer's name."""
        for site in self.sites:
            holder = self.holders[site.layer] = self._holder(site.layer)
            inputs, outputs = site.inputs, site.outputs
            thin = site.pointwise and 0 < rank * (inputs + outputs) < inputs * outputs
            if kind == "channel":
                holder.scale = nn.Parameter(torch.ones(outputs))
            elif thin:
                holder.up = nn.Parameter(torch.zeros(outputs, rank))
                holder.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
            else:
                taps = (1, 1) if site.axis == 1 else ()
                holder.weight = nn.Parameter(torch.zeros(outputs, inputs, *taps))
            holder.bias = nn.Parameter(torch.zeros(site.outputs))

    def _holder(self, layer: str) -> nn.Module:
        """Return the empty module at the layer's dotted name: parameter names may hold no dots."""
        holder: nn.Module = self
        for part in layer.split("."):
            if not hasattr(holder, part):
                holder.add_module(part, nn.Module())
            holder = holder.get_submodule(part)
        return holder

    def fits(self, base: nn.Module) -> bool:
        """Tell whether it was made for networks like this one."""
        return same_tensors(self.sites, _sites(sites_of(base), self.kind))


def _sites(sites: Sequence[Site], kind: Kind) -> list[Site]:
    return [site for site in sites if kind == "channel" or site.takes_maps]


def read_tensors(sites: Sequence[Site], kind: Kind, tensors: Mapping[str, Tensor]) -> Modulator:
    """Make the modulator that tensors from a file are of; their shapes tell its rank."""
    ranks = [len(tensor) for name, tensor in tensors.items() if name.endswith(".down")]
    return Modulator(sites, kind, max(ranks, default=0))


def site_map(values: Mapping[str, Tensor], site: Site) -> Tensor:
    """Return the map at a site by a modulator's values: [out, in, 1, 1] or [out, in]."""
    full = values.get(f"{site.layer}.weight")
    if full is not None:
        return full
    product = values[f"{site.layer}.up"] @ values[f"{site.layer}.down"]
    return product[:, :, None, None] if site.axis == 1 else product


def member_parameters(
    base: nn.Module,
    modulator: Modulator,
    strength: float = 1.0,
    values: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return all parameters of the member, for `torch.func.functional_call(base, ..., (images,))`.

    Gradients reach the modulator and nothing else. `strength` 1 is the modulator as trained, 0 the
    base. `values` stands in for the modulator's own parameters: tensors with a history of their
    own.
    """
    values = dict(modulator.named_parameters()) if values is None else values
    at = {  # on the line from the identity (0) to the values (1); of a product one factor is enough
        name: value
        if name.endswith(".down")
        else torch.lerp(torch.full_like(value, float(name.endswith(".scale"))), value, strength)
        for name, value in values.items()
    }
    member = {name: parameter.detach() for name, parameter in base.named_parameters()}
    for site in modulator.sites:
        layer, key = site.layer, f"{site.layer}.weight"
        # A depthwise kernel is [outputs, 1, ...]; scaling asks for its outputs alone.
        wanted = (site.outputs, site.inputs)[: 2 if modulator.kind == "conv1x1" else 1]
        if key not in member or member[key].shape[: len(wanted)] != wanted:
            raise PolyshotError(
                f"The modulator was made for another network: {layer} of {site.inputs} and "
                f"{site.outputs} channels is not in this one."
            )
        bias = f"{site.norm or layer}.bias"
        if modulator.kind == "conv1x1":
            member[key] = member[key] + at_tap(site_map(at, site), site, member[key])
            slope, _ = affine(base, site)
            member[bias] = member[bias] + slope.detach() * at[f"{layer}.bias"]
        else:
            scale, scaled = at[f"{layer}.scale"], f"{site.norm or layer}.weight"
            member[scaled] = member[scaled] * scale.view(-1, *[1] * (member[scaled].ndim - 1))
            member[bias] = member[bias] * scale + at[f"{layer}.bias"]
    return member


def fold(base: AnyNetwork, modulator: Modulator, strength: float = 1.0) -> AnyNetwork:
    """Return a new plain network that is the member; the base stays as it is."""
    made = member_parameters(base, modulator, strength)
    own: dict[Tensor, Tensor] = {
        old: nn.Parameter(made[name].detach().clone(), old.requires_grad)
        for name, old in base.named_parameters()
    }
    return copied(base, own)


def at_tap(weight: Tensor, site: Site, kernel: Tensor) -> Tensor:
    """Bring a pointwise map into the layer's kernel: [out, in, 1, 1], zero around the tap."""
    if site.tap is None:
        return weight
    (top, left), (height, width) = site.tap, kernel.shape[2:]
    return F.pad(weight, (left, width - 1 - left, top, height - 1 - top))


@dataclass(frozen=True, eq=False)
class TaskModulators:
    """The modulators of E tasks; a leading axis of 1 stands for all of them."""

    sites: Sequence[Site]
    weights: Mapping[str, Tensor]
    """``[E, outputs, inputs]`` by the layer's name; empty where there are none."""
    slopes: Mapping[str, Tensor]
    """``[E, outputs]``: what the layer's result is multiplied by, batch norm included."""
    shifts: Mapping[str, Tensor]
    """``[E, outputs]``: what is added then."""
    layers: Mapping[str, nn.Module] = field(default_factory=dict)
    """The base's own layers that are pointwise themselves."""

    def rows(self, rows: Tensor) -> "TaskModulators":
        """Return some of the tasks, int64 ``[k]``; tasks may come more than once."""
        weights, slopes, shifts = (
            {name: value if len(value) == 1 else value[rows] for name, value in part.items()}
            for part in (self.weights, self.slopes, self.shifts)
        )
        return replace(self, weights=weights, slopes=slopes, shifts=shifts)

    def acts(self, tasks: int) -> dict[str, Act]:
        """Return what happens at the sites to the images of so many tasks, task by task."""
        acts: dict[str, Act] = {}
        for site in self.sites:
            name = site.layer
            acts[name] = TaskAct(
                *(site, tasks, self.weights.get(name), self.slopes[name], self.shifts[name]),
                self.layers.get(name),
            )
        return acts


@dataclass(frozen=True, eq=False)
class TaskAct(Act):
    """A site whose modulator differs from task to task; its norm keeps its statistics."""

    site: Site
    tasks: int
    weight: Tensor | None
    """``[E or 1, outputs, inputs]``."""
    slope: Tensor
    """``[E or 1, outputs]``, batch norm included."""
    shift: Tensor
    pointwise_layer: nn.Module | None = None
    """The layer itself, where it is a pointwise map, too."""

    def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Add each task's pointwise map of the input."""
        if self.weight is None:
            y = own(x)
        elif self.pointwise_layer is None or torch.is_autocast_enabled(x.device.type):
            # A sum of both in half precision would lose what a task has changed a little.
            y = own(x) + pointwise(x, self.weight, self.site, self.tasks)
        else:
            y = self._in_one(self.pointwise_layer, x, self.weight)
        return y if self.site.norm is not None else self.norm(own, y)

    def _in_one(self, layer: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
        """Take the sum of the layer's own map and the task's: one product instead of two."""
        kernel, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        y = pointwise(x, kernel.view(1, *weight.shape[1:]) + weight, self.site, self.tasks)
        return y if bias is None else y + by_image(bias[None], y, self.tasks, self.site.axis)

    def norm(self, own: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """Scale and shift the channels by each task's numbers, batch norm's among them."""
        slope = by_image(self.slope, y, self.tasks, self.site.axis)
        return torch.addcmul(by_image(self.shift, y, self.tasks, self.site.axis), y, slope)


def pointwise(x: Tensor, weight: Tensor, site: Site, tasks: int) -> Tensor:
    """Map each task's images by its own matrix [E or 1, outputs, inputs], in one product.

    Channels of images stand last in memory, so that the images of a task are one matrix.
    """
    matrix = weight.mT.expand(tasks, -1, -1)
    if site.axis == -1:
        return torch.bmm(x.reshape(tasks, -1, site.inputs), matrix).view(*x.shape[:-1], -1)
    x = x[:, :, :: site.stride[0], :: site.stride[1]]
    images, inputs, height, width = x.shape
    y = torch.bmm(x.permute(0, 2, 3, 1).reshape(tasks, -1, inputs), matrix)
    return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def task_modulators(
    base: nn.Module, modulators: Sequence[Modulator], shares: Tensor
) -> TaskModulators:
    """Blend M modulators of one kind, perhaps none, for each task.

    `shares` ``[E, M]`` are of each in a task's blend, strengths included; what is missing to 1 goes
    to the base.
    """
    weights, slopes, shifts = {}, {}, {}

    def mixed(layer: str, name: str) -> Tensor:
        """Return the weighted sum of a parameter, [E, ...]."""
        return total(rows_of_one([getattr(each.holders[layer], name) for each in modulators]))

    def mixed_map(site: Site) -> Tensor:
        """Return the weighted sum of the maps at a site, [E, ...]."""
        if all(hasattr(each.holders[site.layer], "weight") for each in modulators):
            return mixed(site.layer, "weight")
        return total(torch.stack([site_map(own, site) for own in values]))

    def total(together: Tensor) -> Tensor:
        result: Tensor = torch.tensordot(shares.to(together), together, 1)
        return result

    values = [dict(each.named_parameters()) for each in modulators]
    sites = modulators[0].sites if modulators else sites_of(base)
    layers = {site.layer: base.get_submodule(site.layer) for site in sites if site.pointwise}
    with torch.no_grad():
        for site in sites:
            layer = site.layer
            slope, shift = affine(base, site)  # [outputs] each
            slopes[layer], shifts[layer] = slope.unsqueeze(0), shift.unsqueeze(0)
            if modulators and modulators[0].kind == "conv1x1":
                weight = mixed_map(site)
                weights[layer] = weight.flatten(2) if site.axis == 1 else weight  # [E, out, in]
                shifts[layer] = shift + slope * mixed(layer, "bias")
            elif modulators:
                of_base = 1 - shares.to(slope).sum(1, keepdim=True)  # [E, 1]: its scale is 1
                scale = of_base + mixed(layer, "scale")
                slopes[layer] = slope * scale
                shifts[layer] = shift * scale + mixed(layer, "bias")
    return TaskModulators(sites, weights, slopes, shifts, layers)


def no_weights(base: nn.Module, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Return `conv1x1` weights that change nothing: ``[1, outputs, inputs]``, zeros."""
    like = next(chain(base.parameters(), base.buffers()))  # a function has no parameters
    mapped = [site for site in sites if site.takes_maps]
    return {site.layer: like.new_zeros(1, site.outputs, site.inputs) for site in mapped}


def fold_task(base: AnyNetwork, modulators: TaskModulators, task: int) -> AnyNetwork:
    """Return one task's network as a plain one; the base stays as it is."""
    folded, own = copied(base), modulators.rows(torch.tensor([task]))
    with torch.no_grad():
        for site in own.sites:
            layer = folded.get_submodule(site.layer)
            kernel = layer.get_parameter("weight")
            (slope,), (shift,) = own.slopes[site.layer], own.shifts[site.layer]
            if site.layer in own.weights:
                (weight,) = own.weights[site.layer]
                if site.tap is None:
                    kernel.add_(weight)
                else:  # a 1x1 kernel is one tap of a larger one
                    kernel[:, :, site.tap[0], site.tap[1]] += weight
            if site.norm is None:
                kernel.mul_(slope.view(-1, *[1] * (kernel.ndim - 1)))
                layer.get_parameter("bias").mul_(slope).add_(shift)
                continue
            norm = folded.get_submodule(site.norm)
            assert isinstance(norm, NORMS) and norm.running_var is not None
            assert norm.running_mean is not None
            norm.weight.copy_(slope * torch.sqrt(norm.running_var + norm.eps))
            norm.bias.copy_(shift + norm.running_mean * slope)
    return folded


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
        values, shape = first.detach().contiguous(), (len(parameters), *first.shape)
        return values.as_strided(shape, (first.numel(), *values.stride()))
    if first.is_inference():  # such a one cannot be moved
        return torch.stack(list(parameters))
    with torch.inference_mode(False), torch.no_grad():
        together = torch.stack(list(parameters))
        for row, each in zip(together, parameters, strict=True):
            each.data = row
    return together
