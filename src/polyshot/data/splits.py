"""Class splits: a domain's classes in three disjoint parts, train, val and test.

The rule is the paper's: seventy percent of the classes (rounded down) for training, fifteen for
validation, the rest for test, at random; ImageNet by the WordNet tree. Which rule holds is read off
the class names (all of them WordNet ids) or given by the reader (published sizes), so the same
domain is split in the same way on every machine.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from polyshot.errors import PolyshotError, did_you_mean, join_names, unknown

PARTS = ("train", "val", "test")
SMALLEST_PART = 5
"""A part with fewer classes cannot give a 5-way episode: such a domain is a target only."""
WNID = re.compile(r"n\d{8}\b")


@dataclass(frozen=True)
class ClassSplit:
    """Class ids of each part, ascending, and how they came about."""

    train: tuple[int, ...]
    val: tuple[int, ...]
    test: tuple[int, ...]
    rule: str
    """``random``, ``wordnet``, ``file``, ``target-only`` (too small: every class is test), or
    ``two`` (nothing is left for tests)."""
    seed: int | None = None
    """The seed of a random split; None where chance played no part."""

    def part(self, name: str) -> tuple[int, ...]:
        """Return the class ids of ``train``, ``val``, ``test``, or ``all``."""
        if name == "all":
            return tuple(sorted(self.train + self.val + self.test))
        if name not in PARTS:
            raise unknown("part", name, (*PARTS, "all"))
        ids: tuple[int, ...] = getattr(self, name)
        return ids

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of classes in train, val and test."""
        return len(self.train), len(self.val), len(self.test)


def split_classes(
    class_names: Sequence[str], seed: int = 0, sizes: tuple[int, int, int] | None = None
) -> ClassSplit:
    """Split a domain by the paper's rule; the position of a class's name is its id.

    The seed chooses among random splits; WordNet's split does not depend on it. `sizes` are
    published numbers of train, val and test classes, where they differ from the rule's.
    """
    count = len(class_names)
    if sizes is None and count and all(WNID.match(name) for name in class_names):
        return _split_by_wordnet(class_names)
    if sizes is None:
        train, val = count * 70 // 100, count * 15 // 100
        if count >= 3 * SMALLEST_PART:  # of a small domain most classes still train
            val = max(val, SMALLEST_PART)
            train = min(train, count - val - SMALLEST_PART)
        sizes = train, val, count - train - val
    if sum(sizes) != count:
        raise PolyshotError(f"A split of sizes {sizes} does not fit {count} classes.")
    if min(sizes) < SMALLEST_PART:
        return ClassSplit((), (), tuple(range(count)), rule="target-only")
    order = _shuffled(class_names, seed)
    end, val_end = sizes[0], sizes[0] + sizes[1]
    parts = [tuple(sorted(part)) for part in (order[:end], order[end:val_end], order[val_end:])]
    return ClassSplit(parts[0], parts[1], parts[2], rule="random", seed=seed)


def split_in_two(class_names: Sequence[str]) -> ClassSplit:
    """Split all classes of a small domain to train on and to choose by; none is left for tests."""
    count = len(class_names)
    val = max(min(SMALLEST_PART, count // 2), count * 20 // 100)
    order = _shuffled(class_names, 0)
    train, chosen = sorted(order[: count - val]), sorted(order[count - val :])
    return ClassSplit(tuple(train), tuple(chosen), (), rule="two", seed=0)


def _shuffled(class_names: Sequence[str], seed: int) -> list[int]:
    """Return class ids in a random order, by names alone, not by a library's generator."""
    lots = [(hashlib.sha256(f"{seed}\0{name}".encode()).digest(), name) for name in class_names]
    return sorted(range(len(class_names)), key=lots.__getitem__)


def read_split_file(path: Path, class_names: Sequence[str]) -> ClassSplit:
    """Read a user's split, ``{"train": [names], "val": [...], "test": [...]}``, of all classes."""
    origin = f"The split file {path}"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PolyshotError(f"There is no split file {path}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PolyshotError(f"{origin} cannot be read as JSON: {error}.") from None
    if not isinstance(given, Mapping) or not set(given) <= set(PARTS):
        raise PolyshotError(f'{origin} must be an object with the keys "train", "val" and "test".')
    parts: dict[str, list[str]] = {name: given.get(name, []) for name in PARTS}
    for name, members in parts.items():
        if not isinstance(members, list) or not all(isinstance(m, str) for m in members):
            raise PolyshotError(f'{origin}: "{name}" must be a list of class names.')
    counts = Counter(member for members in parts.values() for member in members)
    ids = {name: i for i, name in enumerate(class_names)}
    if strange := [name for name in counts if name not in ids]:
        hint = did_you_mean(strange[0], ids)
        named = f"{origin} names classes that do not exist: {join_names(strange)}."
        raise PolyshotError(named + hint)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise PolyshotError(
            f"{origin} names classes twice, parts must not overlap: {join_names(twice)}."
        )
    if missing := [name for name in class_names if name not in counts]:
        raise PolyshotError(f"{origin} leaves classes out of every part: {join_names(missing)}.")
    train, val, test = (tuple(sorted(ids[member] for member in parts[name])) for name in PARTS)
    return ClassSplit(train, val, test, rule="file")


def _split_by_wordnet(class_names: Sequence[str]) -> ClassSplit:
    """ImageNet's split in the paper: carnivores validate, devices test, the rest trains."""
    under = wordnet_ids()
    ids = range(len(class_names))
    val = tuple(i for i in ids if class_names[i][:9] in under["carnivore"])
    test = tuple(i for i in ids if class_names[i][:9] in under["device"])
    train = tuple(i for i in ids if i not in {*val, *test})
    if min(len(train), len(val), len(test)) < SMALLEST_PART:
        return ClassSplit((), (), tuple(ids), rule="target-only")
    return ClassSplit(train, val, test, rule="wordnet")


@cache
def wordnet_ids() -> dict[str, frozenset[str]]:
    """WordNet 3.0 noun ids under *carnivore* and under *device* (made by tools/wordnet_ids.py)."""
    text = resources.files("polyshot.data").joinpath("wordnet.json").read_text(encoding="utf-8")
    return {root: frozenset(ids) for root, ids in json.loads(text)["under"].items()}
