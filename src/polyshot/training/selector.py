"""Step 3: which member suits a task, learned on embeddings alone; takes seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import Config
from polyshot.models.selector import Selector, task_embedding
from polyshot.pool.statistics import Part, SourceTasks, TaskSample, sample
from polyshot.tasks import Network, Tasks
from polyshot.training.loop import learn
from polyshot.training.metrics import Metrics
from polyshot.training.step import Best, Group, Schedule, decayed_by_kind
from polyshot.training.validation import hits, log_likelihood, logits_by_class
from polyshot.util import counter_rng
from polyshot.util.device import seeded
from polyshot.util.progress import Progress


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
    train: Examples,
    val: Examples,
    config: Config,
    checkpoint: Path,
    metrics: Metrics,
    report: Progress | None = None,
) -> tuple[Selector, Best]:
    """Train the selector; returns it in evaluation mode with the best state by validation."""
    step = SelectorStep(train, val, config)
    best = learn(step, selector_schedule(config), checkpoint, metrics, config.seed, report)
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
