"""Networks from elsewhere, behind the same door as ours.

Everything in Polyshot hands networks images that are normalised in one way and may be of any size.
`Foreign` brings them to the mean, the spread and the size that a network was trained with, and then
calls the network as it is. What it is stands in a `ForeignConfig`, which a pool stores and checks.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import Site, find_layers, sites_by_rule, sites_of, state_hash
from polyshot.models.resnet import ResNet
from polyshot.models.views import MEAN, STD
from polyshot.util.checks import Range, Sha256

OWN = "own"
"""Name of a network that a user made: whoever loads its pool has to bring it along."""
EMBEDDINGS = "embeddings"
"""Name of no network: whoever uses the pool has embeddings already."""
NO_IMAGES = (
    "This pool has no network, so that it takes embeddings [n, d] and no images: make one by "
    "Pool.from_backbone(...), or load one that has a network."
)
MOST_ENTRIES = 1 << 20
"""Of an embedding."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLOSE = 1e-3
"""How far an embedding may move by the company of other images, relative to its largest entry."""
PROBED = 8
"""Entries of an embedding by which a function is known again."""
SMALLEST, LARGEST = 8, 4096
"""Side lengths of images, in pixels."""


@dataclass(frozen=True)
class ForeignConfig:
    """What a network from elsewhere is; pools are only compatible when theirs are equal."""

    name: str
    """Where it came from: ``efficientnet-lite0``, ``transformers:<folder>``, ... or ``own``."""
    size: Annotated[int, Range(SMALLEST, LARGEST)]
    """Side length in pixels of the images that it sees."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Of pixels from 0 to 1, one number a channel."""
    dim: Annotated[int, Range(1, MOST_ENTRIES)]
    """Length of an embedding."""
    sha256: Sha256
    """Of names, shapes and bytes of its weights."""
    pooling: str = ""
    """How its library's output became one vector; empty where it was one already."""
    sites: tuple[str, ...] = ()
    """Patterns of the layers at which modulators act, such as ``blocks.1*``; none: by the rule."""
    probe: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Of a network without weights, which no hash tells from another: the first entries of what it
    makes of one image. Empty where there are weights, and in pools of before."""

    def __post_init__(self) -> None:
        normalisation(self.mean, self.std)

    @property
    def for_hash(self) -> "ForeignConfig":
        """The same without the place of its files, which no embedding depends on."""
        return replace(self, name=self.name.partition(":")[0])

    def differences(self, other: "ForeignConfig") -> list[str]:
        """Say in which fields this one is not the other: ``dim 64 instead of 32``."""
        pairs = [
            (each.name, getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
            if each.compare
        ]
        return [f"{name} {own!r} instead of {its!r}" for name, own, its in pairs if own != its]

    def makes_the_same(self, other: "ForeignConfig") -> bool:
        """Whether networks without weights make the same of one image, as far as that was noted."""
        room = CLOSE * max(map(abs, self.probe), default=0.0)
        return not other.probe or all(
            abs(one - another) <= room for one, another in zip(self.probe, other.probe, strict=True)
        )


@dataclass(frozen=True)
class Loaded:
    """A network of another library, ready to embed, with how its images are made."""

    network: nn.Module
    size: int
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    pooling: str = ""
    """How its library's output becomes one vector."""


def normalisation(mean: Any, std: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and spreads as plain numbers; refuses what are not three of each."""
    try:
        means, stds = (tuple(float(value) for value in values) for values in (mean, std))
    except (TypeError, ValueError):
        means, stds = (), ()
    if not (
        len(means) == len(stds) == 3
        and all(map(math.isfinite, means + stds))
        and all(spread > 0 for spread in stds)
    ):
        raise PolyshotError(
            "The normalisation needs three means and three positive spreads (std), one a channel, "
            f"not {mean!r} and {std!r}."
        )
    return means, stds


def check_side(size: Any) -> None:
    """Refuse what is no side length of images."""
    if type(size) is not int or not SMALLEST <= size <= LARGEST:
        raise PolyshotError(
            f"The size of images is one side length from {SMALLEST} to {LARGEST} pixels, not "
            f"{size!r}."
        )


def first_line(error: BaseException) -> str:
    """Say what a library's error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".:")


class Prepare(nn.Module):
    """Bring images, normalised as Polyshot does, to a network's own normalisation and size."""

    slope: Tensor
    shift: Tensor

    def __init__(self, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.size = size
        ours, theirs = (torch.tensor([m, s]).double() for m, s in ((MEAN, STD), (mean, std)))
        shape = (1, 3, 1, 1)
        # Not among the weights: the description has them already.
        slope, shift = ours[1] / theirs[1], (ours[0] - theirs[0]) / theirs[1]
        self.register_buffer("slope", slope.float().view(shape), persistent=False)
        self.register_buffer("shift", shift.float().view(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return images [B, 3, size, size] of images [B, 3, H, W]."""
        if images.shape[-2:] != (self.size, self.size):
            shrinks = images.shape[-1] > self.size
            size = (self.size, self.size)
            images = F.interpolate(images, size, mode="bilinear", antialias=shrinks)
        return torch.addcmul(self.shift, images, self.slope)


class Called(nn.Module):
    """A plain function as a module: it has no layers that anything could act at."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        """Call the function."""
        return self.function(images)


class Foreign(nn.Module):
    """A network from elsewhere as a backbone: images [B, 3, H, W] of any size -> [B, d]."""

    def __init__(
        self,
        network: nn.Module,
        size: int,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        name: str = OWN,
        pooling: str = "",
        sites: Sequence[str] = (),
    ) -> None:
        super().__init__()
        check_side(size)
        mean, std = normalisation(mean, std)
        if isinstance(sites, str):  # else each letter of it were a pattern
            sites = (sites,)
        network.eval().requires_grad_(False)
        self.prepare = Prepare(size, mean, std)
        self.network = network
        made = _embeddings_of_two(network, size)
        probe = () if network.state_dict() else tuple(made[0, :PROBED].tolist())
        known = made.shape[1], state_hash(network)
        self.config = ForeignConfig(name, size, mean, std, *known, pooling, tuple(sites), probe)
        self.layers = [] if isinstance(network, Called) else self._layers()
        self._check_sites()

    @classmethod
    def restored(
        cls, network: nn.Module, config: ForeignConfig, layers: Sequence[Site]
    ) -> "Foreign":
        """Make what was one already, without trying it: its description is known to be its own."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.prepare = Prepare(config.size, config.mean, config.std)
        made.network = network.eval().requires_grad_(False)
        made.config, made.layers = config, list(layers)
        return made

    def _check_sites(self) -> None:
        """Refuse patterns that name no layer, or none that a modulator can act at."""
        for pattern in self.config.sites:
            named = [site for site in self.layers if fnmatchcase(_inner(site), pattern)]
            if not named:
                known = [_inner(site) for site in sites_by_rule(self)]
                such = f", such as {join_names(known, 3)}" if known else "; this one has none"
                raise PolyshotError(
                    f"No layer of the network is called '{pattern}': sites are names or patterns "
                    f"of convolutions and linear layers that it calls once{such}."
                )
            if not any(map(self._takes_bias, named)):
                raise PolyshotError(
                    f"Modulators cannot act at '{pattern}': a layer there has neither a bias nor "
                    "a batch norm, and so nothing that could take theirs. Choose other sites."
                )

    def check_kind(self, kind: str) -> None:
        """Refuse sites that were chosen and at which modulators of a kind can do nothing."""
        if self.config.sites and kind != "channel":
            sites = sites_of(self)
            if not any(site.takes_maps for site in sites):
                raise PolyshotError(
                    f"At {join_names(map(_inner, sites), 3)} channels can be scaled, but no map "
                    "added, as in every depthwise convolution: take kind='channel', or other sites."
                )

    def _takes_bias(self, site: Site) -> bool:
        return site.norm is not None or self.get_submodule(site.layer).bias is not None

    def _layers(self) -> list[Site]:
        image = torch.zeros(1, 3, self.config.size, self.config.size)
        return [
            replace(
                site,
                layer=f"network.{site.layer}",
                norm=None if site.norm is None else f"network.{site.norm}",
            )
            for site in find_layers(self.network, image)
        ]

    def is_site(self, site: Site) -> bool | None:
        """Tell whether modulators act at a layer; None: the rule of all networks decides."""
        name = _inner(site)
        if self.config.sites:
            # A pattern may cover layers without a bias, which are left out.
            named = any(fnmatchcase(name, pattern) for pattern in self.config.sites)
            return named and self._takes_bias(site)
        declared = getattr(self.network, "is_site", None)
        return declared(replace(site, layer=name)) if callable(declared) else None

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised float images."""
        embeddings: Tensor = self.network(self.prepare(images))
        return embeddings


class Given(Foreign):
    """No network at all: who uses the pool brings embeddings [n, d] of any network of their own."""

    def __init__(self, dim: int) -> None:
        nn.Module.__init__(self)
        if type(dim) is not int or not 1 <= dim <= MOST_ENTRIES:
            raise PolyshotError(f"Embeddings have 1 to {MOST_ENTRIES:,} entries, not {dim!r}.")
        none, one = (0.0,) * 3, (1.0,) * 3
        self.prepare = Prepare(SMALLEST, none, one)  # what tells the device
        self.network = nn.Identity()
        sha256 = state_hash(self.network)
        self.config = ForeignConfig(EMBEDDINGS, SMALLEST, none, one, dim, sha256)
        self.layers = []

    def forward(self, images: Tensor) -> Tensor:
        """Refuse: there is nothing that could embed."""
        raise PolyshotError(NO_IMAGES)


Backbone = ResNet | Foreign
"""What a pool's base may be."""


def _inner(site: Site) -> str:
    """Name a layer as the network itself does."""
    return site.layer.removeprefix("network.")


def _embeddings_of_two(network: nn.Module, size: int) -> Tensor:
    """Embed two images that are always the same, [2, d]; refuse what cannot be a backbone."""
    like = next((t for t in network.parameters() if t.is_floating_point()), torch.zeros(()))
    if like.dtype != torch.float32:
        raise PolyshotError(
            f"The network's weights are {str(like.dtype).removeprefix('torch.')}: give it in "
            "float32 (network.float()); on a GPU it computes in bfloat16 in any case."
        )
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(like)
    state = torch.random.get_rng_state()
    try:
        both = _tried(network, images)
        if isinstance(both, PolyshotError):
            raise both
        alone = _tried(network, images[:1])
    finally:
        torch.random.set_rng_state(state)
    if not isinstance(both, Tensor) or both.ndim != 2 or len(both) != 2 or not both.shape[1]:
        what = list(both.shape) if isinstance(both, Tensor) else f"a {type(both).__name__}"
        raise PolyshotError(
            f"The network makes {what} of images [2, 3, {size}, {size}], not embeddings [2, d]: "
            "wrap it in a function that returns one vector an image."
        )
    if not both.is_floating_point() or not bool(both.isfinite().all()):
        raise PolyshotError(
            "The network's embeddings are not finite numbers: check its weights and the "
            "normalisation (mean=..., std=...)."
        )
    room = CLOSE * float(both.abs().max().clamp(min=1e-12))
    same = isinstance(alone, Tensor) and alone.shape == both[:1].shape
    if not same or float((both[:1] - alone).abs().max()) > room:
        raise PolyshotError(
            "The network's embedding of an image depends on the other images of the batch, or on "
            "chance: put it into evaluation mode (batch norm must not take the batch's own "
            "statistics, and nothing may be dropped)."
        )
    if bool((both[0] == both[1]).all()):  # random deep networks come near it
        raise PolyshotError(
            "The network makes the same embedding of two unlike images: check that it looks at "
            "what it is given, its weights, and the normalisation (mean=..., std=...)."
        )
    return both


def _tried(network: nn.Module, images: Tensor) -> Any:
    """Return what a network makes of images [B, 3, S, S], or the line that refuses it."""
    try:
        with torch.no_grad():
            return network(images)
    except Exception as error:  # whatever a network of anybody raises
        size = images.shape[-1]
        return PolyshotError(
            f"The network cannot embed images of {size} x {size} pixels ({first_line(error)}): "
            "give it the size that it was made for (size=...)."
        )


def as_module(network: Any) -> nn.Module:
    """Return a network as a module of the pool's own: a copy of it, or a function behind one.

    A pool's base is frozen, and its hash is of its weights: who goes on training the network that
    was given trains that network, and the pool stays as it is.
    """
    if isinstance(network, nn.Module):
        try:
            return copy.deepcopy(network)
        except Exception as error:  # whatever parts of networks of anybody raise
            raise PolyshotError(
                f"The network cannot be copied ({first_line(error)}): give a function that calls "
                "it, such as lambda images: network(images)."
            ) from None
    if isinstance(network, type):
        raise PolyshotError(
            f"A backbone is a network, not the class {network.__name__}: call it first, as "
            f"{network.__name__}(...)."
        )
    if not callable(network):
        raise PolyshotError(
            f"A backbone is a module or a function [B, 3, H, W] -> [B, d], not a "
            f"{type(network).__name__}."
        )
    return Called(network)
