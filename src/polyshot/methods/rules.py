"""Rules: how the members' opinions on one task are weighed, told from its support set alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyshot.errors import PolyshotError, near, some
from polyshot.methods.tasks import TaskBatch
from polyshot.models.selector import task_embedding

if TYPE_CHECKING:
    from polyshot.pool import Pool

DOMAIN_RULE = "member:"
"""Prefix of the rules that ask one modulator's member: ``member:flowers``."""


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
    """The members it may look at or give weight to: the others need not be embedded."""


def _select(pool: "Pool", tasks: TaskBatch) -> Tensor:
    chances = pool.task_weights(task_embedding(tasks.support_of(0), tasks.mask))  # [E, M]
    return torch.zeros_like(chances).scatter_(1, chances.argmax(1, keepdim=True), 1.0)


def _average(pool: "Pool", tasks: TaskBatch) -> Tensor:
    count = len(pool.members)
    return torch.full((len(tasks), count), 1 / count)


def _single(name: str, about: str, member: int) -> Rule:
    def weights(pool: "Pool", tasks: TaskBatch) -> Tensor:
        result = torch.zeros(len(tasks), len(pool.members))
        result[:, member] = 1.0
        return result

    return Rule(name, about, weights, lambda _: [member])


_PAPER = "Learning Disparate Modulators (Choi et al., 2019)"

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("select", f"DoS: the member that the selector chooses; {_PAPER}", _select),
        Rule("average", f"DoA: all members, equally; {_PAPER}", _average),
        _single("base", "the base alone; Prototypical Networks (Snell et al., 2017)", 0),
    )
}


def rule(name: str, pool: "Pool") -> Rule:
    """Look a rule up: one of `RULES`, or ``member:<domain>``; refuses what the pool cannot do."""
    if name == "select":
        pool.check_selector()
    if name in RULES:
        return RULES[name]
    domains = list(pool.modulators)
    if name.startswith(DOMAIN_RULE):
        domain = name.removeprefix(DOMAIN_RULE)
        if domain in pool.modulators:
            about = f"the member of {domain} alone"
            return _single(name, about, 1 + domains.index(domain))
        raise PolyshotError(
            f"The pool has no member '{domain}', only {some(domains) or 'its base'}."
            f"{near(domain, domains)}"
        )
    known = [*RULES, *(f"{DOMAIN_RULE}{domain}" for domain in domains)]
    raise PolyshotError(f"There is no rule '{name}', only {some(known)}.{near(name, known)}")
