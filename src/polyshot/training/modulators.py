"""Step 2: episodic prototype learning of one modulator for each source, the base frozen.

Sources are independent of each other. Full-strength modulators overfit their training classes
(research/recipe.md §3), so the strength lambda is chosen on validation classes, resampled, because
few classes decide.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from polyshot.config import Config
from polyshot.data.augment import augment
from polyshot.data.table import Images, Prefetch
from polyshot.models.backbone import sites_of
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.models.modulators import Kind, Modulator, fold, member_parameters
from polyshot.models.resnet import ResNet
from polyshot.models.views import normalise
from polyshot.tasks import Tasks
from polyshot.training.loop import Record, learn
from polyshot.training.step import Best, Group, Schedule
from polyshot.training.validation import class_accuracies, source_sampler
from polyshot.util import counter_rng
from polyshot.util.device import bf16_on, graphed
from polyshot.util.files import read_weights, write_weights

RESAMPLINGS = 2000
RELIABLE = 0.2
"""A gain counts if it is above zero in all but this share of the resamplings of classes."""


class ModulatorStep:
    """What the loop needs to train one modulator.

    The module holds the distance from the identity, so that weight decay pulls towards the base.
    """

    section = "modulator"
    shared = False

    def __init__(self, base: ResNet, train: Images, source: int, validation: Tasks, config: Config):
        own, self.config, self._base = config.modulator, config, base
        self._pack, self._validation = train.packs[source], validation
        self.name = f"modulator:{self._pack.domain.name}"
        shape = own.shape
        self.images = own.episodes * shape.way * (shape.shot + shape.queries)
        self.memory = ("modulator.episodes", own.episodes)
        self._identity = Modulator(sites_of(base), own.kind).to(train.device)
        self._identity.requires_grad_(False)
        self.module = copy.deepcopy(self._identity).requires_grad_(True)
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.zero_()
        self._member: nn.Module = _Member(base, self._identity, self.module)
        self._train = train
        self._mirror = torch.tensor(self._pack.domain.mirror, device=train.device)
        self._seed = counter_rng.key("modulator", config.seed, source)
        count = max(1, own.steps * own.episodes)
        drawn = source_sampler(self._pack, "train", shape, self._seed)(0, count)
        ids = torch.cat([drawn.support, drawn.query], 2)  # [all episodes, W, S + Q]
        self._places = torch.split(train.places(source, ids).flatten(), self.images)
        self._prefetch = None if train.resident else Prefetch(self._take, max(0, own.steps - 1))

    def groups(self) -> list[Group]:
        """Decay everything: every parameter is a distance from the base."""
        return [Group(list(self.module.parameters()), decayed=True)]

    def ready(self) -> None:
        """Record the member's pass as a CUDA graph."""
        if self._train.device.type == "cuda":
            side = self.config.size
            self._member = graphed(self._member, (self.images, 3, side, side), self._train.device)

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of prototypes, squared distance / sqrt(d), all episodes in one forward."""
        own, shape = self.config.modulator, self.config.modulator.shape
        taken = self._prefetch(number) if self._prefetch else self._take(number)
        images = self._train.bring(taken)
        pixels = augment(images, own.augment, self._seed, number, self._mirror)
        ready = normalise(pixels).contiguous(memory_format=torch.channels_last)
        with bf16_on(images.device):
            embeddings = self._member(ready)
        grouped = embeddings.float().view(own.episodes, shape.way, -1, embeddings.shape[-1])
        centres = prototypes(grouped[:, :, : shape.shot])  # [E, W, d]
        queries = grouped[:, :, shape.shot :].flatten(1, 2)  # [E, W * Q, d]
        scale = 1 / math.sqrt(embeddings.shape[-1])
        logits = prototype_logits(queries, centres, "euclidean", scale)  # [E, W * Q, W]
        ways = torch.arange(shape.way, device=logits.device)
        labels = ways.repeat_interleave(shape.queries).repeat(own.episodes)
        return F.cross_entropy(logits.flatten(0, 1), labels)

    def validate(self) -> float:
        """Accuracy on episodes of the source's validation classes, at full strength."""
        return float(self._accuracy(1.0).mean())

    def strength(self) -> "Strength":
        """Choose lambda on the validation episodes."""
        candidates = self.config.modulator.strengths
        measured = {s: self._accuracy(s).cpu() for s in {0.0, *candidates}}
        classes = self._validation.classes
        assert classes is not None
        return choose_strength(measured, classes, candidates, self._seed)

    def modulator(self) -> Modulator:
        """Return the modulator as it is now."""
        result = copy.deepcopy(self._identity)
        values = _values(self._identity, self.module)
        result.load_state_dict({name: value.detach() for name, value in values.items()})
        return result

    def close(self) -> None:
        """Stop reading images ahead."""
        if self._prefetch:
            self._prefetch.close()

    def _accuracy(self, strength: float) -> Tensor:
        member = fold(self._base, self.modulator(), strength)
        return class_accuracies(self._validation, member, self.config.metric)

    def _take(self, number: int) -> Tensor:
        return self._train.take(self._places[number])


class _Member(nn.Module):
    """The base with a modulator that is `delta` away from the identity."""

    def __init__(self, base: ResNet, identity: Modulator, delta: Modulator):
        super().__init__()
        self.delta = delta
        self._frozen = (base, identity)  # in a tuple: no part of this module's state

    def forward(self, images: Tensor) -> Tensor:
        base, identity = self._frozen
        parameters = member_parameters(base, identity, values=_values(identity, self.delta))
        embeddings: Tensor = functional_call(base, parameters, (images,))
        return embeddings


def _values(identity: Modulator, delta: Modulator) -> dict[str, Tensor]:
    """Return a modulator's parameters, with a history that leads to its distance `delta`."""
    start = dict(identity.named_parameters())
    return {name: start[name] + change for name, change in delta.named_parameters()}


@dataclass(frozen=True)
class Strength:
    """The factor lambda that was chosen, and why."""

    value: float
    gains: dict[float, float]
    """Gain of each candidate over the base, on validation classes."""
    lower: dict[float, float]
    """What remains of each gain in the worst resamplings."""


def choose_strength(
    accuracy: dict[float, Tensor], classes: Tensor, candidates: Sequence[float], seed: int
) -> Strength:
    """Choose the strength with the largest gain, or the next smaller one whose gain is reliable.

    Args:
        accuracy: of each strength, 0 among them, [E, W] a class of an episode.
        classes: int64 [E, W] which class that is.
        candidates: strengths to choose from; a single one is taken as it is.
        seed: of the resampling.

    """
    gains = {s: float((accuracy[s] - accuracy[0.0]).mean()) for s in candidates}
    lower = {
        s: resampled_gain(accuracy[s] - accuracy[0.0], classes, seed).quantile(RELIABLE).item()
        for s in candidates
    }
    if len(candidates) == 1:
        return Strength(candidates[0], gains, lower)
    best = max(candidates, key=lambda s: (gains[s], -s))
    for s in sorted((s for s in candidates if 0 < s <= best), reverse=True):
        if lower[s] > 0:
            return Strength(s, gains, lower)
    return Strength(0.0, gains, lower)


def resampled_gain(gain: Tensor, classes: Tensor, seed: int) -> Tensor:
    """Average a gain [E, W] over classes drawn with replacement, many times: [resamplings]."""
    known, index = torch.unique(classes, return_inverse=True)
    count = len(known)
    zeros = torch.zeros(count, dtype=torch.float64)
    total = zeros.scatter_add(0, index.flatten(), gain.double().flatten())
    weight = zeros.scatter_add(0, index.flatten(), torch.ones(index.numel(), dtype=torch.float64))
    random = counter_rng.uniform(
        counter_rng.key("classes", seed), torch.arange(RESAMPLINGS), count
    )  # [classes, resamplings]
    drawn = (random * count).long()
    return total[drawn].sum(0) / weight[drawn].sum(0)


def train_modulator(
    base: ResNet,
    train: Images,
    source: int,
    validation: Tasks,
    config: Config,
    record: Record,
) -> tuple[Modulator, Strength, Best]:
    """Train the modulator of one source and choose its strength."""
    own = config.modulator
    schedule = Schedule(own.steps, "adam", own.rate, own.weight_decay, own.clip, own.validate_every)
    step = ModulatorStep(base, train, source, validation, config)
    try:
        best = learn(step, schedule, record, config.seed)
    finally:
        step.close()
    chosen = step.strength()
    record.metrics.forget(f"{step.name}:strength", -1)
    record.metrics.write(
        f"{step.name}:strength",
        own.steps,
        strength=chosen.value,
        gains={str(s): round(gain, 5) for s, gain in chosen.gains.items()},
        gains_resampled={str(s): round(gain, 5) for s, gain in chosen.lower.items()},
    )
    return step.modulator(), chosen, best


def about_modulator(strength: Strength, best: Best) -> dict[str, Any]:
    """Describe a modulator: its strength, what it gains over the base, how it came about."""
    return {
        "strength": strength.value,
        "gain": strength.gains.get(strength.value, 0.0),
        "validation": best.value,
        "best": best.number,
        "skipped": best.skipped,
    }


def ensure_modulator(
    file: Path,
    base: ResNet,
    train: Images,
    source: int,
    validation: Tasks,
    config: Config,
    record: Record,
) -> None:
    """Train the modulator of one source into a file, unless the file is there."""
    if file.exists():
        return
    modulator, strength, best = train_modulator(base, train, source, validation, config, record)
    write_weights(file, modulator.state_dict(), about_modulator(strength, best))
    record.checkpoint.unlink(missing_ok=True)


def read_modulator(
    file: Path, base: ResNet, kind: Kind, device: torch.device
) -> tuple[Modulator, dict[str, Any]]:
    """Read a modulator and what is known about it, its strength above all."""
    weights, about = read_weights(file)
    modulator = Modulator(sites_of(base), kind).to(device)
    modulator.load_state_dict(weights)
    return modulator.requires_grad_(False), about
