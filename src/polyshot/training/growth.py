"""A pool grows: one modulator for a new domain, the rest frozen, and a selector that knows of it.

The images of the old sources are not needed. The pool keeps a sample of their tasks
(`polyshot.pool.statistics`); the selector is trained anew on these and on the new domain's. How the
new member would do on old tasks is not known: there it counts as wrong, so nothing is forgotten.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polyshot.config import Config, differences, from_dict, override, preset
from polyshot.data.augment import STRONG
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.errors import PolyshotError, join_names
from polyshot.models.foreign import ForeignConfig
from polyshot.models.modulators import Modulator, fold
from polyshot.pool.files import check_domains
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import KEPT, Statistics, TaskSample
from polyshot.training.folder import check_sources
from polyshot.training.modulators import ModulatorStep, read_modulator
from polyshot.training.selector import Examples, Members, SelectorStep, network_scale, statistics_of
from polyshot.training.step import Metrics, Record
from polyshot.training.validation import selector_tasks, validation_tasks
from polyshot.util.device import on_device
from polyshot.util.progress import Progress
from polyshot.util.scratch import scratch_folder

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
    """Return a pool with one more member; the given one stays as it is (see `Pool.add_domain`).

    It works on the device of the pool's weights. The folder `work` keeps checkpoints, for this
    pool, pack and options alone. With `selector`, the old pool must have statistics.
    """
    config = growth_config(pool, options)
    check_addition(pool, pack, config, selector)
    name, device = pack.domain.name, pool.device
    with ExitStack() as stack:
        work = work or stack.enter_context(scratch_folder())
        metrics = stack.enter_context(closing(Metrics(work / "metrics.jsonl")))
        base = on_device(copy.deepcopy(pool.base), device)
        train, val = (Images([pack], part, device) for part in ("train", "val"))
        validation = validation_tasks(val, config)
        file = work / "modulator.safetensors"
        if not file.exists():
            record = Record(work / "modulator.pt", metrics, report)
            step = ModulatorStep(base, train, 0, validation[0], config)
            about = step.train(record)
            record.finish(file, step.modulator().state_dict(), about)
        modulator, known = read_modulator(file, base, pool.kind, device)
        strength = known["strength"]
        member = fold(base, modulator, strength) if strength else base
        # The others' scales suit all sources, and a single domain may be easier than these: what is
        # measured is how much larger than the base's the member's scale should be.
        own, plain = (network_scale(validation, each, config.metric) for each in (member, base))
        scales = [*pool.scales, pool.scales[0] * own / plain]
        everyone, old = range(len(pool.members)), pool.statistics.items()
        statistics = {source: kept.with_members([*everyone, None]) for source, kept in old}
        if statistics or not pool.modulators:  # the first domain has nothing before it
            members = Members([*map(pool.network, everyone), member], scales, config, report)
            # No more tasks of the new domain than are kept.
            tasks = selector_tasks(train, config, min(config.selector.tasks, KEPT["train"]))
            learned = members.examples(tasks, "embed training")
            checked = members.examples(validation, "embed validation")
            statistics |= statistics_of(learned, [name], checked, [name])
        about = {
            "packs": {name: pack.hash},
            "steps": {f"modulator:{name}": known},
            "added": {name: {"config": differences(own_config(pool), config)}},
        }
        return extended(
            pool,
            {name: (modulator, strength, scales[-1])},
            statistics,
            joined_about(pool.about, about),
            config,
            Record(work / "selector.pt", metrics, report) if selector else None,
        )


def growth_config(pool: Pool, options: Sequence[str] = ()) -> Config:
    """Return how a new member of the pool is trained: as its others were, but longer and harder."""
    config = own_config(pool)
    modulator = config.modulator
    longer = replace(
        modulator,
        steps=round(LONGER * modulator.steps),
        augment=STRONG,
        # At full strength a modulator of a new domain is best.
        strengths=tuple(sorted({*modulator.strengths, 1.0})),
    )
    start = replace(config, modulator=longer)
    chosen = override(start, options)
    found = differences(start, chosen)
    fixed = tuple(f"{name}:" for name in FIXED)
    if idle := [x for x in found if not x.startswith(CHANGEABLE) or x.startswith(fixed)]:
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
    if isinstance(pool.config, ForeignConfig):
        config = replace(config, backbone=pool.config.name, sites=pool.config.sites)
    else:
        config = replace(config, model=pool.config)
    return replace(
        config,
        size=pool.size,
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
    pool.check_pack(pack)
    if taken := pool.members_of(name):
        raise PolyshotError(
            f"The pool has the domain '{name}' already (its member{'s' * (len(taken) > 1)} "
            f"{join_names(taken)}): import the new one under another name, or remove the old one "
            "first (polyshot pool remove)."
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
    train, val = zip(*statistics.values(), strict=True)
    return _joined(train), _joined(val)


def extended(
    old: Pool,
    fresh: Mapping[str, tuple[Modulator, float, float]],
    statistics: Statistics,
    about: dict[str, Any],
    config: Config,
    record: Record | None,
) -> Pool:
    """Return a copy of a pool with more members; its selector is trained anew where it has one.

    The first member brings one along.

    `fresh` has the modulator, strength and scale of each, `about` the packs, steps and additions of
    the new pool. Without a `record` it goes without a selector.
    """
    new, selector = copy.deepcopy(old), None
    if record is not None and statistics and (old.selector is not None or not old.modulators):
        step = SelectorStep(*known_examples(statistics), config)
        about["steps"]["selector"], selector = step.train(record), step.module
    return replace(
        new,
        modulators=new.modulators | {name: own for name, (own, _, _) in fresh.items()},
        strengths=old.strengths | {name: strength for name, (_, strength, _) in fresh.items()},
        scales=[*old.scales, *(scale for _, _, scale in fresh.values())],
        selector=selector,
        statistics=dict(statistics),
        about={**new.about, **about, "edited": True},
    ).to(old.device)


def joined_about(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Join what two pools tell of packs, steps and additions; what both know is the second's."""
    keys = ("packs", "steps", "added")
    return {key: {**first.get(key, {}), **then.get(key, {})} for key in keys}


def _joined(samples: Sequence[TaskSample]) -> Examples:
    tasks, accuracy, likelihood = (
        torch.cat(tensors).float() for tensors in zip(*samples, strict=True)
    )
    likelihood = likelihood.where(~likelihood.isnan(), -torch.inf)
    return Examples(tasks, accuracy.where(~accuracy.isnan(), 0.0), likelihood)
