"""Try ways to read a backbone out on validation classes: its defaults are chosen so.

    python tools/choose_backbone.py PACKS OUT.jsonl --pool efficientnet-lite0 \
        --targets actions,cifar100 --shots 1,5 --try "base none" \
        --try "base ridge ridge_lambda=0.1" --try "base tsa updates=10 rates=[0.1]"

A try is a rule, an adaptation, and fields of `AdaptationConfig`. Writes one result a cell, with the
fields as its note, and prints means over the targets: accuracy, the loss, and the factor on the
logits at which the loss is least. With --probabilities FOLDER it keeps the answers, `[E, Q, W]` of
each cell, and the losses on left-out support images, so that ensembles can be tried without a GPU.
With --left-out a pool answers without its modulator of the target. A try of `tsa` with
`tsa_snapshots` is answered by each of --snapshots, some of them, such as ``4+7+10``: one learning
serves all. --size brings images to another size than the network's own, to save time.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure_forms import without
from torch import Tensor

from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.evaluate import Measured, describe
from polyshot.evaluation.results import append_results
from polyshot.evaluation.targets import Target
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import left_out_loss
from polyshot.predict.own_networks import OwnNetworks
from polyshot.predict.predict import Answers, FittedTasks, fit_tasks
from polyshot.predict.rules import rule
from polyshot.tasks import Queries
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
    parser.add_argument("--query-views", default="")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--learned", type=int, default=60, help="episodes where tsa learns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--try", action="append", dest="tries", required=True)
    parser.add_argument("--probabilities", type=Path)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=100, help="tasks")
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--snapshots", default="", help="for tries with tsa_snapshots")
    given = parser.parse_args()
    keep_freed()
    pool = Pool.named(given.pool, best_device()).with_views(given.views or None)
    pool = replace(pool, query_views=given.query_views or None)
    if given.size:
        pool.base.prepare.size = given.size  # type: ignore[union-attr,assignment]
    shapes = [EpisodeShape(5, int(shot), given.queries) for shot in given.shots.split(",")]
    found: dict[tuple[int, str], list[tuple[float, list[float]]]] = defaultdict(list)
    for pack in open_packs(given.packs, given.targets.split(",")):
        target = Target(
            *(pack, pool.device, shapes, given.episodes, given.seed, given.part),
            views=pool.views,
        )
        for shape in shapes:
            for words in given.tries:
                own = without(pool, pack.domain.name) if given.left_out else pool
                for label, cell in tried(own, pack, target, shape, words, given).items():
                    found[shape.shot, f"{words} {label}".strip()].append(cell)
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
    given: argparse.Namespace,
) -> dict[str, tuple[float, list[float]]]:
    """Measure one cell, or one for each choice of snapshots: mean accuracy, losses by factor."""
    name, adaptation, *options = words.split()
    config = pool.adaptation
    for option in options:
        field, _, text = option.partition("=")
        config = replaced(config, [field], text, option)
    own = replace(pool, adaptation=config)
    count = given.learned if adaptation == "tsa" else given.episodes
    tasks = target.tasks(shape, min(count, given.episodes))
    parts: dict[str, list[Answers]] = defaultdict(list)
    losses = []
    for part in tasks.chunks(given.at_once):
        fitted = fit_tasks(own, part, [rule(name, own)], adaptation)
        queries = part.viewed(own.query_views or own.views)
        for label, some in by_snapshots(fitted, config.tsa_snapshots, given.snapshots):
            parts[label].append(Answers(some.probabilities(queries), fitted.diverged))
        if given.probabilities:
            losses.append(left_out_loss(own, part, fitted))
    truth = tasks.truth.cpu()
    cells = {}
    for label, its in parts.items():
        answers = torch.cat([part.probabilities for part in its], 1).cpu()  # [1, E, Q, W]
        diverged = torch.cat([part.diverged for part in its], 1)
        sure, ways = answers.max(-1)
        measured = Measured(ways == truth, sure, truth >= 0, diverged)
        if label:  # a pool that takes these snapshots always
            of = replace(own, adaptation=replace(config, tsa_snapshots=tuple(label.split("+"))))
        else:
            of = own
        result = describe(target, shape, measured, 0, name, adaptation, of.hash, None)
        how = [
            f"queries {own.query_views}" * bool(own.query_views),
            f"{given.size} px" * bool(given.size),
        ]
        how += ["left out" * given.left_out, f"read out {label}" * bool(label)]
        notes = filter(None, (given.pool, pool.views, *how, " ".join(options), result.note))
        append_results(given.out, [replace(result, note="; ".join(notes))])
        if given.probabilities:
            given.probabilities.mkdir(parents=True, exist_ok=True)
            file = f"{pack.domain.name}-{shape.shot}-{words} {label}".strip()
            np.savez_compressed(
                given.probabilities / f"{file.replace(' ', '_').replace('/', '')}.npz",
                answers=answers[0].numpy().astype(np.float16),
                truth=truth.numpy().astype(np.int8),
                left_out=torch.cat(losses).numpy(),
            )
        cells[label] = result.mean, losses_at(answers[0], truth)
    return cells


@dataclass(frozen=True)
class Answered:
    """A network of a task's own that is asked once (`OwnNetworks`)."""

    network: OwnNetworks
    known: dict[int, Tensor] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def logits(self, queries: Queries) -> Tensor:
        """Ask the network, or say what it said."""
        if id(queries) not in self.known:
            self.known[id(queries)] = self.network.logits(queries)
        return self.known[id(queries)]


def by_snapshots(
    fitted: FittedTasks, taken: Sequence[str], choices: str
) -> Iterator[tuple[str, FittedTasks]]:
    """Let some of the snapshots answer, of each learning rate, for each choice of them."""
    if not taken or not choices or not fitted.learned:
        yield "", fitted
        return
    networks: list[Any] = [Answered(each) for each in fitted.learned[0]]
    plain: dict[int, Any] = {i: Answered(each) for i, each in fitted.blends.items()}
    for choice in choices.split(","):
        wanted = choice.split("+")
        own = [each for i, each in enumerate(networks) if taken[i % len(taken)] in wanted]
        yield choice, replace(fitted, learned=[own], blends=plain)


def losses_at(answers: Tensor, truth: Tensor) -> list[float]:
    """Return the mean loss with logits times each factor: answers [E, Q, W]."""
    logits = answers.clamp(min=1e-12).log().flatten(0, 1)
    labels = truth.flatten()
    return [float(torch.nn.functional.cross_entropy(f * logits, labels)) for f in FACTORS]


if __name__ == "__main__":
    main()
