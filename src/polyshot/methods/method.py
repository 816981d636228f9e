"""What a method is: trained on sources, then it classifies episodes.

A method is one short file that opens with its paper and ends in one register line. `fit` trains
what is missing in a training run (sources, config, seed) and returns what classifies; all chance
in it is a function of the run's seed. Nothing is carried from one episode to the next, and no query
influences another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import torch
from torch import Tensor, nn

from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError, join_names, unknown
from polyshot.models.backbone import parameter_count
from polyshot.models.modulators import Kind
from polyshot.tasks import Tasks
from polyshot.training.training_run import Training, TrainingRun

Settings = Mapping[str, float]
BEYOND = ("ridge", "pa", "tsa")
"""Adaptations that the paper does not have."""


class Fitted(ABC):
    """A trained method, ready to classify."""

    note: str = ""
    """What a reader of its results should know."""
    diverged: int = 0
    """Tasks, of all that were predicted, whose adaptation diverged, so that they had none."""

    @abstractmethod
    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Classify the queries: probabilities ``[E, Q, W]``, on the tasks' device."""

    def parameters(self) -> int:
        """Count the numbers that it holds: here, those of the networks among its attributes."""
        return parameter_count(*(x for x in vars(self).values() if isinstance(x, nn.Module)))

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count the forward passes of the base that one task costs; a backward pass is two.

        Here each image is embedded once, and heads on embeddings cost next to nothing.
        """
        images = shape.way * (shape.shot + shape.queries)
        return images + self.learning_passes(shape, adaptation)

    def learning_passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count those of the passes that learning takes, however many views images have."""
        return 0.0

    def member_names(self) -> tuple[str, ...]:
        """Name the members whose answers are combined; none where there are no members."""
        return ()

    def member_probabilities(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Return each member's probabilities: ``[M, E, Q, W]``."""
        raise PolyshotError(f"{type(self).__name__} has no members that answer on their own.")

    def selections(self, tasks: Tasks) -> Tensor | None:
        """Return which member is selected, 1 or 0: ``[E, M]``; None where none ever is."""
        return None


def in_parts(tasks: Tasks, size: int, logits: Callable[[Tasks], Tensor]) -> Tensor:
    """Classify at most so many tasks at a time by logits [E, Q, W]: probabilities [E, Q, W]."""
    with torch.no_grad():
        return torch.cat([torch.softmax(logits(part), -1) for part in tasks.chunks(size)])


@dataclass(frozen=True)
class Method:
    """A named way to classify, with its paper."""

    name: str
    paper: str
    about: str
    """One line."""
    fit: Callable[[TrainingRun, Settings], Fitted]
    """Trains what is missing in a run, or reads it."""
    adaptations: tuple[str, ...] = ("none", "head", "ridge")
    """``none``, and the further adaptation that it knows, if any."""
    slow: tuple[str, ...] = ()
    """Adaptations that learn whole networks: their cells may ask for fewer episodes."""
    settings: Settings = field(default_factory=dict)
    """Its own choices, before any tuning."""
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What `polyshot tune` tries on validation classes, by the names of settings."""
    tuned_with: str = "none"
    """The adaptation with which the points of the grid are compared."""
    training_episodes: Callable[[TrainingRun, Settings], int] = lambda *_: 0
    """Counts the episodes that it is trained with, of all sources together, after the base."""
    beyond: bool = False
    """Whether the paper does not have it: `reproduce` then runs it only where it is asked for."""
    pool: Kind | None = None
    """Modulators of the run's pool that it works on: it then takes in a domain that is added to
    the pool later. None: it has no pool, or cannot grow."""

    shared: Callable[[TrainingRun, Settings], list[Training]] = lambda *_: []
    """Lists trainings that `fit` takes from the run and that other methods take as well: a grid
    does each of them once, before the methods."""

    def adaptations_of_paper(self) -> tuple[str, ...]:
        """List the adaptations without those that the paper does not have."""
        return tuple(each for each in self.adaptations if each not in BEYOND)


MODULES = ("prototypes", "finetune", "protonet", "feat", "protomaml", "tadam", "pool_rules")
"""The files of the methods, in the order of the tables: each registers what it holds."""
METHODS: dict[str, Method] = {}
"""All methods by name."""


def on_base(run: TrainingRun, _: Settings) -> list[Training]:
    """List the trainings of a method that starts from the run's base."""
    return run.trainings()


def register(method: Method) -> None:
    """Make a method known to `polyshot methods`, `tune` and `reproduce`."""
    METHODS[method.name] = method


def find_methods(names: Sequence[str] = ()) -> list[Method]:
    """Look methods up; all of them, in the order of the tables, if none is named."""
    files = [import_module(f"polyshot.methods.{module}").__name__ for module in MODULES]
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, METHODS, 20)
    if names:
        return [METHODS[name] for name in names]
    places = {file: place for place, file in enumerate(files)}
    return sorted(METHODS.values(), key=lambda each: places.get(each.fit.__module__, len(places)))


def check_adaptation(method: Method, adaptation: str) -> None:
    """Refuse a further adaptation that a method does not know."""
    if adaptation not in method.adaptations:
        raise PolyshotError(
            f"'{method.name}' knows the adaptations {join_names(method.adaptations)}, not "
            f"'{adaptation}'."
        )
