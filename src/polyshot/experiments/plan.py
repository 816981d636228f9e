"""What a grid is asked for: refused before any work where it cannot be, else a list of trials."""

from collections.abc import Sequence
from dataclasses import replace

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError, did_you_mean, join_names, unknown
from polyshot.experiments.jobs import Wanted, methods_of
from polyshot.experiments.protocols import PARTS, Protocol, Trial
from polyshot.methods.method import Method, find_methods
from polyshot.pool.files import check_domains


def check_wanted(
    wanted: Wanted,
    seeds: int,
    sources: Sequence[Pack],
    others: Sequence[Pack],
    config: Config,
    targets: Sequence[str],
) -> None:
    """Refuse what cannot be run at all, before anything is spent on it."""
    if seeds < 1:
        raise PolyshotError(f"{seeds} seeds train nothing: ask for at least 1.")
    if min(wanted.episodes, wanted.slow_episodes) < 2:
        raise PolyshotError("An interval needs at least 2 episodes of each cell.")
    if wanted.part not in PARTS:
        raise PolyshotError(
            f"There is no part '{wanted.part}' to measure on, only {join_names(PARTS)}."
            f"{did_you_mean(wanted.part, PARTS)}"
        )
    known = list(dict.fromkeys(a for method in wanted.methods for a in method.adaptations))
    for name in wanted.only:
        if name not in known:
            raise PolyshotError(
                f"None of the methods has an adaptation '{name}', only {join_names(known, 20)}."
                f"{did_you_mean(name, known)}"
            )
    names = [pack.domain.name for pack in (*sources, *others)]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise PolyshotError(
            f"Domains must have different names, these are twice: {join_names(doubles)}."
        )
    check_domains(names)
    for name in targets:
        if name not in names:
            raise unknown("target", name, names, 20)
    for pack in others:  # sources are checked by their world
        if pack.size != config.size:
            raise PolyshotError(
                f"{pack.domain.name} has images of {pack.size} pixels, the training wants "
                f"{config.size}: import it with --size {config.size}, or leave it out."
            )


def check_methods(protocols: Sequence[Protocol], methods: Sequence[Method]) -> None:
    """Refuse a protocol that none of the methods takes part in."""
    for protocol in protocols:
        if not methods_of(protocol, methods):
            known = [method.name for method in methods_of(protocol, find_methods())]
            raise PolyshotError(
                f"'{protocol.name}' measures the base and methods over the pool, not "
                f"{join_names([method.name for method in methods])}: take some of "
                f"{join_names(known, 20)}."
            )


def wanted_trials(
    protocols: Sequence[Protocol],
    sources: Sequence[Pack],
    others: Sequence[Pack],
    targets: Sequence[str],
    part: str,
) -> list[tuple[Protocol, Trial]]:
    """List what is trained and tested, as far as it is wanted.

    Targets without classes in the part are left out; those that were named are refused.
    """
    found = []
    for protocol in protocols:
        own_part = "test" if protocol.kind == "contributions" else part
        for trial in protocol.trials(sources, others):
            chosen = _chosen(trial, targets)
            measured = tuple(pack for pack in chosen if pack.domain.split.part(own_part))
            names = [pack.domain.name for pack in chosen if pack not in measured]
            if empty := [name for name in names if name in targets]:
                raise PolyshotError(
                    f"{join_names(empty)} has no {PARTS[own_part]}: leave it out of the targets, "
                    "or "
                    "measure on another part."
                )
            if measured:
                found.append((protocol, replace(trial, targets=measured)))
    if not found:
        what = join_names([protocol.name for protocol in protocols], 20)
        raise PolyshotError(
            f"There is nothing to measure in {what} with the targets asked for, on {PARTS[part]}."
        )
    return found


def _chosen(trial: Trial, names: Sequence[str]) -> tuple[Pack, ...]:
    """Return the targets of a trial that were asked for: all of them where no names are given."""
    if not names:
        return trial.targets
    if trial.left_out is not None:
        return trial.targets if trial.left_out.domain.name in names else ()
    return tuple(pack for pack in trial.targets if pack.domain.name in names)
