"""How far answers to what the service keeps of a photo lie from those to the photo itself.

    python benchmarks/kept.py

Drawn photos are made as large and as grainy as a phone's. The service keeps their shorter side at
512 pixels (`serving.decoder.SIDE`); one classifier is asked about both.
"""

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.data.toy import draw_example
from polyshot.pool.forms import load_pools
from polyshot.serving.decoder import decode

GRAIN = 12.0


def enlarged(file: Path, side: int, draw: np.random.Generator) -> bytes:
    """A JPEG of this side length, with grain."""
    image = Image.open(file).convert("RGB")
    factor = side / min(image.size)
    size = (round(factor * image.width), round(factor * image.height))
    pixels = np.asarray(image.resize(size, Image.Resampling.LANCZOS)).astype(np.float32)
    pixels += draw.normal(0, GRAIN, (*pixels.shape[:2], 1))
    made = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(made, "JPEG", quality=92)
    return made.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=1800)
    parser.add_argument("--pool", default="default")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    pools, _ = load_pools(options.pool)
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_example(Path(folder) / "example", "flowers", 5, 5, 12, 0)
        support, query = sorted(drawn.support.glob("*/*")), sorted(drawn.query.iterdir())
        examples = [enlarged(file, options.side, draw) for file in support]
        photos = [enlarged(file, options.side, draw) for file in query]
    labels = [file.parent.name for file in support]
    classifier = FewShotClassifier(pools).fit(examples, labels)
    ours = classifier.predict_proba([decode(photo, 10**9)[1][1] for photo in photos])
    theirs = classifier.predict_proba(photos)
    same = (ours.argmax(1) == theirs.argmax(1)).mean()
    apart = np.abs(ours - theirs).max(1)
    print(f"{len(photos)} photos of {options.side} pixels: {same:.0%} have the same label")
    print(f"probabilities differ by {np.median(apart):.4f} (median), {apart.max():.3f} at most")


if __name__ == "__main__":
    main()
