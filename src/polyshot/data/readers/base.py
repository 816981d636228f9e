"""What a reader gives: each domain it found, as a list of images that any process can fetch."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from polyshot.data.decode import MAX_BYTES, BadImage


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
    empty_classes: tuple[str, ...] = ()
    """Class folders without a file in them, which are mistakes more often than not."""
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
        try:
            length = self.path.stat().st_size if self.length is None else self.length
            if length > MAX_BYTES:
                return BadImage(f"too large ({length / 2**20:,.0f} MiB)")
            with self.path.open("rb") as file:
                file.seek(self.offset)
                return file.read(length)
        except PermissionError:
            return BadImage("permission denied")
        except OSError as error:
            return BadImage(error.strerror.lower() if error.strerror else "unreadable")
