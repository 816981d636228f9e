"""Label a folder of images by a few examples of each class, and write a table.

    python examples/classify_folders.py photos/ new/ --out labels.csv

``photos/`` has a folder for each class, ``new/`` any images. Without arguments it draws an example
and labels that.
"""

import argparse
import tempfile
from pathlib import Path

from polyshot.classifier import label_files
from polyshot.data.toy import draw_example


def main() -> None:
    """Read the command line and label."""
    parser = argparse.ArgumentParser(description="Label images by a few examples of each class.")
    parser.add_argument("support", type=Path, nargs="?", help="a folder for each class")
    parser.add_argument("query", type=Path, nargs="*", help="images, or folders of images")
    parser.add_argument("--out", type=Path, default=Path("labels.csv"))
    given = parser.parse_args()
    if given.support:
        label(given.support, given.query, given.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        example = draw_example(Path(folder) / "example")
        label(example.support, [example.query], given.out)


def label(support: Path, query: list[Path], out: Path) -> None:
    """Label the queries and say how sure that is."""
    answer = label_files("default", support, query)
    print(answer.summary)  # from the examples alone: each is classified by the others
    for row in answer.rows[:5]:
        sure = row.reason or f"{row.probability:.0%}"  # a file that cannot be read has no label
        print(f"{row.path.name}: {row.label} ({sure})")
    answer.write_csv(out)
    print(f"wrote {len(answer.rows)} labels to {out}")


if __name__ == "__main__":
    main()
