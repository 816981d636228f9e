"""Base and modulators trained together, not one after the other (cf. Triantafillou et al. 2021).

One softmax over all training classes, as in step 1. In every batch half of a source's images go
through the base alone, so that member 0 is a network in its own right, and half through the
source's member. Rows stand in a fixed order, source by source: shapes never change, and each
convolution runs once for each source with the modulator in its kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyshot.config import Config, Layer
from polyshot.data.table import Batches, Images
from polyshot.errors import PolyshotError
from polyshot.models.backbone import Site, affine, sites_of, walk_through
from polyshot.models.modulators import Kind, Modulator, at_tap, fold
from polyshot.models.passes import Act
from polyshot.models.resnet import ResNet
from polyshot.training import parallel
from polyshot.training.base import BaseStep, Classifier
from polyshot.training.modulators import choose_strength
from polyshot.training.step import Best
from polyshot.training.validation import class_accuracies
from polyshot.util import counter_rng
from polyshot.util.device import graphed, on_device, seeded


class JointClassifier(Classifier):
    """The base, a modulator for each source, and a classifier over all training classes.

    Batches must hold `sizes[0]` images for the first source's member, `sizes[1]` for the second's
    and so on, and last those for the base alone. It is for training only: members are folded.
    """

    def __init__(
        self, base: ResNet, classes: int, kind: Kind, sizes: Sequence[int], layer: Layer = "linear"
    ):
        super().__init__(base, classes, layer)
        self.kind, self.sizes = kind, list(sizes)
        modulators = nn.ModuleList(Modulator(sites_of(base), kind) for _ in self.sizes[:-1])
        self.modulators: Sequence[Modulator] = modulators  # type: ignore[assignment]

    def forward(self, images: Tensor) -> Tensor:
        """Classify normalised images [B, 3, S, S], each by its member: logits [B, classes]."""
        acts = {site.layer: MembersAct(self, site) for site in self.modulators[0].sites}
        logits: Tensor = self.fc(walk_through(self.base)(images, acts))
        return logits


@dataclass(frozen=True, eq=False)
class MembersAct(Act):
    """A site at which each row of a batch has the modulator of its member."""

    of: JointClassifier
    site: Site

    def layer(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Convolve [B, inputs, H, W], each row with its member's kernel."""
        if self.of.kind == "channel":
            return own(x)
        layer = self.of.base.get_submodule(self.site.layer)
        kernel = layer.get_parameter("weight")
        kernels = [kernel + at_tap(each, self.site, kernel) for each in self._parameters("weight")]
        parts = zip(x.split_with_sizes(self.of.sizes), [*kernels, kernel], strict=True)
        return torch.cat([functional_call(layer, {"weight": k}, (part,)) for part, k in parts])

    def norm(self, own: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """Normalise, then scale or shift each row as its member does.

        The bias of `conv1x1` counts in units of batch norm's running variance, as in prediction.
        """
        biases = self._parameters("bias")
        nothing = torch.zeros_like(biases[0])
        y = own(y)
        if self.of.kind == "channel":
            scale = self._by_row([*self._parameters("scale"), torch.ones_like(nothing)], y)
            return y * scale + self._by_row([*biases, nothing], y)
        slope = affine(self.of.base, self.site)[0]
        return y + self._by_row([*(slope * bias for bias in biases), nothing], y)

    def _parameters(self, name: str) -> list[Tensor]:
        return [each.get_parameter(f"{self.site.layer}.{name}") for each in self.of.modulators]

    def _by_row(self, values: Sequence[Tensor], like: Tensor) -> Tensor:
        """Give each image the vector [C] of its member: [B, C, 1, 1]."""
        rows = [value.expand(n, -1) for value, n in zip(values, self.of.sizes, strict=True)]
        return torch.cat(rows)[:, :, None, None].to(like.dtype)


class JointStep(BaseStep):
    """What the loop needs to train base and modulators together; else as step 1."""

    name = "joint"
    shared = False
    module: JointClassifier

    def __init__(self, train: Images, val: Images, config: Config, start: Path | None = None):
        if parallel.world_size() > 1:
            raise PolyshotError("Joint training runs in one process: start it without torchrun.")
        super().__init__(train, val, config, start)
        self._batches.close()
        base, own = self.module.base, config.base
        rows = rows_of_sources(train.sizes, own.sampling, own.batch)
        halves = [n // 2 for n in rows]
        rest = [n - n // 2 for n in rows]
        order = torch.arange(len(rows)).repeat(2)
        sources = order.repeat_interleave(torch.tensor([*halves, *rest]))
        seed = counter_rng.key("joint", config.seed)
        last = max(0, own.steps - 1)
        self._batches = Batches(train, own.batch, own.sampling, seed, last, sources=sources)
        kind, sizes = config.modulator.kind, [*halves, sum(rest)]
        with seeded("classifier", config.seed):
            self.module = JointClassifier(base, train.classes, kind, sizes, own.classifier)
        self._network = on_device(self.module, train.device).train()

    def ready(self) -> None:
        """Record the network as a CUDA graph, modulators included."""
        if self._device.type == "cuda":
            side = self.config.size
            self._network = graphed(self.module, (self.images, 3, side, side), self._device)

    def validate(self) -> float:
        """Mean over sources of the accuracies of the base and of the source's own member."""
        self.module.eval()
        values = [self._accuracy(i, s).mean() for i in range(self._sources) for s in (0.0, 1.0)]
        self.module.train()
        return float(torch.stack(values).mean())

    def member(self, source: int, best: Best) -> tuple[Modulator, dict[str, Any]]:
        """Return a source's modulator, and its strength, chosen on the validation episodes."""
        own = self.config.modulator
        candidates, shots = own.strengths, own.strength_shots
        accuracy = {s: self._accuracy(source, s, shots).cpu() for s in {0.0, *candidates}}
        classes = self._validation[source].classes
        assert classes is not None
        seed = counter_rng.key("modulator", self.config.seed, source)
        chosen = choose_strength(accuracy, classes, candidates, seed)
        reached = replace(best, value=float(self._accuracy(source, 1.0).mean()))
        return self.module.modulators[source], chosen.about(reached)

    def _accuracy(self, source: int, strength: float, shots: Sequence[int] = ()) -> Tensor:
        """Return the accuracy of a source's member on its validation episodes: [E, W]."""
        network = fold(self.module.base, self.module.modulators[source], strength)
        return class_accuracies(self._validation[source], network, self.config.metric, shots)


def rows_of_sources(sizes: Sequence[int], sampling: float, batch: int) -> list[int]:
    """Share a batch among sources of n images by n ** sampling, at least two rows each."""
    if batch < 2 * len(sizes):
        raise PolyshotError(
            f"base.batch={batch} is too small for joint training: {len(sizes)} sources need "
            f"{2 * len(sizes)} images."
        )
    weights = [n**sampling for n in sizes]
    free = batch - 2 * len(sizes)
    shares = [free * weight / sum(weights) for weight in weights]
    rows = [2 + int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: batch - sum(rows)]:
        rows[i] += 1
    return rows
