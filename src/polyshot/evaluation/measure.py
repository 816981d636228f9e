"""A trained method on a target: accuracy of each episode, calibration, and what a task costs.

Seconds are those of whole tasks with nothing known before: some episodes alone, in one batch, every
image of theirs embedded anew. Methods embed all images with every network that they might ask,
which pays in a measurement, where embeddings are kept for others; of the time for that only the
share is counted that a task alone needs (`Fitted.passes`: selecting one member does not take a pass
of all). Seconds do not depend on the target, so they are taken once for each shape and adaptation.
Where a method learns whole networks (`Method.slow`), that takes as long for every episode: the
measurement itself is timed, instead of learning some episodes again.
"""

import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polyshot.config import Config
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.calibration import calibration_error, first_choices
from polyshot.evaluation.cost import pass_cost
from polyshot.evaluation.evaluate import describe, divergence_note, episodes_at_once
from polyshot.evaluation.results import Result
from polyshot.evaluation.targets import TargetTasks
from polyshot.methods.image_tasks import ImageTasks
from polyshot.methods.method import Fitted, Method, Settings, check_adaptation
from polyshot.models.views import VIEWS
from polyshot.training.folder import device_name
from polyshot.training.world import World
from polyshot.util.memory import in_parts

TIMED = {"cpu": 4, "cuda": 64}
"""Episodes whose solving is timed."""


class Answered(NamedTuple):
    """How a method answered the queries of E tasks."""

    accuracies: Tensor
    """float64 ``[E]``."""
    calibration_error: float
    """Over all queries (`evaluation.calibration`)."""
    diverged: int
    """Tasks whose adaptation ran away, so that they have none."""


def answer(fitted: Fitted, tasks: ImageTasks, adaptation: str, dim: int) -> Answered:
    """Classify tasks whose queries stand class by class, and compare with the truth.

    Args:
        fitted: what classifies.
        tasks: E of them.
        adaptation: one that the method knows.
        dim: length of an embedding; it decides how many tasks are worked on at once.

    """
    images = tasks.way * tasks.shot + tasks.query.shape[1]
    # Learning on support sets takes many small steps, which a larger batch shares.
    factor = 1 if adaptation == "none" else 8
    truth = torch.arange(tasks.way).repeat_interleave(tasks.query.shape[1] // tasks.way)
    before = fitted.diverged
    right, sure = [], []
    at_once = episodes_at_once(images, dim, tasks.support.device, factor)

    def predict(part: slice) -> Tensor:
        return fitted.predict(tasks.part(part), adaptation)

    for _, probabilities in in_parts(len(tasks), at_once, predict):  # [E, W * Q, W]
        if not bool(probabilities.isfinite().all()):
            raise PolyshotError("The method's probabilities are not finite numbers.")
        chances, ways = first_choices(probabilities)
        right.append(ways.cpu() == truth)
        sure.append(chances.cpu())
    every = torch.cat(right)  # [E, W * Q]
    return Answered(
        every.double().mean(1),
        calibration_error(torch.cat(sure), every),
        fitted.diverged - before,
    )


@dataclass(eq=False)
class Meter:
    """Measures one trained method of a world."""

    world: World
    method: Method
    settings: Settings
    fitted: Fitted
    _seconds: dict[tuple[EpisodeShape, str], float] = field(default_factory=dict)

    def measure(
        self, target: TargetTasks, shape: EpisodeShape, adaptation: str, episodes: int
    ) -> Result:
        """Measure the first episodes of a target; the result belongs to no protocol yet."""
        check_adaptation(self.method, adaptation)
        config, sampler = self.world.config, target.sampler(shape)
        start = time.perf_counter()
        answered = answer(self.fitted, target.tasks(shape, episodes), adaptation, config.model.dim)
        elapsed = (time.perf_counter() - start) / episodes
        if adaptation in self.method.slow:
            self._seconds.setdefault((shape, adaptation), elapsed)
        described = describe(
            sampler,
            target.pack.hash,
            self.method.name,
            adaptation,
            answered.accuracies.tolist(),
            target.fingerprint(shape, episodes),
            self.world.key,
            any(pack.hash == target.pack.hash for pack in self.world.packs),
        )
        diverged = divergence_note(answered.diverged, episodes)
        return replace(
            described,
            preset=config.preset,
            sources=self.world.sources,
            train_seed=config.seed,
            settings=dict(self.settings),
            note="; ".join(filter(None, (self.fitted.note, diverged))),
            calibration_error=answered.calibration_error,
            parameters=self.fitted.parameters(),
            multiply_adds=self._work(config, shape, adaptation),
            seconds=self._time(target, shape, adaptation),
            device=device_name(self.world.device),
        )

    def _work(self, config: Config, shape: EpisodeShape, adaptation: str) -> int:
        every, learning = (
            count(shape, adaptation) for count in (self.fitted.passes, self.fitted.learning_passes)
        )
        passes = (every - learning) * len(VIEWS[config.views]) + learning
        return round(passes * pass_cost(config.model, config.size))

    def _time(self, target: TargetTasks, shape: EpisodeShape, adaptation: str) -> float:
        key = shape, adaptation
        if key not in self._seconds:
            count = min(target.episodes, TIMED[self.world.device.type])
            passes = self.fitted.passes(shape, adaptation)
            self._seconds[key] = _time_alone(
                self.fitted, target.alone(shape, count), adaptation, passes
            )
        return self._seconds[key]


def _time_alone(fitted: Fitted, tasks: ImageTasks, adaptation: str, passes: float) -> float:
    """Time tasks of which nothing is kept yet: seconds for one."""
    taken = 0

    def take(positions: Tensor) -> Tensor:
        nonlocal taken
        taken += len(positions)
        return tasks.take(positions)

    counted = replace(tasks, take=take)

    def predict() -> tuple[float, int]:
        start, before = time.perf_counter(), taken
        fitted.predict(counted, adaptation).cpu()  # waits for the device
        return time.perf_counter() - start, taken - before

    (first, everything), (again, unkept) = predict(), predict()
    # What was taken only once was embedded: the whole table by each of some networks.
    embedded = (everything - unkept) / tasks.count * (tasks.way * tasks.shot + tasks.query.shape[1])
    needed = min(1.0, passes / embedded) if embedded else 0.0
    return (again + needed * max(0.0, first - again)) / len(tasks)
