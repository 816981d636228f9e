"""Step 1: supervised learning over all training classes of all sources, as one softmax.

CutMix is Yun et al. 2019, mixup Zhang et al. 2018; both mix images of one domain only.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polyshot.config import Config, Layer
from polyshot.data.augment import WEAK, Augment, chances, recolour, resample
from polyshot.data.table import Batches, Images
from polyshot.errors import PolyshotError
from polyshot.models.foreign import Backbone, Foreign
from polyshot.models.loaders import load_backbone
from polyshot.models.resnet import OURS, ResNet, load_base
from polyshot.models.views import normalise
from polyshot.training import parallel
from polyshot.training.step import Step
from polyshot.training.validation import class_accuracies, validation_tasks
from polyshot.util import counter_rng
from polyshot.util.device import bf16_on, can_compile, graphed, on_device, seeded
from polyshot.util.tensors import read_weights

WORTH_COMPILING = 2000
"""Updates from which on a compiled network pays for half a minute of compiling."""


class CosineLayer(nn.Module):
    """A learned scale times the cosines with a vector a class: Baseline++ of Chen et al. (2019)."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, inputs) / inputs**0.5)
        self.scale = nn.Parameter(torch.full((1,), 16.0))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Compare embeddings [B, d]: logits [B, classes]."""
        cosines = F.normalize(embeddings, dim=-1) @ F.normalize(self.weight, dim=-1).T
        return self.scale * cosines


class Classifier(nn.Module):
    """The base with a classifier over all training classes, which is thrown away later."""

    def __init__(self, base: ResNet, classes: int, layer: Layer = "linear"):
        super().__init__()
        self.base = base
        make = CosineLayer if layer == "cosine" else nn.Linear
        self.fc = make(base.config.dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify normalised images [B, 3, S, S]: logits [B, classes]."""
        logits: Tensor = self.fc(self.base(images))
        return logits


class BaseStep(Step):
    """What the loop needs to train the base."""

    name = section = "base"
    shared = True
    module: Classifier

    def __init__(self, train: Images, val: Images, config: Config, start: Path | None = None):
        own, self.config = config.base, config
        self.images, self.memory = own.batch, ("base.batch", own.batch)
        world = parallel.world_size()
        if own.batch < 2 * world:
            raise PolyshotError("base.batch must be at least 2 for each process.")
        self._device = train.device
        base = initial_base(config, start)
        with seeded("classifier", config.seed):
            self.module = Classifier(base, train.classes, own.classifier)
        on_device(self.module, train.device).train()
        self._network: nn.Module = self.module
        self._prepare = prepare
        if world > 1:
            parallel.share_statistics(self.module)
            self._network = DistributedDataParallel(self.module, broadcast_buffers=False)
        seed = counter_rng.key("base", config.seed)
        rank, last = parallel.rank(), max(0, own.steps - 1)
        self._batches = Batches(train, own.batch, own.sampling, seed, last, rank, world)
        # Of augmentation and mixing: an image's chances go by its place in the batch of all.
        self._seed = counter_rng.key(seed, 0)
        self._sources = len(train.packs)
        self._validation = validation_tasks(val, config)

    def ready(self) -> None:
        """Record the network as a CUDA graph, where one process has one GPU."""
        if self._device.type == "cuda" and parallel.world_size() == 1:
            side = self.config.size
            network: nn.Module = self.module
            if self.config.base.steps >= WORTH_COMPILING and can_compile():
                self._prepare = torch.compile(prepare, dynamic=False)
                # Without the last layer, whose size depends on the sources: what the compiler makes
                # of the base is kept on disk and serves the next training.
                base = torch.compile(self.module.base)
                assert isinstance(base, nn.Module)
                network = nn.Sequential(base, self.module.fc)
            self._network = graphed(network, (self.images, 3, side, side), self._device)

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of one augmented, perhaps mixed batch.

        Of several processes each has its part of the batch; the mean of their losses is that of the
        whole, where the parts differ in size, too.
        """
        own = self.config.base
        cooling = number >= own.steps - round(own.cool_down * own.steps)
        images, labels, sources, mirror = self._batches.draw(number)
        how = WEAK if cooling else own.augment
        rows = self._batches.rows
        random = chances(self._seed, number, rows, images.device)
        ready = self._prepare(images, how, random, mirror)  # [B, 3, S, S]
        stream = counter_rng.key("mix", self._seed)
        # On the host: no waiting for the device.
        chance = counter_rng.uniform(stream, torch.tensor([number]), 5)[:, 0].tolist()
        others, share = labels, 1.0
        if not cooling and chance[0] < own.mix:
            if len(rows) == own.batch:
                partner = same_source_partner(sources, self._sources)
                other, others = ready[partner], labels[partner]
            else:  # the next image of the source may be another process's
                found, places = self._batches.partners(
                    number, lambda sources: same_source_partner(sources, self._sources)
                )
                random = chances(self._seed, number, places, images.device)
                other = self._prepare(found.images, how, random, found.mirror)
                others = found.labels
            ready, share = mixed(ready, other, chance[1:])
        with bf16_on(self._device):
            logits = self._network(ready)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothing = own.label_smoothing
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        if share < 1:
            other_loss = F.cross_entropy(logits, others, label_smoothing=smoothing)
            loss = share * loss + (1 - share) * other_loss
        part = len(rows) * parallel.world_size()
        return loss if part == own.batch else loss * (part / own.batch)

    def validate(self) -> float:
        """Mean over sources of the accuracy on episodes of validation classes."""
        self.module.eval()
        values = [
            class_accuracies(tasks, self.module.base, self.config.metric).mean()
            for tasks in self._validation
        ]
        self.module.train()
        return float(torch.stack(values).mean())

    def close(self) -> None:
        """Stop reading images ahead."""
        self._batches.close()


def prepare(images: Tensor, how: Augment, random: Tensor, mirror: Tensor) -> Tensor:
    """Augment and normalise uint8 images [B, 3, S, S]: float32, channels last in memory."""
    pixels = recolour(resample(images, how, random, mirror), how, random)
    return normalise(pixels).contiguous(memory_format=torch.channels_last)


def initial_base(config: Config, start: Path | None = None) -> ResNet:
    """Make a base with random weights of the config's seed, or with those of a file."""
    if config.foreign:
        raise PolyshotError(
            f"'{config.backbone}' is taken as it is, and no file or random weights can take its "
            f"place: leave out what starts from those, or take backbone={OURS}."
        )
    with seeded("weights", config.seed):
        base = ResNet(config.model)
    if start is not None:
        load_base(base, read_weights(start)[0])
    return base


def named_base(config: Config) -> Foreign:
    """Load the base from elsewhere that a config names."""
    base = load_backbone(config.backbone, sites=config.sites)
    base.check_kind(config.modulator.kind)
    return base


def pool_size(base: Backbone, config: Config) -> int:
    """Return the size of images that a pool embeds: a base from elsewhere has its own."""
    return base.config.size if isinstance(base, Foreign) else config.size


def same_source_partner(sources: Tensor, count: int) -> Tensor:
    """Give every image the next one of its source, which is a random one: positions [B]."""
    order = sources.argsort(stable=True)
    ones = torch.ones_like(sources)
    sizes = torch.zeros(count, dtype=sources.dtype, device=sources.device)
    sizes.scatter_add_(0, sources, ones)  # bincount would wait for the device
    starts, own = sizes.cumsum(0) - sizes, sources[order]
    place = torch.arange(len(sources), device=sources.device)
    following = starts[own] + (place - starts[own] + 1) % sizes[own]
    return torch.empty_like(sources).scatter_(0, order, order[following])


def mixed(pixels: Tensor, other: Tensor, chance: Sequence[float]) -> tuple[Tensor, float]:
    """Mix a batch [B, 3, S, S] with its partners; returns it and the share of the own image.

    `chance` holds four numbers in [0, 1): CutMix or mixup, the share (uniform, that is Beta(1, 1)),
    and where the cut lies.
    """
    share = chance[1]
    if chance[0] < 0.5:
        return torch.lerp(other, pixels, share), share
    side = pixels.shape[-1]
    cut = round(side * (1 - share) ** 0.5)
    top, left = (int(c * (side - cut + 1)) for c in chance[2:4])
    box = (..., slice(top, top + cut), slice(left, left + cut))
    result = pixels.clone()
    result[box] = other[box]
    return result, 1 - (cut / side) ** 2
