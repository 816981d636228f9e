"""Readers turn what users have into listings; the format is detected from the path.

A new format is one module with ``accepts(path)`` and ``listings(path, options)``, and one entry in
``READERS``.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from polyshot.data.readers import archive, decathlon, folder, parquet
from polyshot.data.readers.base import Item, Listing, ReadOptions
from polyshot.errors import PolyshotError

__all__ = ["Item", "Listing", "ReadOptions", "open_source"]


class Reader(Protocol):
    """What a reader's module offers."""

    def accepts(self, path: Path) -> bool:
        """Whether the path looks like this reader's format."""

    def listings(self, path: Path, options: ReadOptions) -> AbstractContextManager[list[Listing]]:
        """List the domains found; what they need (an open archive) lives as long as the context."""


READERS: tuple[Reader, ...] = (decathlon, parquet, archive, folder)
"""In order of precedence: a plain folder is what is left."""


def open_source(path: Path, options: ReadOptions) -> AbstractContextManager[list[Listing]]:
    """Find the reader for a path and list its domains."""
    if not path.exists():
        raise PolyshotError(f"There is no file or folder {path}.")
    for reader in READERS:
        if reader.accepts(path):
            return reader.listings(path, options)
    raise PolyshotError(
        f"{path} is in no format Polyshot reads: give a folder with a folder for each class, a zip "
        "or tar file of one, Parquet files, or the Visual Decathlon's root."
    )
