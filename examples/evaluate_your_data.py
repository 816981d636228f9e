"""Measure how well a pool does on labelled images of your own, and find the best rule for them.

    python examples/evaluate_your_data.py photos/

``photos/`` has a folder for each class; a zip of that or a Parquet file will do as well. Without
arguments it draws an example. The same in one command, with a page: polyshot evaluate photos/
"""

import argparse
import tempfile
from pathlib import Path

from polyshot import Pool
from polyshot.data.toy import draw_example
from polyshot.evaluation.evaluate import evaluate
from polyshot.experiments.own_data import open_targets


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Measure a pool on images of your own.")
    parser.add_argument("images", type=Path, nargs="?", help="a folder for each class")
    parser.add_argument("--episodes", type=int, default=200)
    given = parser.parse_args()
    if given.images:
        measure(given.images, given.episodes)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(draw_example(Path(folder) / "example", shot=15).support, given.episodes)


def measure(images: Path, episodes: int) -> None:
    """Print what each rule reaches."""
    pool = Pool.default()
    with open_targets(images, pool.size) as targets:
        for target in targets:
            print(f"{target.pack.domain.name}: tasks of {target.shape}")
            for remark in target.remarks:
                print(remark)
            results = evaluate(
                pool,
                target.pack,
                ["base", "select", "average"],
                target.shape,
                episodes,
                part=target.part,
                drop_small=target.drop_small,
            )
            for result in results:
                print(f"{result.method}: {result.mean:.1%} ±{result.half_width:.1%}")
            best = max(results, key=lambda result: result.mean)
            print(f"best: {best.method}")


if __name__ == "__main__":
    main()
