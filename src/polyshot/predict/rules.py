"""Rules: how the members' answers on one task are weighed, told from its support set alone.

First the weights of M members for E tasks, [E, M], on the CPU; then the rules that use them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.errors import PolyshotError, did_you_mean, join_names, unknown
from polyshot.models.foreign import ForeignConfig
from polyshot.models.heads import leave_one_out_logits, prepared, prototypes
from polyshot.models.selector import task_embedding
from polyshot.pool.pool import Pool
from polyshot.predict.familiar import Common, familiar
from polyshot.tasks import Tasks

LOO_SHARPNESS = 10.0
"""Weights of `leave_one_out` are the softmax of -10 x the losses."""
SUR_STEPS, SUR_RATE = 40, 0.1


def uniform(pool: Pool, tasks: Tasks) -> Tensor:
    """Weigh all members alike."""
    count = len(pool.members)
    return torch.full((len(tasks), count), 1 / count)


def by_selector(pool: Pool, tasks: Tasks) -> Tensor:
    """Weigh members by the chances that the selector gives them; refuses a pool without one."""
    return pool.task_weights(task_embedding(tasks.support_of(pool.network(0)), tasks.mask))


def by_selector_or_uniform(pool: Pool, tasks: Tasks) -> Tensor:
    """Weigh members by the selector, or alike where the pool has none."""
    return uniform(pool, tasks) if pool.selector is None else by_selector(pool, tasks)


def leave_one_out(pool: Pool, tasks: Tasks) -> tuple[Tensor, Tensor]:
    """Weigh members by how well each support image is classified by the others.

    Returns the weights, and bool ``[E]``: the tasks of which some class has two images. The others'
    weights are even, for want of anything to leave out.
    """
    held = _left_out(pool, tasks)
    if held is None:
        return uniform(pool, tasks), torch.zeros(len(tasks), dtype=torch.bool)
    logits, labels, there = held
    loss = _losses(logits, labels, there)  # [E, M]
    return torch.softmax(-LOO_SHARPNESS * loss, 1).cpu(), there.any(1).cpu()


def by_leave_one_out(pool: Pool, tasks: Tasks) -> Tensor:
    """Weigh members by `leave_one_out`; at one shot by the selector, or alike without one."""
    weights, told = leave_one_out(pool, tasks)
    return _else(weights, told, pool, tasks)


def automatic(pool: Pool, tasks: Tasks) -> Tensor:
    """Mean of the selector's weights and those of `leave_one_out`; without a selector, the latter.

    At one shot, where leaving out tells nothing, the selector's alone, or the base where a task is
    unlike those that the selector has learned from (`familiar`).
    """
    weights, told = leave_one_out(pool, tasks)
    if pool.selector is None:
        return weights
    chances = by_selector(pool, tasks)
    mean = (weights + chances) / 2
    if bool(told.all()):
        return mean
    guess = chances
    if pool.statistics:
        guess = chances.where(familiar(pool, tasks).unsqueeze(1), _alone(0, pool, tasks))
    return mean.where(told.unsqueeze(1), guess)


def by_sur(pool: Pool, tasks: Tasks) -> Tensor:
    """Fit the weights of each task: the mixed scores shall classify left-out images best.

    SUR (Dvornik et al., 2020) fits the support set to its own prototypes; leaving each image out
    keeps a member that merely remembers from winning. At one shot as `by_leave_one_out`.
    """
    held = _left_out(pool, tasks)
    if held is None:
        return by_selector_or_uniform(pool, tasks)
    logits, labels, there = held
    with torch.enable_grad():
        raw = torch.zeros(logits.shape[:2], device=logits.device, requires_grad=True)  # [E, M]
        optimiser = torch.optim.Adam([raw], lr=SUR_RATE)
        for _ in range(SUR_STEPS):
            mixed = torch.einsum("em,emnw->enw", torch.softmax(raw, 1), logits)
            loss = _losses(mixed.unsqueeze(1), labels, there).sum()  # of tasks that do not meet
            raw.grad = torch.autograd.grad(loss, raw)[0]
            optimiser.step()
    weights = torch.softmax(raw.detach(), 1).cpu()
    return _else(weights, there.any(1).cpu(), pool, tasks)


def by_attention(pool: Pool, tasks: Tasks) -> Tensor:
    """Weigh members by URT's attention to their prototypes; refuses a pool without it."""
    attention = pool.check_urt()
    every = []
    for member in range(len(pool.members)):
        support = prepared(tasks.support_of(pool.network(member)), pool.metric)
        every.append(F.normalize(prototypes(support, tasks.mask), dim=-1))
    with torch.no_grad():
        weights: Tensor = attention(torch.stack(every, 1).to(pool.device))  # [E, M, W, d]
    return weights.cpu()


def _else(weights: Tensor, told: Tensor, pool: Pool, tasks: Tasks) -> Tensor:
    """Let the selector weigh the tasks that leaving out tells nothing about."""
    if bool(told.all()):
        return weights
    return weights.where(told.unsqueeze(1), by_selector_or_uniform(pool, tasks))


def _left_out(pool: Pool, tasks: Tasks) -> tuple[Tensor, Tensor, Tensor] | None:
    """Let each member classify every support image by the others; None with one image a class.

    Returns logits ``[E, M, N, W]`` with N = W * S, zeros where nothing can be left out; labels
    int64 ``[N]``; bool ``[E, N]``, which images count.
    """
    every = []
    for member, scale in enumerate(pool.scales):
        support = tasks.support_of(pool.network(member))  # [E, W, S, d]
        if support.shape[2] < 2:
            return None
        ready = prepared(support, pool.metric)
        logits = leave_one_out_logits(ready, pool.metric, scale, tasks.mask)
        every.append(logits.flatten(1, 2))  # [E, N, W]
    logits = torch.stack(every, 1)
    there = logits[:, 0, :, 0].isfinite()  # [E, N]; the same for all members
    way = logits.shape[-1]
    labels = torch.arange(way, device=logits.device).repeat_interleave(logits.shape[2] // way)
    return logits.where(there[:, None, :, None], logits.new_zeros(())), labels, there


def _losses(logits: Tensor, labels: Tensor, there: Tensor) -> Tensor:
    """Average the cross-entropy of the images that count: logits [E, M, N, W] -> [E, M]."""
    likelihood = logits.log_softmax(-1)
    right = likelihood.gather(-1, labels.view(1, 1, -1, 1).expand(*logits.shape[:3], 1)).squeeze(-1)
    counted = there.unsqueeze(1).to(right)  # [E, 1, N]
    return -(right * counted).sum(-1) / counted.sum(-1).clamp(min=1)


DOMAIN_RULE = "member:"
"""Prefix of the rules that ask one modulator's member: ``member:flowers``."""

Mix = Literal["probabilities", "scores", "modulators"]
"""What the weights are applied to: the members' probabilities; their scores before softmax, that is
cosines, or logits where the pool compares by squared distance; or the modulators themselves, so
that one network is left."""


def _all_members(pool: Pool) -> list[int]:
    return list(range(len(pool.members)))


@dataclass(frozen=True)
class Rule:
    """A named way to weigh the members."""

    name: str
    about: str
    """One line with its paper."""
    weights: Callable[[Pool, Tasks], Tensor]
    """(pool, tasks) -> float [E, M]; each row sums to 1."""
    members: Callable[[Pool], list[int]] = _all_members
    """The members whose embeddings it may look at: the others need not be embedded."""
    mixes: Mix = "probabilities"
    selector: bool = False
    """Whether it asks the selector, perhaps at one shot only."""
    centred: bool = False
    """Whether prototypes of single images go without what the nearest source's have in common."""
    common: Common | None = None
    """What that is, where it is known already."""
    check: Callable[[Pool], object] | None = None
    """Refuses a pool that lacks what the rule needs."""


def _select(pool: Pool, tasks: Tasks) -> Tensor:
    chances = by_selector(pool, tasks)  # [E, M]
    return torch.zeros_like(chances).scatter_(1, chances.argmax(1, keepdim=True), 1.0)


def _for_blend(pool: Pool, tasks: Tasks) -> Tensor:
    return (by_leave_one_out if pool.selector is None else by_selector)(pool, tasks)


def _blend_members(pool: Pool) -> list[int]:
    return _all_members(pool) if pool.selector is None else [0]


def _no_members(_: Pool) -> list[int]:
    return []


def _alone(member: int, pool: Pool, tasks: Tasks) -> Tensor:
    result = torch.zeros(len(tasks), len(pool.members))
    result[:, member] = 1.0
    return result


def _only(member: int, _: Pool) -> list[int]:
    return [member]


def _single(name: str, about: str, member: int) -> Rule:
    # No functions of its own: a fitted classifier, and with it its rule, can be pickled.
    return Rule(name, about, partial(_alone, member), partial(_only, member))


def given(weights: Tensor, mixes: Mix, common: Common | None = None) -> Rule:
    """Return the rule of weights ``[E, M]`` that are known already, as `common` may be."""
    known = partial(_given, weights)
    centred = common is not None
    return Rule("given", "as it is known", known, mixes=mixes, centred=centred, common=common)


def _given(weights: Tensor, _: Pool, __: Tasks) -> Tensor:
    return weights


_DOS = "Learning Disparate Modulators (Choi et al., 2019)"
ABOUT = {
    "auto": "all members' cosines, by the mean of selector and leave-one-out; at one shot less "
    "what a source's have in common; on a network from elsewhere 'soup'; Polyshot (2026)",
    "select": f"DoS: the member that the selector chooses; {_DOS}",
    "average": f"DoA: all members, equally; {_DOS}",
    "base": "the base alone; Prototypical Networks (Snell et al., 2017)",
    "soft": f"all members, by the selector's chances; a wish of {_DOS}",
    "loo": "cosines, by how members classify left-out support images; Few and Fewer (Lafargue et "
    "al., 2024) picks one so",
    "sum": "the mean of all members' cosines; SUR (Dvornik et al., 2020), where it starts",
    "sur": "cosines, by weights fitted to each support set; SUR (Dvornik et al., 2020)",
    "urt": "cosines, by attention to the members' prototypes; URT (Liu et al., 2021)",
    "blend": "one modulator mixed from all by the selector's chances; FLUTE (Triantafillou et al., "
    "2021)",
    "soup": "one network, the mean of all members' weights; Model soups (Wortsman et al., 2022)",
}
_ALL = (
    Rule("auto", ABOUT["auto"], automatic, mixes="scores", selector=True, centred=True),
    Rule("select", ABOUT["select"], _select, selector=True, check=Pool.check_selector),
    Rule("average", ABOUT["average"], uniform),
    _single("base", ABOUT["base"], 0),
    Rule("soft", ABOUT["soft"], by_selector, selector=True, check=Pool.check_selector),
    Rule("loo", ABOUT["loo"], by_leave_one_out, mixes="scores", selector=True),
    Rule("sum", ABOUT["sum"], uniform, mixes="scores"),
    Rule("sur", ABOUT["sur"], by_sur, mixes="scores", selector=True),
    Rule("urt", ABOUT["urt"], by_attention, mixes="scores", check=Pool.check_urt),
    Rule("blend", ABOUT["blend"], _for_blend, _blend_members, mixes="modulators", selector=True),
    Rule("soup", ABOUT["soup"], uniform, _no_members, mixes="modulators"),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}


def rule(name: str, pool: Pool) -> Rule:
    """Look a rule up: one of `RULES`, or ``member:<domain>``; refuses what the pool cannot do."""
    if not isinstance(name, str):
        raise PolyshotError(f"A rule is named by text, such as 'auto', not by {name!r}.")
    if name == "auto" and isinstance(pool.config, ForeignConfig) and pool.modulators:
        name = "soup"  # what is best there, and one network (docs/backbones.md)
    if name in RULES:
        found = RULES[name]
        if found.check:
            found.check(pool)
        if name == "auto" and pool.one_network:
            return replace(found, mixes="modulators")
        return found
    domains = list(pool.modulators)
    if name.startswith(DOMAIN_RULE):
        domain = name.removeprefix(DOMAIN_RULE)
        if domain in pool.modulators:
            return _single(name, f"the member of {domain} alone", 1 + domains.index(domain))
        raise PolyshotError(
            f"The pool has no member '{domain}', only {join_names(domains) or 'its base'}."
            f"{did_you_mean(domain, domains)}"
        )
    known = [*RULES, *(f"{DOMAIN_RULE}{domain}" for domain in domains)]
    raise unknown("rule", name, known, 12)
