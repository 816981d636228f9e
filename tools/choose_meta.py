"""Try how a base ends (`meta`), and how long rivals learn, on domains that are left out.

    python tools/choose_meta.py PACKS OUT --leave actions,omniglot --variants 'none;1-shot 3e-5'

Trains a base by supervised learning of all sources but those, then each variant from it, and
measures nearest prototypes on validation classes of every source, and finetune-all (`--finetune`,
on the base as it is) on those of the left-out ones. What is done already is not done again, so
that processes of their own can try the variants beside each other, once the base is there.
Writes OUT/VARIANT.jsonl, rows of `tools/file_results.py OUT/... choices`; no test class is looked
at.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from choose_adaptation import SHAPES
from grid_worlds import choice_row, sources_of, words

from polyshot.config import Config, override, preset
from polyshot.data.pack import Pack
from polyshot.evaluation.meter import answer
from polyshot.evaluation.results import Result, append_results
from polyshot.evaluation.targets import Target
from polyshot.methods.finetune import FineTunedNetworks
from polyshot.methods.method import Fitted
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.pool.pool import Pool
from polyshot.training.run import train
from polyshot.util.device import best_device
from polyshot.util.files import locked

WEAK = [
    *("meta.augment.area=[1.0,1.0]", "meta.augment.aspect=1.0", "meta.augment.turn=0"),
    *("meta.augment.shift=0.1111", "meta.augment.brightness=0.2", "meta.augment.contrast=0"),
    *("meta.augment.saturation=0", "meta.augment.grey=0", "meta.augment.tint=0"),
]
VARIANTS: Mapping[str, list[str]] = {
    "none": ["meta.steps=0"],
    "1-shot 1e-5": ["meta.learning_rate=1e-5", "meta.shape.shot=1"],
    "1-shot 3e-5": ["meta.learning_rate=3e-5", "meta.shape.shot=1"],
    "1-shot 1e-4": ["meta.learning_rate=1e-4", "meta.shape.shot=1"],
    "5-shot 3e-5": ["meta.learning_rate=3e-5", "meta.shape.shot=5"],
    "1-shot 3e-5 weak": ["meta.learning_rate=3e-5", "meta.shape.shot=1", *WEAK],
    "1-shot 3e-5 euclidean": [
        "meta.learning_rate=3e-5",
        "meta.shape.shot=1",
        "meta.loss_metric=euclidean",
    ],
}
"""Options over `--steps` updates of `meta`."""
RATES, STEPS = (1e-5, 3e-5, 1e-4, 3e-4), (12, 25, 50, 100)
"""Of finetune-all."""


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--leave", required=True, help="sources to leave out together: a,b")
    parser.add_argument("--variants", default="", help="names: a;b;c, all by default")
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--set", dest="options", action="append", default=[], help="an option")
    parser.add_argument("--steps", type=int, default=1600, help="updates of meta")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--finetune", type=int, default=0, help="episodes of finetune-all")
    given = parser.parse_args()
    sources = sources_of(given.packs)
    left = [pack for pack in sources if pack.domain.name in words(given.leave)]
    others = [pack for pack in sources if pack not in left]
    config = override(preset(given.preset), ["meta.steps=0", *given.options])
    base = given.out / "base"
    with locked(given.out / "base.lock"):
        pool = train(others, config, base, "base", best_device())
    for name in [each for each in given.variants.split(";") if each] or VARIANTS:
        steps = [f"meta.steps={given.steps}", *VARIANTS[name]]
        chosen = override(config, steps)
        rows = given.out / f"{name.replace(' ', '-')}.jsonl"
        if rows.exists():
            continue
        if name != "none":
            from_it = override(chosen, ["base.steps=0"])
            out, start = given.out / rows.stem, base / "steps" / "base.safetensors"
            pool = train(others, from_it, out, "base", best_device(), start=start)
        found = [
            row
            for pack in sources
            for row in measured(pool, pack, pack in others, chosen, given.episodes)
        ]
        append_results(rows, found)
        for shape in SHAPES:
            means = {
                seen: [100 * r.mean for r in found if r.seen == seen and r.shot == shape.shot]
                for seen in (True, False)
            }
            said = ", ".join(
                f"{'seen' if seen else 'left out'} {sum(each) / len(each):.2f}"
                for seen, each in means.items()
            )
            print(f"{given.leave}: {name}, {shape.shot}-shot: {said}", flush=True)
    rows = given.out / "finetune-all.jsonl"
    if given.finetune and not rows.exists():
        pool = Pool.load(base / "pool", best_device())
        tried = [row for pack in left for row in finetuned(pool, pack, config, given.finetune)]
        append_results(rows, tried)
        for row in tried:
            print(f"{row.target} {row.shot}-shot {row.settings}: {100 * row.mean:.2f}", flush=True)


def measured(pool: Pool, pack: Pack, seen: bool, config: Config, episodes: int) -> Iterator[Result]:
    """Measure nearest prototypes on validation classes."""
    drawn = _drawn(pack, config, episodes)
    own = config.meta
    settings: dict[str, float] = {
        "meta_steps": own.steps,
        "rate": own.learning_rate,
        "shot": own.shape.shot,
        "strong": float(own.augment.grey > 0),
        "cosine": float(own.loss_metric == "cosine"),
    }
    for shape in SHAPES:
        tasks = drawn.tasks(shape)
        values = answer(PoolWithRule(pool, "base"), tasks, "none", config.model.dim).accuracies[0]
        plain = settings if own.steps else {"meta_steps": 0}
        yield choice_row("base", pack, seen, shape.shot, "none", values.tolist(), plain, config)


def finetuned(pool: Pool, pack: Pack, config: Config, episodes: int) -> Iterator[Result]:
    """Measure finetune-all on validation classes, with every rate and number of steps."""
    drawn = _drawn(pack, config, episodes)
    for shape, rate, steps in itertools.product(SHAPES, RATES, STEPS):
        fitted: Fitted = FineTunedNetworks(pool.base, steps, rate, rotate_crops=True)
        values = answer(fitted, drawn.tasks(shape), "none", config.model.dim).accuracies[0]
        own = {"learning_rate": rate, "steps": steps, "turns": 1}
        how = (False, shape.shot, "none")
        yield choice_row("finetune-all", pack, *how, values.tolist(), own, config)


def _drawn(pack: Pack, config: Config, episodes: int) -> Target:
    return Target(pack, best_device(), SHAPES, episodes, seed=1, part="val", views=config.views)


if __name__ == "__main__":
    main()
