"""Readers turn what users have into listings: each domain as a list of images to fetch.

A new format is one module with ``accepts(path)`` and ``listings(path, options)``, and one entry in
``READERS`` of ``data/importer.py``.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from polyshot.data.images import BadImage, read_file
from polyshot.errors import PolyshotError, join_names


class Item(Protocol):
    """One encoded image. Small and picklable: it travels to a worker process, its bytes do not."""

    @property
    def where(self) -> str:
        """The name a user knows the image by."""

    def read(self) -> bytes | BadImage:
        """Fetch the encoded bytes."""


@dataclass(frozen=True)
class Listing:
    """One domain as a reader found it, nothing decoded yet."""

    name: str
    class_names: tuple[str, ...]
    items: Sequence[Item]
    labels: Sequence[int]
    """One class id an item."""
    groups: Sequence[Hashable] | None = None
    """One group an item, of any hashable type, or None."""
    mirror: bool = True
    """Whether a mirrored image still shows its class."""
    split_sizes: tuple[int, int, int] | None = None
    """Published numbers of train, val and test classes, where they differ from the rule's."""
    by_wordnet: bool = False
    """Whether its classes should be split by the WordNet tree, which takes WordNet ids as names."""
    empty_classes: tuple[str, ...] = ()
    """Class folders without a file in them, which are mistakes more often than not."""
    dropped: tuple[BadImage, ...] = ()
    """Entries of an archive that are no files in it: links, and names that lead out of it."""
    beside: tuple[BadImage, ...] = ()
    """Image files above the class folders, which belong to none: they are told, never refused."""
    reader: str = ""
    origin: str = ""
    """File or folder name (not its path, which would differ between machines)."""


@dataclass(frozen=True)
class ReadOptions:
    """What a user can tell a reader."""

    name: str | None = None
    """Name of the domain; taken from the path where it is None."""
    label_column: str | None = None
    """Parquet: the column with the labels, where several qualify."""
    group_pattern: str | None = None
    """Folders and archives: a regular expression; what its first parenthesis matches in an image's
    path is the image's group."""
    keep_case: bool = False
    """Treat class names that differ only in case as different."""


@dataclass(frozen=True)
class FileItem:
    """An image file, or a stretch of a larger file (an uncompressed tar)."""

    path: Path
    where: str
    offset: int = 0
    length: int | None = None

    def read(self) -> bytes | BadImage:
        """Read the file, or its stretch."""
        return read_file(self.path, self.offset, self.length)


class Reader(Protocol):
    """What a reader's module offers."""

    def accepts(self, path: Path) -> bool:
        """Whether the path looks like this reader's format."""

    def listings(self, path: Path, options: ReadOptions) -> AbstractContextManager[list[Listing]]:
        """List the domains found; what they need (an open archive) lives as long as the context."""


def check_one_name(path: Path, domains: Sequence[str], options: ReadOptions) -> None:
    """Refuse a name for several domains."""
    if options.name and len(domains) > 1:
        raise PolyshotError(
            f"{path} has {len(domains)} domains ({join_names(domains)}), --name takes one."
        )


def check_class_names(names: Sequence[str], where: str, keep_case: bool = False) -> None:
    """Refuse names that are empty or that a person would read as the same class."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        # What people do not mean when they name a folder: blanks, forms of accents, case.
        meant = name if keep_case else unicodedata.normalize("NFKC", name).casefold()
        key = re.sub(r"[\s_]+", " ", meant).strip()
        if not key:
            raise PolyshotError(f"{where} has a class without a name.")
        if not name.isprintable():
            raise PolyshotError(f"{where} has a class whose name cannot be shown: rename '{name}'.")
        alike[key].append(f"'{name}'")
    if doubles := [" and ".join(same) for same in alike.values() if len(same) > 1]:
        raise PolyshotError(
            f"{where} has class names that mean the same: {join_names(doubles)}. "
            "Merge or rename them, or pass --keep-case if upper and lower case differ on purpose."
        )
