"""The door to any network: its layers and sites, and the one walk through it (`models.walk`).

A backbone is an `nn.Module` that embeds images, ``[B, 3, H, W] -> [B, d]``. E tasks, B images of
each.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from polyshot.models.walk import AnyNetwork, Walk, copied
from polyshot.util.files import digest

SHORTCUTS = ("downsample", "shortcut")
"""Parts of the names of layers that lie on a block's shortcut."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
"""What can be folded into the layer before it."""


@dataclass(frozen=True)
class Site:
    """A layer of a network: a convolution or a linear map, with what normalises its result."""

    layer: str
    """The module's name, such as ``layer1.0.conv1``; also the key of what acts there."""
    norm: str | None
    """The name of the batch norm that reads exactly this result, if there is one."""
    inputs: int
    outputs: int
    """Channels."""
    axis: int = 1
    """Where the channels are: 1 of a convolution, -1 of a linear layer."""
    stride: tuple[int, int] = (1, 1)
    tap: tuple[int, int] | None = None
    """The kernel's tap that reads the input at every stride: a 1x1 convolution of the same stride
    can be added there. None for a linear layer, which needs none, and where there is no such tap:
    then only channels can be scaled."""
    pointwise: bool = False
    """Whether the layer itself is such a map: a linear layer, or a convolution of one tap."""

    @property
    def takes_maps(self) -> bool:
        """Whether a pointwise map of the layer's input can be added to its result."""
        return self.axis == -1 or self.tap is not None


def walk_through(network: nn.Module) -> Walk:
    """Return the walk through a network; made once, and anew when its tensors were replaced."""
    known = _WALKS.get(network)
    if known is None or not known[0].holds(in_place=False):
        norms = {site.layer: site.norm for site in layers_of(network)}
        known = _WALKS[network] = Snapshot(network), Walk(network, norms)
    walk = known[1]
    if walk.network.training != network.training:
        walk.network.train(network.training)
    return walk


_WALKS: WeakKeyDictionary[nn.Module, tuple["Snapshot", Walk]] = WeakKeyDictionary()
_LAYERS: WeakKeyDictionary[nn.Module, list[Site]] = WeakKeyDictionary()


def layers_of(network: nn.Module) -> list[Site]:
    """List the convolutions and linear layers of a network in the order of its forward pass.

    A backbone of ours declares them (`layers`); for others a small image is sent through, once.
    """
    declared = getattr(network, "layers", None)
    if isinstance(declared, list):
        return declared
    if network not in _LAYERS:
        _LAYERS[network] = find_layers(network, torch.zeros(1, 3, 64, 64))
    return _LAYERS[network]


def sites_of(network: nn.Module) -> list[Site]:
    """List the layers at which modulators act: those that a network declares, or by the rule.

    A network may have a method `is_site`, which says of a layer whether it is one, or None.
    """
    declared = getattr(network, "is_site", None)
    if not callable(declared):
        return sites_by_rule(network)
    by_rule = {site.layer for site in sites_by_rule(network)}
    answers = ((site, declared(site)) for site in layers_of(network))
    return [
        site for site, answer in answers if (site.layer in by_rule if answer is None else answer)
    ]


def sites_by_rule(network: nn.Module) -> list[Site]:
    """List the layers of blocks, which stand in numbered lists.

    Neither the stem nor a shortcut, no depthwise convolution, and none without a bias or a norm
    that could take one. Of ResNet-18 these are the 16 3x3 convolutions.
    """
    found = []
    for site in layers_of(network):
        parts, layer = site.layer.split("."), network.get_submodule(site.layer)
        in_block = any(part.isdigit() for part in parts) and not {*parts} & {*SHORTCUTS}
        takes_bias = site.norm is not None or layer.bias is not None
        if in_block and takes_bias and getattr(layer, "groups", 1) == 1:
            found.append(site)
    return found


def find_layers(network: nn.Module, image: Tensor) -> list[Site]:
    """Send an image [1, 3, H, W] through a network and list the layers that it calls once."""
    inputs: dict[str, list[Tensor]] = {}
    results: dict[int, tuple[str, Tensor, int]] = {}
    norms: dict[str, str] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
            if not given:  # called by keywords, as the walk could not
                return
            if isinstance(module, NORMS):
                if module.weight is None or module.running_var is None:
                    return  # nothing that could be folded
                known = results.get(id(given[0]))
                # An operation in place in between would have changed the result's version.
                if known is not None and known[1] is given[0] and known[2] == given[0]._version:
                    norms[known[0]] = name
                return
            inputs.setdefault(name, []).append(given[0])
            results[id(result)] = name, result, result._version

        return hook

    wanted = (nn.Conv2d, nn.Linear, *NORMS)
    called = [(name, m) for name, m in network.named_modules() if isinstance(m, wanted)]
    hooks = [module.register_forward_hook(note(name)) for name, module in called]
    training = network.training
    try:
        with torch.inference_mode(False), torch.no_grad():  # inference tensors have no versions
            network.eval()(image.to(next(network.parameters(), image)))
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    return [
        _site(name, network.get_submodule(name), norms.get(name), given[0])
        for name, given in inputs.items()
        if len(given) == 1
    ]


def _site(name: str, layer: nn.Module, norm: str | None, x: Tensor) -> Site:
    if isinstance(layer, nn.Linear):
        return Site(name, norm, layer.in_features, layer.out_features, axis=-1, pointwise=True)
    assert isinstance(layer, nn.Conv2d)
    height, width = map(int, layer.stride)
    tap = _tap(layer, x) if layer.groups == 1 else None
    sizes, pointwise = (layer.in_channels, layer.out_channels), layer.kernel_size == (1, 1)
    return Site(name, norm, *sizes, 1, (height, width), tap, pointwise)


def _tap(layer: nn.Conv2d, x: Tensor) -> tuple[int, int] | None:
    """Find the tap that reads the input [1, C, H, W] at every stride, by trial."""
    height, width = layer.stride
    weight = torch.randn(layer.out_channels, layer.in_channels, dtype=x.dtype, device=x.device)
    x = torch.randn_like(x)
    expected = torch.einsum("bchw,oc->bohw", x[:, :, ::height, ::width], weight)
    for i in range(layer.kernel_size[0]):
        for j in range(layer.kernel_size[1]):
            kernel = torch.zeros_like(layer.weight)
            kernel[:, :, i, j] = weight
            tensors = {"weight": kernel}
            if layer.bias is not None:
                tensors["bias"] = torch.zeros_like(layer.bias)
            with torch.no_grad():
                result = functional_call(layer, tensors, (x,))
            if result.shape == expected.shape and torch.allclose(result, expected, atol=1e-4):
                return i, j
    return None


def affine(network: nn.Module, site: Site) -> tuple[Tensor, Tensor]:
    """Return a site's norm in evaluation mode as slope and shift of each channel, [C] each.

    Where there is no norm they are 1 and 0. Gradients reach the norm's weight and bias.
    """
    if site.norm is None:
        like = network.get_submodule(site.layer).get_parameter("weight")
        return like.new_ones(site.outputs), like.new_zeros(site.outputs)
    norm = network.get_submodule(site.norm)
    assert isinstance(norm, NORMS) and norm.running_var is not None
    assert norm.running_mean is not None
    slope = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return slope, norm.bias - norm.running_mean * slope


def by_image(values: Tensor, like: Tensor, tasks: int, axis: int = 1) -> Tensor:
    """Give each image its task's numbers: [E or 1, C] -> fitting results `like` [E * B, ...]."""
    values = values.to(like.dtype)
    if len(values) > 1:
        values = values.repeat_interleave(len(like) // tasks, 0)
    if axis == -1:
        return values.view(len(values), *[1] * (like.ndim - 2), -1)
    return values[:, :, None, None]


def fused(network: AnyNetwork) -> AnyNetwork:
    """Copy a network for prediction: batch norms inside the layers before, channels last."""
    network = copied(network).eval().requires_grad_(False)
    for site in layers_of(network):
        layer = network.get_submodule(site.layer)
        norm = network.get_submodule(site.norm) if site.norm is not None else None
        if not (
            (isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d))
            or (isinstance(layer, nn.Linear) and isinstance(norm, nn.BatchNorm1d))
        ):
            continue
        assert site.norm is not None and norm.running_mean is not None
        assert norm.running_var is not None
        # Into this copy: torch's functions for whole layers would copy each once more.
        fuse = fuse_conv_bn_weights if isinstance(layer, nn.Conv2d) else fuse_linear_bn_weights
        statistics = norm.running_mean, norm.running_var, norm.eps
        layer.weight, layer.bias = fuse(
            layer.weight, layer.bias, *statistics, norm.weight, norm.bias
        )
        network.set_submodule(site.norm, nn.Identity())
    return channels_last(network)


def channels_last(network: AnyNetwork) -> AnyNetwork:
    """Lay kernels out as GPUs and CPUs like them; returns the network itself."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def parameter_count(*modules: nn.Module) -> int:
    """Count the trained numbers of modules."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def state_hash(module: nn.Module) -> str:
    """Hash names, shapes and bytes of all tensors that predictions depend on."""
    parts: list[str | bytes] = []
    for name, tensor in module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            plain = tensor.cpu().contiguous()
            # NumPy has no bfloat16.
            array = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
            parts += [f"{name} {array.dtype} {array.shape}", array.tobytes()]
    return digest(*parts)


class Snapshot:
    """What the tensors of modules were once, to see whether they still are.

    Who asks does so for every batch, so it must cost microseconds: a change in place of any tensor
    shows, and a move or a cast of a module, but no change by way of `.data`, none of tensors made
    in inference mode, and not a single tensor that was put in another's place.
    """

    def __init__(self, *modules: nn.Module):
        tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        self._tracked = [tensor for tensor in tensors if not tensor.is_inference()]
        self._firsts = [
            (holder, name, tensor, tensor.dtype)
            for module in modules
            for holder, name, tensor in _firsts(module)
        ]
        self._versions = self._count()

    def holds(self, in_place: bool = True) -> bool:
        """Tell whether nothing has changed; changes in place count unless told otherwise."""
        same = all(
            holder[name] is tensor and tensor.dtype == dtype
            for holder, name, tensor, dtype in self._firsts
        )
        return same and (not in_place or self._versions == self._count())

    def _count(self) -> int:
        return sum(map(_VERSION, self._tracked))


_VERSION = attrgetter("_version")


def _firsts(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Find a module's first parameter and its first buffer, each with the place that holds it."""
    for kind in ("_parameters", "_buffers"):
        for inner in module.modules():
            held = [(n, t) for n, t in getattr(inner, kind).items() if t is not None]
            if held:
                yield getattr(inner, kind), *held[0]
                break


def same_tensors(one: Iterable[Site], other: Iterable[Site]) -> bool:
    """Tell whether what acts at some sites fits others: the same layers of the same sizes."""
    first, second = ([(s.layer, s.inputs, s.outputs) for s in sites] for sites in (one, other))
    return first == second
