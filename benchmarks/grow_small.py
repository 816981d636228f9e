"""What `polyshot pool add` gains on a small domain without a GPU, and what it takes.

    python benchmarks/grow_small.py OUT.jsonl solids,packs/flowers [--pool default] [--updates 270]

Of each domain 24 classes of 16 images are a user's own, as `data import` splits them: 14 train, 5
are chosen by. What is measured on are all other classes of the domain, which nothing has seen. A
name is that of an embedded domain, a Parquet file, or a pack's folder. One thread; seconds are
those of one core, which other programs on the machine change little. A line each, with points in
percent. `--whole` adds the training that is made for a GPU beside the short one, on the same
images; with `--device cuda` both run there, the short one as it is planned without a GPU.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.data.splits import split_classes
from polyshot.data.toy import draw_packs
from polyshot.evaluation.evaluate import evaluate
from polyshot.evaluation.stats import interval
from polyshot.pool.default import pool_path
from polyshot.pool.pool import Pool
from polyshot.training.growth import growth_config
from polyshot.training.plan import Plan, plan_addition

CLASSES, EACH, EPISODES = 24, 16, 300


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("domains", help="a,b: embedded ones, or Parquet files")
    parser.add_argument("--pool", default="default")
    parser.add_argument("--updates", type=int, help="another number than the command's own")
    parser.add_argument("--episodes", type=int, default=2, help="of an update, with --updates")
    parser.add_argument("--whole", action="store_true", help="the training for a GPU, too")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for domain in given.domains.split(","):
        with tempfile.TemporaryDirectory() as folder:
            pool = Pool.load(pool_path(given.pool))
            pack = small(domain, Path(folder), pool.size)
            plans = [plan_addition(pool, pack, updates(given), timed=False)]
            if given.whole:
                own = growth_config(pool).modulator
                long = [f"modulator.steps={own.steps}", f"modulator.episodes={own.episodes}"]
                plans.append(plan_addition(pool, pack, long, timed=False))
            pool.to(given.device)
            for plan in plans:
                line = json.dumps(measured(pool, pack, plan, given.pool))
                with given.out.open("a") as lines:
                    lines.write(line + "\n")
                print(line, flush=True)


def updates(given: argparse.Namespace) -> list[str]:
    """Return options for another number of updates, where one is asked for."""
    if not given.updates:
        return []
    return [
        f"modulator.steps={given.updates}",
        f"modulator.episodes={given.episodes}",
        f"modulator.validate_every={max(1, given.updates // 4)}",
    ]


def small(domain: str, folder: Path, size: int) -> Pack:
    """Make a pack of few classes of few images, and of all others to measure on."""
    if domain.endswith(".parquet"):
        (made,) = import_source(Path(domain), folder / "whole", ImportOptions(size=size))
        whole = made.pack
    elif Path(domain).is_dir():
        whole = Pack.open(domain)
    else:
        (whole,) = draw_packs(folder / "whole", [domain], size=size)
    names, labels = whole.domain.class_names, whole.domain.labels
    order = np.random.default_rng(0).permutation(len(names))
    own = np.sort(order[:CLASSES])
    split = split_classes([names[i] for i in own])
    train, val = ([int(own[i]) for i in part] for part in (split.train, split.val))
    test = sorted(set(range(len(names))) - {*train, *val})
    rows = [np.flatnonzero(labels == i)[: None if i in test else EACH] for i in range(len(names))]
    kept = np.concatenate(rows)
    parts = replace(split, train=tuple(train), val=tuple(val), test=tuple(test), rule="file")
    with PackWriter(folder / "small", size) as writer:
        writer.append(whole.images[kept])
        named = Domain(whole.domain.name, names, labels[kept], None, whole.domain.mirror, parts)
        return writer.finish(named, {"reader": "benchmark"})


def measured(pool: Pool, pack: Pack, plan: Plan, named: str) -> dict[str, object]:
    """Add the domain as planned, and measure base and member on classes of its own."""
    name, start = pack.domain.name, time.process_time()
    grown = pool.add_domain(plan.pack, plan.options)
    seconds = time.process_time() - start
    about = grown.about["steps"][f"modulator:{name}"]
    base, member, auto = evaluate(
        grown, pack, ["base", f"member:{name}", "auto"], episodes=EPISODES, part="test"
    )
    pairs = zip(member.per_episode, base.per_episode, strict=True)
    gain, half = interval([one - other for one, other in pairs])
    return {
        "pool": named,
        "domain": name,
        "options": [each for each in plan.options if each.startswith("modulator.")],
        "device": pool.device.type,
        "minutes of one core": round(seconds / 60, 1),
        "strength": about["strength"],
        "gain on validation classes": round(100 * about["gain"], 1),
        "test classes": len(pack.domain.split.test),
        "base": round(100 * base.mean, 1),
        "member": round(100 * member.mean, 1),
        "gain": f"{100 * gain:+.1f} ±{100 * half:.1f}",
        "auto": round(100 * auto.mean, 1),
        "told": list(plan.remarks),
    }


if __name__ == "__main__":
    main()
