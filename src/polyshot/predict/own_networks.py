"""Networks of a task's own: one modulator for each task, mixed from all of a pool or learned.

As FLUTE's blender (Triantafillou et al., 2021) and tri-M (Liu et al., 2021) do with other layers:
modulators are linear in their parameters, so a weighted sum of them is one, and a task costs one
pass an image however many members the pool has. E tasks, M members, d entries an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from polyshot.models.backbone import Snapshot, sites_of, walk_through
from polyshot.models.modulators import TaskModulators, fold_task, task_modulators
from polyshot.models.prepacked import prepacked
from polyshot.models.views import Views
from polyshot.pool.pool import Pool
from polyshot.predict.familiar import Common
from polyshot.predict.readout import TaskClassifiers, fit_classifiers
from polyshot.tasks import Queries, Tasks, embed, for_prediction
from polyshot.util.device import bf16_on, for_device

AT_ONCE = {"cpu": 4, "cuda": 100}
"""Tasks of 5-way 5-shot that are learned side by side at most; more gain nothing."""
ON_A_CPU = 2 << 30
"""Bytes that learning may take there; of a GPU's memory half of what is free."""
COPIES = 6
"""Of a task's weights while it learns: with gradients and Adadelta's two averages."""


@dataclass(eq=False)
class OwnNetworks:
    """Networks of k tasks, and what they make of the support sets."""

    base: nn.Module
    modulators: TaskModulators
    rows: Tensor
    """int64 ``[k]``: which tasks of the batch."""
    classifiers: TaskClassifiers
    """Of these tasks."""
    inverse_temperature: Tensor
    """``[k]``: factor on the logarithms of probabilities where what was learned has a share."""
    common: nn.Module | None = None
    """The network, where all tasks have the same one: the modulators are then of one row."""

    def logits(self, queries: Queries) -> Tensor:
        """Classify the queries of the tasks `rows`: ``[k, W, Q]``."""
        if len(self.rows) == 1:  # as a plain network it is twice as fast
            # Nobody else asks this network: the table's other images are left alone.
            embeddings = queries.of_task(self.rows).query_of(self.folded)
        elif self.common is not None:
            embeddings = queries.query_of(self.common, self.rows)
        else:
            images, views = queries.query_images, queries.table.views
            embeddings = embed_own(self.base, self.modulators, images, self.rows, views)
        return self.classifiers.logits(embeddings)

    @cached_property
    def folded(self) -> nn.Module:
        """The network of a single task, as a plain one for prediction."""
        return self.common or prepacked(for_prediction(fold_task(self.base, self.modulators, 0)))


def blended(pool: Pool, weights: Tensor) -> TaskModulators:
    """Mix the modulators, each at its strength, by weights of the members ``[E, M]``."""
    strengths = torch.tensor(list(pool.strengths.values()), device=pool.device)
    shares = weights[:, 1:].to(pool.device) * strengths
    return task_modulators(pool.base, list(pool.modulators.values()), shares)


def blended_scale(pool: Pool, weights: Tensor) -> Tensor:
    """Mix the members' scales by their weights ``[E, M]``: ``[E]``, on the pool's device."""
    return (weights @ torch.tensor(pool.scales)).to(pool.device)


def blend_networks(
    pool: Pool, tasks: Tasks, weights: Tensor, adaptation: str, in_common: Common | None = None
) -> OwnNetworks:
    """Give each task its blend; `adaptation` is one on embeddings: none, head, ridge or pa.

    `in_common` is what images of a task have in common, where single ones go without it.
    """
    same = bool((weights == weights[:1]).all())
    common = _common(pool, weights) if same else None
    modulators = blended(pool, weights if common is None else weights[:1])
    rows = torch.arange(len(tasks), device=pool.device)
    support = _support(pool.base, modulators, common, tasks, rows)
    classifiers = fit_classifiers(
        *(support, tasks.mask, pool.metric, blended_scale(pool, weights)),
        *(adaptation, pool.adaptation, in_common),
    )
    as_it_is = torch.ones(len(tasks), device=pool.device)
    return OwnNetworks(pool.base, modulators, rows, classifiers, as_it_is, common)


def _common(pool: Pool, weights: Tensor) -> nn.Module:
    """Return the blend of tasks with the same weights [E, M]: one object while the pool stays."""
    if not pool.modulators:
        return pool.network(0)  # which has embedded the images already, or will
    shares, of = tuple(weights[0].tolist()), (*pool.modulators.values(), *pool.strengths.values())
    known = _COMMON.get(pool.base)
    if known is None or known[0] != (shares, of) or not known[1].holds():
        network = for_prediction(fold_task(pool.base, blended(pool, weights[:1]), 0))
        parts = Snapshot(pool.base, *pool.modulators.values())
        known = _COMMON[pool.base] = (shares, of), parts, network
    return known[2]


_COMMON: WeakKeyDictionary[nn.Module, tuple[object, Snapshot, nn.Module]] = WeakKeyDictionary()
"""The latest such blend over each base."""


def embed_own(
    base: nn.Module,
    modulators: TaskModulators,
    images: Callable[[Tensor], Tensor],
    rows: Tensor,
    views: Views,
) -> Tensor:
    """Embed the images ``[k, B, 3, side, side]`` of tasks, some tasks at a time: ``[k, B, d]``.

    `images` is asked for the images of some of the `rows`; the i-th modulator is that of rows[i].
    """
    parts: list[Tensor] = []
    done, step, walk = 0, 1, walk_through(base)
    while done < len(rows):
        cut = torch.arange(done, min(done + step, len(rows)), device=rows.device)
        own = modulators.rows(cut)

        def network(pixels: Tensor, own: TaskModulators = own) -> Tensor:
            """Embed [k, B, 3, side, side], each task by its own modulator: [k, B, d]."""
            flat = pixels.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            return walk(flat, own.acts(len(pixels))).view(*pixels.shape[:2], -1)

        pixels = images(rows[cut])
        parts.append(embed(network, pixels, views))
        done += step
        if done == 1 < len(rows):  # now their number is known
            step = tasks_at_once(base, pixels.shape[1], pixels.shape[-1], rows.device)
    return torch.cat(parts)


def support_embeddings(networks: OwnNetworks, tasks: Tasks) -> Tensor:
    """Embed the support sets of the tasks `rows` by their own networks: raw ``[k, W, S, d]``."""
    return _support(networks.base, networks.modulators, networks.common, tasks, networks.rows)


def _support(
    base: nn.Module,
    modulators: TaskModulators,
    common: nn.Module | None,
    tasks: Tasks,
    rows: Tensor,
) -> Tensor:
    if common is None:
        flat = embed_own(base, modulators, flat_support(tasks), rows, tasks.table.views)
        return flat.view(len(rows), tasks.way, tasks.shot, -1)
    return tasks.support_alone(common, rows) if len(rows) == 1 else tasks.support_of(common, rows)


def tasks_at_once(base: nn.Module, images: int, side: int, device: torch.device) -> int:
    """Return how many tasks of so many support images [3, side, side] to learn side by side."""
    images = max(images, 12)  # below a dozen the networks themselves fill the memory
    most = for_device(AT_ONCE, device) * 25 // images
    weights = sum(site.inputs * site.outputs for site in sites_of(base) if site.takes_maps)
    a_task = images * bytes_an_image(base, side, device) + 4 * COPIES * weights
    return max(1, min(most, free_memory(device) // a_task))


def bytes_an_image(base: nn.Module, side: int, device: torch.device) -> int:
    """Estimate the memory that learning takes for an image [3, side, side]; tried once."""
    known = _BYTES.setdefault(base, {})
    if side not in known:
        image = torch.zeros(1, 3, side, side, device=device, dtype=torch.get_default_dtype())
        with bf16_on(device):
            known[side] = walk_through(base).nbytes(image)
    return known[side]


_BYTES: WeakKeyDictionary[nn.Module, dict[int, int]] = WeakKeyDictionary()


def free_memory(device: torch.device) -> int:
    """Return how many bytes learning may take."""
    if device.type != "cuda":
        return ON_A_CPU
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + kept) // 2


def flat_support(tasks: Tasks) -> Callable[[Tensor], Tensor]:
    """Return what gives the support images of some tasks in one row: ``[k, W * S, 3, ...]``."""
    return lambda rows: tasks.support_images(rows).flatten(1, 2)
