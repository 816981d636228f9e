"""Try how to learn from single images, and how long to fine-tune, on domains that are left out.

    python tools/choose_single.py PACKS OUT --leave actions,omniglot --tsa 100 --finetune 24

Trains a base of all sources but those, and measures on validation classes of those: nearest
prototypes; `tsa` on the base from one image a class, by learning rates, and by its share in the
answer, of what it reads prototypes from or, half of the way in weights, by ridge; and finetune-all
by rates and numbers of steps, at one shot and at five. Writes rows of `choices` to OUT/tsa.jsonl
and OUT/finetune-all.jsonl; what is there is not done again, and no test class is looked at.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from choose_adaptation import SHAPES, SHARES
from grid_worlds import choice_row, sources_of, words
from torch import Tensor

from polyshot.config import Config, override, preset
from polyshot.evaluation.meter import answer
from polyshot.evaluation.results import Result, append_results
from polyshot.evaluation.targets import Target
from polyshot.methods.finetune import FineTunedNetworks
from polyshot.methods.method import Fitted
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.pool.pool import Pool
from polyshot.tasks import Tasks
from polyshot.training.run import train
from polyshot.training.validation import hits
from polyshot.util.device import best_device

FIVE, ONE = SHAPES
TSA_RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
SHARPNESS = [k / 10 for k in range(2, 21)]
RATES, STEPS = (1e-5, 3e-5, 1e-4, 3e-4), (12, 25, 50, 100, 200)
"""Of finetune-all."""


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--leave", required=True, help="sources to leave out together: a,b")
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--set", dest="options", action="append", default=[], help="an option")
    parser.add_argument("--tsa", type=int, default=0, help="episodes where tsa learns")
    parser.add_argument("--finetune", type=int, default=0, help="episodes of finetune-all")
    parser.add_argument("--rates", default="", help="of finetune-all, instead of all")
    parser.add_argument("--steps", default="", help="the same")
    given = parser.parse_args()
    sources = sources_of(given.packs)
    left = [pack for pack in sources if pack.domain.name in words(given.leave)]
    others = [pack for pack in sources if pack not in left]
    config = override(preset(given.preset), given.options)
    pool = train(others, config, given.out / "base", "base", best_device())
    rates = [float(each) for each in words(given.rates)] or list(RATES)
    steps = [int(each) for each in words(given.steps)] or list(STEPS)
    for name, episodes in (("tsa", given.tsa), ("finetune-all", given.finetune)):
        rows = given.out / f"{name}.jsonl"
        if not episodes or rows.exists():
            continue
        found = []
        for pack in left:
            drawn = Target(
                *(pack, pool.device, SHAPES, episodes), seed=1, part="val", views=config.views
            )
            for shot in (1, 5):
                plain = answer(
                    PoolWithRule(pool, "base"),
                    drawn.tasks(FIVE if shot == 5 else ONE),
                    "none",
                    config.model.dim,
                ).accuracies[0]
                found.append(
                    choice_row("base", pack, False, shot, "none", plain.tolist(), {}, config)
                )
            if name == "tsa":
                found += by_tsa(pool, drawn, config)
            else:
                found += finetuned(pool, drawn, config, rates, steps)
        append_results(rows, found)
        for row in found:
            said = " ".join(f"{name}={value:g}" for name, value in row.settings.items())
            print(
                f"{row.target} {row.shot}-shot {row.method} {row.adaptation} {said}: "
                f"{100 * row.mean:.2f}"
            )


def by_tsa(pool: Pool, drawn: Target, config: Config) -> Iterator[Result]:
    """Learn from single images by `tsa` on the base, which takes every task for unfamiliar."""
    tasks = drawn.tasks(ONE)
    own = replace(pool.adaptation, tsa_single_share=1.0, tsa_single_inverse_temperature=1.0)
    plain = PoolWithRule(pool, "base").predict(tasks).log()
    for rate, ridge in itertools.product(TSA_RATES, (False, True)):
        config_of = replace(own, tsa_single_rate=rate)
        if ridge:
            config_of = replace(config_of, tsa_strength=0.5, tsa_readout="ridge")
        learned = PoolWithRule(replace(pool, adaptation=config_of), "base").predict(tasks, "tsa")
        for share in SHARES if not ridge else (1.0,):
            mixed = share * learned.clamp(min=1e-9).log() + (1 - share) * plain
            settings = {
                "rate": rate,
                "share": share,
                "strength": config_of.tsa_strength,
                "ridge": float(ridge),
                "sharpness": sharpest(mixed, tasks),
            }
            values = right(mixed, tasks).tolist()
            yield choice_row("base", drawn.pack, False, 1, "tsa", values, settings, config)


def right(scores: Tensor, tasks: Tasks) -> Tensor:
    """Return the accuracy of each episode."""
    by_class = scores.view(len(tasks), tasks.way, -1, tasks.way)
    return hits(by_class).flatten(1).double().mean(1).cpu()


def sharpest(logits: Tensor, tasks: Tasks) -> float:
    """Find the factor on logits at which answers are likeliest."""
    ways = torch.arange(tasks.way, device=logits.device)
    labels = ways.repeat_interleave(logits.shape[1] // tasks.way).repeat(len(tasks))
    flat = logits.flatten(0, 1)
    losses = [float(torch.nn.functional.cross_entropy(f * flat, labels)) for f in SHARPNESS]
    return SHARPNESS[losses.index(min(losses))]


def finetuned(
    pool: Pool, drawn: Target, config: Config, rates: list[float], steps: list[int]
) -> Iterator[Result]:
    """Fine-tune every layer, with every rate and number of steps."""
    for shape, rate, count in itertools.product(SHAPES, rates, steps):
        fitted: Fitted = FineTunedNetworks(pool.base, count, rate, rotate_crops=True)
        values = answer(fitted, drawn.tasks(shape), "none", config.model.dim).accuracies[0]
        settings = {"learning_rate": rate, "steps": count, "turns": 1}
        how = (False, shape.shot, "none")
        yield choice_row("finetune-all", drawn.pack, *how, values.tolist(), settings, config)


if __name__ == "__main__":
    main()
