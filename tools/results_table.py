"""Turn result lines into a Markdown table: python tools/results_table.py results.jsonl."""

import sys
from pathlib import Path

from polyshot.evaluation.compare import as_text, rows, with_averages
from polyshot.evaluation.results import read_results

if __name__ == "__main__":
    found = with_averages(rows(read_results(Path(sys.argv[1]))))
    methods = list(dict.fromkeys(name for row in found for name in row.cells))
    print("| target | " + " | ".join(methods) + " |")
    print("|---" * (len(methods) + 1) + "|")
    for row in found:
        cells = [
            text.replace("\n", " (") + (")" if "\n" in text else "")
            for text in as_text(row, methods)
        ]
        kind = "seen" if row.seen else "unseen"
        name = row.target if row.target.startswith("average") else f"{row.target}, {kind}"
        print("| " + " | ".join([name, *cells]) + " |")
