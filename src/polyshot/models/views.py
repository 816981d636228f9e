"""How networks see images: normalised, and perhaps more than once.

Views: an image may be embedded several times, moved and zoomed a little, and the mean counts. It
steadies embeddings at the price of more passes. Views are the same for every image and domain.
"""

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.errors import unknown

MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)
"""The one global normalisation: statistics of a domain would give the domain away."""

Views = Literal["one", "three", "five"]


class View(NamedTuple):
    """A part of the image, or more than it, mirrored at the border."""

    side: float
    """Share of the image's side that is shown; above 1 from farther away."""
    right: float = 0.0
    """Where it lies: -1 at the left border, 1 at the right one."""
    down: float = 0.0


VIEWS: dict[Views, tuple[View, ...]] = {
    "one": (View(1.0),),
    "three": (View(1.0), View(0.8), View(1.15)),
    "five": (View(1.0), *(View(0.8, right, down) for right in (-1, 1) for down in (-1, 1))),
}
CROPS = (
    View(1.0),
    *(
        View(0.55 + 0.45 * (7 * k % 19) / 19, 2 * (5 * k % 19) / 18 - 1, 2 * (11 * k % 19) / 18 - 1)
        for k in range(19)
    ),
)
"""The whole image, and crops of it, spread evenly over places and sizes: to learn from in turn."""


def check_views(name: str) -> Views:
    """Refuse a name that no views have."""
    for known in VIEWS:
        if known == name:
            return known
    raise unknown("views", name, VIEWS)


def over_views(
    embed: Callable[[Tensor], Tensor], images: Tensor, views: Views, together: bool = False
) -> Tensor:
    """Average what `embed` makes of images ``[..., B, 3, S, S]`` over the V views: ``[..., B, d]``.

    It is asked once a view, or, where the memory is there for it, once for all of them `together`:
    ``[..., V * B, 3, S, S]``.
    """
    chosen = VIEWS[views]
    if together and len(chosen) > 1:
        return mean_of_views(embed(every_view(images, views)), views)
    total = embed(apply_view(images, chosen[0]))
    for view in chosen[1:]:
        total = total + embed(apply_view(images, view))
    return total / len(chosen) if len(chosen) > 1 else total


def every_view(images: Tensor, views: Views) -> Tensor:
    """Put the V views of images ``[..., B, 3, S, S]`` behind each other: [..., V * B, 3, S, S]."""
    return torch.cat([apply_view(images, view) for view in VIEWS[views]], -4)


def mean_of_views(made: Tensor, views: Views) -> Tensor:
    """Average what was made of `every_view`: ``[..., V * B, d] -> [..., B, d]``."""
    return made.view(*made.shape[:-2], len(VIEWS[views]), -1, made.shape[-1]).mean(-3)


def apply_view(images: Tensor, view: View) -> Tensor:
    """Return a view of float images ``[..., 3, S, S]``, of the same shape."""
    if view == View(1.0):
        return images
    flat = images.flatten(0, -4)
    side, room = view.side, 1 - view.side
    rows = [[side, 0.0, view.right * room], [0.0, side, view.down * room]]
    affine = torch.tensor([rows], device=flat.device)
    # Where each pixel lies is computed once: it is the same place in every image.
    grid = F.affine_grid(affine, [1, *flat.shape[1:]], align_corners=False)
    grid = grid.expand(flat.shape[0], -1, -1, -1)
    moved = F.grid_sample(flat, grid, padding_mode="reflection", align_corners=False)
    return moved.view(images.shape)


def normalise(images: Tensor) -> Tensor:
    """Centre and scale images [B, 3, H, W], uint8 or float in [0, 1]: float [B, 3, H, W]."""
    if images.dtype == torch.uint8:
        images = images.to(torch.get_default_dtype()) / 255
    # A compiler writes them into its kernels, and would complain of the cache.
    constants = _constants if torch.compiler.is_compiling() else _kept_constants
    mean, std = constants(images.device, torch.get_default_dtype())
    return (images - mean) / std


def _constants(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Make mean and std [1, 3, 1, 1]."""
    mean, std = (torch.tensor(v, device=device, dtype=dtype).view(1, 3, 1, 1) for v in (MEAN, STD))
    return mean, std


@cache
def _kept_constants(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keep them on the device: copying them there anew would wait for it."""
    with torch.inference_mode(False):  # else the first prediction would spoil them for training
        return _constants(device, dtype)
