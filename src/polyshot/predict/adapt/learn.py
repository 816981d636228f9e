"""Learning on support sets by prototypes: many tasks at once, each at its own learning rate.

E tasks, W ways, S places of a class, d entries an embedding. What a task learns is a slice of some
tensors, and no task's update reads another's. How fast to learn, or whether at all, is told from
the support set alone: each half of it is learned from and tried on the other half. With one image a
class there is nothing to try, and unless the config says otherwise nothing is learned.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.models.heads import leave_one_out_logits, prototypes
from polyshot.util.progress import Progress

SHARPNESS = 10.0
"""Logits of the loss are this times the cosine, as in URL and TSA (Li et al., 2021, 2022)."""
MARGIN = 0.1
"""Share of the images tried that another rate must be right on more often than the first."""
DECAY, EPS = 0.9, 1e-6  # Adadelta's usual ones
FACTORS = [2 ** (k / 2) for k in range(-4, 5)]
"""Of the usual scale of logits, among which a task's is found."""


class Learnable(Protocol):
    """What is learned: for each task some tensors, from which embeddings follow."""

    @property
    def lr_factors(self) -> Sequence[float]:
        """Factor on the learning rate, for each tensor."""

    @property
    def leave_self_out(self) -> bool:
        """Whether an image learns from the prototype of its class without itself."""

    def at_once(self, images: int) -> int:
        """Return how many tasks of so many images to learn side by side."""

    def start(self, rows: Tensor) -> list[Tensor]:
        """Return fresh tensors ``[k, ...]`` of some tasks; one may be asked for repeatedly."""

    def inputs(self, rows: Tensor, places: Tensor) -> Sequence[Any]:
        """Return what `embed` needs of the support images at places ``[k, W, S']`` of tasks.

        Once for every view of them that updates take in turn, the whole images first; each may be
        made only when it is asked for.
        """

    def embed(self, leaves: Sequence[Tensor], rows: Tensor, inputs: Any) -> Tensor:
        """Embed the inputs of tasks by what they have learned: ``[k, W * S', d]``."""


@dataclass(frozen=True, eq=False)
class Learned:
    """What k of the E tasks have learned; the others stay as they were."""

    rows: Tensor
    """int64 ``[k]``: which tasks."""
    leaves: list[Tensor]
    """``[k, ...]`` each."""
    centres: Tensor
    """Unit prototypes ``[k, W, d]`` of what was learned."""
    scale: Tensor
    """``[k]``: logits are so many times the cosine."""
    diverged: Tensor
    """Bool ``[E]``: tasks whose learning diverged, so that they stay as they were."""


def learn_tasks(
    task: Learnable,
    present: Tensor,
    config: AdaptationConfig,
    usual: Tensor,
    plain: Callable[[Tensor, Tensor], Tensor],
    report: Progress | None = None,
    own_rates: Tensor | None = None,
    worth: Tensor | None = None,
) -> Learned:
    """Learn from each support set at the first rate, or at another that its halves clearly prefer.

    Args:
        task: what is learned.
        present: bool ``[E, W, S]``, True where there is an image.
        config: rates (a single one is taken as it is) and the number of updates.
        usual: ``[E]`` the scale that logits have without learning.
        plain: answers without learning. It is given bool ``[E, W, S]`` of the images to learn from
            and places int64 ``[E, W, S']`` of the images to classify, and returns logarithms of
            probabilities ``[E, W * S', W]``.
        report: told of each update, in images: ``try rates`` where there are several, ``learn``.
        own_rates: ``[E]``, instead of the config's where that has only one, or a task has only
            single images.
        worth: bool ``[E]``, which tasks learn; those with `least_shots` images unless it is given.
    """
    shots = present.sum(-1).amax(-1)  # [E], of the largest class
    worth = shots >= config.least_shots if worth is None else worth
    rows = (worth & (present.shape[1] > 1)).nonzero().flatten()  # one class is the answer
    rates = torch.full_like(usual, config.rates[0]) if own_rates is None else own_rates
    rates, scale = rates[rows], usual[rows]
    if len(config.rates) > 1 and bool((shots[rows] > 1).any()):  # else there is nothing to try
        chosen, scale = _choose(task, rows, present, config, usual, plain, report)
        rates = rates.where((shots[rows] == 1) & (own_rates is not None), chosen)
    rows, rates, scale = (kept[rates > 0] for kept in (rows, rates, scale))
    if not len(rows):
        nothing = usual.new_zeros(0, present.shape[1], 0)
        return Learned(rows, [], nothing, scale, torch.zeros_like(present[:, 0, 0]))
    places, there = compact(present[rows])
    parts: list[tuple[list[Tensor], Tensor]] = []
    step = task.at_once(places.shape[1] * places.shape[2])
    count = _Counter(report, "learn", config.updates * places.numel())
    for cut in torch.split(torch.arange(len(rows), device=rows.device), step):
        leaves, embeddings = _learn(
            task, rows[cut], places[cut], there[cut], rates[cut], config.updates, count
        )
        parts.append((leaves, unit_centres(embeddings, there[cut])))
    leaves = [torch.cat(tensors) for tensors in zip(*(each for each, _ in parts), strict=True)]
    centres = torch.cat([each for _, each in parts])
    sound = torch.stack([t.flatten(1).isfinite().all(1) for t in (*leaves, centres)]).all(0)
    diverged = torch.zeros_like(present[:, 0, 0])
    diverged[rows[~sound]] = True
    return Learned(
        rows[sound], [leaf[sound] for leaf in leaves], centres[sound], scale[sound], diverged
    )


def compact(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move what is there to the front: mask [..., W, S] -> places and mask, [..., W, S'].

    S' is the largest number of any class.
    """
    longest = int(mask.sum(-1).max()) if mask.numel() else 0
    places = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)[..., :longest]
    return places, mask.gather(-1, places)


def halves(present: Tensor) -> tuple[Tensor, Tensor]:
    """Part the images of each class, [E, W, S]: those to learn from and those to try, [2, E, W, S].

    The only image of a class is learned from in both halves and never tried.
    """
    half = (present.cumsum(-1) - 1) % 2  # [E, W, S]
    alone = present.sum(-1, keepdim=True) == 1
    tried = torch.stack([present & (half == side) & ~alone for side in (0, 1)])
    return present & ~tried, tried


def judge(scores: Tensor, labels: Tensor, there: Tensor, usual: Tensor) -> tuple[Tensor, Tensor]:
    """Count right answers, and find the scale at which the answers are likeliest: [E] each.

    Learning spreads embeddings, so a task wants a scale of its own; it is held near the usual one,
    or a handful of right answers would ask for certainty. Scores [E, K, W] that are not finite
    count -1; `there`, bool [E, K], says which of the labels [E, K] count.
    """
    found = []
    for factor in FACTORS:
        logits = scores * (factor * usual)[:, None, None]
        loss = F.cross_entropy(logits.mT, labels, reduction="none")  # [E, K]
        total = loss.where(there, loss.new_zeros(())).sum(1)
        found.append(total + 2 * math.log(factor) ** 2)  # a spread of e^0.5 is likely
    best = torch.stack(found).nan_to_num(nan=torch.inf).argmin(0)
    right = ((scores.argmax(-1) == labels) & there).sum(1)
    sound = scores.flatten(1).isfinite().all(1)
    factors = torch.tensor(FACTORS, device=usual.device)
    return right.where(sound, -1), usual * factors[best]


def _choose(
    task: Learnable,
    rows: Tensor,
    present: Tensor,
    config: AdaptationConfig,
    usual: Tensor,
    plain: Callable[[Tensor, Tensor], Tensor],
    report: Progress | None,
) -> tuple[Tensor, Tensor]:
    """Find the rate of the tasks `rows`, 0 for no learning, and the scale of their logits: [k].

    A handful of images decide little, so the first rate stays unless another is right clearly more
    often.
    """
    known, tried = halves(present)  # [2, E, W, S]
    places, there = compact(tried)  # [2, E, W, S']
    sources, from_there = compact(known)
    way, count = present.shape[1], places.shape[-1]
    ways = torch.arange(way, device=present.device)
    labels = ways.repeat_interleave(count).repeat(2).expand(len(rows), -1)  # [k, 2 * W * S']
    counted = there.flatten(2).transpose(0, 1).flatten(1)[rows]
    learned_from = config.updates * sources[:, rows].numel()  # by both halves, at one rate
    counter = _Counter(report, "try rates", len(config.rates) * learned_from)

    def answers(rate: float, side: int) -> Tensor:
        """Learn from one half and compare the other with it: scores [k, W * S', W]."""
        if not rate:
            return plain(known[side], places[side])[rows]
        parts = []
        for chosen in torch.split(rows, task.at_once(way * sources.shape[-1])):
            source, mask = sources[side, chosen], from_there[side, chosen]
            rates = torch.full((len(chosen),), rate, device=rows.device)
            leaves, own = _learn(task, chosen, source, mask, rates, config.updates, counter)
            with torch.no_grad():
                whole = task.inputs(chosen, places[side, chosen])[0]
                queries = F.normalize(task.embed(leaves, chosen, whole), dim=-1)
                parts.append(queries @ unit_centres(own, mask).mT)
        return torch.cat(parts)

    def judged(rate: float) -> tuple[Tensor, Tensor]:
        scores = torch.cat([answers(rate, side) for side in (0, 1)], 1)  # [k, 2 * W * S', W]
        return judge(scores, labels, counted, usual[rows])

    first = config.rates[0]
    right, scale = judged(first)
    rate, clearly = torch.full_like(scale, first), right + MARGIN * counted.sum(1)
    for other in (*config.rates[1:], 0.0):
        its_right, its_scale = judged(other)
        better = its_right > clearly
        clearly = its_right.where(better, clearly)
        scale, rate = its_scale.where(better, scale), rate.masked_fill(better, other)
    return rate, scale


def _learn(
    task: Learnable,
    rows: Tensor,
    places: Tensor,
    there: Tensor,
    rates: Tensor,
    steps: int,
    count: "_Counter | None" = None,
) -> tuple[list[Tensor], Tensor]:
    """Learn by steps on the images at `places`: what was learned, and embeddings [k, W, S', d]."""
    way, shot = places.shape[1:]
    with torch.enable_grad():
        inputs = task.inputs(rows, places)
        leaves = [leaf.requires_grad_() for leaf in task.start(rows)]
        optimiser = Adadelta(leaves, [factor * rates for factor in task.lr_factors])
        for step in range(steps):
            view = inputs[step % len(inputs)]
            embeddings = task.embed(leaves, rows, view).view(len(rows), way, shot, -1)
            loss = _loss(embeddings, there, task.leave_self_out)
            optimiser.step(torch.autograd.grad(loss, leaves))
            if count:
                count.add(places.numel())
    learned = [leaf.detach() for leaf in leaves]
    with torch.no_grad():
        return learned, task.embed(learned, rows, inputs[0]).view(len(rows), way, shot, -1)


def _loss(embeddings: Tensor, there: Tensor, leave_self_out: bool) -> Tensor:
    """Sum the tasks' mean cross-entropies of support images [k, W, S, d] by their prototypes.

    With `leave_self_out`, the prototype of an image's own class is that of the others, if there are
    any: in one that holds the image itself, it is soon found again and there is little to learn.
    """
    way, shot = embeddings.shape[1:3]
    unit = F.normalize(embeddings, dim=-1)
    centres = F.normalize(prototypes(unit, there), dim=-1)
    logits = SHARPNESS * unit.flatten(1, 2) @ centres.mT  # [k, W * S, W]
    if leave_self_out and shot > 1:
        others = there & (there.sum(-1, keepdim=True) > 1)  # [k, W, S]
        left_out = leave_one_out_logits(unit, "cosine", SHARPNESS, there)
        logits = left_out.flatten(1, 2).where(others.flatten(1).unsqueeze(-1), logits)
    labels = torch.arange(way, device=logits.device).repeat_interleave(shot)
    losses = F.cross_entropy(logits.mT, labels.expand(len(logits), -1), reduction="none")
    counted = there.flatten(1).to(losses)
    return (losses * counted / counted.sum(1, keepdim=True)).sum()


def unit_centres(embeddings: Tensor, there: Tensor) -> Tensor:
    """Return unit prototypes [k, W, d] of raw embeddings [k, W, S, d]."""
    return F.normalize(prototypes(F.normalize(embeddings, dim=-1), there), dim=-1)


class _Counter:
    """Counts the images that were learned from, of all that will be."""

    def __init__(self, report: Progress | None, name: str, total: int):
        self.report, self.name, self.total, self.done = report, name, total, 0

    def add(self, images: int) -> None:
        self.done += images
        if self.report:
            self.report(self.name, self.done, self.total)


class Adadelta:
    """Adadelta (Zeiler, 2012) with a learning rate for each task."""

    def __init__(self, leaves: Sequence[Tensor], rates: Sequence[Tensor]):
        self.leaves = leaves
        self.rates = [
            rate.view(-1, *[1] * (leaf.ndim - 1)) for rate, leaf in zip(rates, leaves, strict=True)
        ]
        self.squares = [torch.zeros_like(leaf) for leaf in leaves]
        self.moves = [torch.zeros_like(leaf) for leaf in leaves]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the leaves in place."""
        every = (self.leaves, gradients, self.rates, self.squares, self.moves)
        for leaf, gradient, rate, square, move in zip(*every, strict=True):
            square.mul_(DECAY).addcmul_(gradient, gradient, value=1 - DECAY)
            change = (move + EPS).div_(square + EPS).sqrt_().mul_(gradient)
            move.mul_(DECAY).addcmul_(change, change, value=1 - DECAY)
            leaf.sub_(change.mul_(rate))
