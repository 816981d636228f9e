"""Try rules, and ways to learn on support sets, on validation classes: defaults are chosen so.

    python tools/choose_adaptation.py GRID PACKS OUT.jsonl --leave gtsrb,cars,plankton

Takes the worlds of a grid as `polyshot reproduce seen unseen` trains them (what is missing is
trained): the one of all sources, tested on their validation classes, and those without one source,
tested on the validation classes of that; domains that are to be reported later are neither left out
nor tried, but others are (``--sources cars,gtsrb --others actions,flowers``). Writes one result a
cell (for `tools/file_results.py GRID choices`) and prints means over the domains with paired
differences from base + prototypes, and how many tasks are familiar (`predict.familiar`); then the
settings of `tsa` that gain most, seen and left-out domains counting alike, with a learning rate for
familiar tasks by the seen ones and one for the others by those left out, and whether it should
learn from single images too.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from grid_worlds import choice_row, grid_parser, sources_of, without, words, world_of
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.meter import answer
from polyshot.evaluation.results import Result, append_results
from polyshot.evaluation.stats import Estimate, combined, estimate
from polyshot.evaluation.targets import Target
from polyshot.experiments.protocols import settings_of
from polyshot.methods.method import find_methods
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.predict.familiar import familiar
from polyshot.predict.rules import RULES
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun
from polyshot.training.validation import hits

SHAPES = (EpisodeShape(5, 5, 10), EpisodeShape(5, 1, 10))
SHARES = (1.0, 0.7, 0.5, 0.3)
"""Of what was learned in the answer; the rest is the rule's own answer without learning."""
SHARE, FAMILIAR, LOSS = "share", "familiar", "loss"
SHARPNESS = [k / 10 for k in range(3, 13)]
"""Factors on the logarithms of what comes out of `tsa`."""
Cells = dict[str, list[float]]
"""Accuracy of each episode, by what was tried; which are familiar; and loss at each sharpness."""


def main() -> None:
    """Run the tool."""
    parser = grid_parser(__doc__)
    parser.add_argument("--sources", default="", help="a,b,c; all with training classes by default")
    parser.add_argument("--leave", default="", help="sources to leave out, each in turn: a,b,c")
    parser.add_argument("--others", default="", help="domains that no world is trained on: a,b,c")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--learned", type=int, default=100, help="episodes where tsa learns")
    parser.add_argument("--rates", default="0.05,0.1,0.2,0.5")
    parser.add_argument("--starts", default="rule,base")
    parser.add_argument("--turns", default="0,1", help="0 the whole image, 1 crops in turn")
    parser.add_argument("--apart", default="1", help="1 images learn from others, 0 from all")
    parser.add_argument("--brief", action="store_true", help="no rival, no single images")
    parser.add_argument("--updates", default="40")
    parser.add_argument("--rules", default="auto")
    given = parser.parse_args()
    sources = sources_of(given.packs, given.sources)
    left = [(others, (pack,)) for pack, others in without(sources, given.leave)]
    others = tuple(open_packs(given.packs, words(given.others))) if given.others else ()
    worlds = [(tuple(sources), (*others, *sources)), *left]
    every: dict[tuple[bool, str], Cells] = {}
    for trained, targets in worlds:
        world = world_of(given, trained)
        for target in targets:
            start = time.perf_counter()
            cells = tried(world, target, given)
            seen = target in trained
            every[seen, target.domain.name] = cells
            append_results(given.out, rows(cells, world, target, seen))
            took = time.perf_counter() - start
            share = sum(cells[FAMILIAR]) / len(cells[FAMILIAR])
            print(f"{target.domain.name}: {share:.0%} familiar, {took:.1f} s", flush=True)
    parts = [[c for (s, _), c in every.items() if s == seen] for seen in (True, False)]
    for name, targets in zip(("seen", "left out"), parts, strict=True):
        show(name, targets)
    if all(parts):
        print("\n" + chosen(*parts))


def rows(cells: Cells, world: TrainingRun, target: Pack, seen: bool) -> list[Result]:
    """Turn what was measured on a target into results; losses are only printed."""
    found = []
    for what, values in cells.items():
        if what.startswith(LOSS):
            continue
        words_of = ["5", FAMILIAR, "none"] if what == FAMILIAR else what.split()
        shot, method, adaptation, *settings = words_of
        named = {name: float(v) for name, v in (w.split("=") for w in settings)}
        how = (seen, int(shot), adaptation)
        found.append(choice_row(method, target, *how, values, named, world.config))
    return found


def tried(world: TrainingRun, target: Pack, given: argparse.Namespace) -> Cells:
    """Measure everything on one target."""
    drawn = Target(
        target, world.device, SHAPES, given.episodes, seed=1, part="val", views=world.config.views
    )
    dim, found = world.config.model.dim, {}
    pool = world.pool("conv1x1")
    rules = [name for name in RULES if name != "urt" or pool.urt is not None]
    found[FAMILIAR] = familiar(pool, drawn.tasks(SHAPES[0])).double().tolist()
    for shape in SHAPES:
        tasks = drawn.tasks(shape)
        for name in rules:
            for adaptation in ("none", "head") if name in ("base", "auto") else ("none",):
                values = answer(PoolWithRule(pool, name), tasks, adaptation, dim).accuracies[0]
                found[f"{shape.shot} {name} {adaptation}"] = values.tolist()
    tasks = drawn.tasks(SHAPES[0], given.learned)
    if not given.brief:
        rival = find_methods(["finetune-all"])[0]
        fitted = rival.fit(world, settings_of(rival, world.config.preset, {}))  # as it was tuned
        values = answer(fitted, tasks, "none", dim).accuracies[0]
        found["5 finetune-all none"] = values.tolist()
    for name in ("base", *words(given.rules)):
        values = answer(PoolWithRule(pool, name), tasks, "pa", dim).accuracies[0]
        found[f"5 {name} pa"] = values.tolist()
    for name in words(given.rules):
        plain = PoolWithRule(pool, name).predict(tasks).log()
        single = drawn.tasks(SHAPES[1], given.learned)
        for config in _configs(given):
            own = PoolWithRule(replace(pool, adaptation=config), name)
            learned = own.predict(tasks, "tsa").log()
            what = f"{name} tsa {_text(config)}"
            for share in SHARES:
                mixed = share * learned + (1 - share) * plain
                found[f"5 {what} {SHARE}={share:g}"] = _accuracy(mixed, tasks).tolist()
                found[f"{LOSS} 5 {what} {SHARE}={share:g}"] = _losses(mixed, tasks)
            if config.tsa_start == "rule" and not given.brief:
                found[f"1 {what}"] = answer(own, single, "tsa", dim).accuracies[0].tolist()
    return found


def _configs(given: argparse.Namespace) -> Iterator[AdaptationConfig]:
    texts = (given.starts, given.turns, given.apart, given.updates, given.rates)
    for start, turns, apart, updates, rate in product(*map(words, texts)):
        yield AdaptationConfig(
            rates=(float(rate),),
            familiar_rate=float(rate),  # the same for all: the best of each kind is chosen then
            updates=int(updates),
            least_shots=1,
            tsa_start=start,  # type: ignore[arg-type]
            tsa_share=1.0,  # shares are tried afterwards
            tsa_inverse_temperature=1.0,
            familiar_inverse_temperature=1.0,
            tsa_rotate_crops=turns == "1",
            tsa_leave_self_out=apart == "1",
        )


def _text(config: AdaptationConfig) -> str:
    """Write as settings of a method (`pool_rules.LEARNING`)."""
    values = {
        "rate": config.rates[0],
        "steps": config.updates,
        "from_base": config.tsa_start == "base",
        "turns": config.tsa_rotate_crops,
        "apart": config.tsa_leave_self_out,
    }
    return " ".join(f"{name}={value:g}" for name, value in values.items())


def _losses(logits: Tensor, tasks: Tasks) -> list[float]:
    """Return the cross-entropy of all queries at each sharpness."""
    queries = logits.shape[1] // tasks.way
    labels = torch.arange(tasks.way, device=logits.device).repeat_interleave(queries)
    every = labels.repeat(len(logits))
    flat = logits.flatten(0, 1)
    return [float(F.cross_entropy(factor * flat, every)) for factor in SHARPNESS]


def _accuracy(logits: Tensor, tasks: Tasks) -> Tensor:
    by_class = logits.view(len(tasks), tasks.way, -1, tasks.way)
    return hits(by_class).flatten(1).double().mean(1).cpu()


def gain(targets: list[Cells], what: str) -> Estimate:
    """Return the mean difference from base + prototypes."""
    baseline = f"{what[0]} base none"
    pairs = [(np.array(c[what]), np.array(c[baseline][: len(c[what])])) for c in targets]
    return combined([estimate({0: one - other}) for one, other in pairs])


def chosen(seen: list[Cells], left: list[Cells]) -> str:
    """Choose on both groups of targets, which count alike, each with a learning rate of its own."""
    tries = [what for what in seen[0] if SHARE in what and not what.startswith(LOSS)]

    def best(kind: str, targets: list[Cells]) -> str:
        """Find the best rate of a kind of tries, which are alike but for it."""
        return max((t for t in tries if _kind(t) == kind), key=lambda t: gain(targets, t).value)

    def both(kind: str) -> float:
        return sum(gain(targets, best(kind, targets)).value for targets in (seen, left))

    kind = max({_kind(what) for what in tries}, key=both)
    slow, fast = best(kind, seen), best(kind, left)
    single = [f"1 {what[2:].rpartition(' ')[0]}" for what in (slow, fast)]
    helps = all(
        what in targets[0] and gain(targets, what).value > gain(targets, what).episodes
        for what, targets in zip(single, (seen, left), strict=True)
    )
    name, _, *settings = fast[2:].split()
    familiar_rate = next(word for word in slow.split() if word.startswith("rate="))
    settings += [f"familiar_{familiar_rate}", f"shots={1 if helps else 2}"]
    sharpness = [sharpest(*pair) for pair in ((seen, slow), (left, fast))]
    words = ["chosen:", *(f"--set {name}.{setting}" for setting in settings)]
    return f"{' '.join(words)}\nsharpness: {sharpness[0]} where familiar, {sharpness[1]} elsewhere"


def sharpest(targets: list[Cells], what: str) -> float:
    """Find the factor on logarithms of probabilities at which the answers are likeliest."""
    by_factor = zip(*(cells[f"{LOSS} {what}"] for cells in targets), strict=True)
    totals = [sum(losses) for losses in by_factor]
    return SHARPNESS[totals.index(min(totals))]


def _kind(what: str) -> str:
    """Return what was tried without its learning rate."""
    return " ".join(word for word in what.split() if not word.startswith("rate="))


def show(name: str, targets: list[Cells]) -> None:
    """Print means over the targets, best first."""
    if not targets:
        return
    rows = []
    for what in targets[0]:
        if what.startswith((FAMILIAR, LOSS)):
            continue
        gap = gain(targets, what)
        own = combined([estimate({0: c[what]}) for c in targets]).value
        rows.append((what, own, gap.value, gap.episodes))
    print(f"\n{name}, {len(targets)} domains")
    for what, own, mean, half in sorted(rows, key=lambda row: (row[0][0], -row[2])):
        print(f"{what:60} {100 * own:6.2f} {100 * mean:+6.2f} ±{100 * half:.2f}")


if __name__ == "__main__":
    main()
