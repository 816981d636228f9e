"""tsa: a modulator of the task's own, learned on its support set.

*Cross-domain Few-shot Learning with Task-specific Adapters* (Li et al., 2022): 1x1 convolutions
beside the 3x3 ones, without bias, and a linear map of the embedding, learned by nearest prototypes
of the support set with everything else frozen; here an image's own class is without it, as a query
would find it. Its adapters are our `conv1x1` modulators, so here they may start where the pool
already is: from alpha_0 as in the paper, from the selected modulator, or from the blend. The
paper's learning rate is another on seen than on unseen domains; here it is told from the support
set whether the task is like those of the pool's sources (`familiar`); or with several rates it is
one that the support set clearly prefers. What was learned at a high rate is trusted less: its
probabilities are softened.

Many tasks learn side by side in one walk through the base, which hides the idea a little; the plain
form of it, one task and one update after the other, is tests/predict/plain_tsa.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import walk_through
from polyshot.models.heads import USUAL_SCALE
from polyshot.models.modulators import TaskModulators, no_weights
from polyshot.models.views import CROPS, VIEWS, View, apply_view
from polyshot.models.walk import Recording, Walk
from polyshot.pool.pool import Pool
from polyshot.predict import own_networks
from polyshot.predict.adapt.learn import Learned, learn_tasks, unit_centres
from polyshot.predict.adapt.pa import LR_FACTOR, identities
from polyshot.predict.familiar import familiar
from polyshot.predict.own_networks import OwnNetworks, blended
from polyshot.predict.readout import TaskClassifiers, by_ridge
from polyshot.tasks import Tasks, pick
from polyshot.util.device import bf16_on
from polyshot.util.progress import Progress


@dataclass(frozen=True, eq=False)
class Networks:
    """Modulators and maps of E tasks (`learn.Learnable`)."""

    base: nn.Module
    modulators: TaskModulators
    """Where learning starts; slopes and shifts stay as they are, and what other layers have."""
    tasks: Tasks
    names: list[str]
    """Of the layers whose modulators are learned; the map comes last."""
    lr_factors: Sequence[float]
    crops: Sequence[View]
    """What of the images updates take in turn, the whole images first."""
    leave_self_out: bool
    kept: dict[tuple[bytes, bytes], dict[int, Recording]] = field(default_factory=dict)
    """Of tasks and places in them, by crops: what lies before the first layer that learns."""

    @cached_property
    def walk(self) -> Walk:
        """Through the base, looked up once: updates are many and small."""
        return walk_through(self.base)

    def at_once(self, images: int) -> int:
        """Return how many tasks of so many images to learn side by side."""
        side, device = self.tasks.table.side, self.tasks.device
        return own_networks.tasks_at_once(self.base, images, side, device)

    def start(self, rows: Tensor) -> list[Tensor]:
        """Return the blend's weights, and a map that changes nothing."""
        weights = self.modulators.weights
        own = [
            weights[name][rows] if len(weights[name]) > 1 else weights[name].repeat(len(rows), 1, 1)
            for name in self.names
        ]
        like = self.tasks.support_of(self.base, rows[:1])
        return [*own, identities(len(rows), like)]

    def inputs(self, rows: Tensor, places: Tensor) -> "Crops":
        """Return the crops of ``k * W * S'`` images, up to the first layer that learns."""
        key = rows.cpu().numpy().tobytes(), places.cpu().numpy().tobytes()
        self.kept[key] = self.kept.pop(key, {})  # the latest comes last
        return Crops(self, rows, places, self.kept[key])

    @cached_property
    def room(self) -> int:
        """Bytes that recordings may take together."""
        return own_networks.free_memory(self.tasks.device) // 4

    def keep(self, own: dict[int, Recording], crop: int, recording: Recording) -> None:
        """Keep a recording of some tasks, if need be in place of those of others before them."""
        taken = {key: sum(r.nbytes for r in each.values()) for key, each in self.kept.items()}
        for key in [key for key, each in self.kept.items() if each is not own]:
            if sum(taken.values()) + recording.nbytes > self.room:
                del self.kept[key], taken[key]
        if sum(taken.values()) + recording.nbytes <= self.room:
            own[crop] = recording

    def embed(self, leaves: Sequence[Tensor], rows: Tensor, inputs: Recording) -> Tensor:
        """Embed by what was learned: ``[k, W * S', d]``."""
        acts = self.learned(leaves, rows).acts(len(rows))
        with bf16_on(rows.device):
            embeddings = self.walk.replay(inputs, acts)
        return embeddings.view(len(rows), -1, embeddings.shape[-1]) @ leaves[-1].mT

    def read_out(self, found: Learned, config: AdaptationConfig) -> TaskClassifiers:
        """Compare with the support sets as what was learned sees them, over the views."""
        present, views, maps = (
            self.tasks.present[found.rows],
            self.tasks.table.views,
            found.leaves[-1],
        )
        if config.tsa_readout == "prototypes" and views == "one" and config.tsa_strength == 1:
            return TaskClassifiers(found.centres, None, found.scale, unit=True, maps=maps)
        # What was found is of the whole images alone, and of all that was learned.
        images, learned = (
            own_networks.flat_support(self.tasks),
            self.learned(found.leaves, found.rows),
        )
        raw = own_networks.embed_own(self.base, learned, images, found.rows, views)
        if config.tsa_readout == "ridge":
            return by_ridge(raw.view(*present.shape, -1), present, config, maps)
        centres = unit_centres((raw @ maps.mT).view(*present.shape, -1), present)
        return TaskClassifiers(centres, None, found.scale, unit=True, maps=maps)

    def learned(self, leaves: Sequence[Tensor], rows: Tensor) -> TaskModulators:
        """Return the modulators of some tasks."""
        fixed = self.constant.rows(rows)
        own = dict(zip(self.names, leaves, strict=False))
        return replace(fixed, weights={**fixed.weights, **own})

    @cached_property
    def constant(self) -> TaskModulators:
        """What is not learned."""
        weights = self.modulators.weights.items()
        others = {name: weight for name, weight in weights if name not in self.names}
        return replace(self.modulators, weights=others)


@dataclass(frozen=True, eq=False)
class Crops(Sequence[Recording]):
    """Crops of the images of some tasks, recorded when they are asked for."""

    networks: Networks
    rows: Tensor
    places: Tensor
    """int64 ``[k, W, S']``."""
    kept: dict[int, Recording]

    def __len__(self) -> int:
        return len(self.networks.crops)

    def __getitem__(self, crop: Any) -> Any:
        if crop in self.kept:
            return self.kept[crop]
        networks, rows = self.networks, self.rows
        images = apply_view(self.images, networks.crops[crop])
        images = images.contiguous(memory_format=torch.channels_last)
        acts = networks.constant.rows(rows).acts(len(rows))
        with bf16_on(images.device):
            recording = networks.walk.record(images, networks.names, acts)
        networks.keep(self.kept, crop, recording)
        return recording

    @cached_property
    def images(self) -> Tensor:
        """``[k * W * S', 3, side, side]``."""
        return pick(self.networks.tasks.support_images(self.rows), self.places).flatten(0, 2)


def learn_own_networks(
    pool: Pool,
    tasks: Tasks,
    weights: Tensor,
    settings: "TaskSettings",
    plain: Callable[[Tensor, Tensor], Tensor],
    report: Progress | None = None,
) -> tuple[list[OwnNetworks], Tensor]:
    """Learn a network for each task that gains by it, as `Pool.adaptation` says.

    `weights` ``[E, M]`` of the members are the rule's, and so are the answers of `plain` on halves
    of the support sets; `settings` say how each task learns, and `report` is told of each update
    (`learn_tasks` has both). Returns the networks of some tasks, several of each where rates are
    averaged and none if no task has learned; and bool ``[E]``, whose learning diverged.
    """
    config = pool.adaptation
    with torch.no_grad():
        start = blended(pool, _start(weights, config))
    names = learning_sites([s.layer for s in start.sites if s.takes_maps], config.tsa_sites)
    if not start.weights:  # of channel modulators, or of none at all
        learning = [site for site in start.sites if site.layer in names]
        start = replace(start, weights=no_weights(pool.base, learning))
    factors = [*[1.0] * len(names), LR_FACTOR]
    count = max(1, config.updates)  # no more crops than there are updates
    crops = CROPS[:count] if config.tsa_rotate_crops else VIEWS["one"]
    alone = config.tsa_leave_self_out
    networks = Networks(pool.base, start, tasks, names, factors, crops, leave_self_out=alone)
    scale = own_networks.blended_scale(pool, weights)
    usual = scale if pool.metric == "cosine" else torch.full_like(scale, USUAL_SCALE)
    averages = config.tsa_rates == "average" and len(config.rates) > 1
    made, diverged = [], torch.zeros_like(tasks.present[:, 0, 0])
    for rate in config.rates if averages else config.rates[:1]:
        rates = settings.rates
        if averages:
            config = replace(config, rates=(rate,))
            rates = rates.where(settings.single, rate)
        found = learn_tasks(
            networks, tasks.present, config, usual, plain, report, rates, settings.worth
        )
        found = _weakened(found, networks, config.tsa_strength)
        diverged |= found.diverged
        if len(found.rows):
            read_out = networks.read_out(found, config)
            modulators = networks.learned(found.leaves, found.rows)
            own = (found.rows, read_out, settings.inverse_temperatures[found.rows])
            made.append(OwnNetworks(pool.base, modulators, *own))
    return made, diverged


def _weakened(found: Learned, networks: Networks, strength: float) -> Learned:
    """Go only a part of the way from where learning started, in weights."""
    if strength == 1 or not len(found.rows):
        return found
    pairs = zip(networks.start(found.rows), found.leaves, strict=True)
    return replace(found, leaves=[torch.lerp(start, leaf, strength) for start, leaf in pairs])


def learning_sites(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return which sites `AdaptationConfig.tsa_sites` means, of all in the order of the pass.

    Those of a network from elsewhere go by its own names.
    """
    inner = {name: name.removeprefix("network.") for name in names}
    chosen: set[str] = set()
    for pattern in wanted:
        if pattern in ("all", "late"):
            found = names[len(names) // 2 if pattern == "late" else 0 :]
        else:
            found = [name for name in names if fnmatchcase(inner[name], pattern)]
            if not found:
                such = f"such as {join_names(list(inner.values()), 3)}" if names else "none here"
                raise PolyshotError(
                    f"No site of the network is called '{pattern}': adaptation.tsa_sites takes "
                    f"all, late, and names or patterns of sites, {such}."
                )
        chosen.update(found)
    return [name for name in names if name in chosen]


class TaskSettings(NamedTuple):
    """How E tasks learn, ``[E]`` each on the pool's device.

    Familiar ones slowly. Where each class has one image and the task is not familiar, they learn in
    a way of their own: crops are all that an image can be compared with.
    """

    rates: Tensor
    """Learning rates."""
    worth: Tensor
    """Bool, whether they learn at all."""
    shares: Tensor
    """Weight of what was learned in the answer."""
    inverse_temperatures: Tensor
    """Factor on the logarithms of the answer."""
    single: Tensor
    """Bool, whether they learn as tasks of single images do."""

    @classmethod
    def of(cls, pool: Pool, tasks: Tasks) -> "TaskSettings":
        """Tell it from the support sets."""
        config, known = pool.adaptation, familiar(pool, tasks).to(pool.device)
        shots = tasks.present.sum(-1).amax(-1).to(pool.device)  # of the largest class
        enough = shots >= config.least_shots
        single = (shots == 1) & ~known & ~enough & (config.tsa_single_rate > 0)

        def by_kind(of_single: float, of_familiar: float, of_others: float) -> Tensor:
            found = torch.full(known.shape, of_others, device=pool.device)
            return found.masked_fill(known, of_familiar).masked_fill(single, of_single)

        share, sharpness = config.tsa_share, config.tsa_inverse_temperature
        return cls(
            by_kind(config.tsa_single_rate, config.familiar_rate, config.rates[0]),
            enough | single,
            by_kind(config.tsa_single_share, share, share),
            by_kind(
                config.tsa_single_inverse_temperature,
                config.familiar_inverse_temperature,
                sharpness,
            ),
            single,
        )


def _start(weights: Tensor, config: AdaptationConfig) -> Tensor:
    """Say from which blend learning starts: ``[E, M]``."""
    if config.tsa_start == "rule":
        return weights
    chosen = weights.argmax(1, keepdim=True)
    if config.tsa_start == "base":
        chosen = torch.zeros_like(chosen)
    return torch.zeros_like(weights).scatter_(1, chosen, 1.0)
