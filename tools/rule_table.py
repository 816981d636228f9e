"""Put all rules and adaptations into one Markdown table of differences to base + prototypes.

    python tools/rule_table.py docs/results/rules

5-way 5-shot, test classes, preset `strong`, first training: a difference is paired with the base of
the same training, on the episodes that both have, and averaged over the targets that all rules
have. Below the table stand these, and what a task costs.
"""

import argparse
from pathlib import Path

from grid_averages import difference, signed

from polyshot.evaluation.results import Result
from polyshot.experiments.grid_reader import read_grid
from polyshot.predict.rules import RULES

ADAPTATIONS = ("none", "head", "pa", "tsa")
Cells = dict[tuple[bool, str, str], dict[str, Result]]
"""By target: results of seen or unseen ones, of an adaptation, of a rule."""


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    cells = read(parser.parse_args().grid)
    columns: dict[str, dict[str, str]] = {}
    notes = []
    for seen, adaptation in ((seen, name) for seen in (True, False) for name in ADAPTATIONS):
        texts, targets = gains(cells, seen, adaptation)
        if texts:
            name = f"{'seen' if seen else 'unseen'}, {adaptation}"
            columns[name] = texts
            notes.append(f"{name}: {', '.join(targets)}")
    if not columns:
        parser.error("the grid has no rule beside a base at 5 shots with the preset strong")
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for rule in RULES:
        print(f"| {rule} | " + " | ".join(texts.get(rule, "") for texts in columns.values()) + " |")
    costs = [cost(cells, adaptation) for adaptation in ADAPTATIONS]
    print("\n" + "\n".join(note for note in notes + costs if note))


def read(grid: Path) -> Cells:
    """Read what was measured in the first training."""
    cells: Cells = {}
    for result in read_grid(grid).results:
        if (
            (result.way, result.shot, result.part) == (5, 5, "test")
            and result.protocol in ("seen", "unseen")
            and result.preset == "strong"
            and not result.train_seed
            and result.method in RULES
        ):
            key = (bool(result.seen), result.adaptation, result.method)
            cells.setdefault(key, {})[result.target] = result
    return cells


def gains(cells: Cells, seen: bool, adaptation: str) -> tuple[dict[str, str], list[str]]:
    """Compare each rule with the base: texts, and the targets that all have."""
    base = cells.get((seen, "none", "base"), {})
    own = {
        rule: cells[seen, adaptation, rule] for rule in RULES if (seen, adaptation, rule) in cells
    }
    targets = sorted(set(base).intersection(*own.values()))
    if not own or not targets:
        return {}, []
    texts = {}
    for rule, results in own.items():
        if results is not base:
            gain, half = difference(_values(results, targets), _values(base, targets))
            texts[rule] = f"{signed(gain)} ±{100 * half:.1f}"
    return texts, targets


def _values(results: dict[str, Result], targets: list[str]) -> dict[tuple[str, int], list[float]]:
    """Take accuracies by target, and by what tells episodes apart."""
    return {(target, results[target].draw or 0): results[target].per_episode for target in targets}


def cost(cells: Cells, adaptation: str) -> str:
    """Say what a task of the first seen target costs, where lines say so."""
    texts = []
    for rule in RULES:
        results = cells.get((True, adaptation, rule))
        if results:
            first = results[min(results)]
            if first.multiply_adds and first.seconds:
                work = f"{first.multiply_adds / 1e9:,.0f} G, {1000 * first.seconds:.1f} ms"
                texts.append(f"{rule} {work}")
    return f"a task, {adaptation}: {'; '.join(texts)}" if texts else ""


if __name__ == "__main__":
    main()
