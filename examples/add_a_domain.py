"""Add a domain to a trained pool: one modulator is learned, nothing else is touched.

    python examples/add_a_domain.py --pool my-run/run/pool birds/ --out grown

``birds/`` has a folder for each class (34 classes or more). Without arguments it draws three
domains, trains a tiny pool on two of them and adds the third: some minutes on two cores. The images
that the pool was trained on are not needed. An addition that was interrupted goes on where it was.
"""

import argparse
from pathlib import Path

from polyshot import Pack, Pool, import_source, train
from polyshot.config import override, preset
from polyshot.data.importer import ImportOptions
from polyshot.data.toy import keep_packs
from polyshot.evaluation.evaluate import evaluate
from polyshot.training.edit import grow


def small_pool(out: Path, options: list[str]) -> Path:
    """Train a tiny pool, if it is not there yet; returns its folder."""
    config = override(preset("tiny"), options)
    train(keep_packs(out / "packs", ["glyphs", "textures"], config.size), config, out / "run")
    return out / "run" / "pool"


def new_domain(folder: Path | None, out: Path, size: int) -> Pack:
    """Import the domain to add, or draw one."""
    if folder is None:
        return keep_packs(out / "packs", ["signs"], size)[0]
    options = ImportOptions(size=size, keep=True, skip_bad=True)
    return import_source(folder, out / "packs", options)[0].pack


def main() -> None:
    """Read the command line, add the domain and test it."""
    parser = argparse.ArgumentParser(description="Add a domain to a pool.")
    parser.add_argument("domain", type=Path, nargs="?", help="a folder for each class")
    parser.add_argument("--pool", type=Path, help="the pool to start from")
    parser.add_argument("--out", type=Path, default=Path("grown"))
    parser.add_argument("--set", action="append", default=[], help="of the tiny pool's training")
    given = parser.parse_args()

    folder = given.pool or small_pool(given.out, given.set)
    pool = Pool.load(folder)
    pack = new_domain(given.domain, given.out, pool.size)
    name = pack.domain.name
    grown = grow(folder, pack, given.out / "pool")
    print(f"{', '.join(grown.members)}; {name} has strength {grown.strengths[name]:g}")
    rules = ["base", f"member:{name}"]
    for result in evaluate(grown, pack, rules, episodes=100, seen=True):  # on test classes
        print(f"{result.target}, {result.method}: {result.mean:.1%} ±{result.half_width:.1%}")
    print(f"The pool is in {given.out / 'pool'}: polyshot pool list {given.out / 'pool'}")


if __name__ == "__main__":
    main()
