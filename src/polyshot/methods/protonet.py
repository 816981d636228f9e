"""protonet, simple-avg: networks trained by episodes as Prototypical Networks (Snell et al., 2017).

protonet is one network for all sources. It starts from the run's base, as all trained rivals do, or
from random weights if `from_scratch` is 1. Distances are squared and divided by the root of the
embedding's length: with 512 numbers the softmax would saturate otherwise.

Trained rivals have the modulators' budget (`BUDGET`): as many episodes as all of them together, the
best state by validation classes, the one they start from among them, as a modulator may fall back
to the base.

simple-avg is the paper's Simple-Avg, separate networks that share nothing (Choi et al., 2019): one
a source, from random weights on that source alone; the networks' probabilities are averaged. Runs
that share a source share its network.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polyshot.data.shapes import EpisodeShape
from polyshot.methods.method import Fitted, Method, Settings, register
from polyshot.methods.prototypes import Prototypes, prototypes_on
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric
from polyshot.predict.readout import fit_classifiers
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch, Learner
from polyshot.training.step import Plan
from polyshot.training.training_run import Training, TrainingRun, settings_mark

SCRATCH = 2.5
"""How many times as many episodes a network needs that starts from random weights."""
BUDGET = {"per_source": 1, "fall_back": 1}
"""Settings of trained rivals. `per_source`: as many updates for each source as a modulator gets,
instead of so many in all; `fall_back`: validation may choose the state that it starts from."""


class ProtoNetLearner(Learner):
    """A network that learns to put queries near their prototypes."""

    def __init__(self, base: Backbone, metric: Metric, moves_statistics: bool = False):
        super().__init__(base)
        self.metric = metric
        self.moves_statistics = moves_statistics

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy of squared distances from the prototypes."""
        return batch.prototype_loss()

    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify by the metric that is used later: [E, Q, W]."""
        support, query = tasks.embedded(self.base)
        classifiers = fit_classifiers(support, tasks.mask, self.metric, 1.0)
        return torch.softmax(classifiers.logits(query), 1).mT


def _fit(run: TrainingRun, settings: Settings) -> Prototypes:
    if settings["from_scratch"]:
        return prototypes_on(run, from_scratch(run, settings), "from random weights")
    learner, _ = run.learned(
        "protonet",
        lambda: ProtoNetLearner(trainable(run.base()), run.config.metric),
        episodic_plan(run, settings),
    )
    return prototypes_on(run, learner.base, "from the base")


def episodic_plan(run: TrainingRun, settings: Settings, pace: float = 1.0) -> Plan:
    """Plan the episodes of a rival: as many updates as all modulators get, times `pace`."""
    own = run.config.modulator
    sources = len(run.packs) if settings.get("per_source") else 1
    steps = round(pace * own.steps * sources)
    return Plan(
        steps=steps,
        episodes=own.episodes,
        learning_rate=settings["learning_rate"],
        weight_decay=settings.get("weight_decay", 0.0),
        shape=run.config.shape,
        augment=own.augment,
        clip=own.clip,
        validate_every=max(1, steps // 4),
        schedule=own.schedule,
        from_start=bool(settings.get("fall_back")),
    )


def planned_episodes(run: TrainingRun, settings: Settings, pace: float = 1.0) -> int:
    """Count the episodes of a plan."""
    plan = episodic_plan(run, settings, pace)
    return plan.steps * plan.episodes


def from_scratch(run: TrainingRun, settings: Settings) -> Backbone:
    """Train a network by episodes from random weights; it needs more of them."""
    learner, _ = run.learned(
        "protonet-scratch",
        lambda: ProtoNetLearner(run.initial(), run.config.metric, moves_statistics=True),
        episodic_plan(run, settings, SCRATCH),
    )
    return learner.base


def trainable(base: Backbone) -> Backbone:
    """Copy a frozen network into one that learns."""
    return copy.deepcopy(base).requires_grad_(True)


@dataclass(eq=False)
class Average(Fitted):
    """Several networks whose probabilities are averaged."""

    members: Sequence[Prototypes]
    names: Sequence[str]
    """Their sources."""
    note: str = "networks from random weights, one a source"

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Average the members' probabilities: [E, Q, W]."""
        return self.member_probabilities(tasks, adaptation).mean(0)

    def member_probabilities(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Return each member's probabilities: [M, E, Q, W]."""
        return torch.stack([member.predict(tasks, adaptation) for member in self.members])

    def member_names(self) -> tuple[str, ...]:
        """Name the networks by their sources."""
        return tuple(self.names)

    def parameters(self) -> int:
        """Count those of all networks."""
        return sum(member.parameters() for member in self.members)

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Each network embeds each image."""
        return sum(member.passes(shape, adaptation) for member in self.members)


def _networks(run: TrainingRun, settings: Settings) -> list[Training]:
    """List the trainings of the networks of single sources, which runs share."""
    alone = [run.single(source) for source in range(len(run.packs))]
    name = f"scratch-{settings_mark(settings)}"
    return [
        Training(each, name, partial(from_scratch, each, settings), (f"{each.name}/**",))
        for each in alone
    ]


def _fit_average(run: TrainingRun, settings: Settings) -> Average:
    networks = [from_scratch(run.single(source), settings) for source in range(len(run.packs))]
    return Average([prototypes_on(run, network) for network in networks], run.sources)


register(
    Method(
        name="protonet",
        paper="Prototypical Networks for Few-shot Learning (Snell et al., 2017)",
        about="one network for all sources, trained by episodes, from the base",
        fit=_fit,
        shared=lambda run, settings: [] if settings["from_scratch"] else run.trainings(),
        settings={"learning_rate": 1e-4, "from_scratch": 0, **BUDGET},
        grid={"learning_rate": (1e-5, 1e-4, 1e-3)},
        training_episodes=lambda run, settings: planned_episodes(
            run, settings, SCRATCH if settings["from_scratch"] else 1.0
        ),
    )
)
register(
    Method(
        name="simple-avg",
        paper="Learning Disparate Modulators (Choi et al., 2019), its Simple-Avg",
        about="one separate network a source, trained as ProtoNet; probabilities averaged",
        fit=_fit_average,
        shared=_networks,
        settings={"learning_rate": 1e-3},
        grid={"learning_rate": (3e-4, 1e-3, 3e-3)},
        training_episodes=lambda run, settings: (
            len(run.packs) * planned_episodes(run, settings, SCRATCH)
        ),
    )
)
