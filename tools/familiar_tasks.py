"""Say how many tasks of each domain a pool takes for familiar.

    python tools/familiar_tasks.py PACKS

Test classes, 5-way 5-shot. Of a source also with the statistics of that source forgotten.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from polyshot.data.pack import open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.targets import Target
from polyshot.pool.default import pool_path
from polyshot.pool.pool import Pool
from polyshot.predict.familiar import familiar
from polyshot.tasks import EmbeddingCache, Tasks
from polyshot.util.device import best_device


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--cache", type=Path, help="embeddings are kept here")
    given = parser.parse_args()
    pool = Pool.load(pool_path(given.pool), best_device())
    cache = EmbeddingCache(given.cache) if given.cache else None
    rows: dict[str, list[str]] = {"domain": [], "familiar": [], "without itself": []}
    for pack in open_packs(given.packs):
        name = pack.domain.name
        shape = EpisodeShape(5, 5, 10)
        target = Target(pack, pool.device, [shape], given.episodes, views=pool.views, cache=cache)
        task = target.tasks(shape)
        rest = {source: kept for source, kept in pool.statistics.items() if source != name}
        is_source = len(rest) < len(pool.statistics)
        rows["domain"].append(name)
        rows["familiar"].append(share(pool, task))
        forgetful = replace(pool, statistics=rest)
        rows["without itself"].append(share(forgetful, task) if is_source else "")
    for i, (name, cells) in enumerate(rows.items()):
        print("| " + " | ".join(["" if not i else name, *cells]) + " |")
        if not i:
            print("|---" * (len(cells) + 1) + "|")


def share(pool: Pool, tasks: Tasks) -> str:
    """Count the familiar ones among the tasks."""
    found = torch.cat([familiar(pool, part) for part in tasks.chunks(100)])
    return f"{float(found.float().mean()):.0%}"


if __name__ == "__main__":
    main()
