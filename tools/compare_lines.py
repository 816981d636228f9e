"""Compare results of two origins on the same episodes: python tools/compare_lines.py ONE OTHER.

Each is a file of result lines or a folder of such files. Results with the same method, adaptation
and episodes are paired. Prints the mean difference, ONE less OTHER, and the largest.
"""

import argparse
from pathlib import Path

from polyshot.evaluation.results import Result, read_results
from polyshot.evaluation.stats import combined, paired

Key = tuple[str, str, str]


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--methods", default="", help="a,b,c; all by default")
    given = parser.parse_args()
    one, other = read(given.one), read(given.other)
    wanted = [name for name in given.methods.split(",") if name]
    found: dict[Key, tuple[float, float]] = {
        key: paired(result.per_episode, other[key].per_episode)
        for key, result in one.items()
        if key in other and (not wanted or result.method in wanted)
    }
    mean, half = combined(list(found.values()))
    key, (most, wide) = max(found.items(), key=lambda item: abs(item[1][0]))
    where = one[key]
    print(f"{len(found)} pairs: {100 * mean:+.2f} ±{100 * half:.2f} points on average")
    print(
        f"largest: {100 * most:+.2f} ±{100 * wide:.2f}, {where.method} {where.adaptation} on "
        f"{where.target}, {where.shot}-shot"
    )


def read(path: Path) -> dict[Key, Result]:
    """Read result lines by what they may be paired by."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    results = [result for file in files for result in read_results(file)]
    return {(r.method, r.adaptation, r.fingerprint): r for r in results}


if __name__ == "__main__":
    main()
