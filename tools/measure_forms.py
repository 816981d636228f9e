"""Measure pools, forms and ensembles as `classify` uses them, on test classes, with what they cost.

    python tools/measure_forms.py PACKS OUT.jsonl --targets cars,dtd,gtsrb,plankton \
        --cell "efficientnet-lite0,left_out/pool auto 5 80" --cell "fast ridge 1 300"

A cell is what `--pool` takes, an adaptation, shots and episodes; ``:query-one`` behind the pools
lets them look at queries once. Writes one result a cell and target, with the pools as its note and
the seconds of a task among others, and prints means over the targets with the peak of the memory.
With --left-out a pool on a network from elsewhere answers without its modulator of the target, and
one on ours that was trained on the target is refused: what is seen then is how a new domain does.
With --side-by-side N it times `tsa` of the first cell's pools on N tasks together, and on some of
them one after the other.
"""

import argparse
import resource
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.evaluate import describe, measure
from polyshot.evaluation.results import append_results
from polyshot.evaluation.targets import Target
from polyshot.models.foreign import ForeignConfig
from polyshot.pool.forms import load_pools
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import predict_ensemble
from polyshot.training.folder import device_name
from polyshot.util.device import best_device
from polyshot.util.files import digest
from polyshot.util.memory import keep_freed


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--targets", required=True)
    parser.add_argument("--part", default="test")
    parser.add_argument("--cell", action="append", dest="cells", required=True)
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--side-by-side", type=int, default=0)
    given = parser.parse_args()
    keep_freed()
    device = best_device()
    packs = open_packs(given.packs, given.targets.split(","))
    known: dict[str, list[Pool]] = {}
    for cell in given.cells:
        names, adaptation, shot, episodes = cell.split()
        if names not in known:
            pools, _ = load_pools(names.removesuffix(":query-one"), device)
            if names.endswith(":query-one"):
                pools = [replace(pool, query_views="one") for pool in pools]
            known[names] = pools
        shape = EpisodeShape(5, int(shot), 10)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found = [
            one(known[names], pack, shape, adaptation, int(episodes), names, given)
            for pack in packs
        ]
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated() / 2**30
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        each = " ".join(f"{100 * mean:.1f}" for mean, _ in found)
        print(
            f"{100 * np.mean([mean for mean, _ in found]):5.2f} ({each}), "
            f"{np.mean([seconds for _, seconds in found]):.3f} s a task, {memory:.1f} GiB: {cell}",
            flush=True,
        )
    if given.side_by_side:
        pools = known[given.cells[0].split()[0]]
        together(pools[:1], packs[0], given.side_by_side)


def one(
    pools: list[Pool],
    pack: Pack,
    shape: EpisodeShape,
    adaptation: str,
    episodes: int,
    names: str,
    given: argparse.Namespace,
) -> tuple[float, float]:
    """Measure one target: mean accuracy and seconds of a task, batched."""
    device = pools[0].device
    if given.left_out:
        pools = [without(pool, pack.domain.name) for pool in pools]
    target = Target(
        *(pack, device, [shape], episodes, 0, given.part), drop_small=True, views=pools[0].views
    )
    predict = partial(predict_ensemble, pools, rules=["auto"], adaptation=adaptation)
    start = time.perf_counter()
    measured = measure(predict, target.groups(shape), pools[0].config.dim, adaptation)
    seconds = (time.perf_counter() - start) / episodes
    hashes = [pool.hash for pool in pools]
    pool_hash = hashes[0] if len(hashes) == 1 else digest(*hashes)
    result = describe(target, shape, measured, 0, "auto", adaptation, pool_hash, False)
    about = replace(result, seconds=seconds, device=device_name(device))
    note = "; ".join(filter(None, (names, "left out" * given.left_out, result.note)))
    append_results(given.out, [replace(about, note=note)])
    return result.mean, seconds


def without(pool: Pool, target: str) -> Pool:
    """Return a pool that knows nothing of a target."""
    if target not in pool.about.get("packs", {}):
        return pool
    if not isinstance(pool.config, ForeignConfig):
        raise SystemExit(f"error: The base of a pool was trained on {target}: name another pool.")
    return pool.remove(target)


def together(pools: list[Pool], pack: Pack, count: int) -> None:
    """Time `tsa` on tasks side by side, and one at a time."""
    shape, device = EpisodeShape(5, 5, 10), pools[0].device
    target = Target(pack, device, [shape], count, 1, "all", drop_small=True, views=pools[0].views)
    tasks = target.tasks(shape)

    def seconds(parts: list[slice]) -> float:
        start = time.perf_counter()
        for part in parts:
            predict_ensemble(pools, tasks.part(part), ["auto"], "tsa").probabilities.cpu()
        return (time.perf_counter() - start) / sum(part.stop - part.start for part in parts)

    alone = [slice(i, i + 1) for i in range(min(count, 8))]
    seconds(alone[:1])  # kernels are chosen, plans made
    rounds = [(seconds([slice(0, count)]), seconds(alone)) for _ in range(3)]
    both, single = (float(np.median(each)) for each in zip(*rounds, strict=True))
    print(
        f"tsa: {both:.3f} s a task of {count} together, {single:.3f} s alone: {single / both:.1f}x"
    )


if __name__ == "__main__":
    main()
