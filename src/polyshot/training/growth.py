"""A pool grows: one modulator for a new domain, the rest frozen, and a selector that knows of it.

The images of the old sources are not needed. The pool keeps a sample of their tasks
(`polyshot.pool.statistics`); the selector is trained anew on these and on the new domain's. How the
new member would do on old tasks is not known: there it counts as wrong, so nothing is forgotten.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from polyshot.config import Config, differences, from_dict, override, preset
from polyshot.data.augment import STRONG
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.errors import PolyshotError, join_names
from polyshot.models.modulators import Modulator, fold
from polyshot.models.resnet import ResNet
from polyshot.models.selector import Selector
from polyshot.pool.files import check_domains
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import KEPT, SourceTasks, Statistics, TaskSample, sample
from polyshot.tasks import Network
from polyshot.training.folder import check_sources
from polyshot.training.loop import Record
from polyshot.training.metrics import Metrics
from polyshot.training.modulators import ensure_modulator, read_modulator
from polyshot.training.selector import (
    Examples,
    about_selector,
    examples,
    fit_scale,
    train_selector,
)
from polyshot.training.validation import network_logits, selector_tasks, validation_tasks
from polyshot.util.device import on_device
from polyshot.util.progress import Progress

LONGER = 3.75
"""A new domain's modulator is trained this much longer than one of a domain that the base knows,
and by stronger augmentation: it has more to learn (tools/choose_growth.py)."""
CHANGEABLE = ("seed", "modulator.", "selector.", "shape.", "validation_episodes")
"""Options that mean something when the base is frozen."""
FIXED = ("modulator.kind", "modulator.members", "selector.standardise")
"""And those among them that the pool has decided."""


def add_domain(
    pool: Pool,
    pack: Pack,
    options: Sequence[str] = (),
    work: Path | None = None,
    selector: bool = True,
    report: Progress | None = None,
) -> Pool:
    """Return a pool with one more member; the given one stays as it is.

    Args:
        pool: where to start from; it works on the device that its weights are on.
        pack: the new domain, with training and validation classes.
        options: override the pool's own config, as ``modulator.steps=500``.
        work: folder to keep checkpoints in, for this pool, pack and options alone.
        selector: whether the new pool has a selector; if so, the old one must have statistics.
        report: called with a name, images done and images in all.

    """
    config = growth_config(pool, options)
    check_addition(pool, pack, config, selector)
    if work is None:
        with TemporaryDirectory(prefix="polyshot-") as folder:
            return add_domain(pool, pack, options, Path(folder), selector, report)
    metrics = Metrics(work / "metrics.jsonl")
    try:
        return _Growth(pool, pack, config, work, metrics, report).pool(selector)
    finally:
        metrics.close()


def growth_config(pool: Pool, options: Sequence[str] = ()) -> Config:
    """Return how a new member of the pool is trained: as its others were, but longer and harder."""
    config = own_config(pool)
    modulator = config.modulator
    longer = replace(
        modulator,
        steps=round(LONGER * modulator.steps),
        augment=STRONG,
        # At full strength a modulator of a new domain is best (research/recipe.md §5).
        strengths=tuple(sorted({*modulator.strengths, 1.0})),
    )
    start = replace(config, modulator=longer)
    chosen = override(start, options)
    found = differences(start, chosen)
    if idle := [line for line in found if not line.startswith(CHANGEABLE) or _is_fixed(line)]:
        raise PolyshotError(
            f"The pool has decided that already ({join_names(idle)}): when a domain is added, only "
            "options of modulator, selector, shape, validation_episodes and seed can be set."
        )
    return chosen


def own_config(pool: Pool) -> Config:
    """Return the config that a pool was trained with, as far as it is known."""
    try:
        config = from_dict(pool.about["config"])
    except (KeyError, TypeError, ValueError, AttributeError):  # from elsewhere, or of long ago
        config = preset("strong")
    return replace(
        config,
        size=pool.size,
        model=pool.config,
        metric=pool.metric,
        views=pool.views,
        modulator=replace(config.modulator, kind=pool.kind, members=1),
        selector=replace(config.selector, standardise=pool.unit_input),
        adaptation=pool.adaptation,
    )


def check_addition(pool: Pool, pack: Pack, config: Config, selector: bool = True) -> None:
    """Refuse what cannot be added, before anything is spent on it."""
    name = pack.domain.name
    if name == "base":
        raise PolyshotError("A domain cannot be called 'base', the name of member 0: rename it.")
    if pack.size != pool.size:
        raise PolyshotError(
            f"The pool works on images of {pool.size} pixels, {name} has {pack.size}: import it "
            f"with --size {pool.size}."
        )
    if taken := pool.members_of(name):
        raise PolyshotError(
            f"The pool has the domain '{name}' already (its member{'s' * (len(taken) > 1)} "
            f"{join_names(taken)}): import the new one under another name, or remove the old one "
            "first "
            f"(polyshot pool remove)."
        )
    check_domains([*pool.modulators, name])
    check_sources([pack], config)
    if selector:
        check_statistics_there(pool)


def check_statistics_there(pool: Pool, what: str = "This pool") -> None:
    """Refuse a pool whose selector cannot learn about new members."""
    if pool.selector is not None and not pool.statistics:
        raise PolyshotError(
            f"{what} keeps no statistics of its tasks (it was made by an older Polyshot), so its "
            "selector cannot learn of new members: run its 'polyshot train' command once more, "
            "which adds them, or go without a selector (--no-selector)."
        )


def known_examples(statistics: Statistics) -> tuple[Examples, Examples]:
    """Join all that is kept, training and validation; who was never asked counts as wrong."""
    both = list(statistics.values())
    return _joined([kept.train for kept in both]), _joined([kept.val for kept in both])


def retrained_selector(
    statistics: Statistics,
    config: Config,
    record: Record,
) -> tuple[Selector, dict[str, Any]]:
    """Train a selector on statistics alone; returns it and what is known about it."""
    learned, checked = known_examples(statistics)
    selector, best = train_selector(learned, checked, config, record)
    return selector, about_selector(best, learned, checked)


class _Growth:
    """One addition; what is done lies in the folder ``work``."""

    def __init__(
        self,
        pool: Pool,
        pack: Pack,
        config: Config,
        work: Path,
        metrics: Metrics,
        report: Progress | None,
    ):
        self.old, self.pack, self.config, self.work = pool, pack, config, work
        self.metrics, self.report, self.device = metrics, report, pool.device
        self.base = on_device(copy.deepcopy(pool.base), self.device)
        self.train, self.val = (Images([pack], part, self.device) for part in ("train", "val"))
        self.validation = validation_tasks(self.val, config)[0]

    def pool(self, with_selector: bool) -> Pool:
        """Do what is missing and put the new pool together."""
        name, old = self.pack.domain.name, self.old
        modulator, about = self._modulator()
        strength = about["strength"]
        member = fold(self.base, modulator, strength) if strength else self.base
        scales = [*old.scales, self._scale(member)]
        steps = {**old.about.get("steps", {}), f"modulator:{name}": about}
        statistics, selector = {}, None
        if old.statistics:
            columns = [*range(len(old.members)), None]
            statistics = {key: kept.with_members(columns) for key, kept in old.statistics.items()}
            statistics[name] = self._statistics(
                [*map(old.network, range(len(old.members))), member], scales
            )
        if with_selector and old.selector is not None:
            selector, steps["selector"] = retrained_selector(
                statistics, self.config, self._record("selector.pt")
            )
        changes = differences(own_config(old), self.config)
        return replace(
            copy.deepcopy(old),
            modulators={**copy.deepcopy(old.modulators), name: modulator},
            strengths={**old.strengths, name: strength},
            scales=scales,
            selector=selector,
            statistics=statistics,
            about={
                **copy.deepcopy(old.about),
                "packs": {**old.about.get("packs", {}), name: self.pack.hash},
                "steps": steps,
                "added": {**old.about.get("added", {}), name: {"config": changes}},
                "edited": True,
            },
        ).to(self.device)

    def _modulator(self) -> tuple[Modulator, dict[str, Any]]:
        """Train the modulator, or read it, if that is done."""
        file = self.work / "modulator.safetensors"
        record = self._record("modulator.pt")
        ensure_modulator(file, self.base, self.train, 0, self.validation, self.config, record)
        return read_modulator(file, self.base, self.old.kind, self.device)

    def _record(self, checkpoint: str) -> Record:
        return Record(self.work / checkpoint, self.metrics, self.report)

    def _scale(self, member: ResNet) -> float:
        """Find the scale of the new member, on validation episodes of the new domain.

        The others' scales suit all sources, and a single domain may be easier than these: what is
        measured is how much larger than the base's the member's scale should be.
        """
        tasks, metric = self.validation, self.config.metric
        own, base = (
            fit_scale([network_logits(tasks, network, metric)]) for network in (member, self.base)
        )
        return self.old.scales[0] * own / base

    def _statistics(self, members: Sequence[Network], scales: Sequence[float]) -> SourceTasks:
        """Let all members answer tasks of the new domain, no more of them than are kept."""
        config = self.config
        count = min(config.selector.tasks, KEPT["train"])
        learned = selector_tasks(self.train, config, count)
        return SourceTasks(
            sample(
                "train",
                *examples(learned, members, scales, config, "embed training", self.report),
            ),
            sample(
                "val",
                *examples(
                    [self.validation], members, scales, config, "embed validation", self.report
                ),
            ),
        )


def _joined(samples: Sequence[TaskSample]) -> Examples:
    tasks, accuracy, likelihood = (
        torch.cat(tensors).float() for tensors in zip(*samples, strict=True)
    )
    return Examples(
        tasks,
        accuracy.where(~accuracy.isnan(), 0.0),
        likelihood.where(~likelihood.isnan(), -torch.inf),
    )


def _is_fixed(difference: str) -> bool:
    return difference.partition(":")[0] in FIXED
