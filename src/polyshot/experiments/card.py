"""A pool for others: its sizes, and its card.

The card says what a pool was made of, how well it does, where it fails, how to remake it.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from polyshot.config import from_dict, preset, to_dict
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import group, label
from polyshot.evaluation.results import Result
from polyshot.experiments.report.tables import classes_in_words, method_order, shape_in_words
from polyshot.models.backbone import parameter_count
from polyshot.models.views import VIEWS
from polyshot.pool.pool import Pool
from polyshot.util import __version__


@cache
def _facts() -> dict[str, Any]:
    """Read ``card.json``: what is known of research data, licences and limits."""
    text = resources.files("polyshot.experiments").joinpath("card.json").read_text("utf-8")
    return dict(json.loads(text))


def card(pool: Pool, results: Sequence[Result] = (), packs: Sequence[Pack] = ()) -> str:
    """Write the card as Markdown.

    Args:
        pool: what the card is about.
        results: measured accuracies, of this pool or of others by the same recipe.
        packs: the sources, for the table of the data; those that the pool does not know by their
            hash are left out.

    """
    if not {"config", "packs"} <= set(pool.about):
        raise PolyshotError("The pool does not say how it was trained: it can have no card.")
    by_hash = {pack.hash: pack for pack in packs}
    sources = {name: by_hash.get(found) for name, found in pool.about["packs"].items()}
    return "\n\n".join(
        [
            "# Model card",
            _what(pool),
            f"## Data\n\n{_data(sources)}",
            f"## Licence of the data\n\n{_licence(sources)}",
            f"## Recipe\n\n{_recipe(pool)}",
            f"## Accuracy\n\n{accuracy_section(pool, results)}",
            f"## Limits\n\n{_facts()['limits'].format(size=pool.size)}",
            f"## Remake it\n\n```console\n{_remake(pool)}\n```\n",
        ]
    )


def _what(pool: Pool) -> str:
    count = parameter_count(pool.base, *pool.modulators.values())
    off = [name for name, strength in pool.strengths.items() if not strength]
    without = f" Of these, {', '.join(off)} equal the base (strength 0)." if off else ""
    return (
        f"A pool of {len(pool.members)} members over one ResNet-18 of width {pool.config.width}: "
        f"the base and a `{pool.kind}` modulator for each of {len(pool.modulators)} source "
        f"domains, {count:,} parameters in all.{without} It classifies images of any kind from a "
        f"few examples of each class. Hash `{pool.hash[:12]}`, written by Polyshot {__version__}."
    )


def _data(sources: Mapping[str, Pack | None]) -> str:
    lines = ["| source | what it is | classes | images | hash of its pack |", "|---" * 5 + "|"]
    for name, pack in sources.items():
        if pack is None:
            lines.append(f"| {name} | | | | |")
            continue
        research = _facts()["research_data"]
        about = research[name] if _is_research(pack) else str(pack.source["origin"])
        domain = pack.domain
        lines.append(
            f"| {name} | {about} | {len(domain.split.train)} of {len(domain.class_names)} | "
            f"{len(domain.labels):,} | `{pack.hash[:12]}` |"
        )
    return "\n".join(
        [
            "Trained on the training classes of these sources (the numbers are training classes "
            "of all); validation classes chose settings, test classes were only measured on.",
            "",
            *lines,
        ]
    )


def _licence(sources: Mapping[str, Pack | None]) -> str:
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, pack in sources.items():
        drawn = pack is not None and pack.source["reader"] == "toy"
        research = pack is not None and _is_research(pack)
        kinds["drawn" if drawn else "research" if research else "others"].append(name)
    texts = _facts()["licences"]
    return "\n\n".join(texts[kind].format(names=", ".join(names)) for kind, names in kinds.items())


def _is_research(pack: Pack) -> bool:
    """Whether a pack was made of one of the known files."""
    name = pack.domain.name
    return name in _facts()["research_data"] and pack.source["origin"] == f"{name}.parquet"


def _recipe(pool: Pool) -> str:
    plain = pool.about["config"]
    steps = pool.about.get("steps", {})
    reached = [
        f"- {step}: {100 * about['validation']:.1f} % on validation classes"
        for step, about in steps.items()
        if isinstance(about, dict) and about.get("validation") is not None
    ]
    return "\n".join(
        [
            f"Preset `{plain['preset']}`, seed {plain['seed']}, images of {pool.size} pixels, "
            f"{pool.metric} metric. Step 1 trains the base on all sources, step 2 a modulator for "
            "each with the base frozen, step 3 the selector." + _looks(pool),
            "",
            *reached,
        ]
    ).rstrip()


def _looks(pool: Pool) -> str:
    """Say how often it looks at an image, where that is not once."""
    if pool.views == "one":
        return ""
    trained = pool.about["config"].get("views", "one") == pool.views
    return f" It looks at an image {len(VIEWS[pool.views])} times (`views={pool.views}`)" + (
        "." if trained else ", which was set after the training."
    )


def accuracy_section(pool: Pool, results: Sequence[Result]) -> str:
    """Write what was measured, of this pool or of others by the same recipe."""
    if not results:
        return "No results were given."
    parts = []
    results = sorted(results, key=lambda r: (-r.shot, *method_order(label(r))))
    shapes = {(r.part, r.way, r.shot): None for r in results}
    for shape, seen in [(shape, seen) for shape in shapes for seen in (True, False)]:
        part = shape[0]
        chosen = [r for r in results if (r.part, r.way, r.shot, bool(r.seen)) == (*shape, seen)]
        if chosen:
            kind = "seen domains (new classes)" if seen else "unseen domains"
            kind = ", ".join(filter(None, (kind, classes_in_words(part))))
            episodes = sorted({r.episodes for r in chosen})
            counts = " or ".join(map(str, episodes))
            parts.append(
                f"### {shape_in_words(chosen)}, {kind}\n\n"
                f"Percent right over {counts} tasks a "
                f"domain, with the 95 % interval over tasks.{_several(chosen)}"
                f"{_left_out(pool, chosen)}\n\n"
                f"{_table(chosen)}"
            )
    own_hash = pool.hash  # of all weights: not once for each result
    own = [r for r in results if r.pool == own_hash or _is_like_it(pool, r)]
    others = len({r.pool for r in results} - {r.pool for r in own})
    parts.append(
        f"{len(own)} of {len(results)} results are of this pool, or of a training by its recipe, "
        "seed and sources"
        + (f", the others of {others} trainings with other seeds or sources." if others else ".")
    )
    return "\n\n".join(parts)


def _is_like_it(pool: Pool, result: Result) -> bool:
    """Whether a result is of a training like the pool's own, by recipe, seed and sources."""
    config = pool.about["config"]
    trained = (config["preset"], config["seed"], list(pool.about["packs"]))
    return trained == (result.preset, result.train_seed, result.sources)


def _several(results: Sequence[Result]) -> str:
    """Say what a cell shows that several pools were measured for."""
    counts = set(Counter((r.target, label(r)) for r in results).values()) - {1}
    if not counts:
        return ""
    pools = " or ".join(map(str, sorted(counts)))
    meaning = "their mean, and in brackets the lowest and the highest"
    return f" Where {pools} pools were measured: {meaning}."


def _left_out(pool: Pool, results: Sequence[Result]) -> str:
    """Say which of the unseen domains this pool has seen."""
    names = {r.target for r in results if not r.seen and r.target in pool.about["packs"]}
    if not names:
        return ""
    return f" By trainings without {', '.join(sorted(names))}, each left out in turn."


def _table(results: Sequence[Result]) -> str:
    """Make the table of targets by methods, with averages of methods measured on all."""
    methods = list(dict.fromkeys(map(label, results)))
    cells = {target: group(own, label) for target, own in group(results, _target).items()}
    lines = ["| domain | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for target, row in cells.items():
        texts = [_cell(row.get(method, [])) for method in methods]
        lines.append(f"| {target} | " + " | ".join(texts) + " |")
    if len(cells) > 1:
        averages = []
        for method in methods:
            rows = [row[method] for row in cells.values() if method in row]
            mean = fmean(fmean(r.mean for r in found) for found in rows)
            averages.append(f"{100 * mean:.1f}" if len(rows) == len(cells) else "")
        lines.append("| **average** | " + " | ".join(averages) + " |")
    return "\n".join(lines)


def _target(result: Result) -> str:
    return result.target


def _cell(found: Sequence[Result]) -> str:
    """Average pools of several seeds, and show how far they lie apart."""
    if not found:
        return ""
    means = [100 * r.mean for r in found]
    text = f"{fmean(means):.1f} ±{100 * fmean(r.half_width for r in found):.1f}"
    return f"{text} ({min(means):.1f} to {max(means):.1f})" if len(found) > 1 else text


def _remake(pool: Pool) -> str:
    plain, sources = pool.about["config"], ",".join(pool.about["packs"])
    words = ["polyshot", "train", "PACKS", "--sources", sources, "--preset", plain["preset"]]
    words += ["--seed", str(plain["seed"]), "--out", "run"]
    for option in _changed(plain):
        words += ["--set", option]
    views = "" if plain.get("views", "one") == pool.views else f" --views {pool.views}"
    return f"{shlex.join(words)}\npython tools/ship_pool.py run/pool SHIPPED{views}"


def _changed(plain: Mapping[str, Any]) -> list[str]:
    """List what differs from the preset, as options of `train`."""
    usual = to_dict(preset(plain["preset"])) | {"seed": plain["seed"]}

    def walk(value: Any, other: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            return [line for key in value for line in walk(value[key], other[key], f"{path}{key}.")]
        shown = value if isinstance(value, str) else json.dumps(value)
        return [] if value == other else [f"{path[:-1]}={shown}"]

    return walk(to_dict(from_dict(plain)), usual, "")


# --- sizes


def pool_sizes(pool: Pool) -> list[tuple[str, int, str, str, str]]:
    """List a pool's members with parameters, strength, scale, and accuracy by validation."""
    steps = pool.about.get("steps", {})
    rows = []
    for i, member in enumerate(pool.members):
        module = pool.modulators[member] if i else pool.base
        strength = f"{pool.strengths[member]:g}" if i else ""
        reached = steps.get(f"modulator:{member}" if i else "base", {}).get("validation")
        validation = "" if reached is None else f"{100 * reached:.1f}"
        rows.append(
            (member, parameter_count(module), strength, f"{pool.scales[i]:.3g}", validation)
        )
    if pool.selector is not None:
        rows.append(("(selector)", parameter_count(pool.selector), "", "", ""))
    return rows


# --- shipping in fewer bits
