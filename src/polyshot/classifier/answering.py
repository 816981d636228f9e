"""What answers: the members of pools that have a say, what they have learned, and nothing else.

A classifier is defined by what can be kept of it. So before anything is learned, the networks are
brought into the precision that they are kept in, and the members without a say are left out;
afterwards, what was learned is brought into its form in a file, and what answers is made from that.
A classifier that was saved and loaded then answers to the bit as before.

W classes, M members, d entries an embedding; all is of one task.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.classifier.packed import pack, unpack
from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError
from polyshot.models.backbone import Snapshot, state_hash
from polyshot.models.foreign import Foreign, ForeignConfig
from polyshot.models.heads import Metric
from polyshot.models.loaders import LITES, can_rebuild
from polyshot.models.modulators import fold_task
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision, rounded
from polyshot.predict import none_of_these, own_networks
from polyshot.predict.ensemble import FittedEnsemble, fit_ensemble
from polyshot.predict.familiar import Common, familiar, in_common
from polyshot.predict.none_of_these import Nearness, Threshold, learn_nearness
from polyshot.predict.predict import FittedTasks
from polyshot.predict.rules import Mix, Rule, given
from polyshot.tasks import MAKING, Queries, Tasks
from polyshot.util.progress import Progress

Kept = Literal["auto", Precision]
"""Precision of what is kept; `auto` leaves pools of ours as they are, rounds networks from
elsewhere that a file has to hold to half precision (Lite to eight bits), and what is learned to
six."""


@dataclass(eq=False)
class Say:
    """The members of one pool that have a say."""

    pool: Pool
    """Of these alone (and of its base), without selector and statistics, as it is kept."""
    names: tuple[str, ...]
    """Of all members that the rule weighed."""
    weights: Tensor
    """``[names]``."""
    common: Common | None = None
    """What the examples should have in common, where single ones go without it."""

    @property
    def share(self) -> Tensor:
        """Weights of the members of `pool`: ``[1, M]``."""
        return self.weights[with_weight(self.weights)].unsqueeze(0)


@dataclass(eq=False)
class Answering:
    """All that classifies images into the classes of one task."""

    classes: NDArray[Any]
    """The labels, sorted: ``[W]``."""
    says: list[Say]
    """One a pool."""
    mixes: Mix
    """What the rule's weights are applied to."""
    adaptations: list[str]
    """One a pool, as it was chosen."""
    fitted: FittedEnsemble
    """What the pools have learned: it answers."""
    stored: dict[str, Tensor]
    """The same in the form of a file."""
    nearness: Nearness | None = None
    """How near an image is to the classes; None where nobody asked for `none of these`."""
    threshold: Threshold | None = None

    @property
    def pools(self) -> list[Pool]:
        """What embeds images."""
        return [say.pool for say in self.says]

    @property
    def weights(self) -> NDArray[np.float32]:
        """Weights of all members that rules weighed, of one pool after the other: they sum to 1."""
        shares = self.fitted.weights[:, 0].tolist()
        every = [share * say.weights for share, say in zip(shares, self.says, strict=True)]
        return torch.cat(every).numpy()

    def probabilities(self, queries: Sequence[Queries]) -> NDArray[np.float32]:
        """Classify queries, as each pool looks at them: ``[n, W]``."""
        answers: Tensor = self.fitted.probabilities(queries)[0]
        if not bool(answers.isfinite().all()):
            raise PolyshotError(
                "The answers are no finite numbers: what was learned, or the pool's scales, are "
                "damaged or far too large. Fit anew, or take another pool."
            )
        return answers.cpu().numpy()

    def none(self, queries: Sequence[Queries]) -> NDArray[np.bool_] | None:
        """Tell which queries are none of these, ``[n]``; None where nobody asked."""
        if self.nearness is None or self.threshold is None:
            return None
        return self.threshold.below(self.nearness.of(self.seen(queries)))

    def seen(self, queries: Sequence[Queries]) -> list[Tensor]:
        """Embed queries by the networks that nearness is judged by: raw ``[n, d]``, on the CPU."""
        pairs = zip(self.fitted.pools, self.pools, queries, strict=True)
        return [
            own.query_of(network)[0].cpu()
            for one, pool, own in pairs
            for network in networks_of(one, pool, self.mixes)
        ]

    def learn_nearness(
        self, supports: Sequence[Sequence[Tensor]], mask: Tensor
    ) -> tuple[Nearness, Tensor]:
        """Learn how near images are from what each pool's networks see, ``[1, W, S, d]`` each.

        Returns also how near the examples are, each left out.
        """
        every = zip(self.fitted.pools, self.pools, supports, strict=True)
        return _learn_nearness(
            self.fitted,
            [evidence_of(one, pool, own, self.mixes) for one, pool, own in every],
            mask,
            self.pools[0].metric,
        )


# --- what the networks of one pool see in the only task


class Evidence(NamedTuple):
    """What one network that has a say sees in the support set, before any adaptation."""

    weight: float
    support: Tensor
    """Raw embeddings [1, W, S, d]."""
    scale: float


def networks_of(one: FittedTasks, pool: Pool, mixes: Mix) -> list[nn.Module]:
    """Return the networks that have a say, as plain ones."""
    if mixes != "modulators":
        return [pool.network(i) for i in _asked(one)]
    if 0 in one.blends:
        return [one.blends[0].folded]
    return [fold_task(pool.base, own_networks.blended(pool, one.weights[0]), 0)]


def supports_of(one: FittedTasks, pool: Pool, tasks: Tasks, mixes: Mix) -> list[Tensor]:
    """Embed the support set by these networks, raw ``[1, W, S, d]`` each."""
    if mixes != "modulators":
        return [tasks.support_of(pool.network(i)) for i in _asked(one)]
    blend = one.blends.get(0) or own_networks.blend_networks(pool, tasks, one.weights[0], "none")
    return [own_networks.support_embeddings(blend, tasks)]


def evidence_of(
    one: FittedTasks, pool: Pool, supports: Sequence[Tensor], mixes: Mix
) -> list[Evidence]:
    """Say how much it counts what each of these networks sees, and at which scale."""
    weights = one.weights[0]  # [1, M]
    if mixes == "modulators":
        says = [(1.0, float(own_networks.blended_scale(pool, weights)))]
    else:
        says = [(float(weights[0, i]), pool.scales[i]) for i in _asked(one)]
    pairs = zip(says, supports, strict=True)
    return [Evidence(weight, support, scale) for (weight, scale), support in pairs]


def _asked(one: FittedTasks) -> list[int]:
    asked: list[int] = one.weights[0][0].nonzero().flatten().tolist()
    return asked


# --- learning


def with_weight(weights: Tensor) -> list[int]:
    """List the members that are kept: the base, and those that have a say."""
    return [i for i, weight in enumerate(weights.tolist()) if i == 0 or weight]


def weigh(pool: Pool, tasks: Tasks, rule: Rule, adaptation: str) -> Say:
    """Let a rule weigh a pool's members for the only task, and keep those that have a say."""
    weights = rule.weights(pool, tasks)[0]
    config, common = pool.adaptation, None
    if rule.centred and config.centre_single and pool.statistics:
        common = in_common(pool, tasks)
    if adaptation in ("auto", "tsa") and bool(familiar(pool, tasks)):
        config = as_familiar(config)
    kept = with_weight(weights)
    names = [pool.members[i] for i in kept[1:]]
    shape = pool.task_shape
    own = replace(
        pool,
        modulators={name: pool.modulators[name] for name in names},
        strengths={name: pool.strengths[name] for name in names},
        scales=[pool.scales[i] for i in kept],
        adaptation=config,
        about={"config": {"shape": {"way": shape.way, "shot": shape.shot}}},
        selector=None,
        urt=None,
        statistics={},
    )
    return Say(own, pool.members, weights, common)


def as_familiar(config: AdaptationConfig) -> AdaptationConfig:
    """Let `tsa` learn as on tasks like those of the sources; further examples will be like them."""
    rates = (config.familiar_rate,) if len(config.rates) == 1 else config.rates
    factor = config.familiar_inverse_temperature
    return replace(config, rates=rates, tsa_inverse_temperature=factor)


def learn(
    classes: NDArray[Any],
    says: Sequence[Say],
    mixes: Mix,
    tasks: Sequence[Tasks],
    adaptations: Sequence[str],
    none_rate: float | None,
    precision: Kept,
    report: Progress | None = None,
) -> tuple[Answering, list[list[Evidence]]]:
    """Learn from examples with members whose weights are known.

    Returns also what the networks of each pool see in the examples.
    """
    pools = [say.pool for say in says]
    rules = [given(say.share, mixes, say.common) for say in says]
    fitted = fit_ensemble(pools, tasks, rules, adaptations, report)
    evidence = [
        evidence_of(one, pool, supports_of(one, pool, own, mixes), mixes)
        for one, pool, own in zip(fitted.pools, pools, tasks, strict=True)
    ]
    stored = pack(fitted, "six" if precision == "auto" else precision)
    fitted = unpack(stored, pools, fitted)
    for one in fitted.pools:
        one.make_networks()
    answering = Answering(classes, list(says), mixes, list(adaptations), fitted, stored)
    if none_rate is not None:
        mask, metric = tasks[0].present.cpu(), pools[0].metric
        nearness, left_out = _learn_nearness(fitted, evidence, mask, metric)
        answering.nearness = nearness
        answering.threshold = none_of_these.set_threshold(left_out, none_rate)
    return answering, evidence


def _learn_nearness(
    fitted: FittedEnsemble, evidence: Sequence[Sequence[Evidence]], mask: Tensor, metric: Metric
) -> tuple[Nearness, Tensor]:
    pairs = zip(fitted.weights[:, 0].tolist(), evidence, strict=True)
    seen = [
        (share * each.weight, each.support.cpu(), each.scale)
        for share, own in pairs
        for each in own
    ]
    return learn_nearness(seen, mask, metric)


def as_kept(pool: Pool, precision: Kept) -> Pool:
    """Return a pool with its networks in the precision that they are kept in; itself if they are.

    A network that is not in the file, the user's own for instance, stays as it is.
    """
    config = pool.config
    foreign, stored = isinstance(config, ForeignConfig), True
    if isinstance(config, ForeignConfig):
        stored = can_rebuild(config)
    if precision == "full" or (precision == "auto" and not (foreign and stored)):
        return pool
    compact: Precision = "eight" if pool.backbone in LITES else "half"  # measured: docs/keep.md
    wanted: Precision = compact if precision == "auto" else precision
    base = _rounded(pool.base, wanted) if stored else pool.base
    modulators = pool.modulators
    if precision != "auto":
        modulators = {name: _rounded(m, wanted) for name, m in modulators.items()}
    return replace(pool, base=base, config=base.config, modulators=modulators)


def _rounded(module: Any, precision: Precision) -> Any:
    """Return a copy of a module with rounded weights, made once as long as it stays as it is."""
    with MAKING:
        known = _ROUNDED.get(module)
        if known is None or known[0] != precision or not known[1].holds():
            copied = copy.deepcopy(module)
            copied.load_state_dict(rounded(module.state_dict(), precision))
            if isinstance(copied, Foreign):
                copied.config = replace(copied.config, sha256=state_hash(copied.network))
            known = _ROUNDED[module] = precision, Snapshot(module), copied
        return known[2]


_ROUNDED: WeakKeyDictionary[nn.Module, tuple[str, Snapshot, nn.Module]] = WeakKeyDictionary()
