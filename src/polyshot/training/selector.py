"""Step 3: which member suits a task, learned on embeddings alone; takes seconds.

First the paper's selector, then URT's attention over the members, which learns from the same tasks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import Config
from polyshot.models.heads import prepared, prototypes
from polyshot.models.selector import MemberAttention, Selector, task_embedding
from polyshot.pool.statistics import Part, SourceTasks, TaskSample, sample
from polyshot.tasks import Network, Tasks
from polyshot.training.loop import Record, learn
from polyshot.training.step import Best, Group, Schedule, decayed_by_kind
from polyshot.training.validation import hits, log_likelihood, logits_by_class
from polyshot.util import counter_rng
from polyshot.util.device import seeded
from polyshot.util.progress import Progress

APART = 0.1
"""Weight of the penalty that keeps the heads from looking at the same members, as in the paper."""
MOST_TASKS = 100
"""Tasks of each source that are looked at: all their images are embedded by every member."""
LARGEST = 2**24
"""Numbers of prototypes that are kept of each source."""


class Examples(NamedTuple):
    """Tasks as the selector sees them, T of them, and how M members do on each."""

    tasks: Tensor
    """``[T, d]`` mean base embedding of the support set, to unit norm if asked for."""
    accuracy: Tensor
    """``[T, M]`` on the queries."""
    likelihood: Tensor
    """``[T, M]`` mean log probability of the right answer."""

    def best(self) -> Tensor:
        """Return the most accurate member, ties broken by the likelihood: ``[T]``."""
        top = self.accuracy.amax(1, keepdim=True)
        # Accuracies are means of the same number of hits, so equal ones are equal in every bit.
        return self.likelihood.where(self.accuracy == top, -torch.inf).argmax(1)


class SelectorStep:
    """What the loop needs to train the selector, on the CPU: it is too small for anything else."""

    name = section = "selector"
    shared = False

    def __init__(self, train: Examples, val: Examples, config: Config):
        own = config.selector
        self.images, self.memory = own.batch, ("selector.batch", own.batch)
        self._train, self._val, self._labels = train, val, train.best()
        self._seed = counter_rng.key("selector", config.seed)
        members = train.accuracy.shape[1]
        with seeded("selector weights", config.seed):
            self.module = Selector(train.tasks.shape[1], members, own.hidden, own.dropout)
        if own.standardise:
            self.module.standardise(train.tasks)

    def groups(self) -> list[Group]:
        """Decay the matrices."""
        return decayed_by_kind(self.module.parameters())

    def ready(self) -> None:
        """Nothing to prepare."""

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of the best member on a random batch of tasks."""
        self.module.train()
        rows = torch.arange(self.images)
        random = counter_rng.uniform(counter_rng.key(self._seed, number), rows, 1)[0]
        chosen = (random * len(self._labels)).long()
        return F.cross_entropy(self.module(self._train.tasks[chosen]), self._labels[chosen])

    def validate(self) -> float:
        """Accuracy of the members that the selector picks on tasks of validation classes."""
        self.module.eval()
        with torch.no_grad():
            picked = self.module(self._val.tasks).argmax(1, keepdim=True)
        return float(self._val.accuracy.gather(1, picked).mean())


def examples(
    sets: Sequence[Tasks],
    members: Sequence[Network],
    scales: Sequence[float],
    config: Config,
    name: str,
    report: Progress | None = None,
) -> Examples:
    """Let every member (the base first) answer every task; images are embedded once a network."""
    parts: list[Examples] = []
    pairs = list(zip(members, scales, strict=True))
    total = len(set(pairs)) * sum(tasks.table.count for tasks in sets)
    done = 0
    for tasks in sets:
        found: dict[tuple[Network, float], tuple[Tensor, Tensor]] = {}
        inputs = torch.empty(0)
        for member, scale in pairs:
            if (member, scale) in found:  # a modulator of strength 0
                continue
            support, query = tasks.embedded(member)
            if not found:
                inputs = task_embedding(support)
            logits = logits_by_class(support, query, config.metric)  # [E, W, Q, W]
            likelihood = log_likelihood(scale * logits).mean((1, 2))
            found[member, scale] = hits(logits).mean((1, 2)), likelihood
            done += tasks.table.count
            if report:
                report(name, done, total)
        if config.selector.standardise:
            inputs = F.normalize(inputs, dim=-1)
        accuracy, likelihoods = (
            torch.stack([found[pair][i] for pair in pairs], 1).cpu() for i in range(2)
        )
        parts.append(Examples(inputs.cpu(), accuracy, likelihoods))
    return Examples(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def train_selector(
    train: Examples, val: Examples, config: Config, record: Record
) -> tuple[Selector, Best]:
    """Train the selector; returns it in evaluation mode with the best state by validation."""
    step = SelectorStep(train, val, config)
    best = learn(step, selector_schedule(config), record, config.seed)
    return step.module.eval().requires_grad_(False), best


def selector_schedule(config: Config) -> Schedule:
    """Say how step 3 is optimised."""
    own = config.selector
    return Schedule(
        own.steps, "adam", own.learning_rate, own.weight_decay, own.clip, own.validate_every
    )


def statistics_of(
    learned: Examples, owners: Sequence[str], checked: Examples, sources: Sequence[str]
) -> dict[str, SourceTasks]:
    """Keep a sample of each source's tasks, for the day when the pool grows.

    `learned` holds equally many tasks for each of `owners`, the sources that they are of, and
    `checked` for each of `sources`.
    """

    def kept(part: Part, tasks: Examples, owners: Sequence[str], source: str) -> TaskSample:
        count = len(tasks.tasks) // len(owners)
        own = torch.tensor([owner == source for owner in owners]).repeat_interleave(count)
        return sample(part, *(tensor[own] for tensor in tasks))

    return {
        source: SourceTasks(
            kept("train", learned, owners, source), kept("val", checked, sources, source)
        )
        for source in sources
    }


def fit_scale(logits: Sequence[Tensor]) -> float:
    """Find the scale with the highest likelihood for logits [E, W, Q, W] made with scale 1.

    The likelihood has one maximum in the scale: three rounds of a finer and finer grid find it.
    """

    def score(scale: float) -> float:
        return sum(float(log_likelihood(scale * each).sum(dtype=torch.float64)) for each in logits)

    spread = max(float(torch.cat([each.flatten() for each in logits]).std()), 1e-12)
    best, step = 1 / spread, 10.0 ** (1 / 3)
    for _ in range(3):
        grid = [best * step**k for k in range(-9, 10)]
        best, step = max(grid, key=score), step ** (1 / 6)
    return best


def about_selector(best: Best, learned: Examples, checked: Examples) -> dict[str, Any]:
    """Describe a selector: how good its choices are, and which members were best how often."""
    return {
        "validation": best.value,
        "best": best.number,
        "base_validation": float(checked.accuracy[:, 0].mean()),
        "labels": learned.best().bincount(minlength=learned.accuracy.shape[1]).tolist(),
    }


class Sights(NamedTuple):
    """How M members see T tasks: W ways, Q queries a class, d entries an embedding."""

    prototypes: Tensor
    """Unit prototypes ``[T, M, W, d]``."""
    logits: Tensor
    """Of each member's prototypes, ``[T, M, W, Q, W]``."""


class UrtStep:
    """What the loop needs to train the attention; its settings are the selector's."""

    name, section = "urt", "selector"
    shared = False

    def __init__(self, train: Sights, val: Sights, config: Config):
        own = config.selector
        self.images, self.memory = own.batch, ("selector.batch", own.batch)
        self._train, self._val = train, val
        self._seed = counter_rng.key("urt", config.seed)
        with seeded("urt weights", config.seed):
            self.module = MemberAttention(train.prototypes.shape[-1])
        self.module.to(train.prototypes.device)

    def groups(self) -> list[Group]:
        """Decay the matrices."""
        return decayed_by_kind(self.module.parameters())

    def ready(self) -> None:
        """Nothing to prepare."""

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of the queries on a random batch of tasks, and how alike the heads are."""
        rows = torch.arange(self.images)
        random = counter_rng.uniform(counter_rng.key(self._seed, number), rows, 1)[0]
        chosen = (random * len(self._train.logits)).long().to(self._train.logits.device)
        attention = self.module.attention(self._train.prototypes[chosen])  # [B, heads, M]
        mixed = _mixed(attention.mean(1), self._train.logits[chosen])
        alike = attention @ attention.mT - torch.eye(attention.shape[1], device=attention.device)
        return APART * alike.square().sum((1, 2)).mean() - log_likelihood(mixed).mean()

    def validate(self) -> float:
        """Accuracy on tasks of validation classes."""
        with torch.no_grad():
            mixed = _mixed(self.module(self._val.prototypes), self._val.logits)
        return float(hits(mixed).mean())


def sights(
    sets: Sequence[Tasks],
    members: Sequence[Network],
    scales: Sequence[float],
    config: Config,
    name: str,
    report: Progress | None = None,
) -> Sights:
    """Let every member look at every task; images are embedded once a network."""
    parts: list[Sights] = []
    total, done = len(members) * sum(tasks.table.count for tasks in sets), 0
    for tasks in sets:
        seen: dict[Network, tuple[Tensor, Tensor]] = {}
        for member in members:
            if member not in seen:
                support, query = tasks.embedded(member)
                ready = prepared(support, config.metric)
                centres = F.normalize(prototypes(ready), dim=-1)  # [E, W, d]
                seen[member] = centres, logits_by_class(support, query, config.metric)
            done += tasks.table.count
            if report:
                report(name, done, total)
        pairs = list(zip(members, scales, strict=True))
        parts.append(
            Sights(
                torch.stack([seen[member][0] for member, _ in pairs], 1),
                torch.stack([scale * seen[member][1] for member, scale in pairs], 1),
            )
        )
    return Sights(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def fewer_tasks(config: Config, members: int) -> Config:
    """Return the config with no more tasks of each source than the attention looks at."""
    numbers = members * config.shape.way * config.model.dim
    most = max(2, min(MOST_TASKS, LARGEST // numbers))
    return replace(
        config,
        selector=replace(config.selector, tasks=min(config.selector.tasks, most)),
        validation_episodes=min(config.validation_episodes, most),
    )


def train_attention(
    train: Sights, val: Sights, config: Config, record: Record
) -> tuple[MemberAttention, Best]:
    """Train the attention; returns it in evaluation mode with the best state by validation."""
    step = UrtStep(train, val, config)
    best = learn(step, selector_schedule(config), record, config.seed)
    return step.module.eval().requires_grad_(False), best


def _mixed(weights: Tensor, logits: Tensor) -> Tensor:
    """Weigh the members' logits [T, M, W, Q, W] by [T, M]: [T, W, Q, W]."""
    return torch.einsum("tm,tmwqv->twqv", weights, logits)
