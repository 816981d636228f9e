"""The demo: a pool trained on embedded domains in minutes, tested on seen and unseen ones."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from polyshot.classifier.label import label_files
from polyshot.config import Config, preset
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.toy import Example, draw_example, keep_packs
from polyshot.evaluation.compare import BASELINE, label, rows
from polyshot.evaluation.evaluate import Drawing, evaluate, member_shares
from polyshot.evaluation.results import Result, append_results
from polyshot.evaluation.stats import interval
from polyshot.experiments.report.pages import HeatMap, ResultsPage
from polyshot.experiments.report.summary import calibration_table
from polyshot.experiments.sheet import contact_sheet
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.pool.default import NAME, has_default
from polyshot.pool.forms import load_pools
from polyshot.pool.pool import Pool
from polyshot.tasks import EmbeddingCache
from polyshot.training.run import train
from polyshot.util.progress import Progress

SOURCES = ("glyphs", "strokes", "textures", "signs", "flowers", "vehicles")
UNSEEN = ("aerial", "plankton")
METHODS = ("base", "select", "average")
LEGEND = {
    "raw pixels": "nearest prototypes on the pixels themselves: what no learning gives",
    "base": "the shared network with nearest prototypes, no modulator",
    "select": "DoS: the selector picks one member for each task",
    "average": "DoA: all members' probabilities are averaged",
    "+ head": "further adaptation: a linear head learned on the support set",
}


@dataclass(frozen=True)
class Demo:
    """What the demo leaves."""

    results: list[Result]
    page: Path
    labelled: str
    """What happened to images that no pool has seen."""
    seconds: float


def run_demo(
    out: Path, config: Config | None = None, episodes: int = 600, progress: Progress | None = None
) -> Demo:
    """Draw the domains, train a pool on six of them, test it on these and on two others.

    What is done already is not done again: packs and the training's steps are kept in ``out``.
    """
    start = time.perf_counter()
    config = config or preset("tiny")
    names = SOURCES + UNSEEN
    drawn = keep_packs(out / "packs", names, config.size, progress)
    packs = dict(zip(names, drawn, strict=True))
    pool = train([packs[name] for name in SOURCES], config, out / "run", progress=progress)
    cache = EmbeddingCache(out / "cache")
    results: list[Result] = []
    how = Drawing(cache=cache, report=progress)
    for name, pack in packs.items():
        asked = (pool, pack, METHODS, config.shape, episodes)
        measured = evaluate(*asked, adapt=True, seen=name in SOURCES, **how)
        results += measured
        results.append(_raw_pixels(pack, next(r for r in measured if label(r) == BASELINE)))
    shares = {
        name: member_shares(pool, pack, config.shape, episodes, cache=cache)
        for name, pack in packs.items()
    }
    seconds = time.perf_counter() - start
    page = out / "index.html"
    ResultsPage(
        "Polyshot: a pool from six domains, tested on eight",
        rows(results),
        sheets={name: contact_sheet(pack, classes=12, examples=6) for name, pack in packs.items()},
        heat_map=HeatMap(pool.members, shares),
        calibration=calibration_table(results),
        chance=1 / config.shape.way,
        facts={
            "preset": config.preset,
            "seed": str(config.seed),
            "members": str(len(pool.members)),
            "took": f"{seconds / 60:.1f} minutes",
        },
        legend=LEGEND,
    ).write(page, "demo.html", sources=SOURCES, unseen=UNSEEN, shape=config.shape)
    (out / "results.jsonl").unlink(missing_ok=True)
    append_results(out / "results.jsonl", results)
    return Demo(results, page, _label_example(out / "example", pool), seconds)


def _label_example(folder: Path, pool: Pool) -> str:
    """Classify images of an unseen domain as a user does, with the default if there is one."""
    example = Example(folder) if folder.exists() else draw_example(folder, UNSEEN[-1])
    pools, form = load_pools(NAME) if has_default() else ([pool], "")
    answer = label_files(pools, example.support, [example.query])
    right, count = example.right((Path(row.path), row.label) for row in answer.rows)
    who = f"the default, {form}," if form else "this pool"
    return (
        f"From five examples of each of five classes, {who} labelled {right} of {count} images in "
        f"{example.query} right."
    )


def _raw_pixels(pack: Pack, baseline: Result) -> Result:
    """Measure nearest prototypes on pixels, on the episodes of another result."""
    shape = EpisodeShape(baseline.way, baseline.shot, baseline.queries)
    sampler = EpisodeSampler(pack.domain, shape, part=baseline.part, seed=baseline.seed)
    pixels = torch.from_numpy(np.array(pack.images)).flatten(1).float() / 255  # [n, 3 * size^2]
    accuracies: list[float] = []
    for first in range(0, baseline.episodes, 50):
        episodes = sampler(first, min(first + 50, baseline.episodes))
        query = pixels[episodes.query].flatten(1, 2)  # [E, way * queries, d]
        logits = prototype_logits(query, prototypes(pixels[episodes.support]))
        labels = torch.arange(shape.way).repeat_interleave(shape.queries)
        accuracies += (logits.argmax(2) == labels).cpu().double().mean(1).tolist()
    mean, half_width = interval(accuracies)
    return replace(
        baseline,
        method="raw pixels",
        mean=mean,
        half_width=half_width,
        per_episode=[round(value, 4) for value in accuracies],
        calibration_error=None,  # distances of pixels are no probabilities
    )
