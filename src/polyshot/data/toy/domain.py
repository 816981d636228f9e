"""The record of one embedded domain."""

from collections.abc import Callable
from dataclasses import dataclass

from polyshot.data.toy.canvas import Array, Random


@dataclass(frozen=True)
class ToyDomain:
    """An image collection that code draws."""

    name: str
    """Its name, the key in `DOMAINS`."""
    about: str
    """One line that says what the images show."""
    class_names: tuple[str, ...]
    """A readable name for each class, in the order of the labels."""
    mirror: bool
    """Whether a horizontal flip keeps the class."""
    paint: Callable[[int, Random, int], Array]
    """`paint(class_id, rng, size)` draws one example, float32 `[size, size, 3]` of about 0 to 1."""
