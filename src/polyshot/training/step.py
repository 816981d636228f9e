"""What a step of the training hands to the loop, and what the loop gives back."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn


class Group(NamedTuple):
    """Parameters that are optimised alike."""

    parameters: list[nn.Parameter]
    decayed: bool
    """Whether weight decay pulls on them."""
    pace: float = 1.0
    """Factor on the learning rate."""


def decayed_by_kind(parameters: Iterable[nn.Parameter]) -> list[Group]:
    """Decay kernels and matrices, not biases and batch norm."""
    every = list(parameters)
    return [
        Group([p for p in every if p.ndim > 1], decayed=True),
        Group([p for p in every if p.ndim <= 1], decayed=False),
    ]


class Step(Protocol):
    """What a step of the training brings along."""

    name: str
    """For people, metrics and progress: ``base``, ``modulator:birds``."""
    section: str
    """Of the config, for messages: ``base``."""
    memory: tuple[str, int]
    """The option to lower when memory runs out, and its value: ``("base.batch", 1024)``."""
    images: int
    """Images (or tasks) of one update, over all processes."""
    shared: bool
    """Whether all processes train it together; else the first alone does, and waits for nobody."""

    @property
    def module(self) -> nn.Module:
        """What is trained, on its device; its state is what is kept."""

    def groups(self) -> list[Group]:
        """Return the parameters that are trained."""

    def ready(self) -> None:
        """Prepare what needs the weights in their final place in memory; called once, first."""

    def loss(self, number: int) -> Tensor:
        """Make the batch of an update and return its loss; a pure function of the number."""

    def validate(self) -> float:
        """Return how good the module is on validation classes; higher is better."""


@dataclass(frozen=True)
class Schedule:
    """How a step is optimised."""

    steps: int
    optimiser: Literal["adam", "sgd"]
    learning_rate: float
    weight_decay: float
    clip: float
    validate_every: int
    warm_up: int = 0

    def rate(self, number: int) -> float:
        """Return the learning rate of an update: linear warm-up, then a cosine down to 0."""
        if number < self.warm_up:
            return self.learning_rate * ((number + 1) / self.warm_up)
        done = (number - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Best:
    """The state that was kept: how good by validation, and after how many updates."""

    value: float
    number: int
    skipped: int
    """Updates left out for want of a finite loss and gradient."""
