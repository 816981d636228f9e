"""Make the pool that ships with the package from a trained one, and measure what that costs.

    python tools/ship_pool.py run/pool src/polyshot/pools/default --packs packs --episodes 600

Prints the size on disk, how far the embeddings of the packs' images moved, and the accuracy lost on
the packs' test classes. Exits with 1 where the pool is larger than 25 MB.
"""

import argparse
import sys
from pathlib import Path
from typing import get_args

from polyshot.data.pack import open_packs
from polyshot.errors import PolyshotError
from polyshot.experiments.evaluation_page import rules_of
from polyshot.experiments.ship import LARGEST, accuracy_costs, embedding_changes, folder_bytes, ship
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision
from polyshot.util.device import best_device


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
