"""Training by episodes: what modulators and every trained rival share.

All episodes of an update are one batch. Those of a rival each come from a source drawn uniformly;
the state with the best accuracy on the sources' validation classes is kept, as for the pool.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import ModulatorConfig
from polyshot.data.augment import augment
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images, Prefetch
from polyshot.models.foreign import Backbone
from polyshot.models.heads import USUAL_SCALE, Metric, prepared, prototype_logits, prototypes
from polyshot.models.views import normalise
from polyshot.tasks import Tasks
from polyshot.training.step import Group, Plan, Step, decayed_by_kind
from polyshot.training.validation import accuracy, source_sampler
from polyshot.util import counter_rng
from polyshot.util.device import bf16_on, graphed, on_device


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """The episodes of one update."""

    images: Tensor
    """Normalised float ``[E, W, S + Q, 3, side, side]``: of each class first the support."""
    embeddings: Tensor
    """Of the learner's base, ``[E, W, S + Q, d]``, with gradients; ``[0]`` if it asked for none."""
    classes: Tensor
    """int64 ``[E, W]`` class ids in the source's domain."""
    sources: list[int]
    """Of each episode."""
    shape: EpisodeShape
    progress: float
    """Share of the training that is done."""

    @property
    def labels(self) -> Tensor:
        """Right answers of the queries as a learner sees them, class by class: ``[E, W * Q]``."""
        ways = torch.arange(self.shape.way, device=self.images.device)
        return ways.repeat_interleave(self.shape.queries).expand(len(self.sources), -1)

    def split(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Part ``[E, W, S + Q, ...]``: support ``[E, W, S, ...]``, query ``[E, W * Q, ...]``."""
        return tensor[:, :, : self.shape.shot], tensor[:, :, self.shape.shot :].flatten(1, 2)

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Compare logits of the queries ``[E, W * Q, W]`` with their labels."""
        return F.cross_entropy(logits.float().flatten(0, 1), self.labels.flatten())

    def prototype_loss(self, metric: Metric = "euclidean") -> Tensor:
        """Classify the queries by prototypes, squared distance / sqrt(d) or cosine: cross-entropy.

        The cosine is of unit embeddings and times what predictions usually take, too.
        """
        support, query = self.split(self.embeddings)
        scale = USUAL_SCALE if metric == "cosine" else 1 / math.sqrt(query.shape[-1])
        centres = prototypes(prepared(support, metric))
        return self.cross_entropy(prototype_logits(query, centres, metric, scale))


class Learner(nn.Module, ABC):
    """A rival's weights around a base. Override `loss` and `probabilities`.

    Batch norm keeps its statistics while the rest learns, unless `moves_statistics`.
    """

    moves_statistics = False
    wants_embeddings = True
    """Whether `loss` uses the batch's embeddings by the base, made in one pass."""
    recordable = False
    """Whether `loss` depends on the batch's images alone, and waits for nothing: on a GPU it is
    then recorded once and replayed."""

    def __init__(self, base: Backbone):
        super().__init__()
        self.base = base

    def train(self, mode: bool = True) -> "Learner":
        """Switch dropout and the like; batch norm only where its statistics may move."""
        super().train(mode)
        self.base.train(mode and self.moves_statistics)
        return self

    def groups(self) -> list[Group]:
        """Decay kernels and matrices, not biases and batch norm."""
        return decayed_by_kind(p for p in self.parameters() if p.requires_grad)

    @abstractmethod
    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Return the loss of a batch."""

    @abstractmethod
    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify without further adaptation, in evaluation mode: ``[E, Q, W]``."""


class EpisodeStep(Step):
    """A step that learns from training episodes, all of which are drawn before it starts.

    `sources` int64 [steps, E] says which source each is of, `seeds` how those of a source are
    drawn; `seed` is that of the augmentation.
    """

    def __init__(
        self,
        train: Images,
        own: ModulatorConfig | Plan,
        sources: Tensor,
        seeds: Mapping[int, int],
        seed: int,
    ):
        self._train, self._own, self._sources, self._seed = train, own, sources, seed
        shape, where = own.shape, train.index_device
        each = shape.way * (shape.shot + shape.queries)
        self.images = own.episodes * each
        self._mirror = torch.tensor([p.domain.mirror for p in train.packs], device=train.device)
        flat = sources.flatten()
        classes = torch.empty(len(flat), shape.way, dtype=torch.int64)
        places = torch.empty(len(flat), each, dtype=torch.int64, device=where)
        for source, source_seed in seeds.items():
            rows = (flat == source).nonzero().flatten()
            if not len(rows):
                continue
            drawn = source_sampler(train.packs[source], "train", shape, source_seed)(0, len(rows))
            ids = torch.cat([drawn.support, drawn.query], 2)  # [rows, W, S + Q]
            classes[rows] = drawn.classes
            places[rows.to(where)] = train.places(source, ids).flatten(1)
        self._classes = classes.to(train.device).view(len(sources), -1, shape.way)
        self._places = places.view(len(sources), -1)
        self._taken = Prefetch(self._take, len(sources) - 1, ahead=not train.resident)

    def batch(self, number: int, network: nn.Module | None) -> EpisodeBatch:
        """Make the episodes of an update, with their embeddings by a network if there is one."""
        pixels, own = self.pixels(number), self._own
        embeddings = pixels.new_empty(0)
        if network is not None:
            with bf16_on(pixels.device):
                flat = network(pixels).float()
            embeddings = flat.view(own.episodes, own.shape.way, -1, flat.shape[-1])
        return EpisodeBatch(
            pixels.view(own.episodes, own.shape.way, -1, *pixels.shape[1:]),
            embeddings,
            self._classes[number],
            self._sources[number].tolist(),
            own.shape,
            number / max(1, own.steps),
        )

    def pixels(self, number: int) -> Tensor:
        """Return the augmented, normalised images of an update: [images, 3, side, side]."""
        taken, sources = self._taken(number), self._train.bring(self._sources[number])
        images = self._train.bring(taken)
        mirror = self._mirror[sources].repeat_interleave(len(images) // len(sources))
        pixels = augment(images, self._own.augment, self._seed, number, mirror)
        return normalise(pixels).contiguous(memory_format=torch.channels_last)

    def recorded(self, network: nn.Module, autocast: bool = True) -> nn.Module:
        """Record what is asked with such images as a CUDA graph, where there is a GPU."""
        if self._train.device.type != "cuda":
            return network
        side = self._train.packs[0].size
        return graphed(network, (self.images, 3, side, side), self._train.device, autocast)

    def close(self) -> None:
        """Stop reading images ahead."""
        self._taken.close()

    def _take(self, number: int) -> Tensor:
        return self._train.take(self._places[number])


class EpisodicStep(EpisodeStep):
    """What the loop needs to train a learner."""

    module: Learner

    def __init__(
        self,
        name: str,
        learner: Learner,
        train: Images,
        validation: Sequence[Tasks],
        plan: Plan,
        seed: int,
    ):
        self.name = self.section = name
        self.module, self.plan = on_device(learner, train.device), plan
        self.memory = (f"{name}.episodes", plan.episodes)
        self._validation = validation
        self._network: nn.Module = learner.base
        self._recorded: Callable[[Tensor], Tensor] | None = None
        own = counter_rng.key("episodic", name, seed)
        numbers = torch.arange(max(1, plan.steps) * plan.episodes)
        lots = counter_rng.uniform(counter_rng.key("sources", own), numbers, 1)[0]
        sources = (lots * len(train.packs)).long().view(-1, plan.episodes)
        seeds = {source: counter_rng.key(own, source) for source in range(len(train.packs))}
        super().__init__(train, plan, sources, seeds, own)

    def groups(self) -> list[Group]:
        """Let the learner say."""
        return self.module.groups()

    def ready(self) -> None:
        """Record the base's pass as a CUDA graph, or the whole loss."""
        self.module.train()
        if self.module.wants_embeddings:
            # Wrapped, so that the base itself stays free for batches of other shapes.
            self._network = self.recorded(nn.Sequential(self.module.base))
        elif self.module.recordable and self._train.device.type == "cuda":
            self._recorded = self.recorded(_Loss(self.module, self.plan), autocast=False)

    def loss(self, number: int) -> Tensor:
        """Let the learner answer the episodes of an update."""
        self.module.train()
        if self._recorded is not None:
            return self._recorded(self.pixels(number))
        network = self._network if self.module.wants_embeddings else None
        return self.module.loss(self.batch(number, network))

    def validate(self) -> float:
        """Mean over sources of the accuracy on episodes of validation classes."""
        self.module.eval()
        with torch.no_grad():
            values = [accuracy(self.module.probabilities(tasks)) for tasks in self._validation]
        return float(torch.stack(values).mean())


class _Loss(nn.Module):
    """The loss of a learner that looks at images alone: [E * W * (S + Q), 3, side, side] -> []."""

    def __init__(self, learner: Learner, plan: Plan):
        super().__init__()
        self.learner, self.plan = learner, plan

    def forward(self, images: Tensor) -> Tensor:
        shape, episodes = self.plan.shape, self.plan.episodes
        grouped = images.view(episodes, shape.way, -1, *images.shape[1:])
        nothing = images.new_empty(0)
        batch = EpisodeBatch(grouped, nothing, nothing.long(), [0] * episodes, shape, 0.0)
        return self.learner.loss(batch)
