"""Pools made from pools: with one more domain, without one, or two over one base as one.

Members are moved as they are: whoever is in both the old and the new pool predicts the same bits.
"""

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyshot.config import for_hash, to_dict
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError, did_you_mean, join_names
from polyshot.models.selector import Selector
from polyshot.pool.files import check_destination
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import SourceTasks
from polyshot.training.folder import training_data
from polyshot.training.growth import (
    check_addition,
    check_statistics_there,
    extended,
    growth_config,
    joined_about,
    own_config,
)
from polyshot.training.plan import plan_addition
from polyshot.training.step import Metrics, Record
from polyshot.util.device import best_device
from polyshot.util.files import digest, locked_if_free
from polyshot.util.progress import Progress
from polyshot.util.scratch import scratch_folder


def grow(
    folder: Path,
    pack: Pack,
    out: Path | None = None,
    options: Sequence[str] = (),
    selector: bool = True,
    device: str | None = None,
    report: Progress | None = None,
    part: str = "auto",
    tell: Callable[[str], None] | None = None,
) -> Pool:
    """Add a domain to a pool on disk, in place or as a new folder; see `Pool.add_domain`.

    Small domains, and CPUs, have a smaller training (`training.plan`, which explains `part`);
    `tell` is told what it takes before it begins. Until it is done, the pool stays as it was.
    Checkpoints lie in a hidden folder beside it: called again after an interruption, the same
    addition goes on.
    """
    pool, place = Pool.load(folder, best_device(device)), (out or folder).absolute()
    check_destination(place)
    plan = plan_addition(pool, pack, options, part, timed=tell is not None)
    pack, config = plan.pack, growth_config(pool, plan.options)
    check_addition(pool, pack, config, selector)
    work = place.with_name(f".{place.name}.adding")
    key = digest(pool.hash, json.dumps(for_hash(to_dict(config))), json.dumps(training_data(pack)))
    with locked_if_free(work / "lock") as free:
        if not free:
            raise PolyshotError(f"Another process is adding a domain to {place}: wait for it.")
        if tell is not None:
            for remark in plan.remarks:
                tell(remark)
        grown = pool.add_domain(pack, plan.options, work / key[:12], selector, report)
        grown.save(place)
        shutil.rmtree(work)
    return grown


def remove(pool: Pool, domain: str) -> Pool:
    """Return a pool without a domain: its members, what is kept of its tasks, its description.

    The selector is not trained again: it only loses these choices. A domain that the base was
    trained on stays among the pool's packs, because the base has seen it.
    """
    gone = pool.members_of(domain)
    if not gone:
        known = list(pool.modulators)
        reason = "is the base itself" if domain == "base" else "is no domain of this pool"
        raise PolyshotError(
            f"'{domain}' {reason}, only {join_names(known) or 'none'} can be removed."
            f"{did_you_mean(domain, known)}"
        )
    if len(gone) == len(pool.modulators):
        raise PolyshotError(
            f"'{domain}' is the pool's last domain: without it there is no pool, only its base."
        )
    kept = [i for i, name in enumerate(pool.members) if name not in gone]
    # A source of which another cluster's member stays is still a source.
    lost = {domain, *(name.rpartition("/")[0] for name in gone)} - {""}
    lost = {name for name in lost if set(pool.members_of(name)) <= set(gone)}
    new = copy.deepcopy(pool)
    return replace(
        new,
        modulators={name: new.modulators[name] for name in new.modulators if name not in gone},
        strengths={name: new.strengths[name] for name in new.strengths if name not in gone},
        scales=[pool.scales[i] for i in kept],
        selector=None if pool.selector is None else _with_outputs(pool.selector, kept),
        statistics={
            source: tasks.with_members(kept)
            for source, tasks in pool.statistics.items()
            if source not in lost
        },
        about=_about_without(new.about, gone, lost, kept),
    )


def merge(one: Pool, other: Pool, selector: bool = True, report: Progress | None = None) -> Pool:
    """Join two pools over one base; a domain in both must be the same in both.

    The selector is trained anew on what both pools keep of their tasks (`selector=False` goes
    without one). The base's scale and the settings of adaptation are the first pool's.
    """
    _check_mergeable(one, other)
    if selector and (one.selector is None) != (other.selector is None):
        raise PolyshotError(
            "Only one of the two pools has a selector: train the other's, or go without one "
            "(--no-selector)."
        )
    if selector:
        check_statistics_there(one, "The first pool")
        check_statistics_there(other, "The second pool")
    other = copy.deepcopy(other).to(one.device)
    fresh = {
        name: (modulator, other.strengths[name], other.scales[1 + i])
        for i, (name, modulator) in enumerate(other.modulators.items())
        if name not in one.modulators
    }
    with scratch_folder() as folder:
        record = Record(folder / "selector.pt", Metrics(None), report)
        return extended(
            one,
            fresh,
            _joint_statistics(one, other, [*one.members, *fresh]),
            joined_about(other.about, one.about),
            own_config(one),
            record if selector else None,
        )


def listing(pool: Pool) -> list[tuple[str, str, str, str, str, str, str]]:
    """List the members: name, strength, scale, validation, gain, how they came in, hash."""
    steps, added = pool.about.get("steps", {}), pool.about.get("added", {})
    rows = []
    for i, (name, hashed) in enumerate(zip(pool.members, pool.member_hashes(), strict=True)):
        known = steps.get(f"modulator:{name}" if i else "base", {})
        validation, gain = (known.get(what) for what in ("validation", "gain"))
        rows.append(
            (
                name,
                f"{pool.strengths[name]:g}" if i else "",
                f"{pool.scales[i]:.3g}",
                "" if validation is None else f"{100 * validation:.1f}",
                "" if gain is None else f"{100 * gain:+.1f}",
                "added" if i and name in added else "trained",
                hashed[:12],
            )
        )
    return rows


def _check_mergeable(one: Pool, other: Pool) -> None:
    for what in ("kind", "metric", "size", "unit_input", "views"):
        values = getattr(one, what), getattr(other, what)
        if values[0] != values[1]:
            raise PolyshotError(
                f"The pools differ in '{what}', {values[0]} and {values[1]}: they cannot be merged."
            )
    pools = (one, other)
    own, new = (dict(zip(pool.members, pool.member_hashes(), strict=True)) for pool in pools)
    if own["base"] != new["base"]:
        raise PolyshotError(
            f"The pools have different bases, {own['base'][:12]} and {new['base'][:12]}: only "
            "pools over one base can be merged."
        )
    if clash := [name for name in own if name in new and own[name] != new[name]]:
        raise PolyshotError(
            f"Both pools have {join_names(clash)}, trained differently: remove one of the two "
            "first (polyshot pool remove)."
        )


def _joint_statistics(one: Pool, other: Pool, members: Sequence[str]) -> dict[str, SourceTasks]:
    """Join what two pools keep; a source in both is the first pool's."""
    if not one.statistics or not other.statistics:
        return {}
    joint = {}
    for pool in (other, one):
        columns = [pool.members.index(name) if name in pool.members else None for name in members]
        for source, tasks in pool.statistics.items():
            joint[source] = tasks.with_members(columns)
    return joint


def _with_outputs(selector: Selector, kept: list[int]) -> Selector:
    """Return a selector among some of its members; how it ranks these stays as it is."""
    hidden, inputs = selector.hidden.weight.shape
    new = Selector(inputs, len(kept), hidden, selector.dropout.p).to(selector.mean.device)
    state = dict(selector.state_dict())
    state |= {f"output.{name}": state[f"output.{name}"][kept] for name in ("weight", "bias")}
    new.load_state_dict(state)
    return new


def _about_without(
    about: dict[str, Any], gone: Sequence[str], lost: set[str], kept: Sequence[int]
) -> dict[str, Any]:
    added = about.get("added", {})
    unsaid = {f"modulator:{name}" for name in gone}
    steps = {name: step for name, step in about.get("steps", {}).items() if name not in unsaid}
    if "labels" in steps.get("selector", {}):
        labels = steps["selector"]["labels"]
        steps["selector"] = {**steps["selector"], "labels": [labels[i] for i in kept]}
    packs = about.get("packs", {})
    return {
        **about,
        "packs": {name: packs[name] for name in packs if name not in lost or name not in added},
        "steps": steps,
        "added": {name: added[name] for name in added if name not in gone},
        "edited": True,
    }
