"""What answers, as a module that can be traced: images in, probabilities out.

It is what answers here (`FittedEnsemble.probabilities`): the same read-outs, mixing and views, with
images as inputs, uint8 ``[n, side, side, 3]``, as Pillow and canvases have them, one input for each
side length that networks want.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyshot.classifier.answering import Answering, networks_of
from polyshot.models.views import every_view, mean_of_views, normalise
from polyshot.tasks import Network, Queries, Table, embed, for_prediction

IMAGES, PROBABILITIES, IS_NONE, NEARNESS = "images", "probabilities", "none", "nearness"
"""Names of inputs (with a side length where there are several) and outputs."""


class Graph(nn.Module):
    """What answers, as a module: images uint8 ``[n, side, side, 3]`` -> probabilities, and so on.

    Networks become parts of it when they are first asked: run it once before it is traced.
    """

    def __init__(self, answering: Answering, half: bool = False) -> None:
        super().__init__()
        self.answering, self.half_precision = answering, half
        self.sides = list(dict.fromkeys(pool.size for pool in answering.pools))
        self.networks = nn.ModuleList()
        self._known: dict[Network, nn.Module] = {}
        self._asked: list[list[nn.Module]] = []
        if answering.nearness is not None:
            pairs = zip(answering.fitted.pools, answering.pools, strict=True)
            self._asked = [networks_of(one, pool, answering.mixes) for one, pool in pairs]

    @property
    def inputs(self) -> dict[str, int]:
        """Side lengths by the names of inputs."""
        if len(self.sides) == 1:
            return {IMAGES: self.sides[0]}
        return {f"{IMAGES}_{side}": side for side in self.sides}

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [PROBABILITIES, *([IS_NONE, NEARNESS] if self._asked else [])]

    def ready(self, network: Network) -> nn.Module:
        """Return a network as it is part of the graph."""
        if network not in self._known:
            assert isinstance(network, nn.Module)
            plain = for_prediction(network)
            if plain not in self._known:
                self._known[plain] = Halved(plain) if self.half_precision else plain
                self.networks.append(self._known[plain])
            self._known[network] = self._known[plain]
        return self._known[network]

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        """Classify images, one tensor for each side length."""
        pixels = {
            side: normalise(own.permute(0, 3, 1, 2))
            for side, own in zip(self.sides, images, strict=True)
        }
        answering, queries = self.answering, []
        for pool in answering.pools:
            table = Table(None, 0, torch.device("cpu"), pool.query_views or pool.views)
            nothing = torch.zeros(1, 0, dtype=torch.int64)
            queries.append(Looked(table, nothing, pixels[pool.size], self))
        probabilities = answering.fitted.probabilities(queries)[0]
        if answering.nearness is None or answering.threshold is None:
            return (probabilities,)
        pairs = zip(self._asked, queries, strict=True)
        seen = [own.query_of(network)[0] for networks, own in pairs for network in networks]
        nearness = answering.nearness.of(seen)
        return probabilities, nearness < answering.threshold.value, nearness


@dataclass(frozen=True, eq=False)
class Looked(Queries):
    """Queries of the only task, of as many images as an input of the graph may have."""

    pixels: Tensor
    """Normalised, ``[n, 3, side, side]``."""
    graph: Graph
    made: dict[nn.Module, Tensor] = field(default_factory=dict)

    @cached_property
    def pixels_viewed(self) -> Tensor:
        """All views of all images as one batch, which every network gets."""
        return every_view(self.pixels, self.table.views)

    def query_of(self, network: Network, rows: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Embed the images over the views, which are one batch: raw ``[1, n, d]``."""
        own = self.graph.ready(network)
        if own not in self.made:
            made = mean_of_views(embed(own, self.pixels_viewed), self.table.views)
            self.made[own] = made.unsqueeze(0)
        return self.made[own]

    def of_task(self, row: Tensor) -> Queries:  # noqa: ARG002 (the only task)
        """Return the same: there are no other tasks."""
        return self


class Halved(nn.Module):
    """A network that computes in half precision; its weights stay as they are."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Embed images [n, 3, side, side]."""
        own = (*self.network.named_parameters(), *self.network.named_buffers())
        state = {name: t.half() if t.is_floating_point() else t for name, t in own}
        made: Tensor = functional_call(self.network, state, (images.half(),))
        return made
