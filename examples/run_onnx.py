"""Ask an exported classifier about images, with ONNX Runtime, numpy and Pillow alone.

    polyshot fit photos/ --out birds.polyshot
    polyshot export birds.polyshot birds.onnx
    python run_onnx.py birds.onnx new/

Nothing of Polyshot or PyTorch is imported: copy what you need into a program of yours.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


class Classifier:
    """An ONNX file and what it says about itself."""

    def __init__(self, path: Path | str) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        about = self.session.get_modelmeta().custom_metadata_map
        self.classes: list[Any] = json.loads(about["classes"])
        self.none = about.get("none", "")
        # One input for each side length that its networks want; often there is only one.
        self.inputs = {each.name: each.shape[1] for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]

    def answer(self, files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
        """Give probabilities [n, classes], and which images are none of these, bool [n]."""
        pictures = [squares(file, list(self.inputs.values())) for file in files]
        given = {
            name: np.stack([picture[side] for picture in pictures])  # uint8 [n, side, side, 3]
            for name, side in self.inputs.items()
        }
        found = dict(zip(self.outputs, self.session.run(None, given), strict=True))
        nothing = np.zeros(len(files), dtype=bool)  # where `none of these` was not asked for
        return found["probabilities"], found.get("none", nothing)


def squares(file: Path, sides: Sequence[int]) -> dict[int, np.ndarray]:
    """Read an image as the classifier's examples were read: uint8 [side, side, 3], by side."""
    with Image.open(file) as image:
        image.draft("RGB", (max(sides), max(sides)))  # JPEG only: decodes at 1/2, 1/4 or 1/8
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16 bits
            grey = (np.asarray(upright) / 257).round().clip(0, 255)
            upright = Image.fromarray(grey.astype(np.uint8))
        elif upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
            over = upright.convert("RGBA")
            white = Image.new("RGBA", over.size, (255, 255, 255, 255))
            upright = Image.alpha_composite(white, over)
        full = upright.convert("RGB")
    bicubic = Image.Resampling.BICUBIC
    return {side: np.asarray(ImageOps.fit(full, (side, side), bicubic)) for side in sides}


def main() -> None:
    """Print a line for each image: its label, and how likely that is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="what `polyshot export` wrote")
    parser.add_argument("images", type=Path, nargs="+", help="files, or folders of them")
    chosen = parser.parse_args()
    files = []
    for path in chosen.images:
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    classifier = Classifier(chosen.model)
    for start in range(0, len(files), 16):
        some = files[start : start + 16]
        for file, row, is_none in zip(some, *classifier.answer(some), strict=True):
            best = int(row.argmax())
            said = f"{classifier.classes[best]}\t{row[best]:.3f}"
            print(f"{file}\t{classifier.none if is_none else said}")


if __name__ == "__main__":
    main()
