"""What it gains on a CPU to keep freed memory: the program with it, and without.

    python benchmarks/malloc.py [--turns 5] [--pool fast]

`polyshot classify` of a drawn example, 25 images and 100 queries, in turns in one run; any variable
of malloc's leaves memory as the system has it (`polyshot.util.memory`).
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--pool", default="fast")
    given = parser.parse_args()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    sides = {"as the system has it": plain | {"MALLOC_PERTURB_": "0"}, "kept": plain}
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "polyshot"]
        example = f"{folder}/example"
        subprocess.run([*program, "example", example], check=True, stdout=subprocess.DEVNULL)
        asked = ["--support", f"{example}/support", "--query", f"{example}/query"]
        asked += ["--pool", given.pool, "--out", f"{folder}/labels.csv"]
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(given.turns):
            for name, environment in sides.items():
                start, before = time.perf_counter(), processor()
                subprocess.run(
                    [*program, "classify", *asked], env=environment, check=True, capture_output=True
                )
                taken[name].append((time.perf_counter() - start, processor() - before))
    for name, times in taken.items():
        wall, used = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"{name:22} {wall:6.2f} s, {used:6.2f} s of processors")


def processor() -> float:
    """Seconds that child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
