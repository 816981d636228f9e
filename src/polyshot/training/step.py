"""What a step of the training hands to the loop, what it gets back, and what is told of it."""

import importlib.util
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from polyshot.config import BaseConfig, Course, ModulatorConfig, SelectorConfig
from polyshot.data.augment import WEAK, Augment
from polyshot.data.shapes import EpisodeShape
from polyshot.util.files import append_text, write_text
from polyshot.util.progress import Progress
from polyshot.util.tensors import write_weights


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


class Step(ABC):
    """What a step of the training brings along."""

    name: str
    """For people, metrics and progress: ``base``, ``modulator:birds``."""
    section: str
    """Of the config, for messages: ``base``."""
    memory: tuple[str, int]
    """The option to lower when memory runs out, and its value: ``("base.batch", 1024)``."""
    images: int
    """Images (or tasks) of one update, over all processes."""
    shared = False
    """Whether all processes train it together; else the first alone does, and waits for nobody."""
    module: nn.Module
    """What is trained, on its device; its state is what is kept."""

    def groups(self) -> list[Group]:
        """Return the parameters that are trained; matrices decay, biases and batch norm do not."""
        return decayed_by_kind(self.module.parameters())

    def ready(self) -> None:  # noqa: B027 (most have nothing to do)
        """Prepare what needs the weights in their final place in memory; called once, first."""

    @abstractmethod
    def loss(self, number: int) -> Tensor:
        """Make the batch of an update and return its loss; a pure function of the number."""

    @abstractmethod
    def validate(self) -> float:
        """Return how good the module is on validation classes; higher is better."""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Stop reading images ahead; called once, last."""


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
    schedule: Course = "cosine"
    from_start: bool = False
    """Whether the state that it starts from may be the best one, and is kept then."""

    def for_mark(self) -> dict[str, Any]:
        """Return it as plain data, without the fields that came later where they say nothing."""
        plain, usual = asdict(self), {"schedule": "cosine", "from_start": False}
        return {name: value for name, value in plain.items() if usual.get(name) != value}


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
    course: Course = "cosine"
    from_start: bool = False

    @classmethod
    def of(cls, own: BaseConfig | ModulatorConfig | SelectorConfig | Plan) -> "Schedule":
        """Read it off a section of the config; where that does not say, Adam without warm-up."""
        return cls(
            own.steps,
            getattr(own, "optimiser", "adam"),
            own.rate if isinstance(own, ModulatorConfig) else own.learning_rate,
            own.weight_decay,
            own.clip,
            own.validate_every,
            getattr(own, "warm_up", 0),
            own.schedule,
            getattr(own, "from_start", False),
        )

    def rate(self, number: int) -> float:
        """Return the learning rate of an update: linear warm-up, then its course."""
        if number < self.warm_up:
            return self.learning_rate * ((number + 1) / self.warm_up)
        if self.course == "constant":
            return self.learning_rate
        done = (number - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Best:
    """The state that was kept: how good by validation, and after how many updates."""

    value: float
    number: int
    skipped: int
    """Updates left out for want of a finite loss and gradient."""

    def about(self) -> dict[str, Any]:
        """Describe it, as files do."""
        return {"validation": self.value, "best": self.number, "skipped": self.skipped}


class Metrics:
    """What a training tells, as JSON lines and, if installed, TensorBoard; nothing with no path."""

    def __init__(self, path: Path | None):
        self.path = path
        self._board: Any = None

    def write(self, step: str, number: int, **values: Any) -> None:
        """Add the line of one update of a step; values that are None are left out."""
        if self.path is None:
            return
        known = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"step": step, "number": number, **known}, ensure_ascii=False)
        append_text(self.path, line + "\n")
        if importlib.util.find_spec("tensorboard") is None:
            return
        if self._board is None:  # only now: a run with nothing to do adds no file
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra)

            self._board = SummaryWriter(str(self.path.parent / "tensorboard"))
        for name, value in known.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{step}/{name}", value, number)

    def forget(self, step: str, after: int) -> None:
        """Drop the lines of updates that will be made again, because a run was killed."""
        if self.path is None or not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not _is_later(line, step, after)]
        if kept != lines:
            write_text(self.path, "".join(line + "\n" for line in kept))

    def close(self) -> None:
        """Write what TensorBoard still holds back."""
        if self._board is not None:
            self._board.close()


@dataclass(frozen=True)
class Record:
    """Where a training writes what it does."""

    checkpoint: Path
    """The file to go on from after an interruption."""
    metrics: Metrics
    report: Progress | None = None
    """Called with the step's name, images done and images in all."""

    def finish(self, file: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write the result of a training; its checkpoint has served."""
        write_weights(file, weights, about)
        self.checkpoint.unlink(missing_ok=True)


def _is_later(line: str, step: str, after: int) -> bool:
    try:
        about = json.loads(line)
    except ValueError:  # cut off by a kill
        return True
    return bool(about["step"] == step and about["number"] > after)
