"""A pool for others: its sizes, and its card.

The card says what a pool was made of, how well it does, where it fails, how to remake it.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyshot.config import Config, changes, from_dict, on_backbone, preset, to_dict
from polyshot.data.pack import Pack, open_packs
from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import accuracy, group, label
from polyshot.evaluation.results import Result, read_results
from polyshot.evaluation.stats import Estimate, combined
from polyshot.experiments.protocols import shipped
from polyshot.experiments.report.pages import render
from polyshot.experiments.report.tables import classes_in_words, method_order, shape_in_words
from polyshot.models.backbone import parameter_count
from polyshot.models.resnet import OURS
from polyshot.models.views import VIEWS
from polyshot.pool.default import CARD
from polyshot.pool.pool import Pool
from polyshot.training.edit import listing
from polyshot.util import __version__


def _research_data() -> dict[str, str]:
    """Say what the public datasets are that Polyshot's pools are trained on."""
    return dict(shipped("card.json")["research_data"])


def card(pool: Pool, results: Sequence[Result] = (), packs: Sequence[Pack] = ()) -> str:
    """Write the card as Markdown, with results of this pool or of others by the same recipe.

    `packs` are the sources, for the table of the data; those that the pool does not know by their
    hash are left out.
    """
    if not {"config", "packs"} <= set(pool.about):
        raise PolyshotError("The pool does not say how it was trained: it can have no card.")
    by_hash = {pack.hash: pack for pack in packs}
    sources = {name: by_hash.get(found) for name, found in pool.about["packs"].items()}
    kinds: dict[str, list[str]] = {}
    for name, pack in sources.items():
        kinds.setdefault(_kind(pack), []).append(name)
    return render(
        "card.md",
        pool=pool,
        parameters=parameter_count(pool.base, *pool.modulators.values()),
        off=[name for name, strength in pool.strengths.items() if not strength],
        version=__version__,
        sources=sources,
        kinds=kinds,
        research={name: _research_data()[name] for name in kinds.get("research", ())},
        views=VIEWS,
        recipe=to_dict(from_dict(pool.about["config"])),
        remake=_remake(pool),
        **_accuracies(pool, results),
    )


def card_of(folder: Path, results: Sequence[Path], packs: Path | None) -> str:
    """Return the card that lies with a pool, or write one, with what files and packs tell."""
    measured = [result for file in results for result in read_results(file)]
    opened = open_packs(packs) if packs else []
    if (folder / CARD).is_file() and not (measured or opened):
        return (folder / CARD).read_text(encoding="utf-8")
    return card(Pool.load(folder), measured, opened)


def _kind(pack: Pack | None) -> str:
    """Tell whether a pack was drawn by Polyshot, or made of one of the known files."""
    if pack is not None and pack.source.get("reader") == "toy":
        return "drawn"
    name = "" if pack is None else pack.domain.name
    known = pack is not None and pack.source.get("origin") == f"{name}.parquet"
    return "research" if known and name in _research_data() else "others"


def accuracy_section(pool: Pool, results: Sequence[Result]) -> str:
    """Write what was measured, of this pool or of others by the same recipe."""
    return render("card_accuracy.md", **_accuracies(pool, results)).rstrip("\n")


def _accuracies(pool: Pool, results: Sequence[Result]) -> dict[str, Any]:
    ordered = sorted(results, key=lambda r: (-r.shot, *method_order(label(r))))
    shapes = dict.fromkeys((r.part, r.way, r.shot) for r in ordered)
    found = group(ordered, lambda r: (r.part, r.way, r.shot, bool(r.seen)))
    blocks = [(*shape, seen) for shape in shapes for seen in (True, False)]
    pool_hash = pool.hash  # of all weights: not once for each result
    config = from_dict(pool.about["config"])
    trained = (config.preset, config.seed, list(pool.about["packs"]))
    own = [
        r for r in ordered if r.pool == pool_hash or (r.preset, r.train_seed, r.sources) == trained
    ]
    return {
        "accuracies": [_block(pool, found[key]) for key in blocks if key in found],
        "own": len(own),
        "count": len(results),
        "others": len({r.pool for r in results} - {r.pool for r in own}),
    }


def _block(pool: Pool, results: Sequence[Result]) -> dict[str, Any]:
    """Sort results of one shape, on seen or on unseen domains, into a table."""
    methods = list(dict.fromkeys(map(label, results)))
    targets = group(results, lambda r: r.target)
    cells = {target: group(own, label) for target, own in targets.items()}
    everywhere = [method for method in methods if all(method in row for row in cells.values())]
    estimates = {
        target: {method: _estimate(found) for method, found in row.items()}
        for target, row in cells.items()
    }
    unseen = {r.target for r in results if not r.seen}
    return {
        "shape": shape_in_words(results),
        "seen": bool(results[0].seen),
        "classes": classes_in_words(results[0].part),
        "episodes": sorted({r.episodes for r in results}),
        # How many pools a cell may show, and which of the unseen domains this pool has seen.
        "several": sorted({len(own) for row in cells.values() for own in row.values()} - {1}),
        "left_out": sorted(unseen & set(pool.about["packs"])),
        "methods": methods,
        "cells": estimates,
        "means": {m: combined([row[m] for row in estimates.values()]) for m in everywhere},
    }


def _estimate(results: Sequence[Result]) -> Estimate:
    """Average the pools that were measured on a target."""
    return accuracy({(r.pool, r.train_seed): r for r in results})


def _remake(pool: Pool) -> str:
    config, sources = from_dict(pool.about["config"]), ",".join(pool.about["packs"])
    words = ["polyshot", "train", "PACKS", "--sources", sources, "--preset", config.preset]
    words += ["--seed", str(config.seed), "--out", "run"]
    for option in _changed(config):
        words += ["--set", option]
    views = "" if config.views == pool.views else f" --views {pool.views}"
    return f"{shlex.join(words)}\npython tools/ship_pool.py run/pool SHIPPED{views}"


def _changed(config: Config) -> list[str]:
    """List what differs from the preset, as options of `train`."""
    # What a backbone brings along need not be said.
    usual = to_dict(on_backbone(preset(config.preset), config.backbone))
    usual |= {"seed": config.seed, "backbone": OURS}
    return [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value, _ in changes(to_dict(config), usual)
    ]


# --- sizes


def pool_sizes(pool: Pool) -> list[tuple[str, int, str, str, str]]:
    """List a pool's members with parameters, strength, scale, and accuracy by validation."""
    rows = []
    for i, (member, strength, scale, validation, *_) in enumerate(listing(pool)):
        module = pool.modulators[member] if i else pool.base
        rows.append((member, parameter_count(module), strength, scale, validation))
    if pool.selector is not None:
        rows.append(("(selector)", parameter_count(pool.selector), "", "", ""))
    return rows
