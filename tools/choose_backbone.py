"""Try ways to read a backbone out on validation classes: its defaults are chosen so.

    python tools/choose_backbone.py PACKS OUT.jsonl --pool efficientnet-lite0 \
        --targets actions,cifar100 --shots 1,5 --try "base none" \
        --try "base ridge ridge_lambda=0.1" --try "base tsa updates=10 rates=[0.1]"

A try is a rule, an adaptation, and fields of `AdaptationConfig`; ``one_network`` lets `auto` mix
modulators, as the form `fast` does on a pool of ours. Writes one result a cell, with the
fields as its note, and prints means over the targets: accuracy, the loss, and the factor on the
logits at which the loss is least. What was learned may look at queries in several ways, as
``--query-views one,three``: a cell each. With --probabilities FOLDER it keeps the answers,
`[E, Q, W]` of each cell, and the losses on left-out support images, so that ensembles can be tried
without a GPU.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.evaluate import Measured, describe
from polyshot.evaluation.results import append_results
from polyshot.evaluation.targets import Target
from polyshot.models.views import Views
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import left_out_loss
from polyshot.predict.predict import Answers, fit_tasks
from polyshot.predict.rules import rule
from polyshot.util.checks import replaced
from polyshot.util.device import best_device
from polyshot.util.memory import keep_freed

FACTORS = [2 ** (k / 4) for k in range(-12, 13)]


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--targets", required=True)
    parser.add_argument("--part", default="val")
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--views", default="")
    parser.add_argument("--query-views", default="", help="of --views, unless given")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--learned", type=int, default=60, help="episodes where tsa learns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--try", action="append", dest="tries", required=True)
    parser.add_argument("--probabilities", type=Path)
    given = parser.parse_args()
    keep_freed()
    pool = Pool.named(given.pool, best_device()).with_views(given.views or None)
    looks = given.query_views.split(",") if given.query_views else [pool.query_views or pool.views]
    shapes = [EpisodeShape(5, int(shot), 10) for shot in given.shots.split(",")]
    found: dict[tuple[int, str], list[tuple[float, list[float]]]] = defaultdict(list)
    for pack in open_packs(given.packs, given.targets.split(",")):
        target = Target(
            *(pack, pool.device, shapes, given.episodes, given.seed, given.part),
            views=pool.views,
        )
        for shape in shapes:
            for words in given.tries:
                cells = tried(pool, pack, target, shape, words, looks, given)
                for views, cell in zip(looks, cells, strict=True):
                    found[shape.shot, f"{words}; {views}"].append(cell)
    for (shot, words), cells in found.items():
        losses = np.mean([each for _, each in cells], 0)
        best = int(losses.argmin())
        each = " ".join(f"{100 * accuracy:.1f}" for accuracy, _ in cells)
        mean = 100 * np.mean([accuracy for accuracy, _ in cells])
        loss = losses[FACTORS.index(1.0)]
        print(
            f"{shot}-shot {mean:5.2f} ({each}) loss {loss:.3f}, {losses[best]:.3f} at factor "
            f"{FACTORS[best]:.2f}: {words}"
        )


def tried(
    pool: Pool,
    pack: Pack,
    target: Target,
    shape: EpisodeShape,
    words: str,
    looks: Sequence[Views],
    given: argparse.Namespace,
) -> list[tuple[float, list[float]]]:
    """Measure one cell for each way to look at queries: mean accuracy, the loss at each factor."""
    name, adaptation, *options = words.split()
    config = pool.adaptation
    for option in options:
        field, _, text = option.partition("=")
        if field != "one_network":
            config = replaced(config, [field], text, option)
    own = replace(pool, adaptation=config, one_network="one_network" in options)
    count = given.learned if adaptation == "tsa" else given.episodes
    tasks = target.tasks(shape, min(count, given.episodes))
    parts: list[list[Answers]] = [[] for _ in looks]
    losses = []
    for part in tasks.chunks(100):
        fitted = fit_tasks(own, part, [rule(name, own)], adaptation)
        for views, some in zip(looks, parts, strict=True):
            answered = fitted.probabilities(part.viewed(views))
            some.append(Answers(answered, fitted.diverged))
        losses.append(left_out_loss(own, part, fitted))
    cells = []
    for views, some in zip(looks, parts, strict=True):
        answers = torch.cat([part.probabilities for part in some], 1).cpu()  # [1, E, Q, W]
        diverged = torch.cat([part.diverged for part in some], 1)
        truth = tasks.truth.cpu()
        sure, ways = answers.max(-1)
        measured = Measured(ways == truth, sure, truth >= 0, diverged)
        result = describe(target, shape, measured, 0, name, adaptation, own.hash, None)
        seen = f"queries by views {views}" * (views != own.views)
        notes = filter(None, (given.pool, pool.views, seen, " ".join(options), result.note))
        append_results(given.out, [replace(result, note="; ".join(notes))])
        cells.append((result.mean, losses_at(answers[0], truth)))
    if given.probabilities:  # of the last way to look
        given.probabilities.mkdir(parents=True, exist_ok=True)
        file = f"{pack.domain.name}-{shape.shot}-{words.replace(' ', '_').replace('/', '')}.npz"
        np.savez_compressed(
            given.probabilities / file,
            answers=answers[0].numpy().astype(np.float16),
            truth=truth.numpy().astype(np.int8),
            left_out=torch.cat(losses).numpy(),
        )
    return cells


def losses_at(answers: Tensor, truth: Tensor) -> list[float]:
    """Return the mean loss with logits times each factor: answers [E, Q, W]."""
    logits = answers.clamp(min=1e-12).log().flatten(0, 1)
    labels = truth.flatten()
    return [float(torch.nn.functional.cross_entropy(f * logits, labels)) for f in FACTORS]


if __name__ == "__main__":
    main()
