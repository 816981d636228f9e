"""Record scenes: ``python -m tests.golden.record [scene ...]``, all of them if none is named.

Only where numbers are meant to change; otherwise a scene that differs is a fault of the code.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch

from .scenes import SCENES, run_scene

FOLDER = Path(__file__).parent


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or list(SCENES):
        start = time.perf_counter()
        arrays = run_scene(name)
        file = FOLDER / f"{name}.npz"
        np.savez_compressed(file, **arrays)
        size, seconds = file.stat().st_size // 1000, time.perf_counter() - start
        print(f"{name}: {len(arrays)} arrays, {size} KB, {seconds:.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
