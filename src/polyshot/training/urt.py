"""URT: attention over the members, learned on embeddings of the selector's tasks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import Config
from polyshot.models.heads import prepared, prototypes
from polyshot.models.selector import MemberAttention
from polyshot.tasks import Network, Tasks
from polyshot.training.loop import learn
from polyshot.training.metrics import Metrics
from polyshot.training.results import Results
from polyshot.training.selector import selector_schedule
from polyshot.training.step import Best, Group, decayed_by_kind
from polyshot.training.validation import hits, log_likelihood, logits_by_class
from polyshot.util import counter_rng
from polyshot.util.device import seeded
from polyshot.util.files import write_weights
from polyshot.util.progress import Progress

APART = 0.1
"""Weight of the penalty that keeps the heads from looking at the same members, as in the paper."""
MOST_TASKS = 100
"""Tasks of each source that are looked at: all their images are embedded by every member."""
LARGEST = 2**24
"""Numbers of prototypes that are kept of each source."""


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


def write_attention(
    results: Results,
    tasks: Sequence[Tasks],
    validation: Sequence[Tasks],
    scales: Sequence[float],
    metrics: Metrics,
    report: Progress | None = None,
) -> None:
    """Train the attention of a run whose members are trained, and write it to its file."""
    config, networks = results.config, results.networks()
    train, val = (
        sights(sets, networks, scales, config, f"embed {part} for urt", report)
        for sets, part in ((tasks, "training"), (validation, "validation"))
    )
    checkpoint = results.checkpoint(results.urt_file)
    attention, best = train_attention(train, val, config, checkpoint, metrics, report)
    about = {"validation": best.value, "best": best.number}
    write_weights(results.urt_file, attention.state_dict(), about)
    checkpoint.unlink(missing_ok=True)


def train_attention(
    train: Sights,
    val: Sights,
    config: Config,
    checkpoint: Path,
    metrics: Metrics,
    report: Progress | None = None,
) -> tuple[MemberAttention, Best]:
    """Train the attention; returns it in evaluation mode with the best state by validation."""
    step = UrtStep(train, val, config)
    best = learn(step, selector_schedule(config), checkpoint, metrics, config.seed, report)
    return step.module.eval().requires_grad_(False), best


def _mixed(weights: Tensor, logits: Tensor) -> Tensor:
    """Weigh the members' logits [T, M, W, Q, W] by [T, M]: [T, W, Q, W]."""
    return torch.einsum("tm,tmwqv->twqv", weights, logits)
