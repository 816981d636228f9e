"""Base and modulators trained together, not one after the other (cf. Triantafillou et al. 2021).

One softmax over all training classes, as in step 1. In every batch half of a source's images go
through the base alone, so that member 0 is a network in its own right, and half through the
source's member. Rows stand in a fixed order, source by source: shapes never change, and each
convolution runs once for each source with the modulator in its kernel.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import Config, Layer
from polyshot.data.pack import Pack
from polyshot.data.table import Batch, Batches, Images
from polyshot.errors import PolyshotError
from polyshot.models.modulators import Kind, Modulator, fold
from polyshot.models.resnet import BLOCKS, BN_EPS, STAGES, Block, ResNet
from polyshot.training import parallel
from polyshot.training.base import BaseStep, Classifier, learn_base
from polyshot.training.device import on_device, seeded
from polyshot.training.metrics import Metrics
from polyshot.training.modulators import Strength, choose_strength
from polyshot.training.step import Best, Report
from polyshot.util import counter_rng


class JointClassifier(Classifier):
    """The base, a modulator for each source, and a classifier over all training classes.

    Batches must hold `sizes[0]` images for the first source's member, `sizes[1]` for the second's
    and so on, and last those for the base alone. It is for training only: members are folded.
    """

    def __init__(
        self,
        base: ResNet,
        classes: int,
        kind: Kind,
        sizes: Sequence[int],
        layer: Layer = "linear",
    ):
        super().__init__(base, classes, layer)
        self.kind, self.sizes = kind, list(sizes)
        self.modulators = nn.ModuleList(Modulator(base.config, kind) for _ in self.sizes[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """Classify normalised images [B, 3, S, S], each by its member: logits [B, classes]."""
        base = self.base
        x = base.maxpool(torch.relu(base.bn1(base.conv1(images))))
        for at in (f"layer{i + 1}.{j}" for i in range(STAGES) for j in range(BLOCKS)):
            block = base.get_submodule(at)
            assert isinstance(block, Block)
            y = torch.relu(self._layer(x, f"{at}.conv1", block.conv1, block.bn1))
            y = self._layer(y, f"{at}.conv2", block.conv2, block.bn2)
            x = torch.relu(y + block.downsample(x))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits

    def _layer(self, x: Tensor, name: str, conv: nn.Conv2d, bn: nn.BatchNorm2d) -> Tensor:
        """Convolve and normalise [B, inputs, H, W], as `member_parameters` says: [B, outputs, ...].

        The bias of `conv1x1` counts in units of batch norm's running variance, as in prediction.
        """
        own = [modulator.get_submodule(name) for modulator in self.modulators]
        biases = [each.get_parameter("bias") for each in own]
        nothing = torch.zeros_like(biases[0])
        if self.kind == "channel":
            scales = [each.get_parameter("scale") for each in own]
            y: Tensor = bn(conv(x))
            scale = self._by_row([*scales, torch.ones_like(nothing)], y)
            return y * scale + self._by_row([*biases, nothing], y)
        centres = [F.pad(each.get_parameter("weight"), (1, 1, 1, 1)) for each in own]
        kernels = [*(conv.weight + centre for centre in centres), conv.weight]
        parts = zip(x.split_with_sizes(self.sizes), kernels, strict=True)
        y = bn(torch.cat([F.conv2d(part, k, None, conv.stride, 1) for part, k in parts]))
        assert bn.running_var is not None
        slope = bn.weight * torch.rsqrt(bn.running_var + BN_EPS)
        return y + self._by_row([*(slope * bias for bias in biases), nothing], y)

    def _by_row(self, values: Sequence[Tensor], like: Tensor) -> Tensor:
        """Give each image the vector [C] of its member: [B, C, 1, 1]."""
        rows = [value.expand(n, -1) for value, n in zip(values, self.sizes, strict=True)]
        return torch.cat(rows)[:, :, None, None].to(like.dtype)


class SourceBatches(Batches):
    """Random batches whose rows are of fixed sources: `sources` int64 [B]."""

    def __init__(self, images: Images, sources: Tensor, seed: int, last: int):
        self._sources = sources.to(images.index_device)
        super().__init__(images, len(sources), 0.0, seed, last)

    def _make(self, number: int) -> Batch:
        stream = counter_rng.key("batch", self.seed, number)
        random = counter_rng.uniform(stream, self._rows, 1)[0]
        within = (random * self._sizes[self._sources]).to(torch.int64)
        places = self._starts[self._sources] + within
        labels, mirror = self.images.labels[places], self._mirror[self._sources]
        return Batch(self.images.take(places), labels, self._sources, mirror)


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
        own = config.base
        rows = rows_of_sources(train.sizes, own.sampling, own.batch)
        halves = [n // 2 for n in rows]
        rest = [n - half for n, half in zip(rows, halves, strict=True)]
        order = torch.arange(len(rows)).repeat(2)
        sources = order.repeat_interleave(torch.tensor([*halves, *rest]))
        seed = counter_rng.key("joint", config.seed)
        self._batches = SourceBatches(train, sources, seed, max(0, own.steps - 1))
        kind, sizes = config.modulator.kind, [*halves, sum(rest)]
        with seeded("classifier", config.seed):
            self.module = JointClassifier(
                self.module.base, train.classes, kind, sizes, own.classifier
            )
        self._network = on_device(self.module, train.device).train()

    def validate(self) -> float:
        """Mean over sources of the accuracies of the base and of the source's own member."""
        self.module.eval()
        values = [self._accuracy(i, s).mean() for i in range(self._sources) for s in (0.0, 1.0)]
        self.module.train()
        return float(torch.stack(values).mean())

    def member(self, source: int, best: Best) -> tuple[Modulator, Strength, Best]:
        """Return a source's modulator with its strength, chosen on the validation episodes."""
        candidates = self.config.modulator.strengths
        accuracy = {s: self._accuracy(source, s).cpu() for s in {0.0, 1.0, *candidates}}
        classes = self._validation[source].classes
        seed = counter_rng.key("modulator", self.config.seed, source)
        chosen = choose_strength(accuracy, classes, candidates, seed)
        reached = Best(float(accuracy[1.0].mean()), best.number, best.skipped)
        return self._modulator(source), chosen, reached

    def _accuracy(self, source: int, strength: float) -> Tensor:
        """Return the accuracy of a source's member on its validation episodes: [E, W]."""
        network = fold(self.module.base, self._modulator(source), strength)
        return self._validation[source].accuracy(network, self.config.metric)

    def _modulator(self, source: int) -> Modulator:
        modulator = self.module.modulators[source]
        assert isinstance(modulator, Modulator)
        return modulator


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


def train_joint(
    packs: Sequence[Pack],
    config: Config,
    device: torch.device,
    checkpoint: Path,
    metrics: Metrics,
    start: Path | None = None,
    report: Report | None = None,
) -> tuple[ResNet, Best, list[tuple[Modulator, Strength, Best]]]:
    """Train base and modulators; returns the base in evaluation mode, and a member a source."""
    train, val = (Images(packs, part, device) for part in ("train", "val"))
    step = JointStep(train, val, config, start)
    best = learn_base(step, checkpoint, metrics, report)
    step.module.eval().requires_grad_(False)
    return step.module.base, best, [step.member(i, best) for i in range(len(packs))]
