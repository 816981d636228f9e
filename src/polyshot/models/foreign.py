"""Networks from elsewhere, behind the same door as ours.

Everything in Polyshot hands networks images that are normalised in one way and may be of any size.
`Foreign` brings them to the mean, the spread and the size that a network was trained with, and then
calls the network as it is. What it is stands in a `ForeignConfig`, which a pool stores and checks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import Site, find_layers, sites_by_rule, state_hash
from polyshot.models.resnet import ResNet
from polyshot.models.views import MEAN, STD
from polyshot.util.checks import Range, Sha256

OWN = "own"
"""Name of a network that a user made: whoever loads its pool has to bring it along."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLOSE = 1e-3
"""How far an embedding may move by the company of other images, relative to its largest entry."""


@dataclass(frozen=True)
class ForeignConfig:
    """What a network from elsewhere is; pools are only compatible when theirs are equal."""

    name: str
    """Where it came from: ``efficientnet-lite0``, ``transformers:<folder>``, ... or ``own``."""
    size: Annotated[int, Range(8, 4096)]
    """Side length in pixels of the images that it sees."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Of pixels from 0 to 1, one number a channel."""
    dim: Annotated[int, Range(1, 1 << 20)]
    """Length of an embedding."""
    sha256: Sha256
    """Of names, shapes and bytes of its weights."""
    pooling: str = ""
    """How its library's output became one vector; empty where it was one already."""
    sites: tuple[str, ...] = ()
    """Patterns of the layers at which modulators act, such as ``blocks.1*``; none: by the rule."""

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3 or not all(s > 0 for s in self.std):
            raise PolyshotError(
                f"The normalisation needs three means and three positive spreads, one a channel, "
                f"not {list(self.mean)} and {list(self.std)}."
            )


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
        network.eval().requires_grad_(False)
        self.prepare = Prepare(size, mean, std)
        self.network = network
        dim = _embedding_length(network, size)
        means, stds = (tuple(float(v) for v in values) for values in (mean, std))
        sha256 = state_hash(network)
        self.config = ForeignConfig(name, size, means, stds, dim, sha256, pooling, tuple(sites))
        self.layers = [] if isinstance(network, Called) else self._layers()
        if sites and not any(map(self.is_site, self.layers)):
            known = [site.layer.removeprefix("network.") for site in sites_by_rule(self)]
            raise PolyshotError(
                f"No layer of the network is called {join_names(sites)}: sites are names or "
                f"patterns of convolutions and linear layers, such as {join_names(known, 3)}."
            )

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
        name = site.layer.removeprefix("network.")
        if self.config.sites:
            return any(fnmatchcase(name, pattern) for pattern in self.config.sites)
        declared = getattr(self.network, "is_site", None)
        return declared(replace(site, layer=name)) if callable(declared) else None

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised float images."""
        embeddings: Tensor = self.network(self.prepare(images))
        return embeddings


Backbone = ResNet | Foreign
"""What a pool's base may be."""


def _embedding_length(network: nn.Module, size: int) -> int:
    """Try a network on two images and refuse, in one line, what cannot be a backbone."""
    state = torch.random.get_rng_state()
    like = next((t for t in network.parameters() if t.is_floating_point()), torch.zeros(()))
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        with torch.no_grad():
            both, alone = network(images), network(images[:1])
    except Exception as error:  # whatever a network of anybody raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PolyshotError(
            f"The network cannot embed images of {size} x {size} pixels ({reason[:200]}): give it "
            "the size that it was made for (size=...)."
        ) from None
    finally:
        torch.random.set_rng_state(state)
    if not isinstance(both, Tensor) or both.ndim != 2 or len(both) != 2:
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
    if float((both[:1] - alone).abs().max()) > room:
        raise PolyshotError(
            "The network's embedding of an image depends on the other images of the batch: put "
            "it into evaluation mode (batch norm must not take the batch's own statistics)."
        )
    return both.shape[1]


def as_module(network: Any) -> nn.Module:
    """Return a network as a module: itself, or a function behind one."""
    if isinstance(network, nn.Module):
        return network
    if not callable(network):
        raise PolyshotError(
            f"A backbone is a module or a function [B, 3, H, W] -> [B, d], not a "
            f"{type(network).__name__}."
        )
    return Called(network)
