"""Check on a machine with a GPU that episodes and augmentation do not depend on the device.

PYTHONPATH=src python tools/gpu_check.py    (needs nothing that is not in the core)
"""

import numpy as np
import torch

from polyshot.data.augment import STRONG, WEAK, augment
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Domain
from polyshot.data.shapes import EpisodeShape, VariableShape
from polyshot.data.splits import ClassSplit


def domain(sizes: list[int], group_size: int) -> Domain:
    """Make a domain without pixels."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    groups = labels * 1000 + np.arange(len(labels)) // group_size if group_size else None
    split = ClassSplit((), (), tuple(range(len(sizes))), rule="file")
    return Domain("d", tuple(map(str, range(len(sizes)))), labels, groups, split=split)


if __name__ == "__main__":
    for shape in (EpisodeShape(), EpisodeShape(20, 1, 15), VariableShape()):
        for group_size in (0, 3):
            made = domain([40, 60, 100] * 20, group_size)
            prints = [
                EpisodeSampler(made, shape, device=d)(0, 2000).fingerprint()
                for d in ("cpu", "cuda")
            ]
            assert prints[0] == prints[1], (shape, group_size)
            print(f"same on cpu and cuda: {shape}, groups of {group_size}, {prints[0][:12]}")
    images = torch.randint(0, 256, (256, 3, 72, 72), dtype=torch.uint8)
    for how in (WEAK, STRONG):
        one, other = (augment(images.to(d), how, 1, 2).cpu() for d in ("cpu", "cuda"))
        print(f"augmentation differs by at most {(one - other).abs().max():.2e}")
        assert torch.allclose(one, other, atol=1e-3)
