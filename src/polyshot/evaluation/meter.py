"""A trained method on a target: accuracy of each episode, calibration, and what a task costs.

Seconds are those of whole tasks with nothing known before: some episodes alone, in one batch, every
image of theirs embedded anew. Methods embed all images with every network that they might ask,
which pays in a measurement, where embeddings are kept for others; of the time for that only the
share is counted that a task alone needs (`Fitted.passes`: selecting one member does not take a pass
of all). Seconds do not depend on the target, so they are taken once for each shape and adaptation.
Where a method learns whole networks (`Method.slow`), that takes as long for every episode: the
measurement itself is timed, instead of learning some episodes again.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from polyshot.config import Config
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.evaluate import Measured, describe, measure
from polyshot.evaluation.results import Result
from polyshot.evaluation.targets import Target
from polyshot.methods.method import Fitted, Method, Settings, check_adaptation
from polyshot.models.views import VIEWS
from polyshot.predict.predict import Answers
from polyshot.tasks import Tasks
from polyshot.training.folder import device_name
from polyshot.training.training_run import TrainingRun
from polyshot.util.device import for_device

TIMED = {"cpu": 4, "cuda": 64}
"""Episodes whose solving is timed."""


def predictor(fitted: Fitted, adaptation: str) -> Callable[[Tasks], Answers]:
    """Let a trained method answer as one rule, in the evaluator's form."""

    def predict(tasks: Tasks) -> Answers:
        before = fitted.diverged
        probabilities = fitted.predict(tasks, adaptation)
        failed = torch.zeros(1, len(tasks), dtype=torch.bool)
        failed[0, : fitted.diverged - before] = True  # how many counts, not which
        return Answers(probabilities.unsqueeze(0), failed)

    return predict


def answer(fitted: Fitted, tasks: Tasks, adaptation: str, dim: int) -> Measured:
    """Let a trained method classify tasks; `dim` is the length of an embedding."""
    groups = [(torch.arange(len(tasks)), tasks)]
    return measure(predictor(fitted, adaptation), groups, dim, adaptation)


@dataclass(eq=False)
class Meter:
    """Measures one trained method of a world."""

    world: TrainingRun
    method: Method
    settings: Settings
    fitted: Fitted
    _seconds: dict[tuple[EpisodeShape, str], float] = field(default_factory=dict)

    def measure(
        self, target: Target, shape: EpisodeShape, adaptation: str, episodes: int
    ) -> Result:
        """Measure the first episodes of a target; the result belongs to no protocol yet."""
        check_adaptation(self.method, adaptation)
        config = self.world.config
        start = time.perf_counter()
        groups = target.groups(shape, episodes)
        predict = predictor(self.fitted, adaptation)
        measured = measure(predict, groups, self._base[0], adaptation)
        elapsed = (time.perf_counter() - start) / episodes
        if adaptation in self.method.slow:
            self._seconds.setdefault((shape, adaptation), elapsed)
        known = [*self.world.packs, *([self.world.added] if self.world.added else [])]
        seen = any(pack.hash == target.pack.hash for pack in known)
        described = describe(
            target, shape, measured, 0, self.method.name, adaptation, self.world.key, seen
        )
        took = self.world.addition(self.method.pool) if self.method.pool else None
        return replace(
            described,
            preset=config.preset,
            sources=self.world.sources,
            added=known[-1].domain.name if took else "",
            added_seconds=took.seconds if took else None,
            added_on=took.device if took else "",
            train_seed=config.seed,
            settings=dict(self.settings),
            note="; ".join(filter(None, (self.fitted.note, described.note, self._members()))),
            parameters=self.fitted.parameters(),
            training_episodes=self.method.training_episodes(self.world, self.settings),
            multiply_adds=self._work(config, shape, adaptation),
            seconds=self._time(target, shape, adaptation),
            device=device_name(self.world.device),
        )

    def _members(self) -> str:
        """Say, where classes are in clusters, how many of these there are."""
        count, sources = len(self.fitted.member_names()) - 1, len(self.world.packs)
        if self.world.config.modulator.members == 1 or self.method.pool is None or not count:
            return ""
        return f"modulators for {sources} {'source' if sources == 1 else 'sources'}: {count}"

    def _work(self, config: Config, shape: EpisodeShape, adaptation: str) -> int:
        every = self.fitted.passes(shape, adaptation)
        learning = self.fitted.learning_passes(shape, adaptation)
        passes = (every - learning) * len(VIEWS[config.views]) + learning
        return round(passes * self._base[1])

    @cached_property
    def _base(self) -> tuple[int, int]:
        """Length of the base's embeddings, and what a pass of it costs; no weights are needed."""
        base = self.world.initial()
        return base.config.dim, pass_cost(base, self.world.config.size)

    def _time(self, target: Target, shape: EpisodeShape, adaptation: str) -> float:
        key = shape, adaptation
        if key not in self._seconds:
            count = min(target.episodes, for_device(TIMED, self.world.device))
            passes, alone = self.fitted.passes(shape, adaptation), target.alone(shape, count)
            self._seconds[key] = _time_alone(self.fitted, alone, adaptation, passes)
        return self._seconds[key]


def _time_alone(fitted: Fitted, tasks: Tasks, adaptation: str, passes: float) -> float:
    """Time tasks of which nothing is kept yet: seconds for one."""
    taken, table = 0, tasks.table
    own = table.take
    assert own is not None

    def take(positions: Tensor) -> Tensor:
        nonlocal taken
        taken += len(positions)
        return own(positions)

    counted = replace(tasks, table=replace(table, take=take))

    def predict() -> tuple[float, int]:
        start, before = time.perf_counter(), taken
        fitted.predict(counted, adaptation).cpu()  # waits for the device
        return time.perf_counter() - start, taken - before

    (first, everything), (again, unkept) = predict(), predict()
    # What was taken only once was embedded: the whole table by each of some networks.
    embedded = (everything - unkept) / table.count * (tasks.way * tasks.shot + tasks.query.shape[1])
    needed = min(1.0, passes / embedded) if embedded else 0.0
    return (again + needed * max(0.0, first - again)) / len(tasks)


def pass_cost(network: nn.Module, size: int) -> int:
    """Count the multiply-adds of one forward pass of one image of so many pixels a side."""
    shapes = copy.deepcopy(network).to("meta").eval()  # they are all that counting needs
    image = torch.empty(1, 3, size, size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shapes(image)
    return int(counter.get_total_flops()) // 2  # it counts an addition and a multiplication
