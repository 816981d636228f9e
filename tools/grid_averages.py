"""Turn a grid into small Markdown tables: a method a row, averages over targets.

    python tools/grid_averages.py GRID seen
    python tools/grid_averages.py GRID unseen --targets gtsrb,cars --preset strong
    python tools/grid_averages.py GRID seen --seeds 0,1,2
    python tools/grid_averages.py GRID unseen --methods select,average,auto --against select

In brackets the paired difference to base + prototypes, or to the method that is named, without
adaptation, on the episodes that both have. Bold: the best of a column, and what differs from it by
chance alone. A method without every target is left out of the table and named below it.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import combined, interval, paired
from polyshot.experiments.grid_reader import read_grid
from polyshot.methods.method import find_methods

ADAPTED = {"head": "", "steps-100": "", "pa": " + pa", "tsa": " + tsa"}
"""Adaptations, and what they add to the name of a row."""
Cells = dict[tuple[str, int], list[float]]
"""Accuracies of each episode, by target and training seed."""


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    parser.add_argument("protocol")
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--targets", default="", help="a,b,c; all by default")
    parser.add_argument("--methods", default="", help="a,b,c; all by default")
    parser.add_argument("--seeds", default="0", help="training seeds: 0,1,2")
    parser.add_argument("--against", default="base", help="the method that others are compared to")
    parser.add_argument("--digits", type=int, default=1)
    given = parser.parse_args()
    targets, methods = given.targets.split(","), given.methods.split(",")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = [
        result
        for result in read_grid(given.grid).results
        if (result.protocol, result.preset, result.part) == (given.protocol, given.preset, "test")
        and (not given.targets or result.target in targets)
        and (not given.methods or result.method in methods)
        and result.train_seed in seeds
    ]
    if not any(result.method == given.against for result in found):
        parser.error(f"there is nothing of '{given.against}' to compare with")
    print("\n".join(table(found, given.against, given.digits)))


def table(results: Iterable[Result], against: str, digits: int) -> list[str]:
    """Make the lines of the table: percent, and differences to the method `against`."""

    def percent(value: float) -> str:
        return f"{100 * value:.{digits}f}"

    cells: dict[tuple[str, str], Cells] = {}
    only_adapts = {method.name for method in find_methods() if method.adaptations == ("none",)}
    for result in results:
        adapted = result.adaptation != "none" or result.method in only_adapts
        name = result.method + ADAPTED.get(result.adaptation, "")
        column = f"{result.shot}-shot{', adapted' if adapted else ''}"
        place = cells.setdefault((name, column), {})
        place[result.target, result.train_seed or 0] = result.per_episode
    columns = sorted({column for _, column in cells}, key=lambda c: (-int(c[0]), c))
    every = {place for each in cells.values() for place in each}
    rows = list(dict.fromkeys(name for name, _ in cells))
    order = [method.name for method in find_methods()]
    rows.sort(key=lambda name: (order.index(name.split(" + ")[0]), name))
    lacking = [f"{name} ({column})" for (name, column), c in cells.items() if set(c) != every]
    whole = {key: each for key, each in cells.items() if set(each) == every}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    best = {
        column: max((n for n, c in whole if c == column), key=lambda n: mean(whole[n, column])[0])
        for column in columns
        if any(c == column for _, c in whole)
    }
    for name in rows:
        texts = []
        for column in columns:
            own = whole.get((name, column))
            if own is None:
                texts.append("")
                continue
            behind, chance = difference(whole[best[column], column], own)
            value = percent(mean(own)[0])
            value = f"**{value}**" if name == best[column] or behind <= chance else value
            plain = whole[(against, f"{column[0]}-shot")]
            if own is plain:
                texts.append(f"{value} ±{percent(mean(own)[1])}")
            else:
                gain, half = difference(own, plain)
                texts.append(f"{value} ({signed(gain, digits)} ±{percent(half)})")
        if any(texts):
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
    if lacking:
        lines += ["", f"Not on all of these targets: {', '.join(lacking)}."]
    return lines


def mean(cells: Cells) -> tuple[float, float]:
    """Average over targets and seeds."""
    return combined([interval(values) for values in cells.values()])


def difference(one: Cells, other: Cells) -> tuple[float, float]:
    """Average the paired differences, on the episodes that both have."""
    pairs = []
    for place, values in one.items():
        count = min(len(values), len(other[place]))
        pairs.append(paired(values[:count], other[place][:count]))
    return combined(pairs)


def signed(value: float, digits: int = 1) -> str:
    """Write a difference in points with its sign, but 0 without."""
    text = f"{100 * value:+.{digits}f}"
    return text if float(text) else text[1:]


if __name__ == "__main__":
    main()
