"""tsa: a modulator of the task's own, learned on its support set.

*Cross-domain Few-shot Learning with Task-specific Adapters* (Li et al., 2022): 1x1 convolutions
beside the 3x3 ones, without bias, and a linear map of the embedding, learned by nearest prototypes
of the support set with everything else frozen; here an image's own class is without it, as a query
would find it. Its adapters are our `conv1x1` modulators, so here they may start where the pool
already is: from alpha_0 as in the paper, from the selected modulator, or from the blend. The
paper's learning rate is another on seen than on unseen domains; here it is told from the support
set whether the task is like those of the pool's sources (`familiar`); or with several rates it is
one that the support set clearly prefers. What was learned fast is less to be trusted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.loading import Progress
from polyshot.methods.inner_loop import tasks_at_once
from polyshot.methods.tasks import TaskBatch, pick
from polyshot.models.resnet import ResNet
from polyshot.models.task_modulators import TaskModulators, embed_modulated, no_weights, stem
from polyshot.models.views import CROPS, VIEWS, View, Views, seen
from polyshot.predict.adapt.learn import learn_tasks, unit_centres
from polyshot.predict.adapt.pa import PACE, identities
from polyshot.predict.blend import OwnNetworks, blended, blended_scale, embed_own
from polyshot.predict.familiar import familiar
from polyshot.predict.opinions import USUAL_SCALE, Opinion
from polyshot.util.device import bf16_on

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool


@dataclass(frozen=True, eq=False)
class Networks:
    """Modulators and maps of E tasks (`support_learning.Learnable`)."""

    base: ResNet
    modulators: TaskModulators
    """Where learning starts; slopes and shifts stay as they are."""
    tasks: TaskBatch
    names: list[str] = field(default_factory=list)
    """Of the convolutions whose modulators are learned; the map comes last."""
    paces: Sequence[float] = ()
    turns: Sequence[View] = VIEWS["one"]
    """What of the images updates take in turn, the whole images first."""
    apart: bool = True

    def at_once(self, images: int) -> int:
        """Return how many tasks of so many images to learn side by side."""
        return tasks_at_once(images, self.base.conv1.weight.device)

    def start(self, rows: Tensor) -> list[Tensor]:
        """Return the blend's weights, and a map that changes nothing."""
        weights = self.modulators.weights
        own = [
            weights[name][rows] if len(weights[name]) > 1 else weights[name].repeat(len(rows), 1, 1)
            for name in self.names
        ]
        like = torch.empty(0, self.base.config.dim, device=rows.device)
        return [*own, identities(len(rows), like)]

    def inputs(self, rows: Tensor, places: Tensor) -> list[Tensor]:
        """Run the stem, in which nothing is learned: ``[k * W * S', C, h, w]`` for each view."""
        images = pick(self.tasks.support_images(rows), places).flatten(1, 2)
        with torch.no_grad(), bf16_on(images.device):
            return [stem(self.base, seen(images, view)) for view in self.turns]

    def embed(self, leaves: Sequence[Tensor], rows: Tensor, inputs: Tensor) -> Tensor:
        """Embed by what was learned: ``[k, W * S', d]``."""
        modulators = self.learned(leaves, rows)
        with bf16_on(inputs.device):
            embeddings = embed_modulated(self.base, modulators, inputs, len(rows))
        return embeddings @ leaves[-1].mT

    def centres(self, leaves: Sequence[Tensor], rows: Tensor, views: Views) -> Tensor:
        """Return unit prototypes ``[k, W, d]`` of the support sets, over the views."""
        device = rows.device
        present = _present(self.tasks, device)[rows]

        def flat(chosen: Tensor) -> Tensor:
            return self.tasks.support_images(chosen).flatten(1, 2)

        raw = embed_own(self.base, self.learned(leaves, rows), flat, rows, views)
        mapped = raw @ leaves[-1].mT
        return unit_centres(mapped.view(*present.shape, -1), present)

    def learned(self, leaves: Sequence[Tensor], rows: Tensor) -> TaskModulators:
        """Return the modulators of some tasks."""
        fixed = TaskModulators({}, self.modulators.slopes, self.modulators.shifts).rows(rows)
        own = dict(zip(self.names, leaves, strict=False))
        return TaskModulators(own, fixed.slopes, fixed.shifts)


def learn_own_networks(
    pool: "Pool",
    tasks: TaskBatch,
    weights: Tensor,
    plain: Callable[[Tensor, Tensor], Tensor],
    report: Progress | None = None,
) -> tuple[OwnNetworks | None, Tensor]:
    """Learn a network for each task that gains by it.

    Args:
        pool: where networks start, and how they learn (`Pool.adaptation`).
        tasks: E of them.
        weights: ``[E, M]`` of the members, by the rule.
        plain: the rule's own answers on halves of the support sets (`learn_tasks`).
        report: told of each update (`learn_tasks`).

    Returns:
        The networks of some tasks, None if none has learned; and bool ``[E]``, whose learning
        diverged.

    """
    with torch.no_grad():
        start = blended(pool, _start(weights, pool.adaptation))
    if not start.weights:  # of channel modulators, or of none at all
        start = TaskModulators(no_weights(pool.base), start.slopes, start.shifts)
    names = list(start.weights)
    count = max(1, pool.adaptation.updates)  # no more crops than there are updates
    turns = CROPS[:count] if pool.adaptation.tsa_turns else VIEWS["one"]
    paces, apart = [*[1.0] * len(names), PACE], pool.adaptation.tsa_apart
    networks = Networks(pool.base, start, tasks, names, paces, turns, apart)
    scale = blended_scale(pool, weights)
    usual = scale if pool.metric == "cosine" else torch.full_like(scale, USUAL_SCALE)
    present = _present(tasks, pool.device)
    rates, sharpness = _by_familiarity(pool, tasks)
    found = learn_tasks(networks, present, pool.adaptation, usual, plain, report, rates)
    if not len(found.rows):
        return None, found.diverged
    modulators, centres = networks.learned(found.leaves, found.rows), found.centres
    if pool.views != "one":  # those found are of the whole images
        centres = networks.centres(found.leaves, found.rows, pool.views)
    opinion = Opinion(centres, None, found.scale, unit=True, maps=found.leaves[-1])
    sure = sharpness[found.rows]
    networks_of = OwnNetworks(pool.base, modulators, found.rows, opinion, pool.views, sure)
    return networks_of, found.diverged


def _by_familiarity(pool: "Pool", tasks: TaskBatch) -> tuple[Tensor, Tensor]:
    """Let tasks that the pool is familiar with learn slowly: rates and sharpness, ``[E]`` each."""
    config = pool.adaptation
    known = familiar(pool, tasks).to(pool.device)

    def either(yes: float, no: float) -> Tensor:
        return torch.full(known.shape, no, device=pool.device).masked_fill(known, yes)

    rates = either(config.familiar_rate, config.rates[0])
    return rates, either(config.familiar_sharpness, config.tsa_sharpness)


def _start(weights: Tensor, config: AdaptationConfig) -> Tensor:
    """Say from which blend learning starts: ``[E, M]``."""
    if config.tsa_start == "rule":
        return weights
    chosen = weights.argmax(1, keepdim=True)
    if config.tsa_start == "base":
        chosen = torch.zeros_like(chosen)
    return torch.zeros_like(weights).scatter_(1, chosen, 1.0)


def _present(tasks: TaskBatch, device: torch.device) -> Tensor:
    """Return the tasks' mask, bool ``[E, W, S]``, also where shots are even."""
    if tasks.mask is not None:
        return tasks.mask.to(device)
    shape = tasks.support_of(0)[..., 0]
    return torch.ones(shape.shape, dtype=torch.bool, device=device)
