"""What a few labelled images tell about the accuracy on further ones: leave-one-out.

W classes, S places in the largest, d entries an embedding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from polyshot.classifier.answering import Answering, Evidence, evidence_of
from polyshot.classifier.examples import Examples, Label
from polyshot.config import AdaptationConfig
from polyshot.models.heads import Metric
from polyshot.predict.ensemble import mixed
from polyshot.predict.readout import fit_classifiers
from polyshot.predict.rules import Mix
from polyshot.util.checks import Count, Share, build
from polyshot.util.device import one_thread

CHUNK = 2**24
"""Numbers of the support sets that are learned on at once."""
LARGEST_WORK = 2**27
"""Logits that an estimate may compute in learning heads: half a minute at 250 ns on one core."""


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy on new images, from leaving out each example in turn."""

    accuracy: Share
    """Share of the examples that the others classify right."""
    half_width: Share
    """Half of the 95 % interval from `low` to `high`."""
    low: Share
    high: Share
    images: Count
    """How many examples could be left out: those with another of their class."""
    per_class: dict[Label, Share]
    """By label; classes with one image are missing."""
    of: str
    """What was measured: ``prototypes``, ``head`` or ``ridge``."""

    def __str__(self) -> str:
        return (
            f"Expected accuracy: {self.accuracy:.0%} ({self.low:.0%} to {self.high:.0%}), from "
            f"leaving out each of {self.images} examples in turn ({self.of})."
        )


def wilson(right: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share: within 0 and 1, and of some width at 100 %."""
    share = right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
    # At 0 and 1 the ends are the share itself, but for rounding.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def estimate_accuracy(answering: Answering, examples: Examples) -> Estimate:
    """Estimate the accuracy on new images; `FewShotClassifier.estimate` says how."""
    places, answers, of = left_out_answers(answering, examples)
    right = answers.argmax(1) == places[:, 0]
    per_class = {
        answering.classes[c].item(): float(right[places[:, 0] == c].float().mean())
        for c in sorted(set(places[:, 0].tolist()))
    }
    low, high = wilson(int(right.sum()), len(right))
    accuracy = float(right.float().mean())
    return Estimate(accuracy, (high - low) / 2, low, high, len(right), per_class, of)


def left_out_answers(answering: Answering, examples: Examples) -> tuple[Tensor, Tensor, str]:
    """Classify each example that has another of its class by the others.

    Returns int64 ``[k, 2]``, their classes and places in these; probabilities ``[k, W]``; and what
    was measured (`Estimate.of`).
    """
    mask = examples.task.present[0]  # [W, S]
    places = (mask & (mask.sum(1, keepdim=True) > 1)).nonzero()  # [k, 2]
    answers, measured = held_out_answers(answering, examples, *each_left_out(mask))
    return places, answers[places[:, 1], places[:, 0]], measured


def each_left_out(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out one image of each class at a time: what is kept, and what is asked about.

    An image that is missing alone makes its class the rarest, and what is learned then avoids it.
    `mask`, bool ``[W, S]``, is True where there is an image; a class of one image keeps it. Returns
    what `held_out_answers` takes, bool ``[S, W, S]`` and int64 ``[S, W]``.
    """
    way, shots = mask.shape
    kept = mask.repeat(shots, 1, 1)  # the s-th task lacks the s-th images
    each = torch.arange(shots)
    kept[each, :, each] &= mask.sum(1) < 2
    return kept, torch.arange(way) * shots + each.unsqueeze(1)


def held_out_answers(
    answering: Answering, examples: Examples, kept: Tensor, asked: Tensor
) -> tuple[Tensor, str]:
    """Let parts of the examples classify some of them: probabilities ``[T, Q, W]``, and by what.

    Each of T tasks learns from the images in `kept`, bool ``[T, W, S]``, and is asked about those
    at `asked`, int64 ``[T, Q]``, counted class by class. Weights and blends stay as they are.
    Returns also what was measured (`Estimate.of`).
    """
    parts, measured = [], []
    for i, (pool, one) in enumerate(zip(answering.pools, answering.fitted.pools, strict=True)):
        evidence = evidence_of(one, pool, examples.support(i), answering.mixes)
        work = kept.numel() * kept.shape[1] * len(evidence)
        how = measured_adaptation(pool.adaptation, answering.adaptations[i], work)
        given = (evidence, kept, asked, answering.mixes, pool.metric, pool.adaptation, how)
        parts.append(held_out_probabilities(*given).flatten(0, 1).unsqueeze(0))
        measured.append("prototypes" if how == "none" else how)
    answers = mixed(parts, answering.fitted.weights)[0]
    return answers.view(*asked.shape, -1), measured[0]


def measured_adaptation(config: AdaptationConfig, own: str, logits: int) -> str:
    """Say which adaptation on embeddings is measured in the place of a pool's own.

    `logits` are computed in each step of learning heads.
    """
    if own == "tsa":
        return "ridge" if config.tsa_readout == "ridge" else "none"
    if own == "head":
        return "head" if logits * config.steps <= LARGEST_WORK else "none"
    return own if own == "ridge" else "none"


def held_out_probabilities(
    evidence: Sequence[Evidence],
    kept: Tensor,
    asked: Tensor,
    mixes: Mix,
    metric: Metric,
    config: AdaptationConfig,
    adaptation: str,
) -> Tensor:
    """Let parts of one support set classify its images, as `held_out_answers` says, by one pool.

    `evidence` is what each network that has a say sees in the support set; `adaptation` is one on
    embeddings, which is learned anew each time: none, head or ridge.
    """
    scored = []
    for weight, support, scale in evidence:
        flat = support[0].flatten(0, 1)  # [W * S, d]
        step = max(1, CHUNK // support.numel())
        parts, own = [], 1.0
        for some, places in zip(torch.split(kept, step), torch.split(asked, step), strict=True):
            inputs = support.expand(len(some), -1, -1, -1)
            with one_thread():
                classifiers = fit_classifiers(inputs, some, metric, scale, adaptation, config)
                parts.append(classifiers.scores(flat[places]).mT)  # [t, Q, W]
            own = float(classifiers.scale[0])
        scored.append((weight, torch.cat(parts).flatten(0, 1), own))
    return mix(scored, mixes).view(*asked.shape, -1)


def mix(scored: Sequence[tuple[float, Tensor, float]], mixes: Mix) -> Tensor:
    """Mix what networks say, each a weight, scores [n, W] and their scale: probabilities [n, W]."""
    if mixes == "scores":
        total = torch.stack([weight * scores for weight, scores, _ in scored]).sum(0)
        return torch.softmax(total * sum(weight * scale for weight, _, scale in scored), -1)
    likely = [weight * torch.softmax(scores * scale, -1) for weight, scores, scale in scored]
    return torch.stack(likely).sum(0)


def plain_estimate(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as plain data: JSON's keys are text, labels need not be."""
    per_class = [list(pair) for pair in estimate.per_class.items()]
    return {**asdict(estimate), "per_class": per_class}


def read_estimate(plain: Mapping[str, Any]) -> Estimate:
    """Read back what `plain_estimate` gave; refuses what cannot be."""
    made: Estimate = build(Estimate, {**plain, "per_class": dict(plain["per_class"])})
    return made
