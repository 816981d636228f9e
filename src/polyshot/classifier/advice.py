"""What a classifier's examples tell its user: which look wrong, which to add, whether more help.

n examples of W classes, S places in the largest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.classifier.answering import Answering, networks_of
from polyshot.classifier.estimate import held_out_answers, left_out_answers, wilson
from polyshot.classifier.examples import Examples, Label
from polyshot.tasks import Queries
from polyshot.util.counter_rng import key

REPEATS, LEAST = 40, 4
"""Subsets of each size that `curve` draws; of more than a hundred examples fewer, but so many."""
LAST = 3
"""Sizes that the power law is fitted to: curves flatten, and the first examples tell less."""
WORTH = 0.01
"""Gain in accuracy that is worth labelling for."""


@dataclass(frozen=True)
class Suspect:
    """An example that the others take for another class."""

    example: int
    """Its number: in the order of `fit` and `add`."""
    name: str
    """Of its file, if it was one."""
    label: Label
    likely: Label
    """What the others take it for."""
    probability: float
    """Of that."""
    own_probability: float
    """Of its own label."""


@dataclass(frozen=True)
class Suggestion:
    """An unlabelled image, and what is known about it."""

    image: int
    """Its number among those given."""
    label: Label
    """The likeliest, as it is now."""
    probability: float
    runner_up: Label
    runner_up_probability: float


@dataclass(frozen=True)
class Curve:
    """Accuracy by the number of examples, and what more of them are expected to bring."""

    shots: tuple[int, ...]
    """Examples of a class; of smaller classes as many as they can spare."""
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Ends of the 95 % intervals."""
    gain: float | None
    """Expected of twice as many examples; None where a single number of shots could be tried."""
    gain_low: float | None
    gain_high: float | None
    of: str
    """What was measured: ``prototypes``, ``head`` or ``ridge``."""

    @property
    def more_would_help(self) -> bool | None:
        """Whether more examples would help; None where the examples do not tell."""
        if self.gain is None or self.gain_low is None or self.gain_high is None:
            return None
        if self.gain_low > 0 and self.gain >= WORTH:
            return True
        return False if self.gain_high < 2 * WORTH else None

    def __str__(self) -> str:
        if self.gain is None:
            return "More examples: nothing can be told from two images a class."
        verdict = {True: "would help", False: "would hardly help", None: "may help"}
        return (
            f"More examples {verdict[self.more_would_help]}: twice as many are expected to bring "
            f"{100 * self.gain:+.1f} points ({100 * (self.gain_low or 0):+.1f} to "
            f"{100 * (self.gain_high or 0):+.1f}, {self.of})."
        )


def find_suspects(answering: Answering, examples: Examples) -> list[Suspect]:
    """List the examples that look mislabelled, the clearest first."""
    places, answers, _ = left_out_answers(answering, examples)
    rows = examples.task.support[0][places[:, 0], places[:, 1]]
    best, likely = answers.max(1)
    own = answers[torch.arange(len(places)), places[:, 0]]
    wrong = (likely != places[:, 0]).nonzero().flatten()
    wrong = wrong[(own - best)[wrong].argsort(stable=True)]
    classes = answering.classes
    return [
        Suspect(
            int(rows[i]),
            examples.names[int(rows[i])],
            classes[int(places[i, 0])].item(),
            classes[int(likely[i])].item(),
            float(best[i]),
            float(own[i]),
        )
        for i in wrong.tolist()
    ]


def order_to_label(
    answering: Answering, queries: Sequence[Queries], count: int | None = None
) -> list[Suggestion]:
    """Order images by how much their labels would help, the most useful first.

    The first is the one whose two likeliest classes are closest to each other. Then, again and
    again, the one with the largest product of that doubt and of the distance to the nearest one
    before it: images that are alike are asked about once. How far they lie apart is one minus the
    cosine of their embeddings, the members weighted as they are in answers.
    """
    chances = torch.from_numpy(answering.probabilities(queries))
    top, ways = chances.topk(2, 1)  # [n, 2]
    doubt = 1 - (top[:, 0] - top[:, 1])
    vectors = _vectors(answering, queries)
    left = torch.ones_like(doubt, dtype=torch.bool)
    apart = torch.ones_like(doubt)
    order = []
    for _ in range(len(doubt) if count is None else min(count, len(doubt))):
        score = (doubt * apart).masked_fill(~left, -1.0)
        chosen = int(score.argmax())
        order.append(chosen)
        left[chosen] = False
        apart = torch.minimum(apart, (1 - vectors @ vectors[chosen]).clamp(0, 1))
    named = answering.classes
    return [
        Suggestion(
            i,
            *(named[int(ways[i, 0])].item(), float(top[i, 0])),
            *(named[int(ways[i, 1])].item(), float(top[i, 1])),
        )
        for i in order
    ]


def _vectors(answering: Answering, queries: Sequence[Queries]) -> Tensor:
    """Embed queries so that products are the members' weighted cosines: ``[n, ...]``."""
    parts = []
    shares = answering.fitted.weights[:, 0].tolist()
    every = zip(shares, answering.fitted.pools, answering.pools, queries, strict=True)
    for share, one, pool, own in every:
        networks = networks_of(one, pool, answering.mixes)
        weights = [1.0] if answering.mixes == "modulators" else one.weights[0][one.weights[0] > 0]
        for weight, network in zip(weights, networks, strict=True):
            unit = F.normalize(own.query_of(network)[0].float().cpu(), dim=-1)
            parts.append(math.sqrt(share * float(weight)) * unit)
    return torch.cat(parts, 1)


def learning_curve(answering: Answering, examples: Examples, seed: int = 0) -> Curve:
    """Measure the accuracy with some of the examples, on the others.

    Subsets of one, two, four ... examples of each class are drawn `REPEATS` times each (seldomer of
    many examples: intervals are over these). An
    example's own accuracy is the share of the subsets without it that classify it right; intervals
    are over examples. Errors are taken to fall by the same factor with every doubling (a power
    law, fitted to the last sizes): so follows what twice as many would bring, and its interval from
    drawing the examples anew, with replacement.
    """
    mask = examples.task.present[0]  # [W, S]
    most = int(_spared(mask.sum(1)).max())
    shots = [2**k for k in range(most.bit_length()) if 1.7 * 2**k <= most] + [most]
    draw = np.random.default_rng(key("curve", seed))
    by_example, of = [], ""
    for shot in shots:
        right, of = _held_out(answering, examples, shot, draw)
        by_example.append(right)  # [n], NaN where it was never asked
    table = np.stack(by_example)[:, ~np.isnan(by_example[-1])]
    means, count = np.nanmean(table, 1), table.shape[1]
    # Of shares this is a little too wide: an example's own accuracy varies less than an answer.
    ends = [wilson(float(mean) * count, count) for mean in means]
    gain: tuple[float | None, float | None, float | None] = (None, None, None)
    if len(shots) > 1:
        picks = draw.integers(count, size=(1000, count))
        total = mask.shape[1]
        gains = [_expected(shots, np.nanmean(table[:, pick], 1), count, total) for pick in picks]
        low, high = np.quantile(gains, [0.025, 0.975]).tolist()
        gain = (_expected(shots, means, count, total), low, high)
    lows, highs = tuple(end[0] for end in ends), tuple(end[1] for end in ends)
    return Curve(tuple(shots), tuple(map(float, means)), lows, highs, *gain, of)


def _spared(counts: Tensor) -> Tensor:
    """Say how many of a class's images may be learned from: one in five, at least one, is tried."""
    return (counts - (counts // 5).clamp(min=1)).clamp(min=1)


def _expected(shots: Sequence[int], accuracies: Any, count: int, total: int) -> float:
    """Say what twice `total` examples would bring, by a power law through the last accuracies."""
    # No example wrong of so many is not no error: half of one is taken instead.
    errors = np.log(np.maximum(1 - accuracies[-LAST:], 0.5 / count))
    slope = float(np.polyfit(np.log2(shots[-LAST:]), errors, 1)[0])
    now = (1 - accuracies[-1]) * math.exp(slope * math.log2(total / shots[-1]))
    return float(now * (1 - math.exp(slope)))


def _held_out(
    answering: Answering, examples: Examples, shot: int, draw: np.random.Generator
) -> tuple[Any, str]:
    """Classify the examples by subsets of them: how often each is right ``[n]``, and by what."""
    task = examples.task
    mask = task.present[0]
    way, slots = mask.shape
    repeats = max(LEAST, min(REPEATS, 100 * REPEATS // len(examples)))
    lots = torch.from_numpy(draw.random((repeats, way, slots)))
    ranks = lots.masked_fill(~mask, 2.0).argsort(-1).argsort(-1)
    taken = torch.minimum(_spared(mask.sum(1)), torch.tensor(shot))  # [W]
    kept = (ranks < taken.unsqueeze(1)) & mask  # [T, W, S]
    asked = torch.arange(way * slots).expand(repeats, -1)
    answers, measured = held_out_answers(answering, examples, kept, asked)
    found = answers.argmax(-1).view(kept.shape)  # [T, W, S]
    right = found == torch.arange(way)[:, None]
    tried = mask & ~kept
    shares = (right & tried).sum(0) / tried.sum(0)  # NaN where it was never asked
    often = np.full(len(examples), np.nan)
    often[task.support[0][mask].numpy()] = shares[mask].numpy()
    return often, measured
