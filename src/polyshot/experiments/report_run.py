"""What was run: facts of the environment, seeds, data, commands, failures."""

from collections.abc import Iterable
from typing import Any

from polyshot.errors import join_names
from polyshot.experiments.grid_reader import Grid
from polyshot.experiments.report_plain import PlainTable

SHOWN = 16
"""Digits of a hash: enough to tell packs apart."""
FACTS = ("code", "polyshot", "torch", "python", "platform", "device")


def run_facts(grid: Grid) -> dict[str, str]:
    """Collect the short facts for the top of the page."""
    results = grid.results
    devices = sorted({r.device for r in results if r.device})
    facts = {
        "results": f"{len(results):,}",
        "methods": str(len({r.method for r in results})),
        "targets": str(len({r.target for r in results})),
        "presets": _joined(sorted({r.preset for r in results})),
        "training seeds": _joined(
            sorted({r.train_seed for r in results if r.train_seed is not None})
        ),
        "failures": str(len(grid.failures)),
        "device": _joined(devices),
    }
    for name in FACTS:
        value = grid.environment.get(name)
        if isinstance(value, str) and value:
            facts[name] = value
    return {name: value for name, value in facts.items() if value}


def seeds_and_packs(grid: Grid) -> list[PlainTable]:
    """List each target's data and episodes."""
    noted = grid.environment.get("packs")
    hashes: dict[str, Any] = dict(noted) if isinstance(noted, dict) else {}
    rows = []
    measured = {(r.target, r.part) for r in grid.results}
    noted_only = {(name, "") for name in set(hashes) - {target for target, _ in measured}}
    for target, part in sorted(measured | noted_only):
        own = [r for r in grid.results if (r.target, r.part) == (target, part)]
        used = sorted({r.pack for r in own if r.pack})
        shown = [pack[:SHOWN] for pack in used]
        noted_hash = str(hashes.get(target, ""))
        if noted_hash and noted_hash not in used:
            shown.append(f"{noted_hash[:SHOWN]} (noted, but not what was measured)")
        rows.append(
            (
                target,
                _joined(shown),
                part,
                _joined(sorted({r.seed for r in own})),
                _joined(sorted({r.episodes for r in own})),
                "yes" if any(r.group_disjoint for r in own) else "no",
            )
        )
    head = ("target", "data hash", "classes", "episode seed", "episodes", "groups kept apart")
    return [PlainTable("Data and episodes", head, rows, words=True)]


def run_lists(grid: Grid) -> dict[str, list[str]]:
    """Collect commands, failures and code versions, each under its heading."""
    commands = grid.environment.get("commands")
    lists = {
        "Commands": [str(line) for line in commands] if isinstance(commands, list) else [],
        "Failures": [_failure(f.what, f.error, f.when) for f in grid.failures],
        "Code": [f"results of Polyshot {_joined(sorted({r.version for r in grid.results}))}"],
    }
    return {heading: lines for heading, lines in lists.items() if lines}


def _failure(what: str, error: str, when: str) -> str:
    return f"{what}: {' '.join(error.split())}" + (f" ({when})" if when else "")


def _joined(values: Iterable[object]) -> str:
    return join_names((str(value) for value in values if value != ""), 20)
