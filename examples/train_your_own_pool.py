"""Train a pool on image collections of your own and use it.

    python examples/train_your_own_pool.py collections/ --out my-run --preset strong

``collections/`` has a folder for each domain, and in it a folder for each class (34 classes or
more, so that some are left to validate and test on). Without arguments it draws two domains and
trains a tiny pool on them: some minutes on two cores. A training that was interrupted goes on where
it was.
"""

import argparse
from pathlib import Path

from polyshot import Pack, import_source, train
from polyshot.config import override, preset
from polyshot.data.importer import ImportOptions
from polyshot.data.toy import keep_packs
from polyshot.evaluation.evaluate import evaluate


def main() -> None:
    """Read the command line, train and test."""
    parser = argparse.ArgumentParser(description="Train a pool on collections of your own.")
    parser.add_argument("collections", type=Path, nargs="?", help="a folder for each domain")
    parser.add_argument("--out", type=Path, default=Path("my-run"))
    parser.add_argument("--preset", default="tiny", help="tiny, paper or strong")
    parser.add_argument("--set", action="append", default=[], help="base.steps=100, ...")
    given = parser.parse_args()
    config = override(preset(given.preset), given.set)

    packs: list[Pack] = []
    if given.collections:
        options = ImportOptions(size=config.size, keep=True, skip_bad=True)
        for folder in sorted(path for path in given.collections.iterdir() if path.is_dir()):
            done = import_source(folder, given.out / "packs", options)
            packs += [one.pack for one in done]
    else:
        packs = keep_packs(given.out / "packs", ["signs", "flowers"], config.size)

    pool = train(packs, config, given.out / "run")
    print(f"{len(pool.members)} members: {', '.join(pool.members)}")
    for pack in packs:  # on test classes, which the training has not looked at
        for result in evaluate(pool, pack, ["base", "average"], episodes=100):
            print(f"{result.target}, {result.method}: {result.mean:.1%} ±{result.half_width:.1%}")
    print(f"The pool is in {given.out / 'run' / 'pool'}: polyshot classify --pool ...")


if __name__ == "__main__":
    main()
