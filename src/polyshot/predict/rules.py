"""Rules: how the members' opinions on one task are weighed, told from its support set alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from polyshot.errors import PolyshotError, did_you_mean, join_names, unknown
from polyshot.methods.tasks import TaskBatch
from polyshot.predict import weights as of_members

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool

DOMAIN_RULE = "member:"
"""Prefix of the rules that ask one modulator's member: ``member:flowers``."""

Mix = Literal["probabilities", "scores", "modulators"]
"""What the weights are applied to: the members' probabilities; their scores before softmax, that is
cosines, or logits where the pool compares by squared distance; or the modulators themselves, so
that one network is left."""


def _all_members(pool: "Pool") -> list[int]:
    return list(range(len(pool.members)))


@dataclass(frozen=True)
class Rule:
    """A named way to weigh the members."""

    name: str
    about: str
    """One line with its paper."""
    weights: Callable[["Pool", TaskBatch], Tensor]
    """(pool, tasks) -> float [E, M]; each row sums to 1."""
    members: Callable[["Pool"], list[int]] = _all_members
    """The members whose embeddings it may look at: the others need not be embedded."""
    mixes: Mix = "probabilities"
    selector: bool = False
    """Whether it asks the selector, perhaps at one shot only."""
    check: Callable[["Pool"], object] | None = None
    """Refuses a pool that lacks what the rule needs."""


def _select(pool: "Pool", tasks: TaskBatch) -> Tensor:
    chances = of_members.by_selector(pool, tasks)  # [E, M]
    return torch.zeros_like(chances).scatter_(1, chances.argmax(1, keepdim=True), 1.0)


def _for_blend(pool: "Pool", tasks: TaskBatch) -> Tensor:
    if pool.selector is None:
        return of_members.by_leave_one_out(pool, tasks)
    return of_members.by_selector(pool, tasks)


def _looked_at_by_blend(pool: "Pool") -> list[int]:
    return _all_members(pool) if pool.selector is None else [0]


def _single(name: str, about: str, member: int) -> Rule:
    def weights(pool: "Pool", tasks: TaskBatch) -> Tensor:
        result = torch.zeros(len(tasks), len(pool.members))
        result[:, member] = 1.0
        return result

    return Rule(name, about, weights, lambda _: [member])


def _needs_selector(pool: "Pool") -> None:
    pool.check_selector()


def _needs_attention(pool: "Pool") -> None:
    pool.check_urt()


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "auto",
            "all members' cosines, by the mean of selector and leave-one-out; Polyshot (2026)",
            of_members.automatic,
            mixes="scores",
            selector=True,
        ),
        Rule(
            "select",
            "DoS: the member that the selector chooses; Learning Disparate Modulators (Choi et "
            "al., 2019)",
            _select,
            selector=True,
            check=_needs_selector,
        ),
        Rule(
            "average",
            "DoA: all members, equally; Learning Disparate Modulators (Choi et al., 2019)",
            of_members.uniform,
        ),
        _single("base", "the base alone; Prototypical Networks (Snell et al., 2017)", 0),
        Rule(
            "soft",
            "all members, by the selector's chances; a wish of Learning Disparate Modulators "
            "(Choi et al., 2019)",
            of_members.by_selector,
            selector=True,
            check=_needs_selector,
        ),
        Rule(
            "loo",
            "cosines, by how members classify left-out support images; Few and Fewer (Lafargue "
            "et al., 2024) picks one so",
            of_members.by_leave_one_out,
            mixes="scores",
            selector=True,
        ),
        Rule(
            "sum",
            "the mean of all members' cosines; SUR (Dvornik et al., 2020), where it starts",
            of_members.uniform,
            mixes="scores",
        ),
        Rule(
            "sur",
            "cosines, by weights fitted to each support set; SUR (Dvornik et al., 2020)",
            of_members.by_sur,
            mixes="scores",
            selector=True,
        ),
        Rule(
            "urt",
            "cosines, by attention to the members' prototypes; URT (Liu et al., 2021)",
            of_members.by_attention,
            mixes="scores",
            check=_needs_attention,
        ),
        Rule(
            "blend",
            "one modulator mixed from all by the selector's chances; FLUTE (Triantafillou et al., "
            "2021)",
            _for_blend,
            _looked_at_by_blend,
            mixes="modulators",
            selector=True,
        ),
    )
}


def rule(name: str, pool: "Pool") -> Rule:
    """Look a rule up: one of `RULES`, or ``member:<domain>``; refuses what the pool cannot do."""
    if name in RULES:
        found = RULES[name]
        if found.check:
            found.check(pool)
        return found
    domains = list(pool.modulators)
    if name.startswith(DOMAIN_RULE):
        domain = name.removeprefix(DOMAIN_RULE)
        if domain in pool.modulators:
            about = f"the member of {domain} alone"
            return _single(name, about, 1 + domains.index(domain))
        raise PolyshotError(
            f"The pool has no member '{domain}', only {join_names(domains) or 'its base'}."
            f"{did_you_mean(domain, domains)}"
        )
    known = [*RULES, *(f"{DOMAIN_RULE}{domain}" for domain in domains)]
    raise unknown("rule", name, known, 12)
