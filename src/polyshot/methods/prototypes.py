"""base: nearest prototypes on the base, as in Prototypical Networks (Snell et al., 2017).

The rival that the paper left out, and the hardest to beat.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyshot.config import AdaptationConfig, to_dict
from polyshot.methods.method import BEYOND, Fitted, Method, Settings, on_base, register
from polyshot.methods.pool_rules import LEARNING, PoolWithRule, with_learning
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric
from polyshot.pool.pool import Pool
from polyshot.predict.readout import fit_classifiers
from polyshot.tasks import Tasks
from polyshot.training.base import pool_size
from polyshot.training.training_run import TrainingRun


@dataclass(eq=False)
class Prototypes(Fitted):
    """One frozen network with nearest prototypes, or with a head learned on the support set."""

    network: Backbone
    metric: Metric
    scale: float
    """Logits are scale * (cosine or -squared distance)."""
    adaptation: AdaptationConfig
    note: str = ""

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Classify the queries: probabilities [E, Q, W]."""
        support, query = tasks.embedded(self.network)
        classifiers = fit_classifiers(
            support, tasks.mask, self.metric, self.scale, adaptation, self.adaptation
        )
        return torch.softmax(classifiers.logits(query), 1).mT


def prototypes_on(run: TrainingRun, network: Backbone, note: str = "") -> Prototypes:
    """Read a network of a run out by prototypes, with the run's metric and its best scale."""
    config = run.config
    return Prototypes(network, config.metric, run.scale(network), config.adaptation, note)


def _fit(run: TrainingRun, settings: Settings) -> PoolWithRule:
    """Take the base as a pool without modulators: it then learns on support sets as pools do.

    `head_rate` is the learning rate of heads, 0 that of the config: `polyshot tune base` searches
    for one.
    """
    config, base = run.config, run.base()
    heads = config.adaptation
    heads = replace(heads, learning_rate=settings["head_rate"] or heads.learning_rate)
    pool = Pool(
        base.config,
        pool_size(base, config),
        config.modulator.kind,
        config.metric,
        base,
        scales=[run.scale(base)],
        adaptation=heads,
        about={"config": to_dict(config)},
        views=config.views,
    )
    return PoolWithRule(with_learning(pool, settings), "base")


register(
    Method(
        name="base",
        paper="Prototypical Networks for Few-shot Learning (Snell et al., 2017)",
        about="the shared base with nearest prototypes, not trained any further",
        fit=_fit,
        shared=on_base,
        adaptations=("none", "head", *BEYOND),
        slow=("tsa",),
        settings={**LEARNING, "head_rate": 0},
        grid={"head_rate": (3e-4, 1e-3, 3e-3, 1e-2)},
        tuned_with="head",
    )
)
