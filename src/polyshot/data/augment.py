"""Augmentation as batched tensor operations on uint8 batches, the same on CPU and GPU, seeded.

Every image gets its own crop, zoom, turn and mirror as one affine map, so the batch is resampled
once; colour changes are one more pass. The random numbers are a pure function of (seed, step, place
in the batch), see counter_rng.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.util import counter_rng

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey that people see (ITU-R BT.601)."""


@dataclass(frozen=True)
class Augment:
    """How far each property may move; the defaults change nothing."""

    shift: float = 0.0
    """Random crop: the image moves by up to this share of its side, mirrored at the border."""
    area: tuple[float, float] = (1.0, 1.0)
    """Random resized crop: share of the image's area that is kept; above 1 zooms out."""
    aspect: float = 1.0
    """Random resized crop: width to height between its inverse and this."""
    turn: float = 0.0
    """Rotation by up to this many radians to either side."""
    mirror: bool = False
    """Mirror every second image, where its domain allows it."""
    brightness: float = 0.0
    """Light by a factor between 1 minus and 1 plus this."""
    contrast: float = 0.0
    """Distance from the image's mean grey, by such a factor."""
    saturation: float = 0.0
    """Distance of each pixel from its grey, by such a factor."""
    grey: float = 0.0
    """Share of the images that lose their colour."""
    tint: float = 0.0
    """Each colour channel moves by up to this, of 1."""

    def __post_init__(self) -> None:
        low, high = self.area
        if not 0 < low <= high or self.aspect < 1 or not 0 <= self.grey <= 1:
            raise PolyshotError(f"{self} is no augmentation: check area, aspect and grey.")


PLAIN = Augment()
"""Images as they are."""
WEAK = Augment(shift=8 / 72, mirror=True, brightness=0.2)
STRONG = Augment(
    area=(0.3, 1.1),
    aspect=4 / 3,
    turn=0.15,
    mirror=True,
    brightness=0.4,
    contrast=0.4,
    saturation=0.48,
    grey=0.1,
    tint=0.05,
)
"""Measured on nine real domains: strong for most of a training, weak for the rest."""

_COLUMNS = 16
"""Random numbers of one image; a new property takes the next free one, the others stay."""


def augment(
    images: Tensor, how: Augment, seed: int, step: int, mirror: Tensor | bool = True
) -> Tensor:
    """Augment a batch: uint8 ``[B, 3, H, W]`` on any device -> float32 in ``[0, 1]``.

    `step` is the number of the batch; `mirror`, bool ``[B]``, says which domains allow mirroring.
    """
    random = chances(seed, step, len(images), images.device)
    return recolour(resample(images, how, random, mirror), how, random)


def chances(seed: int, step: int, images: int | Tensor, device: torch.device) -> Tensor:
    """Return the random numbers of a batch's augmentation, one column an image.

    `images` is their number, or int64 ``[B]`` their places in a batch that processes share.
    """
    rows = torch.arange(images, device=device) if isinstance(images, int) else images.to(device)
    random = counter_rng.uniform(counter_rng.key("augment", seed, step), rows, _COLUMNS)
    return random.to(torch.get_default_dtype())


def resample(images: Tensor, how: Augment, random: Tensor, mirror: Tensor | bool = True) -> Tensor:
    """Crop, zoom, turn and mirror in one bilinear pass: uint8 or float in, float32 of 0..1 out."""
    pixels = images.to(random.dtype) / 255
    area = how.area[0] + (how.area[1] - how.area[0]) * random[0]
    stretch = how.aspect ** _either_side(random[1])  # width to height
    width, height = (area * stretch).sqrt(), (area / stretch).sqrt()
    # A crop smaller than the image lies anywhere inside it; `shift` moves it past the border.
    across = ((1 - width).clamp(min=0) + 2 * how.shift) * _either_side(random[2])
    down = ((1 - height).clamp(min=0) + 2 * how.shift) * _either_side(random[3])
    angle = how.turn * _either_side(random[4])
    allowed = torch.as_tensor(mirror, device=images.device)
    side = 1 - 2 * ((random[5] < 0.5) & allowed & how.mirror).to(torch.float32)
    cos, sin = angle.cos(), angle.sin()
    rows = [[side * width * cos, -height * sin, across], [side * width * sin, height * cos, down]]
    affine = torch.stack([torch.stack(row, -1) for row in rows], 1)  # [B, 2, 3]
    grid = F.affine_grid(affine, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)


def recolour(pixels: Tensor, how: Augment, random: Tensor) -> Tensor:
    """Change light, contrast, saturation and tint of float ``[B, 3, H, W]`` in 0..1."""

    def factor(column: int, spread: float) -> Tensor:
        return (1 + spread * _either_side(random[column])).view(-1, 1, 1, 1)

    keeps_colour = (random[9] >= how.grey).view(-1, 1, 1, 1)
    # Plain numbers: a tensor of them would have to be copied to the device, which waits for it.
    red, green, blue = pixels[:, :1], pixels[:, 1:2], pixels[:, 2:]
    grey = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue  # [B, 1, H, W]
    pixels = grey + (pixels - grey) * factor(8, how.saturation) * keeps_colour
    mean = grey.mean((2, 3), keepdim=True)
    pixels = mean + (pixels - mean) * factor(7, how.contrast)
    tint = how.tint * _either_side(random[10:13]).T[:, :, None, None]  # [B, 3, 1, 1]
    return (pixels * factor(6, how.brightness) + tint).clamp(0, 1)


def _either_side(random: Tensor) -> Tensor:
    """Map ``[0, 1)`` to ``[-1, 1)``."""
    return 2 * random - 1
