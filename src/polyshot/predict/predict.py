"""From a rule's weights and an adaptation to probabilities.

Each member compares a query with the support set, by prototypes or by what an adaptation has
learned, and the rule weighs the members' probabilities or scores; or the task gets a network of its
own. A query's answer depends on the support set and on itself alone. First support sets are learned
from (`fit_tasks`), then queries are asked (`FittedTasks.probabilities`): a user's classifier does
the first once and the second often, an evaluation both at once. R rules, E tasks, W ways, Q
queries.

How sure answers may be: prototypes of few images tell less than those of many. A pool's scales are
fitted to tasks of one number of images a class; with s images prototypes want s / (s + 2) of the
scale that they would have with very many (docs/results/adaptation.md has what was measured). The
inverse temperature changes how sure answers are, and no answer.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from polyshot.errors import unknown
from polyshot.pool.pool import Pool
from polyshot.predict.adapt.tsa import TaskSettings, learn_own_networks
from polyshot.predict.familiar import Common, in_common
from polyshot.predict.own_networks import OwnNetworks, blend_networks
from polyshot.predict.readout import TaskClassifiers, fit_classifiers
from polyshot.predict.rules import Mix, Rule
from polyshot.tasks import Queries, Tasks
from polyshot.util.device import one_thread
from polyshot.util.progress import Progress

Adaptation = Literal["none", "head", "ridge", "pa", "tsa"]
HALF = 2.0
"""Images a class whose prototypes want half of the scale of very many."""
UNTEMPERED = ("head", "ridge")
"""Adaptations whose answers stay as they are: heads have a scale of their own."""


class Answers(NamedTuple):
    """What R rules make of E tasks."""

    probabilities: Tensor
    """``[R, E, Q, W]``."""
    diverged: Tensor
    """Bool ``[R, E]``, on the CPU: tasks whose learning diverged, so that they go without it."""


class Consulted(NamedTuple):
    """A member that some tasks ask, and what it has learned from their support sets."""

    network: nn.Module
    rows: Tensor | None
    """int64 ``[k]``, the tasks that ask it; None: all."""
    classifiers: TaskClassifiers
    """Of these tasks."""


def check_adaptation(name: str, more: Sequence[str] = ()) -> None:
    """Refuse an adaptation that does not exist; some know `more` names."""
    known = (*more, *get_args(Adaptation))
    if name not in known:
        raise unknown("adaptation", name, known, limit=len(known))


def predict_tasks(
    pool: Pool, tasks: Tasks, rules: Sequence[Rule], adaptation: str = "none"
) -> Answers:
    """Learn from the support sets of tasks and classify their queries, by several rules at once."""
    fitted = fit_tasks(pool, tasks, rules, adaptation)
    queries = tasks.viewed(pool.query_views or tasks.table.views)
    return Answers(fitted.probabilities(queries), fitted.diverged)


def fit_tasks(
    pool: Pool,
    tasks: Tasks,
    rules: Sequence[Rule],
    adaptation: str = "none",
    report: Progress | None = None,
) -> "FittedTasks":
    """Learn from support sets; what each member learns serves all rules.

    `adaptation` is ``none`` (prototypes), ``head`` (a linear head), ``ridge`` (one in closed form),
    ``pa`` (a linear map) or ``tsa`` (a modulator and a map), learned as `pool.adaptation` says.
    `report` is told how `tsa` comes along.
    """
    check_adaptation(adaptation)
    weights = [rule.weights(pool, tasks) for rule in rules]
    common = cache(partial(in_common, pool, tasks))  # the whole support set tells it, halves do not
    if adaptation != "tsa":
        return _fit_rules(pool, tasks, rules, weights, adaptation, common)

    rest = "ridge" if pool.adaptation.tsa_readout == "ridge" else "none"
    settings, learned, diverged = TaskSettings.of(pool, tasks), [], []
    for rule, own in zip(rules, weights, strict=True):

        def plain(known: Tensor, places: Tensor, rule: Rule = rule, own: Tensor = own) -> Tensor:
            half = tasks.held_out(known, places)
            answers = _fit_rules(pool, half, [rule], [own], rest, common)._by_rules(half)[0]
            return answers.clamp(min=1e-9).log().to(pool.device)

        networks, failed = learn_own_networks(pool, tasks, own, settings, plain, report)
        learned.append(networks)
        diverged.append(failed.cpu())
    # Without learning, tasks that gain nothing by it are answered, and the others in part.
    alone = bool((settings.shares == 1).all()) and all(
        each and len(each[0].rows) == len(tasks) for each in learned
    )
    fitted = _fit_rules(pool, tasks, [] if alone else rules, weights, rest, common)
    fitted.weights, fitted.adaptation = weights, "tsa"
    fitted.shares, fitted.factor = settings.shares, _factor(pool, tasks, rest)
    fitted.learned, fitted.diverged = learned, torch.stack(diverged)
    return fitted


def _fit_rules(
    pool: Pool,
    tasks: Tasks,
    rules: Sequence[Rule],
    weights: Sequence[Tensor],
    adaptation: str,
    common: Callable[[], Common],
) -> "FittedTasks":
    """Learn from support sets on embeddings, for rules whose weights [E, M] are known.

    `common` says what the tasks' images have in common, for rules that do not know it.
    """
    mixes, factor = [rule.mixes for rule in rules], _factor(pool, tasks, adaptation)
    fitted = FittedTasks(mixes, list(weights), adaptation, len(tasks), factor)
    fitted.diverged = torch.zeros(len(weights), len(tasks), dtype=torch.bool)
    known = [
        (rule.common or common()) if _centres(pool, tasks, rule, adaptation) else None
        for rule in rules
    ]
    for i, rule in enumerate(rules):
        if rule.mixes == "modulators":
            networks = blend_networks(pool, tasks, weights[i], adaptation, known[i])
            fitted.blends[i] = networks
            if networks.classifiers.diverged is not None:
                fitted.diverged[i] = networks.classifiers.diverged.cpu()
    fitted.centred = [each is not None for each in known]
    for centred in (False, True):
        numbers = [i for i, rule in enumerate(rules) if rule.mixes != "modulators"]
        if together := [i for i in numbers if fitted.centred[i] == centred]:
            _consult(pool, tasks, fitted, together, known[together[0]])
    return fitted


def _centres(pool: Pool, tasks: Tasks, rule: Rule, adaptation: str) -> bool:
    """Whether some tasks have single images, which go without what is known as common."""
    if not (rule.centred and pool.adaptation.centre_single and (rule.common or pool.statistics)):
        return False
    by_cosine = pool.metric == "cosine" and adaptation == "none"
    return (by_cosine or adaptation == "ridge") and bool(
        (tasks.present.sum(-1).amax(-1) == 1).any()
    )


def _consult(
    pool: Pool,
    tasks: Tasks,
    fitted: "FittedTasks",
    together: Sequence[int],
    common: Common | None,
) -> None:
    """Let the members that some of the rules `together` ask learn from support sets."""
    adaptation, centred = fitted.adaptation, common is not None
    shares = torch.stack([fitted.weights[i] for i in together])  # [R, E, M]
    # On small tensors a second thread only waits.
    one = one_thread() if len(tasks) == 1 and pool.device.type == "cpu" else nullcontext()
    with one:
        # Only on the episodes that ask a member: a selected pool costs one member.
        for member in shares.any(0).any(0).nonzero().flatten().tolist():
            asked = shares[:, :, member].any(0)  # [E]
            rows = None if bool(asked.all()) else asked.nonzero().flatten().to(tasks.device)
            network = pool.network(member)
            support = tasks.support_of(network, rows)
            mask = tasks.mask if tasks.mask is None or rows is None else tasks.mask[rows]
            own = common if common is None or rows is None else common.of(rows.cpu())
            settings = (pool.metric, pool.scales[member], adaptation, pool.adaptation, own)
            classifiers = fit_classifiers(support, mask, *settings)
            fitted.members[member, centred] = Consulted(network, rows, classifiers)
            if classifiers.diverged is not None:
                there = asked if rows is None else rows.cpu()
                failed = classifiers.diverged.cpu() & (shares[:, there, member] > 0)
                for i, row in zip(together, failed, strict=True):
                    fitted.diverged[i, there] |= row


@dataclass(eq=False)
class FittedTasks:
    """What R rules and an adaptation have learned from E support sets: it answers queries."""

    mixes: list[Mix]
    """Of the rules that answer without `tsa`; none where that alone answers."""
    weights: list[Tensor]
    """``[E, M]`` of each rule, on the CPU."""
    adaptation: str
    tasks: int
    """E."""
    factor: Tensor | None
    """``[E]``: factor on the logarithms of all probabilities; None: they stay as they are."""
    shares: Tensor = field(default_factory=lambda: torch.zeros(0))
    """``[E]``: weight of what `tsa` has learned in the answer."""
    members: dict[tuple[int, bool], Consulted] = field(default_factory=dict)
    """Those that have a say, by their number and whether they are centred (`Rule.centred`)."""
    centred: list[bool] = field(default_factory=list)
    """Of the rules in `mixes`, which ask centred members."""
    blends: dict[int, OwnNetworks] = field(default_factory=dict)
    """Of the rules that mix modulators, by their number."""
    learned: list[list[OwnNetworks]] = field(default_factory=list)
    """What `tsa` has learned, for each rule: networks of the same tasks, one a learning rate where
    these are averaged; none where no task has learned."""
    diverged: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Bool ``[R, E]``, on the CPU."""

    def make_networks(self) -> None:
        """Make a single task's own networks now: who asks the first query would wait for them."""
        for networks in (*self.blends.values(), *chain(*self.learned)):
            _ = networks.folded

    def probabilities(self, queries: Queries) -> Tensor:
        """Classify the queries of all tasks: ``[R, E, Q, W]``."""
        answers = self._by_rules(queries) if self.mixes else None
        if self.learned:
            plain = [None] * len(self.learned) if answers is None else answers
            pairs = zip(self.learned, plain, strict=True)
            answers = torch.stack([self._by_learned(each, queries, own) for each, own in pairs])
        assert answers is not None, "without rules, everything was learned"
        if self.factor is None:
            return answers
        return tempered(answers, self.factor.unsqueeze(-1).to(answers.device))

    def _by_learned(
        self, networks: Sequence[OwnNetworks], queries: Queries, plain: Tensor | None
    ) -> Tensor:
        """Answer by what `tsa` has learned, and without it where it has not: [E, Q, W]."""
        if not networks:
            assert plain is not None
            return plain
        logits = [each.logits(queries).mT for each in networks]  # [k, Q, W] each
        share = self.shares.to(logits[0])[:, None, None]
        if all(len(each.rows) == self.tasks for each in networks):  # as of a single task
            factor = networks[-1].inverse_temperature[:, None, None]
            return mixed_answers(sum(logits[1:], logits[0]) / len(logits), plain, share, factor)
        total = logits[0].new_zeros(self.tasks, *logits[0].shape[1:])
        count, factor = total.new_zeros(self.tasks), total.new_ones(self.tasks)
        for each, own in zip(networks, logits, strict=True):
            total.index_add_(0, each.rows, own)
            count.index_add_(0, each.rows, torch.ones_like(each.inverse_temperature))
            factor[each.rows] = each.inverse_temperature
        rows = count.nonzero().flatten()
        learned = total[rows] / count[rows, None, None]
        if plain is None:
            return mixed_answers(learned, None, share[rows], factor[rows, None, None])
        answers = plain.clone()
        parts = (share[rows], factor[rows, None, None])
        answers[rows] = mixed_answers(learned, plain[rows], *parts)
        return answers

    def _by_rules(self, queries: Queries) -> Tensor:
        """Mix the members' probabilities or scores, or ask the blends: [R, E, Q, W]."""
        total: dict[int, Tensor] = {}  # of each rule [E, W, Q], ways first
        scales: dict[int, Tensor] = {}
        shares = torch.stack(self.weights)  # [R, E, M]
        shares = shares.to(queries.query.device)
        for (member, centred), (network, rows, classifiers) in self.members.items():
            scores = classifiers.scores(queries.query_of(network, rows))
            likely: Tensor | None = None
            for i, mixes in enumerate(self.mixes):
                if i in self.blends or not self._asks[i][member] or self.centred[i] != centred:
                    continue
                own = shares[i, :, member] if rows is None else shares[i, rows, member]
                own = own.to(scores)  # [rows]
                part = scores
                if mixes == "probabilities":
                    if likely is None:
                        likely = torch.softmax(scores * classifiers.scale[:, None, None], 1)
                    part = likely
                total[i] = self._added(total.get(i), part * own[:, None, None], rows)
                scales[i] = self._added(scales.get(i), own * classifiers.scale, rows)
        answers = []
        for i, mixes in enumerate(self.mixes):
            if i in self.blends:
                answers.append(torch.softmax(self.blends[i].logits(queries), 1))
            elif mixes == "probabilities":
                answers.append(total[i])
            else:
                answers.append(torch.softmax(total[i] * scales[i][:, None, None], 1))
        return torch.stack(answers).mT

    def _added(self, total: Tensor | None, part: Tensor, rows: Tensor | None) -> Tensor:
        """Add what is of some tasks [k, ...], None: of all, to the total of all [E, ...]."""
        if rows is None:
            return part if total is None else total + part
        if total is None:
            total = part.new_zeros(self.tasks, *part.shape[1:])
        return total.index_add(0, rows, part)

    @cached_property
    def _asks(self) -> list[list[bool]]:
        """Whether a rule asks a member, ``[R, M]``; told on the CPU: nobody waits for a GPU."""
        asks: list[list[bool]] = torch.stack(self.weights).any(1).tolist()
        return asks

    @property
    def adapted(self) -> bool:
        """Whether, for the first rule, the adaptation is used: `pa` and `tsa` may learn nothing."""
        if self.adaptation == "tsa":
            return bool(self.learned[0])
        if self.adaptation == "pa":
            classifiers = [each.classifiers for each in self.members.values()]
            classifiers += [blend.classifiers for blend in self.blends.values()]
            return any(each.also is not None for each in classifiers)
        return self.adaptation in ("head", "ridge")


def _factor(pool: Pool, tasks: Tasks, adaptation: str) -> Tensor | None:
    """Say how sure answers may be that an adaptation on embeddings gives: ``[E]``, or as it is."""
    if adaptation in UNTEMPERED:
        return None
    factor = inverse_temperature(pool, tasks.shots)
    return None if bool((factor == 1).all()) else factor


def inverse_temperature(pool: Pool, shots: Tensor) -> Tensor:
    """Return the factor on the logarithms of probabilities, for any numbers of images a class."""
    if pool.metric != "cosine":  # not measured
        return torch.ones_like(shots)
    usual = pool.task_shape.shot
    return (usual + HALF) / usual * shots / (shots + HALF)


def tempered(probabilities: Tensor, factor: Tensor) -> Tensor:
    """Raise probabilities ``[..., W]`` to a power; `factor` fits the axes before W."""
    return torch.softmax(factor.unsqueeze(-1) * probabilities.clamp(min=1e-30).log(), -1)


def mixed_answers(
    learned: Tensor, plain: Tensor | None, share: Tensor | float, factor: Tensor
) -> Tensor:
    """Mix logits that were learned with probabilities without learning, [..., W] each.

    The latter are not needed where the former have the whole `share` [..., 1]. `factor` [..., 1],
    an inverse temperature, is on the logarithms of what comes out.
    """
    known = learned.log_softmax(-1)
    if plain is not None:
        known = share * known + (1 - share) * plain.clamp(min=1e-12).log()
    return torch.softmax(factor * known, -1)
