"""One task, learned once and asked often: what a rule and an adaptation make of some examples.

E is 1 here. W classes, S places of the largest class, d entries an embedding, n images.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.classifier.support import Support
from polyshot.data.loading import Progress
from polyshot.embedding import embed_batches, fused
from polyshot.methods.tasks import shots_of
from polyshot.models.resnet import ResNet
from polyshot.pool.pool import Pool
from polyshot.predict.blend import OwnNetworks, blended_scale
from polyshot.predict.none_of_these import Nearness
from polyshot.predict.opinions import Opinion, form_opinion
from polyshot.predict.readout import member_opinion, mixed_answers, own_networks
from polyshot.predict.rules import Mix, Rule
from polyshot.predict.temperature import UNTEMPERED, sureness, tempered
from polyshot.util.device import one_thread

CHUNK = 2**24
"""Numbers of the support sets that are learned on at once."""


class _Evidence(NamedTuple):
    """What one network sees in the support set, before any adaptation."""

    weight: float
    support: Tensor
    """Raw embeddings [1, W, S, d]."""
    scale: float


class _OwnNetwork(NamedTuple):
    """A network of the task's own, folded, with its read-out."""

    network: ResNet
    opinion: Opinion
    sharpness: Tensor
    """``[1]``, as in `OwnNetworks`."""

    @classmethod
    def of(cls, networks: OwnNetworks | None) -> "_OwnNetwork | None":
        """Take the network of the only task, if it has one."""
        if networks is None:
            return None
        return cls(fused(networks.folded()), networks.opinion.cpu(), networks.sharpness.cpu())

    def logits(self, query: Tensor) -> Tensor:
        """Judge embeddings [n, d]: logits [n, W]."""
        return self.opinion.logits(query.unsqueeze(0))[0].T


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
        self._sureness = sureness(pool, shots_of(support))  # [1]
        self._asked = asked = self.weights.nonzero().flatten().tolist()
        learns = adaptation == "tsa"
        before = "none" if learns else adaptation
        learned, diverged = None, torch.zeros(1, dtype=torch.bool)
        if learns:
            learned, diverged = own_networks(pool, support, rule, weights, adaptation, report)
        self._learned = _OwnNetwork.of(learned)
        """What `tsa` has learned."""
        self._share = pool.adaptation.tsa_share if learned is not None else 0.0
        """Of what was learned in the answer; the rest is the rule's own."""
        self._blend: _OwnNetwork | None = None
        """What a rule that blends answers by; with another rule the members do."""
        self._opinions: dict[int, Opinion] = {}
        """Of the members that are asked."""
        if rule.mixes == "modulators":
            blended, failed = own_networks(pool, support, rule, weights, before)
            assert blended is not None, "every task has its blend"
            self._blend, diverged = _OwnNetwork.of(blended), diverged | failed
            assert self._blend is not None
            seen = self._embed(self._blend.network, support.images)[support.positions]
            self._evidence = [_Evidence(1.0, seen, float(blended_scale(pool, weights)))]
        else:
            self._evidence = [
                _Evidence(float(self.weights[i]), support.support_of(i), pool.scales[i])
                for i in asked
            ]
            if self._share < 1:
                with one_thread():
                    self._opinions = {
                        i: member_opinion(pool, support, i, None, before) for i in asked
                    }
        self.nearness = Nearness(self._evidence, self.mask, pool.metric) if nearness else None
        """Of images to the classes, before any adaptation, where that was asked for."""
        asks_members = self._blend is None and (nearness or self._share < 1)
        self._members.keep(asked if asks_members else [])
        opinions = list(self._opinions.values())
        opinions += [self._blend.opinion] if self._blend else []
        self.adapted = {
            "none": False,
            "head": True,
            "pa": any(opinion.also for opinion in opinions),
            "tsa": learned is not None,
        }[adaptation]
        """Whether the adaptation is used."""
        self.diverged = bool(diverged) or any(bool(o.diverged) for o in opinions)
        """Whether the adaptation ran away, so that there is none."""

    def _embed(self, network: ResNet, pixels: NDArray[np.uint8]) -> Tensor:
        parts = embed_batches(network, pixels, self._members.batch, views=self.pool.views)
        return torch.cat(list(parts))  # [n, d]

    def probabilities(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Classify images [n, 3, size, size]: [n, W]; no image changes another's answer."""
        return self._judge(pixels, self._see(pixels) if self._share < 1 else [])

    def answer(self, pixels: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Classify images: probabilities [n, W], and how near each is to its nearest class, [n].

        A network that `tsa` has learned does not tell nearness: the others are asked as well.
        """
        assert self.nearness is not None, "nearness was not asked for"
        seen = self._see(pixels)
        return self._judge(pixels, seen), self.nearness.of(seen)

    def _see(self, pixels: NDArray[np.uint8]) -> list[Tensor]:
        """Embed images by what the rule asks: [n, d] of the blend, or of each member."""
        if self._blend is not None:
            return [self._embed(self._blend.network, pixels)]
        return list(self._members.embed(self._asked, pixels).values())

    def _judge(self, pixels: NDArray[np.uint8], seen: Sequence[Tensor]) -> Tensor:
        """Classify images by what was learned and by what the rule sees: [n, W]."""
        plain = self._by_rule(seen) if self._share < 1 else None
        own = self._learned
        if own is not None:
            logits = own.logits(self._embed(own.network, pixels))
            chances = mixed_answers(logits, plain, self._share, own.sharpness)
        else:
            assert plain is not None, "nothing was learned, so that it has no share"
            chances = plain
        return chances if self.adaptation in UNTEMPERED else tempered(chances, self._sureness)

    def _by_rule(self, seen: Sequence[Tensor]) -> Tensor:
        """Judge embeddings [n, d], as `_see` makes them: probabilities [n, W]."""
        if self._blend is not None:
            return torch.softmax(self._blend.logits(seen[0]), -1)
        scored = []
        for (member, opinion), query in zip(self._opinions.items(), seen, strict=True):
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
