"""One task, learned once and asked often: what a rule and an adaptation make of some examples.

E is 1 here. W classes, S places of the largest class, d entries an embedding, n images.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.data.loading import Progress
from polyshot.device import one_thread
from polyshot.embedding import embed_batches, fused
from polyshot.methods.blend import TaskNetworks, blended_scale
from polyshot.methods.opinions import form_opinion
from polyshot.methods.readout import member_opinion, own_networks
from polyshot.methods.rules import Mix, Rule
from polyshot.models.resnet import ResNet
from polyshot.none_of_these import Nearness
from polyshot.pool import Pool
from polyshot.support import Support

CHUNK = 2**24
"""Numbers of the support sets that are learned on at once."""


class _Evidence(NamedTuple):
    """What one network sees in the support set, before any adaptation."""

    weight: float
    support: Tensor
    """Raw embeddings [1, W, S, d]."""
    scale: float


class SingleTask:
    """A support set that has been learned from; it keeps what questions need, and no more."""

    def __init__(
        self,
        pool: Pool,
        support: Support,
        rule: Rule,
        adaptation: str,
        nearness: bool = False,
        report: Progress | None = None,
    ) -> None:
        """Learn from the support set; with `nearness`, also what `answer` needs to tell it."""
        self.pool, self.mask, self.adaptation = pool, support.mask, adaptation
        self._members, self._mixes = support.members, rule.mixes
        weights = rule.weights(pool, support)  # [1, M]
        self.weights = weights[0]
        """``[M]``, sum 1."""
        self._asked = asked = self.weights.nonzero().flatten().tolist()
        blends, learns = rule.mixes == "modulators", adaptation == "tsa"
        own: TaskNetworks | None = None
        diverged = torch.zeros(1, dtype=torch.bool)
        if learns:
            own, diverged = own_networks(pool, support, rule, weights, adaptation, report)
        self.adapted = own is not None if learns else adaptation == "head"
        """Whether the adaptation is used."""
        self._network = None if own is None else fused(own.folded())
        """The task's own, where it has one; else the members answer."""
        self._blend: ResNet | None = None
        """What the evidence of a rule that blends was seen by; else it was the members."""
        if blends:
            before = "none" if learns else adaptation
            blended, failed = own_networks(pool, support, rule, weights, before)
            assert blended is not None, "every task has its blend"
            self._blend = fused(blended.folded())
            self._network = self._network or self._blend
            own, diverged = own or blended, diverged | failed
            scale = float(blended_scale(pool, weights))
            self._evidence = [self._seen_by(self._blend, support, scale)]
        else:
            self._evidence = [
                _Evidence(float(self.weights[i]), support.support_of(i), pool.scales[i])
                for i in asked
            ]
        self._opinions = {0: own.opinion.cpu()} if own is not None else {}
        if own is None:
            before = "none" if learns else adaptation
            with one_thread():
                self._opinions = {i: member_opinion(pool, support, i, None, before) for i in asked}
        self.nearness = Nearness(self._evidence, self.mask, pool.metric) if nearness else None
        """Of images to the classes, before any adaptation, where that was asked for."""
        self._members.keep(asked if own is None or (nearness and not blends) else [])
        if not nearness and self._network is not self._blend:
            self._blend = None  # nobody will ask it
        opinions = self._opinions.values()
        if adaptation == "pa":
            self.adapted = any(opinion.also for opinion in opinions)
        self.diverged = bool(diverged) or any(bool(o.diverged) for o in opinions)
        """Whether the adaptation ran away, so that there is none."""

    def _seen_by(self, network: ResNet, support: Support, scale: float) -> _Evidence:
        return _Evidence(1.0, self._embed(network, support.images)[support.positions], scale)

    def _embed(self, network: ResNet, pixels: NDArray[np.uint8]) -> Tensor:
        return torch.cat(list(embed_batches(network, pixels, self._members.batch)))  # [n, d]

    def probabilities(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Classify images [n, 3, size, size]: [n, W]; no image changes another's answer."""
        if self._network is not None:
            return self._by_own(self._embed(self._network, pixels))
        return self._by_members(list(self._members.embed(self._asked, pixels).values()))

    def answer(self, pixels: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Classify images: probabilities [n, W], and how near each is to its nearest class, [n].

        A network that `tsa` has learned does not tell nearness: the others are asked as well.
        """
        assert self.nearness is not None, "nearness was not asked for"
        own = None if self._network is None else self._embed(self._network, pixels)
        if self._blend is None:
            seen = list(self._members.embed(self._asked, pixels).values())
        elif own is None or self._blend is not self._network:
            seen = [self._embed(self._blend, pixels)]
        else:
            seen = [own]
        chances = self._by_members(seen) if own is None else self._by_own(own)
        return chances, self.nearness.of(seen)

    def _by_own(self, query: Tensor) -> Tensor:
        """Judge embeddings [n, d] of the task's own network: probabilities [n, W]."""
        return torch.softmax(self._opinions[0].logits(query.unsqueeze(0))[0], 0).T

    def _by_members(self, queries: Sequence[Tensor]) -> Tensor:
        """Judge embeddings [n, d] of each member that is asked: probabilities [n, W]."""
        scored = []
        for (member, opinion), query in zip(self._opinions.items(), queries, strict=True):
            scores = opinion.scores(query.unsqueeze(0))[0].T  # [n, W]
            scored.append((float(self.weights[member]), scores, float(opinion.scale)))
        return mix(scored, self._mixes)

    def left_out(self, places: Tensor, heads: bool) -> Tensor:
        """Classify the support images at `places` [k, 2] by others: probabilities [k, W].

        One image of each class is left out at a time: an image that is missing alone makes its
        class the rarest, and what is learned then avoids it. Weights and blends stay as they are.
        With `heads`, by heads that are learned anew each time; else by prototypes.
        """
        shots = self.mask.shape[-1]
        without = self.mask.repeat(shots, 1, 1)  # [S, W, S]: the s-th task lacks the s-th images
        turns = torch.arange(shots)
        without[turns, :, turns] &= self.mask[0].sum(1) < 2  # a class of one image keeps it
        scored = []
        for weight, support, scale in self._evidence:
            with one_thread():
                scores, own = self._without(support, without, scale, "head" if heads else "none")
            scored.append((weight, scores[places[:, 1], :, places[:, 0]], own))
        return mix(scored, self._mixes)

    def _without(
        self, support: Tensor, without: Tensor, scale: float, adaptation: str
    ) -> tuple[Tensor, float]:
        """Judge the s-th images by the task without them: scores [S, W, W] and their scale."""
        metric, config = self.pool.metric, self.pool.adaptation
        queries = support[0].transpose(0, 1)  # [S, W, d]
        step = max(1, CHUNK // support.numel())
        parts, own = [], 1.0
        for mask, query in zip(torch.split(without, step), torch.split(queries, step), strict=True):
            inputs = support.expand(len(mask), -1, -1, -1)
            opinion = form_opinion(inputs, mask, metric, scale, adaptation, config)
            parts.append(opinion.scores(query))  # [s, W, W]: ways, then queries
            own = float(opinion.scale[0])
        return torch.cat(parts), own

    @property
    def networks(self) -> int:
        """How many networks have a say."""
        return len(self._evidence)


def mix(scored: Sequence[tuple[float, Tensor, float]], mixes: Mix) -> Tensor:
    """Mix what networks say, each a weight, scores [n, W] and their scale: probabilities [n, W]."""
    if mixes == "scores":
        total = torch.stack([weight * scores for weight, scores, _ in scored]).sum(0)
        return torch.softmax(total * sum(weight * scale for weight, _, scale in scored), -1)
    chances = [weight * torch.softmax(scores * scale, -1) for weight, scores, scale in scored]
    return torch.stack(chances).sum(0)
