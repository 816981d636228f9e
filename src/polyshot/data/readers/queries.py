"""A user's own images on disk: examples with their labels, and images to label.

Examples are a folder for each class, or a CSV of paths and labels. Images to label may be more than
a memory holds: they are read shard by shard, from folders, Parquet files and tars.

What is named may be a path, or a URL of any file system that fsspec knows. A shard is small and
picklable: it travels to the process that labels it, which reads the images itself. The shards of
the same files are the same, so that what is labelled once need not be labelled again.
"""

import itertools
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from polyshot.data.images import MAX_BYTES, BadImage
from polyshot.data.readers import ReadOptions, folder, spreadsheet
from polyshot.data.readers.folder import ARCHIVES, BROKEN, SUFFIXES, is_junk
from polyshot.data.readers.parquet import embedded, image_column, reading
from polyshot.errors import PolyshotError, join_names
from polyshot.util.files import digest, file_system, is_url

SHARD = 1000
"""Files of a folder that are labelled together."""
FETCHED = 64
"""Files of a URL that are fetched together."""
TARS = tuple(suffix for suffix in ARCHIVES if suffix != ".zip")

Found = tuple[str, Path | bytes | BadImage]
"""An image's name, and where or what it is."""


class Shard(Protocol):
    """Images that are labelled together."""

    @property
    def key(self) -> str:
        """Tell it from others: a hash of the names of its images, or of the file they are in."""

    def images(self) -> Iterator[Found]:
        """Read the images; what cannot be read comes with a reason."""


@dataclass(frozen=True)
class Files:
    """Image files, paths or URLs."""

    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """Hash the names."""
        return digest(*self.names)

    def images(self) -> Iterator[Found]:
        """Leave files of this machine to whoever decodes them; others are fetched together."""
        for start in range(0, len(self.names), FETCHED):
            names = self.names[start : start + FETCHED]
            if not is_url(names[0]):
                yield from ((name, Path(name)) for name in names)
                continue
            system, _ = file_system(names[0])
            paths = [system._strip_protocol(name) for name in names]
            found = system.cat(paths, on_error="return")
            for name, path in zip(names, paths, strict=True):
                data = found.get(path)
                good = isinstance(data, bytes)
                yield name, data if good else BadImage(_reason(data))


@dataclass(frozen=True)
class Rows:
    """A row group of a Parquet file."""

    file: str
    group: int
    first: int
    """Number of its first row in the file."""

    @property
    def key(self) -> str:
        """Hash where it lies."""
        return digest(self.file, str(self.group), str(self.first))

    def images(self) -> Iterator[Found]:
        """Read the rows, some at a time."""
        from pyarrow import ArrowException  # noqa: PLC0415 (an extra)

        row = self.first
        try:
            with _parquet(self.file) as table:
                column = image_column(table.schema_arrow, self.file)
                only = {"row_groups": [self.group], "columns": [column]}
                for batch in table.iter_batches(FETCHED, **only):
                    for value in batch.column(0):
                        yield f"{self.file}#{row}", embedded(value.as_py())
                        row += 1
        except (ArrowException, OSError):
            yield f"{self.file}#{row}", BadImage("corrupt row group")


@dataclass(frozen=True)
class Tar:
    """A tar, as WebDataset writes them: read from its beginning to its end, once."""

    file: str

    @property
    def key(self) -> str:
        """Hash the name."""
        return digest(self.file)

    def images(self) -> Iterator[Found]:
        """Read the members that are images by their names."""
        try:
            with (
                _opened(self.file) as file,
                tarfile.open(fileobj=file, mode="r|*") as tar,
            ):
                for member in tar:
                    if not member.isfile() or not _is_image(member.name):
                        continue
                    name = f"{self.file}/{member.name}"
                    if member.size > MAX_BYTES:
                        yield name, BadImage(f"too large ({member.size / 2**20:,.0f} MiB)")
                        continue
                    content = tar.extractfile(member)
                    assert content is not None
                    yield name, content.read()
        except BROKEN:
            yield self.file, BadImage("a tar that ends early or is damaged")


def shards(queries: Sequence[str], size: int = SHARD) -> Iterator[Shard]:
    """List what there is to label, in an order that stays the same; nothing is decoded.

    Folders are searched, all levels down, for images and for Parquet and tar files.
    """
    if not queries:
        raise PolyshotError("There are no images to classify: name files or a folder.")
    for query in queries:
        found = _shards(query, size)
        first = next(found, None)
        if first is None:
            raise PolyshotError(f"{query} has no image, Parquet or tar files in it.")
        yield from itertools.chain([first], found)


def _shards(query: str, size: int) -> Iterator[Shard]:
    images: list[str] = []
    for name in _files(query):
        if name.lower().endswith(".parquet") and _can_be_opened(name):
            yield from _row_groups(name)
        elif name.lower().endswith(TARS) and _can_be_opened(name):
            yield Tar(name)
        else:
            images.append(name)
            if len(images) == size:
                yield Files(tuple(images))
                images = []
    if images:
        yield Files(tuple(images))


def _can_be_opened(name: str) -> bool:
    """Tell whether a file is one: to open a pipe would wait for a writer."""
    return is_url(name) or Path(name).is_file()


def _files(query: str) -> Iterator[str]:
    """List the files to read: one that is named, or those of a folder, level by level."""
    try:
        if is_url(query):
            system, path = file_system(query)
            if system.isdir(path):
                yield from map(system.unstrip_protocol, _below(system.walk(path)))
            elif system.exists(path):
                yield query
            else:
                raise PolyshotError(f"There is no file or folder {query}.")
        elif Path(query).is_dir():
            yield from _below(os.walk(query, onerror=_stop))
        elif Path(query).exists():
            yield query
        else:
            raise PolyshotError(f"There is no file or folder {query}.")
    except OSError as error:
        raise PolyshotError(f"{query} cannot be listed: {error.strerror or error}.") from None


def _stop(error: OSError) -> None:
    raise error


def _below(walked: Iterable[tuple[str, Any, Any]]) -> Iterator[str]:
    """List the files that can be read, in the order of their names, of what walks a folder."""
    for here, folders, names in walked:
        if isinstance(folders, list):
            folders[:] = sorted(name for name in folders if not is_junk(PurePosixPath(name)))
        for name in sorted(names):
            if _is_image(name) or name.lower().endswith((".parquet", *TARS)):
                yield f"{str(here).rstrip('/')}/{name}"


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not is_junk(PurePosixPath(name))


def _row_groups(file: str) -> Iterator[Shard]:
    with reading(file), _parquet(file) as table:
        image_column(table.schema_arrow, file)
        counts = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
    first = 0
    for group, count in enumerate(counts):
        yield Rows(file, group, first)
        first += count


def _parquet(file: str) -> Any:
    from pyarrow import parquet  # noqa: PLC0415 (an extra)

    return parquet.ParquetFile(_opened(file) if is_url(file) else file)


def _opened(file: str) -> Any:
    if not is_url(file):
        return Path(file).open("rb")
    system, path = file_system(file)
    return system.open(path, "rb")


def _reason(error: object) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or "unreadable").splitlines()[0].lower()


def read_support(path: Path | str) -> tuple[list[Path], list[str]]:
    """Read a support set: paths and labels, of a folder for each class or of a CSV file.

    `data.readers.spreadsheet` says what a CSV file may look like.
    """
    paths, labels, _ = list_support(path)
    return paths, labels


def list_support(path: Path | str) -> tuple[list[Path], list[str], list[BadImage]]:
    """Read a support set, as `read_support`, and list the images that belong to no class of it."""
    path = Path(path)
    if path.is_dir():
        with folder.listings(path, ReadOptions()) as (listing,):
            if listing.empty_classes:
                raise PolyshotError(
                    f"{path} has classes without images: {join_names(listing.empty_classes)}. "
                    "Add images, or remove the folders."
                )
            paths = [path / item.where for item in listing.items]
            labels = [listing.class_names[label] for label in listing.labels]
            beside = [replace(each, where=str(path / each.where)) for each in listing.beside]
            return paths, labels, beside
    if not path.exists():
        raise PolyshotError(f"There is no file or folder {path}.")
    if not spreadsheet.accepts(path) and path.suffix.lower() != ".txt":
        raise PolyshotError(
            f"{path} is no support set: give a folder with a folder for each class, or a CSV file "
            "with the columns path and label."
        )
    return *spreadsheet.read_rows(path), []


def read_queries(paths: Path | str | Sequence[Path | str]) -> list[Path]:
    """List images: files as they are, folders searched for image files, all levels down."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            named = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
            # Pipes, devices and dangling links are listed, too: who reads them says what they are.
            images = sorted(f for f in named if not is_junk(f.relative_to(path)) and not f.is_dir())
            if not images:
                raise PolyshotError(f"{path} has no image files ({', '.join(SUFFIXES[:3])}, ...).")
            found += images
        elif path.exists():
            found.append(path)
        else:
            raise PolyshotError(f"There is no file or folder {path}.")
    if not found:
        raise PolyshotError("There are no images to classify: name files or a folder.")
    return found
