"""Modulators: the few weights that turn the base into the member of one domain.

Both kinds of the paper are linear in their parameters and act next to a 3x3 convolution followed
by batch norm, so there is no modulated network here at all. A member is the plain base with some
of its tensors replaced, and costs exactly one plain forward pass, in training as in prediction:

- `conv1x1` (residual adapters): y = BN(conv3x3(x) + conv1x1(x) + bias). A 1x1 convolution is a 3x3
  convolution that is zero but for its centre tap, so its weight adds to the 3x3 kernel.
- `channel` (FiLM): y = scale * BN(conv3x3(x)) + bias, which is BN with another affine map.

The bias of `conv1x1` goes into batch norm's bias, as gamma * bias / sqrt(running_var + eps). With
batch norm in evaluation mode this is exact. It could also go into `running_mean`, but no gradient
flows there. In training mode an explicit bias would be cancelled by the batch mean and learn
nothing; here the statistics are those of the convolutions alone, so the bias stays alive and the
member means the same in both modes.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from polyshot.errors import PolyshotError, did_you_mean, join_names
from polyshot.models.resnet import BN_EPS, ModulatedLayer, ResNet, ResNetConfig, modulated_layers

Kind = Literal["conv1x1", "channel"]


class Modulator(nn.Module):
    """The parameters of one domain, keyed by layer; at the start its member equals the base.

    `conv1x1`: `layer1.0.conv1.weight` [outputs, inputs, 1, 1] and `.bias` [outputs], zeros.
    `channel`: `layer1.0.conv1.scale` [outputs], ones, and `.bias` [outputs], zeros.
    """

    def __init__(self, config: ResNetConfig, kind: Kind = "conv1x1") -> None:
        super().__init__()
        if kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise PolyshotError(
                f"Unknown modulator kind '{kind}'.{hint} Known are {join_names(get_args(Kind))}."
            )
        self.config = config
        self.kind = kind
        self.holders: dict[str, nn.Module] = {}
        """The module that holds a layer's parameters, by the convolution's name."""
        for layer in modulated_layers(config):
            holder = self.holders[layer.conv] = self._holder(layer)
            if kind == "conv1x1":
                holder.weight = nn.Parameter(torch.zeros(layer.outputs, layer.inputs, 1, 1))
            else:
                holder.scale = nn.Parameter(torch.ones(layer.outputs))
            holder.bias = nn.Parameter(torch.zeros(layer.outputs))

    def _holder(self, layer: ModulatedLayer) -> nn.Module:
        """Return the empty module at the layer's dotted name: parameter names may hold no dots."""
        holder: nn.Module = self
        for part in layer.conv.split("."):
            if not hasattr(holder, part):
                holder.add_module(part, nn.Module())
            holder = holder.get_submodule(part)
        return holder


def member_parameters(
    base: ResNet,
    modulator: Modulator,
    strength: float = 1.0,
    values: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return all parameters of the member, for `torch.func.functional_call(base, ..., (images,))`.

    Gradients reach the modulator and nothing else. `strength` 1 is the modulator as trained, 0 the
    base. `values` stands in for the modulator's own parameters: a slice of `stack`, or tensors with
    a history of their own.
    """
    if base.config != modulator.config:
        raise PolyshotError(
            f"The modulator was made for {modulator.config}, the base is {base.config}."
        )
    at = _at_strength(modulator, strength, values)
    member = {name: parameter.detach() for name, parameter in base.named_parameters()}
    for conv, bn, _, _ in modulated_layers(base.config):
        gamma, beta = member[f"{bn}.weight"], member[f"{bn}.bias"]
        if modulator.kind == "conv1x1":
            # [out, in, 1, 1] -> [out, in, 3, 3], zero around the centre tap
            centre = F.pad(at[f"{conv}.weight"], (1, 1, 1, 1))
            member[f"{conv}.weight"] = member[f"{conv}.weight"] + centre
            slope = gamma * torch.rsqrt(base.get_buffer(f"{bn}.running_var") + BN_EPS)
            member[f"{bn}.bias"] = beta + slope * at[f"{conv}.bias"]
        else:
            member[f"{bn}.weight"] = gamma * at[f"{conv}.scale"]
            member[f"{bn}.bias"] = beta * at[f"{conv}.scale"] + at[f"{conv}.bias"]
    return member


def embed_member(
    base: ResNet, modulator: Modulator, images: Tensor, strength: float = 1.0
) -> Tensor:
    """Embed images [B, 3, H, W] with one member: [B, d]; gradients reach the modulator only."""
    parameters = member_parameters(base, modulator, strength)
    embeddings: Tensor = functional_call(base, parameters, (images,))
    return embeddings


def embed_members(base: ResNet, modulators: Sequence[Modulator], images: Tensor) -> Tensor:
    """Embed the same images [B, 3, H, W] with every member: [M, B, d].

    A loop: on a CPU the grouped convolutions of `embed_stacked` take 1.7 times as long at width 64.
    """
    return torch.stack([embed_member(base, modulator, images) for modulator in modulators])


def stack(modulators: Sequence[Modulator]) -> dict[str, Tensor]:
    """Stack the parameters of several modulators on a leading member axis, as new leaf tensors."""
    _check_alike(modulators)
    own = [dict(modulator.named_parameters()) for modulator in modulators]
    return {
        name: torch.stack([parameters[name].detach() for parameters in own]).requires_grad_()
        for name in own[0]
    }


def embed_stacked(
    base: ResNet, modulator: Modulator, stacked: Mapping[str, Tensor], images: Tensor
) -> Tensor:
    """Embed images [M, B, 3, H, W], the i-th batch with the i-th member of `stacked`: [M, B, d].

    This learns the modulators of many small tasks at once; `modulator` only gives the kind. Batch
    norm must be in evaluation mode.
    """

    def embed(values: dict[str, Tensor], batch: Tensor) -> Tensor:
        parameters = member_parameters(base, modulator, values=values)
        embeddings: Tensor = functional_call(base, parameters, (batch,))
        return embeddings

    embeddings: Tensor = vmap(embed)(dict(stacked), images)
    return embeddings


def fold(base: ResNet, modulator: Modulator, strength: float = 1.0) -> ResNet:
    """Return a new plain ResNet that is the member; the base stays as it is."""
    return _replaced(base, member_parameters(base, modulator, strength))


def unfold(folded: ResNet, modulator: Modulator, strength: float = 1.0) -> ResNet:
    """Return the base from which `fold` made `folded`, to float precision."""
    at = _at_strength(modulator, strength)
    inverse = {}
    for conv, *_ in modulated_layers(modulator.config):
        if modulator.kind == "conv1x1":
            inverse[f"{conv}.weight"] = -at[f"{conv}.weight"]
            inverse[f"{conv}.bias"] = -at[f"{conv}.bias"]
        else:
            scale = at[f"{conv}.scale"]
            if not bool(scale.all()):
                raise PolyshotError(f"Cannot unfold: a scale at {conv} is 0, the base is lost.")
            inverse[f"{conv}.scale"] = 1 / scale
            inverse[f"{conv}.bias"] = -at[f"{conv}.bias"] / scale
    return _replaced(folded, member_parameters(folded, modulator, values=inverse))


def blend(modulators: Sequence[Modulator], weights: Sequence[float] | Tensor) -> Modulator:
    """Return the weighted sum of modulators, counted from the identity; weights need not sum to 1.

    The missing weight goes to the base: all weights 0 give the base, one weight a strength.
    """
    _check_alike(modulators)
    shares = [float(weight) for weight in weights]
    if len(shares) != len(modulators):
        raise PolyshotError(
            f"{len(modulators)} modulators need as many weights, not {len(shares)}."
        )
    result = copy.deepcopy(modulators[0])
    own = [dict(modulator.named_parameters()) for modulator in modulators]
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            parameter.fill_((1 - sum(shares)) * _identity(name))
            for share, each in zip(shares, own, strict=True):
                parameter.add_(each[name], alpha=share)
    return result


def _identity(name: str) -> float:
    """Return the value at which the parameter of this name changes nothing."""
    return 1.0 if name.endswith(".scale") else 0.0


def _at_strength(
    modulator: Modulator, strength: float, values: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the parameters on the line from the identity (0) to `values` (1)."""
    values = dict(modulator.named_parameters()) if values is None else values
    return {
        name: torch.lerp(torch.full_like(value, _identity(name)), value, strength)
        for name, value in values.items()
    }


def _replaced(base: ResNet, parameters: Mapping[str, Tensor]) -> ResNet:
    """Return a copy of the base with these parameters; the statistics are the base's."""
    result = copy.deepcopy(base)
    result.load_state_dict(dict(parameters), strict=False)
    return result


def _check_alike(modulators: Sequence[Modulator]) -> None:
    kinds = sorted({f"{modulator.kind} of {modulator.config}" for modulator in modulators})
    if len(kinds) != 1:
        raise PolyshotError(
            f"Modulators must be of one kind and shape, not {join_names(kinds) or 'none at all'}."
        )
