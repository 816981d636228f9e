"""Step 3: which member suits a task, learned on embeddings alone; takes seconds.

First the paper's selector, then URT's attention over the members, which learns from the same tasks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import Config
from polyshot.models.heads import Metric, prepared, prototypes
from polyshot.models.selector import MemberAttention, Selector, task_embedding
from polyshot.pool.statistics import Part, SourceTasks, TaskSample, sample
from polyshot.tasks import Network, Tasks
from polyshot.training.loop import learn
from polyshot.training.step import Record, Schedule, Step
from polyshot.training.validation import hits, log_likelihood, logits_by_class, network_logits
from polyshot.util import counter_rng
from polyshot.util.device import seeded
from polyshot.util.progress import Progress

APART = 0.1
"""Weight of the penalty that keeps the heads from looking at the same members, as in the paper."""
MOST_TASKS = 100
"""Tasks of each source that are looked at: all their images are embedded by every member."""
LARGEST = 2**24
"""Numbers of prototypes that are kept of each source."""


class Examples(TaskSample):
    """Tasks as the selector sees them, and how each member does on them: a sample in full."""

    def best(self) -> Tensor:
        """Return the most accurate member, ties broken by the likelihood: ``[T]``."""
        top = self.accuracy.amax(1, keepdim=True)
        # Accuracies are means of the same number of hits, so equal ones are equal in every bit.
        return self.likelihood.where(self.accuracy == top, -torch.inf).argmax(1)


class TaskStep(Step):
    """A step that learns from tasks as members see them; its settings are the selector's."""

    section = "selector"

    def __init__(self, config: Config):
        self.config, self.images = config, config.selector.batch
        self.memory = ("selector.batch", self.images)
        self._seed = counter_rng.key(self.name, config.seed)

    def train(self, record: Record) -> dict[str, Any]:
        """Train the module; returns how good it is."""
        best = learn(self, Schedule.of(self.config.selector), record, self.config.seed)
        return {"validation": best.value, "best": best.number}

    def some(self, number: int, count: int) -> Tensor:
        """Draw the tasks of an update from so many: int64 [batch]."""
        rows = torch.arange(self.images)
        random = counter_rng.uniform(counter_rng.key(self._seed, number), rows, 1)[0]
        return (random * count).long()


class SelectorStep(TaskStep):
    """What the loop needs to train the selector, on the CPU: it is too small for anything else."""

    name = "selector"
    module: Selector

    def __init__(self, train: Examples, val: Examples, config: Config):
        super().__init__(config)
        self._train, self._val, self._labels = train, val, train.best()
        own, members = config.selector, train.accuracy.shape[1]
        with seeded("selector weights", config.seed):
            self.module = Selector(train.tasks.shape[1], members, own.hidden, own.dropout)
        if own.standardise:
            self.module.standardise(train.tasks)

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of the best member on a random batch of tasks."""
        self.module.train()
        chosen = self.some(number, len(self._labels))
        return F.cross_entropy(self.module(self._train.tasks[chosen]), self._labels[chosen])

    def validate(self) -> float:
        """Accuracy of the members that the selector picks on tasks of validation classes."""
        self.module.eval()
        with torch.no_grad():
            picked = self.module(self._val.tasks).argmax(1, keepdim=True)
        return float(self._val.accuracy.gather(1, picked).mean())

    def train(self, record: Record) -> dict[str, Any]:
        """Train the selector; returns how good its choices are, and how often members were best."""
        labels = self._labels.bincount(minlength=self._train.accuracy.shape[1]).tolist()
        base = float(self._val.accuracy[:, 0].mean())
        return {**super().train(record), "base_validation": base, "labels": labels}


@dataclass(frozen=True)
class Members:
    """Members of a pool, the base first, that look at tasks; images are embedded once a network."""

    networks: Sequence[Network]
    scales: Sequence[float]
    config: Config
    report: Progress | None = None

    def examples(self, sets: Sequence[Tasks], name: str) -> Examples:
        """Let every member answer every task."""
        parts: list[Examples] = []
        for task, _, logits in self._looks(sets, name):
            accuracy = [hits(each) for each in logits]  # [E, W, Q] each
            likelihood = [log_likelihood(each) for each in self._scaled(logits)]
            both = (torch.stack([x.mean((1, 2)) for x in of], 1) for of in (accuracy, likelihood))
            inputs = F.normalize(task, dim=-1) if self.config.selector.standardise else task
            parts.append(Examples(*(tensor.cpu() for tensor in (inputs, *both))))
        return Examples(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def sights(self, sets: Sequence[Tasks], name: str) -> "Sights":
        """Let every member look at every task."""
        parts: list[Sights] = []
        for _, seen, logits in self._looks(sets, name):
            parts.append(Sights(torch.stack(seen, 1), torch.stack(self._scaled(logits), 1)))
        return Sights(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _scaled(self, logits: Sequence[Tensor]) -> list[Tensor]:
        return [scale * each for scale, each in zip(self.scales, logits, strict=True)]

    def _looks(
        self, sets: Sequence[Tasks], name: str
    ) -> Iterator[tuple[Tensor, list[Tensor], list[Tensor]]]:
        """Yield the base's task embeddings [E, d], each member's unit prototypes and logits."""
        # A modulator of strength 0 is the base itself: each network is asked once.
        networks, metric, done = list(dict.fromkeys(self.networks)), self.config.metric, 0
        total = len(networks) * sum(tasks.table.count for tasks in sets)
        for tasks in sets:
            found = {}
            for network in networks:
                support, query = tasks.embedded(network)
                centres = F.normalize(prototypes(prepared(support, metric)), dim=-1)  # [E, W, d]
                logits = logits_by_class(support, query, metric)
                found[network] = task_embedding(support), centres, logits
                done += tasks.table.count
                if self.report:
                    self.report(name, done, total)
            of_each = [found[network] for network in self.networks]
            yield of_each[0][0], [seen for _, seen, _ in of_each], [own for _, _, own in of_each]


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

    result = {}
    for source in sources:
        train, val = kept("train", learned, owners, source), kept("val", checked, sources, source)
        result[source] = SourceTasks(train, val)
    return result


def fit_scale(logits: Sequence[Tensor]) -> float:
    """Find the scale with the highest likelihood for logits [E, W, Q, W] made with scale 1.

    The likelihood has one maximum in the scale: three rounds of a finer and finer grid find it.
    """

    def score(scale: float) -> float:
        return sum(
            float(log_likelihood(scale * each).cpu().sum(dtype=torch.float64)) for each in logits
        )

    spread = max(float(torch.cat([each.flatten() for each in logits]).std()), 1e-12)
    best, step = 1 / spread, 10.0 ** (1 / 3)
    for _ in range(3):
        grid = [best * step**k for k in range(-9, 10)]
        best, step = max(grid, key=score), step ** (1 / 6)
    return best


def network_scale(sets: Sequence[Tasks], network: Network, metric: Metric) -> float:
    """Find the scale of a network's prototype logits with the highest likelihood."""
    return fit_scale([network_logits(tasks, network, metric) for tasks in sets])


class Sights(NamedTuple):
    """How M members see T tasks: W ways, Q queries a class, d entries an embedding."""

    prototypes: Tensor
    """Unit prototypes ``[T, M, W, d]``."""
    logits: Tensor
    """Of each member's prototypes, ``[T, M, W, Q, W]``."""


class UrtStep(TaskStep):
    """What the loop needs to train the attention."""

    name = "urt"
    module: MemberAttention

    def __init__(self, train: Sights, val: Sights, config: Config):
        super().__init__(config)
        self._train, self._val = train, val
        with seeded("urt weights", config.seed):
            self.module = MemberAttention(train.prototypes.shape[-1])
        self.module.to(train.prototypes.device)

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of the queries on a random batch of tasks, and how alike the heads are."""
        logits = self._train.logits
        chosen = self.some(number, len(logits)).to(logits.device)
        attention = self.module.attention(self._train.prototypes[chosen])  # [B, heads, M]
        mixed = _mixed(attention.mean(1), logits[chosen])
        alike = attention @ attention.mT - torch.eye(attention.shape[1], device=attention.device)
        return APART * alike.square().sum((1, 2)).mean() - log_likelihood(mixed).mean()

    def validate(self) -> float:
        """Accuracy on tasks of validation classes."""
        with torch.no_grad():
            mixed = _mixed(self.module(self._val.prototypes), self._val.logits)
        return float(hits(mixed).mean())


def fewer_tasks(config: Config, numbers: int) -> Config:
    """Return the config with no more tasks of each source than the attention looks at.

    `numbers` are those of one class: all members' embeddings.
    """
    most = max(2, min(MOST_TASKS, LARGEST // (numbers * config.shape.way)))
    return replace(
        config,
        selector=replace(config.selector, tasks=min(config.selector.tasks, most)),
        validation_episodes=min(config.validation_episodes, most),
    )


def _mixed(weights: Tensor, logits: Tensor) -> Tensor:
    """Weigh the members' logits [T, M, W, Q, W] by [T, M]: [T, W, Q, W]."""
    return torch.einsum("tm,tmwqv->twqv", weights, logits)
