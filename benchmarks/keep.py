"""What keeping a classifier costs: size, time, accuracy; and what its suggestions are worth.

    python benchmarks/keep.py size
    python benchmarks/keep.py precision packs --targets cifar100,flowers --episodes 300
    python benchmarks/keep.py learned packs --targets cifar100,gtsrb,plankton --episodes 12
    python benchmarks/keep.py suggest packs --targets flowers,plankton --episodes 60

`size` fits the shipped pool and EfficientNet-Lite0 to 5 x 5 drawn examples and saves, loads and
pickles them. `precision` rounds the weights of Lite0 (`--backbone` names another) and classifies by
ridge, the same tasks in every precision; `learned` rounds what `tsa` learns on the shipped pool.
`suggest` adds ten labelled images to two of each class, those that `next_to_label` puts first, or
any, by Lite0 and ridge. All on validation classes, 5-way 5-shot but for `suggest`, each image seen
once but for `size`.
"""

import argparse
import pickle
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from polyshot.classifier import FewShotClassifier
from polyshot.classifier.answering import as_kept
from polyshot.classifier.packed import pack, unpack
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.readers.queries import read_queries, read_support
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.data.toy import draw_example
from polyshot.models.loaders import LITE0
from polyshot.pool.forms import load_pools
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import FittedEnsemble
from polyshot.predict.predict import fit_tasks, predict_tasks
from polyshot.predict.rules import rule
from polyshot.tasks import Tasks, draw_tasks

CPU = torch.device("cpu")
PRECISIONS = ("full", "half", "eight", "six")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["size", "precision", "learned", "suggest"])
    parser.add_argument("packs", nargs="?", type=Path)
    parser.add_argument("--targets", default="")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--backbone", default=LITE0, help="of `precision`")
    given = parser.parse_args()
    if given.what == "size":
        measure_sizes()
        return
    ways = {
        "precision": partial(rounded_base, backbone=given.backbone),
        "learned": rounded_maps,
        "suggest": suggested,
    }
    measured = []
    for name in given.targets.split(","):
        pack_ = Pack.open(given.packs / name)
        measured.append(ways[given.what](pack_, given.episodes))
        show(name, measured[-1:])
    show("mean", measured)


def show(name: str, measured: list[dict[str, Tensor]]) -> None:
    """Print means, and paired differences to the first with their 95 % intervals, in points."""
    columns = {key: torch.cat([each[key] for each in measured]) for key in measured[0]}
    first = next(iter(columns.values()))
    cells = []
    for key, values in columns.items():
        gap = 100 * (values - first)
        interval = 1.96 * gap.std() / len(gap) ** 0.5
        cells.append(f"{key} {100 * values.mean():.2f} ({gap.mean():+.2f} ±{interval:.2f})")
    print(f"{name}, {len(first)} tasks: {', '.join(cells)}", flush=True)


def tasks_of(pack_: Pack, episodes: int, shape: EpisodeShape) -> Tasks:
    """Draw tasks of validation classes."""
    sampler = EpisodeSampler(pack_.domain, shape, part="val")
    return draw_tasks(Images([pack_], "val", CPU), 0, sampler, episodes, frozen=True)


def accuracy(answers: Tensor, tasks: Tasks) -> Tensor:
    """Return the share of right answers [E, Q, W] of each task."""
    return (answers.argmax(-1) == tasks.truth).float().mean(1)


def rounded_base(pack_: Pack, episodes: int, backbone: str) -> dict[str, Tensor]:
    """Classify by ridge on a network in several precisions."""
    pool = Pool.from_backbone(backbone, views="one")
    tasks = tasks_of(pack_, episodes, EpisodeShape(5, 5, 10))
    found = {}
    for precision in PRECISIONS:
        own = as_kept(pool, precision)  # type: ignore[arg-type]
        found[precision] = accuracy(
            predict_tasks(own, tasks, [rule("base", own)], "ridge").probabilities[0], tasks
        )
    return found


def rounded_maps(pack_: Pack, episodes: int) -> dict[str, Tensor]:
    """Classify by the shipped pool and `tsa`, with what was learned in several precisions."""
    pool = Pool.default().with_views("one")
    tasks = tasks_of(pack_, episodes, EpisodeShape(5, 5, 10))
    found: dict[str, list[Tensor]] = {precision: [] for precision in PRECISIONS}
    for task in tasks.chunks(1):
        one = fit_tasks(pool, task, [rule("auto", pool)], "tsa")
        fitted = FittedEnsemble([one], torch.ones(1, 1))
        for precision, answers in found.items():
            again = unpack(pack(fitted, precision), [pool], fitted)  # type: ignore[arg-type]
            answers.append(accuracy(again.probabilities([task]), task))
    return {precision: torch.cat(answers) for precision, answers in found.items()}


def suggested(pack_: Pack, episodes: int) -> dict[str, Tensor]:
    """Add ten of fifty images to ten examples: any, or those that are asked for."""
    pool = replace(Pool.from_backbone(LITE0, views="one"), scales=[20.0])
    tasks = tasks_of(pack_, episodes, EpisodeShape(5, 2, 20))
    network = pool.network(0)
    support, query = tasks.embedded(network)  # [E, 5, 2, d], [E, 100, d]
    found: dict[str, list[float]] = {"any": [], "suggested": [], "none": []}
    for i in range(episodes):
        truth = tasks.truth[i].numpy()
        order = np.random.default_rng(i).permutation(100)
        offered, held = order[:50], order[50:]
        classifier = FewShotClassifier("embeddings", adaptation="ridge")
        classifier.fit(support[i].flatten(0, 1), np.repeat(np.arange(5), 2))
        wanted = [each.image for each in classifier.next_to_label(query[i][offered])]
        for name, chosen in (("none", []), ("any", offered[:10]), ("suggested", wanted[:10])):
            rows = offered[chosen] if name == "suggested" else np.asarray(chosen, dtype=int)
            made = FewShotClassifier("embeddings", adaptation="ridge")
            vectors = torch.cat([support[i].flatten(0, 1), query[i][rows]])
            made.fit(vectors, [*np.repeat(np.arange(5), 2), *truth[rows]])
            found[name].append(made.score(query[i][held], truth[held]))
    return {name: torch.tensor(values) for name, values in found.items()}


def measure_sizes() -> None:
    """Save, load and pickle classifiers of 5 x 5 examples; times are the best of five."""
    with TemporaryDirectory() as folder:
        made = draw_example(Path(folder) / "example", "flowers", 5, 5, 4, 0)
        images, labels = read_support(made.support)
        queries = read_queries(made.query)
        pools = (Pool.default(), Pool.from_backbone(LITE0), *load_pools("fast")[0])
        for name, pool in zip(("shipped", LITE0, "fast"), pools, strict=True):
            classifier = FewShotClassifier(pool).fit(images, labels)
            expected = classifier.predict_proba(queries)
            file, bare = (Path(folder) / f"{name}{end}" for end in ("", ".bare"))
            save = best(lambda c=classifier, f=file: c.save(f))
            classifier.save(bare, examples=False)
            load = best(lambda f=file: FewShotClassifier.load(f))
            off = np.abs(FewShotClassifier.load(file).predict_proba(queries) - expected).max()
            print(
                f"{name} + {classifier.adaptation_}: {file.stat().st_size / 1e6:.2f} MB, without "
                f"examples {bare.stat().st_size / 1e6:.2f} MB, a pickle "
                f"{len(pickle.dumps(classifier)) / 1e6:.2f} MB; saved in {save:.2f} s, loaded in "
                f"{load:.2f} s; answers differ by {off:g}",
                flush=True,
            )


def best(work: object) -> float:
    """Return the least of five times, in seconds."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
