"""Read-outs: from a rule's weights and an adaptation to probabilities.

Each member compares a query with the support set, by prototypes or by what an adaptation has
learned, and the rule weighs the members' probabilities or scores; or the task gets a network of its
own. A query's answer depends on the support set and on itself alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.loading import Progress
from polyshot.errors import unknown
from polyshot.methods.tasks import HeldOut, TaskBatch, shots_of
from polyshot.models.heads import Metric
from polyshot.predict.adapt.tsa import learn_own_networks
from polyshot.predict.blend import OwnNetworks, blend_networks
from polyshot.predict.opinions import Opinion, form_opinion, prepared
from polyshot.predict.rules import Rule
from polyshot.predict.rules import rule as find_rule
from polyshot.predict.temperature import UNTEMPERED, sureness, tempered

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool

__all__ = [
    "Adaptation",
    "Answers",
    "check_adaptation",
    "member_opinion",
    "opinion",
    "own_networks",
    "predict",
    "predict_tasks",
    "prepared",
]

Adaptation = Literal["none", "head", "pa", "tsa"]


class Answers(NamedTuple):
    """What R rules make of E tasks."""

    probabilities: Tensor
    """``[R, E, Q, W]``."""
    diverged: Tensor
    """Bool ``[R, E]``, on the CPU: tasks whose adaptation ran away, so that they have none."""


def predict(pool: "Pool", tasks: TaskBatch, rule: str, adaptation: str = "none") -> Tensor:
    """Classify the queries: probabilities [E, Q, W].

    `adaptation` is ``none`` (prototypes), ``head`` (a linear head), ``pa`` (a linear map) or
    ``tsa`` (a modulator and a map), learned on the support set as `pool.adaptation` says.
    """
    return predict_tasks(pool, tasks, [find_rule(rule, pool)], adaptation).probabilities[0]


def predict_tasks(
    pool: "Pool", tasks: TaskBatch, rules: Sequence[Rule], adaptation: str = "none"
) -> Answers:
    """Classify by several rules at once; each member's opinion is formed once."""
    check_adaptation(adaptation)
    weights = [r.weights(pool, tasks) for r in rules]
    answers = _answers(pool, tasks, rules, weights, adaptation)
    if adaptation in UNTEMPERED:
        return answers
    shots = shots_of(tasks, rules[0].members(pool)[0]).to(answers.probabilities.device)
    factor = sureness(pool, shots).unsqueeze(-1)  # [E, 1]
    return answers._replace(probabilities=tempered(answers.probabilities, factor))


def check_adaptation(name: str, more: Sequence[str] = ()) -> None:
    """Refuse an adaptation that does not exist; some know `more` names."""
    known = (*more, *get_args(Adaptation))
    if name not in known:
        raise unknown("adaptation", name, known)


def opinion(
    support: Tensor,
    query: Tensor,
    mask: Tensor | None,
    metric: Metric,
    scale: float,
    head: AdaptationConfig | None,
) -> Tensor:
    """Classify queries by one network's embeddings: probabilities [E, W, Q], ways before queries.

    Args:
        support: raw embeddings [E, W, S, d].
        query: raw embeddings [E, Q, d].
        mask: [E, W, S], True where there is an image; None where shots are even.
        metric: of the prototypes.
        scale: of their logits.
        head: how to learn a head on the support set; None for prototypes.

    """
    adaptation = "head" if head else "none"
    formed = form_opinion(support, mask, metric, scale, adaptation, head or AdaptationConfig())
    return torch.softmax(formed.logits(query), 1)


def member_opinion(
    pool: "Pool", tasks: TaskBatch, member: int, rows: Tensor | None, adaptation: str
) -> Opinion:
    """Let one member form its opinion on the episodes `rows`, all of them where None."""
    support = tasks.support_of(member, rows)
    mask = tasks.mask if tasks.mask is None or rows is None else tasks.mask[rows]
    mask = None if mask is None else mask.to(support.device)
    scale = pool.scales[member]
    return form_opinion(support, mask, pool.metric, scale, adaptation, pool.adaptation)


def _answers(
    pool: "Pool",
    tasks: TaskBatch,
    rules: Sequence[Rule],
    weights: Sequence[Tensor],
    adaptation: str,
) -> Answers:
    """Classify by rules whose weights [E, M] are known."""
    if adaptation == "tsa":
        own = [_by_tsa(pool, tasks, rule, each) for rule, each in zip(rules, weights, strict=True)]
        return Answers(*(torch.cat(parts) for parts in zip(*own, strict=True)))
    together = [i for i, rule in enumerate(rules) if rule.mixes != "modulators"]
    found: dict[int, tuple[Tensor, Tensor]] = {}
    if together:
        mixed = _by_members(
            pool, tasks, [rules[i] for i in together], [weights[i] for i in together], adaptation
        )
        found = dict(zip(together, zip(*mixed, strict=True), strict=True))
    for i, rule in enumerate(rules):
        if rule.mixes == "modulators":
            networks, diverged = own_networks(pool, tasks, rule, weights[i], adaptation)
            assert networks is not None, "every task has its blend"
            found[i] = torch.softmax(networks.logits(tasks), 1).mT, diverged
    return Answers(*(torch.stack([found[i][part] for i in range(len(rules))]) for part in (0, 1)))


def own_networks(
    pool: "Pool",
    tasks: TaskBatch,
    rule: Rule,
    weights: Tensor,
    adaptation: str,
    report: Progress | None = None,
) -> tuple[OwnNetworks | None, Tensor]:
    """Give tasks networks of their own, where rule or adaptation do so.

    Args:
        pool: of which they are made.
        tasks: E of them.
        rule: any, for `tsa`; else one that mixes modulators.
        weights: the rule's, ``[E, M]``.
        adaptation: any.
        report: told how `tsa` comes along.

    Returns:
        Networks of all tasks; by `tsa` of those that gain by learning, None if none does. And bool
        ``[E]``, on the CPU: where learning diverged.

    """
    if adaptation != "tsa":
        networks = blend_networks(pool, tasks, weights, adaptation)
        diverged = networks.opinion.diverged
        none = torch.zeros(len(tasks), dtype=torch.bool)
        return networks, none if diverged is None else diverged.cpu()

    def plain(known: Tensor, places: Tensor) -> Tensor:
        half = _answers(pool, HeldOut(tasks, known, places), [rule], [weights], "none")
        return half.probabilities[0].clamp(min=1e-9).log().to(pool.device)

    learned, diverged = learn_own_networks(pool, tasks, weights, plain, report)
    return learned, diverged.cpu()


def _by_members(
    pool: "Pool",
    tasks: TaskBatch,
    rules: Sequence[Rule],
    weights: Sequence[Tensor],
    adaptation: str,
) -> Answers:
    """Mix the members' probabilities or scores."""
    shares = torch.stack(list(weights))  # [R, E, M]
    diverged = torch.zeros(shares.shape[:2], dtype=torch.bool)
    mixed: list[Tensor] = []  # of each rule [E, W, Q], ways first
    scales = torch.zeros(0)
    # One member at a time, and only on the episodes that ask it: a selected pool costs one member.
    for member in shares.any(0).any(0).nonzero().flatten().tolist():
        asked = shares[:, :, member].any(0)  # [E]
        rows = None if bool(asked.all()) else asked.nonzero().flatten()
        formed = member_opinion(pool, tasks, member, rows, adaptation)
        scores = formed.scores(tasks.query_of(member, rows))  # [rows, W, Q]
        share = shares[:, :, member].to(scores.device)  # [R, E]
        if not mixed:
            shape = len(tasks), *scores.shape[1:]
            mixed = [scores.new_zeros(shape) for _ in rules]
            scales = scores.new_zeros(shares.shape[:2])
        places = torch.arange(len(tasks), device=scores.device)
        places = places if rows is None else places[rows.to(scores.device)]
        chances: Tensor | None = None
        for i, rule in enumerate(rules):
            part = scores
            if rule.mixes == "probabilities":
                if chances is None:
                    chances = torch.softmax(scores * formed.scale[:, None, None], 1)
                part = chances
            own = share[i, places]  # [rows]
            mixed[i].index_add_(0, places, part * own[:, None, None])
            scales[i].index_add_(0, places, own * formed.scale)
        if formed.diverged is not None:
            there = asked if rows is None else rows
            diverged[:, there] |= formed.diverged.cpu() & (shares[:, there, member] > 0)
    chances_of = [
        each if rule.mixes == "probabilities" else torch.softmax(each * scale[:, None, None], 1)
        for rule, each, scale in zip(rules, mixed, scales, strict=True)
    ]
    return Answers(torch.stack(chances_of).mT, diverged)


def _by_tsa(pool: "Pool", tasks: TaskBatch, rule: Rule, weights: Tensor) -> Answers:
    """Let tasks learn networks of their own; those that do not are classified by the rule."""
    networks, diverged = own_networks(pool, tasks, rule, weights, "tsa")
    share = pool.adaptation.tsa_share
    if networks is not None and len(networks.rows) == len(tasks) and share == 1:
        sharpness = networks.sharpness[:, None, None]
        chances = mixed_answers(networks.logits(tasks).mT, None, share, sharpness)
    else:
        chances = _answers(pool, tasks, [rule], [weights], "none").probabilities[0].clone()
        if networks is not None:
            rows = networks.rows.to(chances.device)
            learned = networks.logits(tasks).mT.to(chances.device)
            sharpness = networks.sharpness[:, None, None].to(chances.device)
            chances[rows] = mixed_answers(learned, chances[rows], share, sharpness)
    return Answers(chances.unsqueeze(0), diverged.unsqueeze(0))


def mixed_answers(learned: Tensor, plain: Tensor | None, share: float, sharpness: Tensor) -> Tensor:
    """Mix logits that were learned with probabilities without learning, [..., W] each.

    The latter are not needed where the former have the whole `share`. `sharpness` [..., 1] is a
    factor on the logarithms of what comes out.
    """
    known = learned.log_softmax(-1)
    if plain is not None:
        known = share * known + (1 - share) * plain.clamp(min=1e-12).log()
    return torch.softmax(sharpness * known, -1)
