"""Episodic training over all sources: what every trained rival shares.

Each episode comes from a source drawn uniformly; all episodes of an update are one batch. The state
with the best accuracy on the sources' validation classes is kept, as for the pool.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.data.augment import WEAK, Augment, augment
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images, Prefetch
from polyshot.models.resnet import ResNet
from polyshot.models.views import normalise
from polyshot.tasks import Tasks
from polyshot.training.loop import Record, learn
from polyshot.training.step import Best, Group, Schedule, decayed_by_kind
from polyshot.training.validation import accuracy, source_sampler
from polyshot.util import counter_rng
from polyshot.util.device import bf16_on, graphed, on_device


@dataclass(frozen=True)
class Plan:
    """How a rival is trained."""

    steps: int
    episodes: int
    """Of one update."""
    learning_rate: float
    weight_decay: float = 0.0
    shape: EpisodeShape = field(default_factory=EpisodeShape)
    augment: Augment = WEAK
    clip: float = 5.0
    warm_up: int = 0
    validate_every: int = 100

    @property
    def images(self) -> int:
        """Images of one update."""
        return self.episodes * self.shape.way * (self.shape.shot + self.shape.queries)


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """The episodes of one update."""

    images: Tensor
    """Normalised float ``[E, W, S + Q, 3, side, side]``: of each class first the support."""
    embeddings: Tensor | None
    """Of the learner's base, ``[E, W, S + Q, d]``, with gradients; None where it asked for none."""
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

    def __init__(self, base: ResNet):
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


class EpisodicStep:
    """What the loop needs to train a learner."""

    shared = False

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
        self.module, self.plan, self._train = on_device(learner, train.device), plan, train
        self.images, self.memory = plan.images, (f"{name}.episodes", plan.episodes)
        self._validation = validation
        self._seed = counter_rng.key("episodic", name, seed)
        self._mirror = torch.tensor([p.domain.mirror for p in train.packs], device=train.device)
        self._network: nn.Module = learner.base
        self._recorded: nn.Module | None = None
        count = max(1, plan.steps) * plan.episodes
        numbers = torch.arange(count)
        lots = counter_rng.uniform(counter_rng.key("sources", self._seed), numbers, 1)[0]
        self._sources = (lots * len(train.packs)).long().view(-1, plan.episodes)  # [steps, E]
        self._classes, self._places = self._draw(count)
        self._prefetch = None if train.resident else Prefetch(self._take, max(0, plan.steps - 1))

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw all episodes: classes [steps, E, W] and places [steps, E * W * (S + Q)]."""
        shape, flat = self.plan.shape, self._sources.flatten()
        classes = torch.empty(count, shape.way, dtype=torch.int64)
        where = self._train.index_device
        places = torch.empty(
            count, shape.way * (shape.shot + shape.queries), dtype=torch.int64, device=where
        )
        for source, pack in enumerate(self._train.packs):
            rows = (flat == source).nonzero().flatten()
            if not len(rows):
                continue
            seed = counter_rng.key(self._seed, source)
            drawn = source_sampler(pack, "train", shape, seed)(0, len(rows))
            ids = torch.cat([drawn.support, drawn.query], 2)  # [rows, W, S + Q]
            classes[rows] = drawn.classes
            places[rows.to(where)] = self._train.places(source, ids).flatten(1)
        steps = len(self._sources)
        on_device = classes.to(self._train.device).view(steps, -1, shape.way)
        return on_device, places.view(steps, -1)

    def groups(self) -> list[Group]:
        """Let the learner say."""
        return self.module.groups()

    def ready(self) -> None:
        """Record the base's pass as a CUDA graph."""
        self.module.train()
        if self._train.device.type != "cuda":
            return
        side = self._train.packs[0].size
        shape = (self.images, 3, side, side)
        if self.module.wants_embeddings:
            # Wrapped, so that the base itself stays free for batches of other shapes.
            self._network = graphed(_Wrapped(self.module.base), shape, self._train.device)
        elif self.module.recordable:
            loss = _Loss(self.module, self.plan)
            self._recorded = graphed(loss, shape, self._train.device, autocast=False)

    def loss(self, number: int) -> Tensor:
        """Let the learner answer the episodes of an update."""
        self.module.train()
        plan, shape, sources = self.plan, self.plan.shape, self._sources[number]
        taken = self._prefetch(number) if self._prefetch else self._take(number)
        images = self._train.bring(taken)
        each = len(images) // plan.episodes
        mirror = self._mirror[self._train.bring(sources)].repeat_interleave(each)
        pixels = augment(images, plan.augment, self._seed, number, mirror)
        ready = normalise(pixels).contiguous(memory_format=torch.channels_last)
        if self._recorded is not None:
            recorded: Tensor = self._recorded(ready)
            return recorded
        embeddings = None
        if self.module.wants_embeddings:
            with bf16_on(ready.device):
                flat = self._network(ready).float()
            embeddings = flat.view(plan.episodes, shape.way, -1, flat.shape[-1])
        batch = EpisodeBatch(
            ready.view(plan.episodes, shape.way, -1, *ready.shape[1:]),
            embeddings,
            self._classes[number],
            sources.tolist(),
            shape,
            number / max(1, plan.steps),
        )
        return self.module.loss(batch)

    def validate(self) -> float:
        """Mean over sources of the accuracy on episodes of validation classes."""
        self.module.eval()
        with torch.no_grad():
            values = [accuracy(self.module.probabilities(tasks)) for tasks in self._validation]
        return float(torch.stack(values).mean())

    def close(self) -> None:
        """Stop reading images ahead."""
        if self._prefetch:
            self._prefetch.close()

    def _take(self, number: int) -> Tensor:
        return self._train.take(self._places[number])


class _Wrapped(nn.Module):
    def __init__(self, base: ResNet):
        super().__init__()
        self.base = base

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.base(images)
        return embeddings


class _Loss(nn.Module):
    """The loss of a learner that looks at images alone: [E * W * (S + Q), 3, side, side] -> []."""

    def __init__(self, learner: Learner, plan: Plan):
        super().__init__()
        self.learner, self.plan = learner, plan

    def forward(self, images: Tensor) -> Tensor:
        shape, episodes = self.plan.shape, self.plan.episodes
        grouped = images.view(episodes, shape.way, -1, *images.shape[1:])
        nothing = torch.empty(0, dtype=torch.int64, device=images.device)
        return self.learner.loss(EpisodeBatch(grouped, None, nothing, [0] * episodes, shape, 0.0))


def train_learner(
    name: str,
    learner: Learner,
    train: Images,
    validation: Sequence[Tasks],
    plan: Plan,
    seed: int,
    record: Record,
) -> Best:
    """Train a learner; afterwards it holds the best state by validation, in evaluation mode."""
    schedule = Schedule(
        plan.steps,
        "adam",
        plan.learning_rate,
        plan.weight_decay,
        plan.clip,
        plan.validate_every,
        plan.warm_up,
    )
    step = EpisodicStep(name, learner, train, validation, plan, seed)
    try:
        best = learn(step, schedule, record, seed)
    finally:
        step.close()
    learner.eval().requires_grad_(False)
    return best
