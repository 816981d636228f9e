"""An image folder inside a zip or tar file, read where it lies: nothing is unpacked to disk.

A compressed tar has no random access, so it is decompressed once into a temporary file that is
gone when the import ends.
"""

import bz2
import gzip
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from polyshot.data.images import MAX_BYTES, BadImage
from polyshot.data.readers import FileItem, Listing, ReadOptions
from polyshot.data.readers.folder import arrange
from polyshot.errors import PolyshotError

OPENERS = {b"\x1f\x8b": gzip.GzipFile, b"BZ": bz2.BZ2File, b"\xfd7": lzma.LZMAFile}
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)


def accepts(path: Path) -> bool:
    """Zip and tar files, by their suffix; what is in them is checked when they are opened."""
    return path.is_file() and path.name.lower().endswith((".zip", *TAR_SUFFIXES))


@contextmanager
def listings(path: Path, options: ReadOptions) -> Iterator[list[Listing]]:
    """List the one domain of an archive."""
    reader = _zip if path.suffix.lower() == ".zip" else _tar
    with reader(path, options) as found:
        name = options.name or path.name.split(".")[0]
        yield [replace(found, name=name, reader="archive", origin=path.name)]


@dataclass(frozen=True)
class ZipItem:
    """One member of a zip file."""

    archive: Path
    where: str

    def read(self) -> bytes | BadImage:
        """Decompress the member, unless it claims to be larger than any photograph."""
        archive = _open_zip(self.archive)
        try:
            member = archive.getinfo(self.where)
            if member.file_size > MAX_BYTES:
                return BadImage(f"too large ({member.file_size / 2**20:,.0f} MiB)")
            return archive.read(member)
        except BROKEN:
            return BadImage("corrupt")
        except NotImplementedError:  # is a RuntimeError, so it is asked for first
            return BadImage("compressed in a way that Python does not know")
        except RuntimeError:  # zipfile's word for a password
            return BadImage("encrypted")


@lru_cache(maxsize=1)
def _open_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive once a process: its directory is long."""
    return zipfile.ZipFile(path)


@contextmanager
def _zip(path: Path, options: ReadOptions) -> Iterator[Listing]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except BROKEN as error:
        raise PolyshotError(f"{path} cannot be read as a zip file: {error}.") from None
    files = [PurePosixPath(name) for name in names if not name.endswith("/")]
    # Folders without an entry of their own exist as their files' parents.
    folders = {PurePosixPath(name) for name in names if name.endswith("/")}
    folders |= {parent for file in files for parent in file.parents if parent.parts}
    spelling = {PurePosixPath(name): name for name in names}

    def item(relative: PurePosixPath) -> ZipItem:
        return ZipItem(path, where=spelling[relative])

    yield arrange(files, sorted(folders), item, str(path), options)
    _open_zip.cache_clear()


@contextmanager
def _tar(path: Path, options: ReadOptions) -> Iterator[Listing]:
    with tempfile.TemporaryDirectory(prefix="polyshot-") as scratch:
        try:
            plain = _decompressed(path, Path(scratch))
            with tarfile.open(plain, "r:") as archive:
                members = {PurePosixPath(member.name): member for member in archive}
        except BROKEN as error:
            raise PolyshotError(f"{path} cannot be read as a tar file: {error}.") from None
        files = [name for name, member in members.items() if member.isfile()]
        folders = {name for name, member in members.items() if member.isdir() and name.parts}
        folders |= {parent for file in files for parent in file.parents if parent.parts}

        def item(relative: PurePosixPath) -> FileItem:
            member = members[relative]
            return FileItem(plain, str(relative), member.offset_data, member.size)

        yield arrange(files, sorted(folders), item, str(path), options)


def _decompressed(path: Path, scratch: Path) -> Path:
    with path.open("rb") as file:
        kind = OPENERS.get(file.read(2))
    if kind is None:
        return path
    plain = scratch / "plain.tar"
    with kind(path) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    return plain
