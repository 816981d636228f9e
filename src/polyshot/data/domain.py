"""A domain: a named collection of labelled images, seen from the side of its labels."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polyshot.data.splits import ClassSplit, split_classes
from polyshot.errors import PolyshotError, join_names
from polyshot.util.hashing import digest


@dataclass(frozen=True, eq=False)
class Domain:
    """Labels, groups and the class split of one domain; the pixels live in its pack."""

    name: str
    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    """``[n]`` class id of each image."""
    groups: NDArray[np.int64] | None = None
    """``[n]`` or None. Images of one group are near-duplicates (frames of one film, shots of one
    object); support and query must not share one. A group lies within one class."""
    mirror: bool = True
    """Whether a mirrored image still shows its class (not so for letters and traffic signs)."""
    split: ClassSplit = field(default=ClassSplit((), (), (), rule=""))

    def __post_init__(self) -> None:
        if not self.split.rule:
            object.__setattr__(self, "split", split_classes(self.class_names))

    def with_split(self, split: ClassSplit) -> "Domain":
        """Return the same domain under another class split."""
        return replace(self, split=split)

    @cached_property
    def class_sizes(self) -> NDArray[np.int64]:
        """``[classes]`` number of images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names)).astype(np.int64)

    @cached_property
    def group_count(self) -> int:
        """Number of different groups; 0 where the domain has none."""
        return 0 if self.groups is None else len(np.unique(self.groups))

    @cached_property
    def layout_hash(self) -> str:
        """Hash of class names, labels and groups.

        Episodes are keyed by it. It leaves pixels out on purpose: the same images packed at another
        size, or decoded by another version of a JPEG library, give the same episodes.
        """
        groups = b"" if self.groups is None else self.groups.astype("<i8").tobytes()
        return digest(*self.class_names, self.labels.astype("<i8").tobytes(), groups)


def normalised(name: str) -> str:
    """Fold what people do not mean when they name a folder: case, blanks, forms of accents."""
    return re.sub(r"[\s_]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def check_class_names(names: Sequence[str], where: str, keep_case: bool = False) -> None:
    """Refuse names that are empty or that a person would read as the same class."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        key = re.sub(r"[\s_]+", " ", name).strip() if keep_case else normalised(name)
        if not key:
            raise PolyshotError(f"{where} has a class without a name.")
        alike[key].append(f"'{name}'")
    if doubles := [" and ".join(same) for same in alike.values() if len(same) > 1]:
        raise PolyshotError(
            f"{where} has class names that mean the same: {join_names(doubles)}. "
            "Merge or rename them, or pass --keep-case if upper and lower case differ on purpose."
        )
