"""Make the pool that ships with the package from a trained one, and measure what that costs.

    python tools/ship_pool.py run/pool src/polyshot/pools/default --packs packs --episodes 600

Prints the size on disk, how far the embeddings of the packs' images moved, and the accuracy lost on
the packs' test classes. Exits with 1 where the pool is larger than 25 MB.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from polyshot.data.pack import Pack, open_packs
from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import difference
from polyshot.evaluation.evaluate import evaluate
from polyshot.experiments.own_data import rules_of
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision
from polyshot.util.device import best_device

LARGEST = 25_000_000
"""Bytes that a shipped pool may take."""


@dataclass(frozen=True)
class Change:
    """What the rounding did to one member's embeddings: cosines between before and after."""

    member: str
    mean: float
    worst: float


@dataclass(frozen=True)
class Cost:
    """What the rounding cost on one target, after minus before on the same episodes, as shares."""

    target: str
    method: str
    before: float
    difference: float
    half_width: float
    """Of the difference's 95 % interval."""


def ship(pool: Pool, out: Path, precision: Precision = "six") -> Pool:
    """Save a pool for shipping and load it as a user will."""
    pool.save(out, precision)
    return Pool.load(out, pool.device)


def folder_bytes(folder: Path) -> int:
    """Count the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def embedding_changes(
    before: Pool, after: Pool, packs: Sequence[Pack], images: int = 200
) -> list[Change]:
    """Compare the embeddings of some images of each pack, spread over it, member by member."""
    cosines = []
    for pack in packs:
        count = min(images, len(pack.images))
        ids = np.linspace(0, len(pack.images) - 1, count).round().astype(np.int64)
        old, new = (pool.embed(pack.images, ids=ids) for pool in (before, after))  # [M, n, d]
        cosines.append(torch.cosine_similarity(old, new, dim=-1))
    found = torch.cat(cosines, 1)  # [M, images]
    return [
        Change(member, float(row.mean()), float(row.min()))
        for member, row in zip(before.members, found, strict=True)
    ]


def accuracy_costs(
    before: Pool, after: Pool, packs: Sequence[Pack], methods: Sequence[str], episodes: int
) -> list[Cost]:
    """Measure both pools on the same test episodes of each pack."""
    costs = []
    for pack in packs:
        old, new = (evaluate(pool, pack, methods, episodes=episodes) for pool in (before, after))
        for one, other in zip(old, new, strict=True):
            found = difference({0: other}, {0: one})
            assert found is not None, "both are of this target"
            costs.append(Cost(one.target, one.method, one.mean, *found))
    return costs


def main(words: list[str] | None = None) -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pool", type=Path, help="a trained pool: RUN/pool")
    parser.add_argument("out", type=Path, help="where the shipped folder goes")
    parser.add_argument("--precision", choices=get_args(Precision), default="six")
    parser.add_argument("--views", help="how often it shall look at images, if not as it is")
    parser.add_argument("--packs", type=Path, help="measure on these packs")
    parser.add_argument("--images", type=int, default=200, help="of each pack, to embed")
    parser.add_argument("--episodes", type=int, default=0, help="of each pack, to classify")
    given = parser.parse_args(words)
    try:
        return _run(given)
    except PolyshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    pool = Pool.load(given.pool, best_device()).with_views(given.views)
    shipped = ship(pool, given.out, given.precision)
    size = folder_bytes(given.out)
    print(f"{given.out}: {size / 1e6:.1f} MB ({folder_bytes(given.pool) / 1e6:.1f} MB as trained)")
    if given.packs:
        packs = open_packs(given.packs)
        for change in embedding_changes(pool, shipped, packs, given.images):
            print(f"{change.member}: cosine mean {change.mean:.5f}, worst {change.worst:.5f}")
        if given.episodes:
            costs = accuracy_costs(pool, shipped, packs, rules_of(pool), given.episodes)
            for cost in costs:
                print(
                    f"{cost.target}, {cost.method}: {100 * cost.before:.2f} as trained, shipped "
                    f"{100 * cost.difference:+.2f} ±{100 * cost.half_width:.2f}"
                )
            mean = sum(cost.difference for cost in costs) / len(costs)
            print(f"mean difference: {100 * mean:+.2f} points")
    if size > LARGEST:
        print(f"too large to ship: {LARGEST / 1e6:.0f} MB are allowed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
