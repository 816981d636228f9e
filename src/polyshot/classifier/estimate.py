"""What a few labelled images tell about the accuracy on further ones."""

import math
from dataclasses import dataclass

from polyshot.classifier.support import Label


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy on new images, from leaving out each example in turn."""

    accuracy: float
    """Share of the examples that the others classify right."""
    half_width: float
    """Half of the 95 % interval from `low` to `high`."""
    low: float
    high: float
    images: int
    """How many examples could be left out: those with another of their class."""
    per_class: dict[Label, float]
    """By label; classes with one image are missing."""
    of: str
    """What was measured: ``prototypes`` or ``head``."""

    def __str__(self) -> str:
        return (
            f"Expected accuracy: {self.accuracy:.0%} ({self.low:.0%} to {self.high:.0%}), from "
            f"leaving out each of {self.images} examples in turn "
            f"({self.of})."
        )


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share: within 0 and 1, and of some width at 100 %."""
    share = right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
    # At 0 and 1 the ends are the share itself, but for rounding.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))
