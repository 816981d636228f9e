"""Ensembles: several pools, each on a backbone of its own, that answer a task together.

Each pool answers by its own rule and adaptation; the logarithms of their probabilities are added,
weighed by how well each pool classifies the support set with an image of each class left out. The
pool that is named first leads: with one image a class, where nothing can be left out, it counts
`LEAD` times as much as another. P pools, E tasks, W ways, S shots, Q queries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.models.backbone import sites_of
from polyshot.models.resnet import ResNetConfig
from polyshot.pool.pool import Pool
from polyshot.predict.predict import Answers, FittedTasks, fit_tasks, predict_tasks
from polyshot.predict.readout import fit_classifiers
from polyshot.predict.rules import Rule, rule
from polyshot.tasks import Queries, Tasks
from polyshot.util.device import for_device
from polyshot.util.progress import Progress

AUTO = "auto"
"""The adaptation of who chooses none: `tsa`, where that is worth it and does not take long; else
`ridge`."""
TSA_IMAGES = {"cpu": 60, "cuda": 5000}
"""Examples from which `auto` learns by `tsa`: more would take longer than half a minute."""
LEAD = 2.0
"""How much more the first pool counts before its answers are known (docs/backbones.md)."""
SHARPNESS = 2.0
"""Weights fall by exp(-2 x the loss on left-out images) (docs/backbones.md)."""
POWER = 1.25
"""Factor on the weighted mean of the logarithms: pools that err apart know more together than their
mean says (docs/backbones.md)."""


@dataclass(eq=False)
class FittedEnsemble:
    """What P pools have learned from E support sets."""

    pools: list[FittedTasks]
    """Each by one rule."""
    weights: Tensor
    """``[P, E]``, on the CPU; they sum to 1."""

    def probabilities(self, queries: Sequence[Queries]) -> Tensor:
        """Classify queries, as each pool looks at them: ``[E, Q, W]``."""
        answers = [one.probabilities(own)[0] for one, own in zip(self.pools, queries, strict=True)]
        return mixed(answers, self.weights)

    @property
    def diverged(self) -> Tensor:
        """Bool ``[E]``, on the CPU: tasks on which the learning of some pool diverged."""
        return torch.stack([one.diverged[0] for one in self.pools]).any(0)


def chosen(pool: Pool, tasks: Tasks, adaptation: str) -> str:
    """Say which adaptation `auto` is for a pool and tasks; others stay as they are."""
    if adaptation != AUTO:
        return adaptation
    few = int(tasks.present.sum()) <= for_device(TSA_IMAGES, pool.device) * len(tasks)
    enough = pool.adaptation.learns_from(tasks.shot)  # of the largest class
    # A network of 224 pixels takes minutes to learn without a GPU.
    quick = isinstance(pool.config, ResNetConfig) or pool.device.type != "cpu"
    return "tsa" if few and enough and quick and sites_of(pool.base) else "ridge"


def predict_ensemble(
    pools: Sequence[Pool], tasks: Tasks, rules: Sequence[str], adaptation: str
) -> Answers:
    """Let pools learn from support sets and classify queries together, by several rules."""
    if len(pools) == 1:
        (pool,) = pools
        return predict_tasks(
            *(pool, tasks, [rule(name, pool) for name in rules], chosen(pool, tasks, adaptation))
        )
    seen = [tasks.viewed(pool.views) for pool in pools]
    queries = [tasks.viewed(pool.query_views or pool.views) for pool in pools]
    adaptations = [chosen(pool, tasks, adaptation) for pool in pools]
    fitted = [
        fit_ensemble(pools, seen, [rule(name, pool) for pool in pools], adaptations)
        for name in rules
    ]
    answers = torch.stack([one.probabilities(queries) for one in fitted])
    return Answers(answers, torch.stack([one.diverged for one in fitted]))


def fit_ensemble(
    pools: Sequence[Pool],
    tasks: Sequence[Tasks],
    rules: Sequence[Rule],
    adaptations: Sequence[str],
    report: Progress | None = None,
) -> FittedEnsemble:
    """Let each pool learn from the same support sets, as it looks at their images."""
    every = zip(pools, tasks, rules, adaptations, strict=True)
    fitted = [fit_tasks(pool, own, [rule], how, report) for pool, own, rule, how in every]
    return FittedEnsemble(fitted, pool_weights(pools, tasks, fitted))


def pool_weights(
    pools: Sequence[Pool], tasks: Sequence[Tasks], fitted: Sequence[FittedTasks]
) -> Tensor:
    """Weigh pools by the support sets: ``[P, E]``."""
    if len(pools) == 1:
        return torch.ones(1, len(tasks[0]))
    every = zip(pools, tasks, fitted, strict=True)
    logits = torch.stack([-SHARPNESS * left_out_loss(pool, own, one) for pool, own, one in every])
    logits[0] += math.log(LEAD)
    return torch.softmax(logits, 0)


def left_out_loss(pool: Pool, tasks: Tasks, fitted: FittedTasks) -> Tensor:
    """Classify support images by the others, by ridge on the heaviest member: the loss ``[E]``.

    One image of each class is left out at a time. 0 for tasks with nothing to leave out.
    """
    member = int(fitted.weights[0].mean(0).argmax())
    support, present = tasks.support_of(pool.network(member)), tasks.present
    alone = present.sum(-1, keepdim=True) < 2  # [E, W, 1]
    total, count = support.new_zeros(len(tasks)), support.new_zeros(len(tasks))
    ways = torch.arange(tasks.way, device=support.device)
    for place in range(tasks.shot if tasks.shot > 1 else 0):
        kept = present.clone()
        kept[:, :, place] &= alone.squeeze(-1)
        asked = present[:, :, place] & ~alone.squeeze(-1)  # [E, W]
        classifiers = fit_classifiers(
            support, kept, pool.metric, pool.scales[member], "ridge", pool.adaptation
        )
        logits = classifiers.logits(support[:, :, place])  # [E, W, W]: ways, then queries
        losses = -logits.log_softmax(1)[:, ways, ways]
        total += losses.where(asked, losses.new_zeros(())).sum(1)
        count += asked.sum(1)
    return (total / count.clamp(min=1)).cpu()


def mixed(answers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Mix probabilities ``[E, Q, W]`` of pools by weights ``[P, E]``."""
    if len(answers) == 1:
        return answers[0]
    shares = weights.to(answers[0])[:, :, None, None]
    logs = torch.stack([each.to(answers[0].device).clamp(min=1e-12).log() for each in answers])
    return torch.softmax(POWER * (shares * logs).sum(0), -1)


def check_ensemble(pools: Sequence[Pool]) -> None:
    """Refuse pools that cannot answer together."""
    if not pools:
        raise PolyshotError("An ensemble needs at least one pool.")
    if len(pools) > 1 and not all(pool.takes_images for pool in pools):
        raise PolyshotError(
            "Precomputed embeddings are of one network: an ensemble needs pools that take images."
        )
    if len({pool.metric for pool in pools}) > 1:
        raise PolyshotError(
            "The pools of an ensemble compare embeddings in different ways (cosine and euclidean): "
            "take pools of one metric."
        )
    if len({pool.device for pool in pools}) > 1:
        raise PolyshotError("The pools of an ensemble are on different devices: move them to one.")
