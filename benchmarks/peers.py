"""Makes easyfsl 1.5.0 importable on today's torch, so that both sides run in one process."""

import torch
from torch.utils.data import Sampler


def make_easyfsl_importable() -> None:
    """Stand in for what torchvision's CPU-less build and torch's removed argument break.

    torchvision registers Python functions for operators that its missing CUDA library defines, and
    easyfsl passes ``data_source`` to ``Sampler``, which torch no longer takes.
    """
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    make_easyfsl_importable.kept = library  # type: ignore[attr-defined]  # else it is undone

    def init(self: Sampler, data_source: object = None) -> None:
        del self, data_source

    Sampler.__init__ = init  # type: ignore[method-assign]
