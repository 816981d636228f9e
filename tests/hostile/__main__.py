"""``python -m tests.hostile``: see `make hostile`."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: threads would not survive a fork
os.environ["COLUMNS"] = "200"

import matplotlib.figure  # noqa: F401 (here and not in every process that is forked)
import pyarrow.parquet  # noqa: F401
import torch

from .campaign import all_parts
from .trials import Done, Part, run_all, table
from .world import World


def main() -> int:
    """Run the campaign; exit code 1 if a trial failed."""
    parser = argparse.ArgumentParser(prog="make hostile", description=__doc__)
    parser.add_argument(
        "--only", default="", help="parts, by the beginning of their names: kill,pools"
    )
    parser.add_argument("--trials", type=int, help="of each part, instead of its own number")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--share", type=float, default=1.0, help="of each part's trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--folder", type=Path, help="to work in; one in the temporary folder")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="hostile-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    parts = all_parts(World(folder / "world"))
    names = [name for name in given.only.split(",") if name]
    chosen = [p for p in parts if not names or any(p.name.startswith(name) for name in names)]
    wanted = [(part, given.first + i) for part in chosen for i in range(_count(part, given))]
    print(f"{len(wanted):,} trials in {folder}, seed {given.seed}", flush=True)
    done = _run(wanted, given.seed, folder, given.jobs)
    failed = [each for each in done if each.verdict.failed]
    print("\n" + table(done, chosen))
    if not failed and given.folder is None:
        shutil.rmtree(folder)
    if failed:
        print(f"\n{len(failed)} failed; what they left is in {folder}. One again, for example:")
        one = failed[0]
        print(f"python -m tests.hostile --only {one.part.name} --first {one.number} --trials 1")
    return int(bool(failed))


def _count(part: Part, given: argparse.Namespace) -> int:
    return int(given.trials) if given.trials else max(1, round(given.share * part.trials))


def _run(wanted: list[tuple[Part, int]], seed: int, folder: Path, jobs: int) -> list[Done]:
    done: list[Done] = []
    since, told = time.monotonic(), 0.0
    for each in run_all(wanted, seed, folder, jobs):
        done.append(each)
        seconds = time.monotonic() - since
        if each.verdict.failed:
            print(f"{each.part.name} {each.number} {each.verdict.kind}: {each.verdict.detail}")
        if seconds - told > 10 or len(done) == len(wanted):
            told = seconds
            counts = Counter(one.verdict.kind for one in done)
            shown = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
            at = f"{seconds / 60:.1f} min, {each.part.name}"
            print(f"{len(done):,} of {len(wanted):,} ({at}): {shown}", flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())
