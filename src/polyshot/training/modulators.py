"""Step 2: episodic prototype learning of one modulator for each source, the base frozen.

Sources are independent of each other. Full-strength modulators overfit their training classes, so
the strength lambda is chosen on validation classes, resampled, because few classes decide.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyshot.config import Config
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.backbone import sites_of
from polyshot.models.foreign import Backbone
from polyshot.models.modulators import Kind, Modulator, fold, member_parameters, read_tensors
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeStep
from polyshot.training.loop import learn
from polyshot.training.step import Best, Group, Record, Schedule
from polyshot.training.validation import class_accuracies
from polyshot.util import counter_rng
from polyshot.util.device import seeded
from polyshot.util.tensors import read_weights

RESAMPLINGS = 2000
RELIABLE = 0.2
"""A gain counts if it is above zero in all but this share of the resamplings of classes."""


class ModulatorStep(EpisodeStep):
    """What the loop needs to train one modulator.

    The module holds the distance from the identity, so that weight decay pulls towards the base.
    """

    section = "modulator"
    module: Modulator

    def __init__(
        self, base: Backbone, train: Images, source: int, validation: Tasks, config: Config
    ):
        own, self.config, self._base, self._validation = config.modulator, config, base, validation
        self.name = f"modulator:{train.packs[source].domain.name}"
        self.memory = ("modulator.episodes", own.episodes)
        seed = counter_rng.key("modulator", config.seed, source)
        with seeded("modulator weights", seed):
            start = Modulator(sites_of(base), own.kind, own.rank)
        if not start.sites:
            raise PolyshotError(
                "Modulators can act at no layer of this network: take another one, or name layers "
                "of it (sites)."
            )
        self._identity = start.to(train.device).requires_grad_(False)
        self.module = copy.deepcopy(self._identity).requires_grad_(True)
        for parameter in self.module.parameters():
            nn.init.zeros_(parameter)
        self._member: nn.Module = Member(base, self._identity, self.module)
        sources = torch.full((max(1, own.steps), own.episodes), source)
        super().__init__(train, own, sources, {source: seed}, seed)

    def groups(self) -> list[Group]:
        """Decay everything: every parameter is a distance from the base."""
        return [Group(list(self.module.parameters()), decayed=True)]

    def ready(self) -> None:
        """Record the member's pass as a CUDA graph."""
        self._member = self.recorded(self._member)

    def loss(self, number: int) -> Tensor:
        """Cross-entropy of prototypes, all episodes in one forward."""
        metric = self.config.modulator.loss_metric
        return self.batch(number, self._member).prototype_loss(metric)

    def validate(self) -> float:
        """Accuracy on episodes of the source's validation classes, at full strength."""
        return float(self._accuracy(1.0).mean())

    def train(self, record: Record) -> dict[str, Any]:
        """Train the modulator and choose its strength, lambda, on the validation episodes."""
        own, name = self.config.modulator, f"{self.name}:strength"
        best = learn(self, Schedule.of(own), record, self.config.seed)
        shots = own.strength_shots
        measured = {s: self._accuracy(s, shots).cpu() for s in {0.0, *own.strengths}}
        classes = self._validation.classes
        assert classes is not None
        chosen = choose_strength(measured, classes, own.strengths, self._seed)
        gains, lower = (
            {str(s): round(gain, 5) for s, gain in each.items()}
            for each in (chosen.gains, chosen.lower)
        )
        told = {"strength": chosen.value, "gains": gains, "gains_resampled": lower}
        record.metrics.forget(name, -1)
        record.metrics.write(name, own.steps, **told)
        return chosen.about(best)

    def modulator(self) -> Modulator:
        """Return the modulator as it is now."""
        result = copy.deepcopy(self._identity)
        values = _values(self._identity, self.module)
        result.load_state_dict({name: value.detach() for name, value in values.items()})
        return result

    def _accuracy(self, strength: float, shots: Sequence[int] = ()) -> Tensor:
        member = fold(self._base, self.modulator(), strength)
        return class_accuracies(self._validation, member, self.config.metric, shots)


class Member(nn.Module):
    """The base with a modulator that is `delta` away from the identity."""

    def __init__(self, base: Backbone, identity: Modulator, delta: Modulator):
        super().__init__()
        self.delta = delta
        self._frozen = (base, identity)  # in a tuple: no part of this module's state

    def forward(self, images: Tensor) -> Tensor:
        """Embed images."""
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

    def about(self, best: Best) -> dict[str, Any]:
        """Describe the member: its strength, what it gains over the base, how it came about."""
        gain = self.gains.get(self.value, 0.0)
        return {"strength": self.value, "gain": gain, **best.about()}


def choose_strength(
    accuracy: dict[float, Tensor], classes: Tensor, candidates: Sequence[float], seed: int
) -> Strength:
    """Choose the strength with the largest gain, or the next smaller one whose gain is reliable.

    `accuracy` is that of each strength, 0 among them, [E, W] a class of an episode, and `classes`
    [E, W] which class that is. A single candidate is taken as it is.
    """
    gain = {s: accuracy[s] - accuracy[0.0] for s in candidates}
    gains = {s: float(gain[s].mean()) for s in candidates}
    resampled = {s: resampled_gain(gain[s], classes, seed) for s in candidates}
    lower = {s: resampled[s].quantile(RELIABLE).item() for s in candidates}
    best = max(candidates, key=lambda s: (gains[s], -s))
    reliable = (s for s in candidates if 0 < s <= best and lower[s] > 0)
    chosen = candidates[0] if len(candidates) == 1 else max(reliable, default=0.0)
    return Strength(chosen, gains, lower)


def resampled_gain(gain: Tensor, classes: Tensor, seed: int) -> Tensor:
    """Average a gain [E, W] over classes drawn with replacement, many times: [resamplings]."""
    known, index, weight = torch.unique(classes, return_inverse=True, return_counts=True)
    count, total = len(known), torch.bincount(index.flatten(), gain.double().flatten())
    key = counter_rng.key("classes", seed)
    random = counter_rng.uniform(key, torch.arange(RESAMPLINGS), count)  # [classes, resamplings]
    drawn = (random * count).long()
    return torch.div(total[drawn].sum(0), weight[drawn].sum(0))


def read_modulator(
    file: Path, base: Backbone, kind: Kind, device: torch.device
) -> tuple[Modulator, dict[str, Any]]:
    """Read a modulator and what is known about it, its strength above all."""
    weights, about = read_weights(file)
    modulator = read_tensors(sites_of(base), kind, weights)
    modulator.load_state_dict(weights)
    return modulator.to(device).requires_grad_(False), about
