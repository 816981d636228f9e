"""An image folder: ``root/class/*.jpg``, or ``root/train/class/*.jpg`` with the parts pooled."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from polyshot.data.readers.base import FileItem, Listing, ReadOptions
from polyshot.data.readers.layout import arrange
from polyshot.errors import PolyshotError


def accepts(path: Path) -> bool:
    """Any folder that no other reader claims."""
    return path.is_dir()


@contextmanager
def listings(path: Path, options: ReadOptions) -> Iterator[list[Listing]]:
    """List one domain; links are followed, once."""
    files, folders = _walk(path)

    def item(relative: PurePosixPath) -> FileItem:
        return FileItem(path / relative, where=str(relative))

    found = arrange(files, folders, item, str(path), options)
    name = options.name or path.resolve().name
    yield [replace(found, name=name, reader="folder", origin=path.resolve().name)]


def _walk(root: Path) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    files: list[PurePosixPath] = []
    folders: list[PurePosixPath] = []
    visited: set[str] = set()

    def stop(error: OSError) -> None:
        raise PolyshotError(f"{error.filename} cannot be listed: {error.strerror}.") from None

    for here, below, names in os.walk(root, onerror=stop, followlinks=True):
        visited.add(os.path.realpath(here))
        # A link back to a folder already seen would never end.
        below[:] = sorted(
            name
            for name in below
            if os.path.realpath(os.path.join(here, name)) not in visited  # noqa: PTH118
        )
        relative = PurePosixPath(Path(here).relative_to(root).as_posix())
        files += [relative / name for name in names]
        folders += [relative / name for name in below]
    return files, folders
