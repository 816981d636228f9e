"""Exported classifiers against PyTorch, for every default: how far apart, and how large.

    python benchmarks/onnx_parity.py [--half]

Fits each form on drawn examples (`polyshot example`), exports it, and asks it about 200 files, half
of them JPEG, by examples/run_onnx.py, which imports neither Polyshot nor PyTorch. Prints a table in
Markdown: the largest difference of probabilities on the examples, which are at the networks' size,
and on the files; the share of files with the same label; and the file's size.
"""

import argparse
import runpy
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.data.readers.queries import read_queries, read_support
from polyshot.data.toy import draw_example
from polyshot.pool.default import PACKAGED
from polyshot.pool.forms import load_pools

ROOT = Path(__file__).parents[1]
RUN = runpy.run_path(str(ROOT / "examples" / "run_onnx.py"))
FORMS = [  # a title, pools, adaptation, examples of each class, none_rate
    ("`fast`: the soup on Lite0, `ridge`", "fast", "auto", 5, None),
    ("`full`: the soup on Lite0, `tsa`", "full", "tsa", 5, None),
    ("Lite0 and ours together", f"efficientnet-lite0,{PACKAGED}", "auto", 5, None),
    ("ours, `tsa`, five views", "shipped", "auto", 5, None),
    ("ours, one example a class", "shipped", "auto", 1, None),
    ("ours, none of these", "shipped", "auto", 5, 0.1),
    ("Lite0 and ours together, none of these", f"efficientnet-lite0,{PACKAGED}", "auto", 5, 0.1),
]
HEAD = ("classifier", "file, MB", "on the examples", "from files", "same labels")


def half_jpeg(files: Sequence[Path]) -> list[Path]:
    """Write every other picture as a JPEG of twice its size beside it."""
    made = []
    for i, file in enumerate(files):
        if i % 2:
            made.append(file.with_suffix(".jpg"))
            with Image.open(file) as image:
                large = image.convert("RGB").resize((2 * image.width, 2 * image.height))
            large.save(made[-1], quality=92)
        else:
            made.append(file)
    return made


def row(title: str, names: str, adaptation: str, shot: int, rate: float | None, half: bool) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawn = draw_example(folder / "e", "flowers", classes=5, shot=shot, queries=40)
        files = half_jpeg(read_queries([drawn.query]))
        pools, _ = load_pools(str(PACKAGED) if names == "shipped" else names)
        classifier = FewShotClassifier(
            pools[-1] if names == "shipped" else pools, adaptation=adaptation, none_rate=rate
        )
        classifier.fit(*read_support(drawn.support))
        told = classifier.export(folder / "made.onnx", half)
        ours = RUN["Classifier"](folder / "made.onnx")
        expected, none = classifier.answer(files)
        found = [ours.answer(files[i : i + 16]) for i in range(0, len(files), 16)]
        chances, is_none = (np.concatenate(each) for each in zip(*found, strict=True))
        same = chances.argmax(1) == expected.argmax(1)
        if none is not None:
            same &= is_none == none
    cells = [
        title,
        f"{told.size / 1e6:.1f}",
        f"{told.difference:.0e}",
        f"{np.abs(chances - expected).max():.0e}",
        f"{same.mean():.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--half", action="store_true", help="in half precision")
    half = parser.parse_args().half
    print(f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", sep="\n")
    for form in FORMS:
        print(row(*form, half), flush=True)


if __name__ == "__main__":
    main()
