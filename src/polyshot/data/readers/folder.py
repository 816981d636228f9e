"""An image folder: ``root/class/*.jpg``, or ``root/train/class/*.jpg`` with the parts pooled.

It may lie in a zip or tar file, which is read where it lies: nothing is unpacked to disk. Only a
compressed tar, which has no random access, is decompressed once into a temporary file that is gone
when the import ends.
"""

import bz2
import gzip
import lzma
import os
import re
import shutil
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath

from polyshot.data.images import MAX_BYTES, BadImage
from polyshot.data.readers import FileItem, Item, Listing, ReadOptions, check_class_names
from polyshot.errors import PolyshotError
from polyshot.util.scratch import scratch_folder

PART_NAMES = frozenset(
    ["train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"]
)
SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif",
    ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2", ".heic", ".heif",
)  # fmt: skip
JUNK = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
OPENERS = {b"\x1f\x8b": gzip.GzipFile, b"BZ": bz2.BZ2File, b"\xfd7": lzma.LZMAFile}
BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(ValueError, OverflowError, struct.error),
)
"""What Python's readers of archives raise at damaged ones."""

Parts = tuple[str, ...]
Found = tuple[list[PurePosixPath], list[PurePosixPath], Callable[[PurePosixPath], Item]]
"""Files and folders below a root, all of them, and what turns a file into an item to read."""


def accepts(path: Path) -> bool:
    """Any folder that no other reader claims, and zip and tar files by their suffix."""
    return path.is_dir() or (path.is_file() and path.name.lower().endswith(ARCHIVES))


@contextmanager
def listings(path: Path, options: ReadOptions) -> Iterator[list[Listing]]:
    """List one domain."""
    if path.is_dir():
        reader, name = "folder", path.resolve().name
        opened, origin = _folder, name
    else:
        reader, name, origin = "archive", path.name.split(".")[0], path.name
        opened = _zip if path.suffix.lower() == ".zip" else _tar
    dropped: list[BadImage] = []
    with opened(path, dropped) as found:
        listing = arrange(found, str(path), options)
        named = replace(listing, name=options.name or name, reader=reader, origin=origin)
        yield [replace(named, dropped=tuple(dropped))]


@contextmanager
def _folder(path: Path, dropped: list[BadImage]) -> Iterator[Found]:  # noqa: ARG001, as the others
    """Walk a folder; links are followed, once."""
    files: list[PurePosixPath] = []
    folders: list[PurePosixPath] = []
    visited: set[str] = set()

    def stop(error: OSError) -> None:
        raise PolyshotError(f"{error.filename} cannot be listed: {error.strerror}.") from None

    for here, below, names in os.walk(path, onerror=stop, followlinks=True):
        visited.add(os.path.realpath(here))
        # A link back to a folder already seen would never end.
        below[:] = sorted(n for n in below if os.path.realpath(Path(here, n)) not in visited)
        relative = PurePosixPath(Path(here).relative_to(path).as_posix())
        files += [relative / name for name in names]
        folders += [relative / name for name in below]
    yield files, folders, lambda relative: FileItem(path / relative, where=str(relative))


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
def _zip(path: Path, dropped: list[BadImage]) -> Iterator[Found]:
    try:
        with zipfile.ZipFile(path) as archive:
            spelled = _with_slashes(archive.namelist(), dropped)
    except (*BROKEN, NotImplementedError) as error:
        raise PolyshotError(f"{path} cannot be read as a zip file: {error}.") from None
    names = _inside(spelled, dropped)
    files = [PurePosixPath(name) for name in names if not name.endswith("/")]
    folders = [PurePosixPath(name) for name in names if name.endswith("/")]
    spelling = {PurePosixPath(name): spelled[name] for name in names}
    yield files, folders, lambda relative: ZipItem(path, where=spelling[relative])
    _open_zip.cache_clear()


@contextmanager
def _tar(path: Path, dropped: list[BadImage]) -> Iterator[Found]:
    with scratch_folder() as scratch:
        try:
            plain = _decompressed(path, scratch)
            with tarfile.open(plain, "r:") as archive:
                members = {PurePosixPath(member.name): member for member in archive}
        except BROKEN as error:
            raise PolyshotError(f"{path} cannot be read as a tar file: {error}.") from None
        names = [PurePosixPath(name) for name in _inside(map(str, members), dropped)]
        files = [name for name in names if members[name].isfile()]
        folders = [name for name in names if members[name].isdir()]
        others = {*names} - {*files, *folders}
        for name in sorted(each for each in others if not is_junk(each)):
            link = members[name].issym() or members[name].islnk()
            dropped.append(BadImage("a link" if link else "a pipe or device", str(name)))

        def item(relative: PurePosixPath) -> FileItem:
            member = members[relative]
            return FileItem(plain, str(relative), member.offset_data, member.size)

        yield files, folders, item


def _with_slashes(names: Iterable[str], dropped: list[BadImage]) -> dict[str, str]:
    """Return the names of a zip with slashes, and how the zip spells them.

    The format asks for slashes. Tools of Windows that write backslashes mean them.
    """
    spelled: dict[str, str] = {}
    for name in names:
        if spelled.setdefault(name.replace("\\", "/"), name) != name:
            dropped.append(BadImage("the name of another entry", name))
    return spelled


def _inside(names: Iterable[str], dropped: list[BadImage]) -> list[str]:
    """Return the names that lie inside of an archive; the others are noted."""
    kept = []
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            dropped.append(BadImage("leads out of the archive", name))
        else:
            kept.append(name)
    return kept


def _decompressed(path: Path, scratch: Path) -> Path:
    with path.open("rb") as file:
        kind = OPENERS.get(file.read(2))
    if kind is None:
        return path
    plain = scratch / "plain.tar"
    with kind(path) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    return plain


def arrange(found: Found, where: str, options: ReadOptions) -> Listing:
    """Assign files to classes: ``class/image``, ``train/class/image``, or deeper inside a class."""
    files, folders, make_item = found
    paths = sorted(path.parts for path in files if path.parts and not is_junk(path))
    # In archives, folders without an entry of their own exist as their files' parents.
    there = {*folders, *(parent for path in files for parent in path.parents)}
    below = sorted(path.parts for path in there if path.parts and not is_junk(path))
    skip = _depth_of_classes(paths, below, where)
    inside = [parts for parts in paths if len(parts) > skip + 1]
    beside = ["/".join(parts) for parts in paths if len(parts) <= skip + 1 and _is_image(parts)]
    named = {parts[skip] for parts in inside}
    empty = _names_at(skip, below) - named
    if not named:
        raise PolyshotError(
            f"{where} has no images: Polyshot expects a folder for each class, "
            f"{where}/<class>/<image>."
        )
    class_names = sorted(named)
    check_class_names([*class_names, *empty], where, options.keep_case)
    ids = {name: i for i, name in enumerate(class_names)}
    # Sorted by class, then path without the train/val/test part: the same for every archive format.
    inside.sort(key=lambda parts: (parts[skip:], parts))
    return Listing(
        name="",
        class_names=tuple(unicodedata.normalize("NFC", name) for name in class_names),
        items=[make_item(PurePosixPath(*parts)) for parts in inside],
        labels=[ids[parts[skip]] for parts in inside],
        groups=groups_of(inside, options.group_pattern),
        empty_classes=tuple(sorted(empty)),
        beside=tuple(BadImage("in no class folder", name) for name in beside),
    )


def is_junk(path: PurePath) -> bool:
    """Whether a file or a folder on its way is hidden, or left there by a system."""
    return any(part.startswith(".") or part.lower() in JUNK for part in path.parts)


def _depth_of_classes(paths: Sequence[Parts], folders: Sequence[Parts], where: str) -> int:
    """How many folders lie above the class folders: a wrapping folder, a train/val/test part."""
    # A README beside the class folders must not decide.
    images = [parts for parts in paths if _is_image(parts)] or paths
    if images and max(map(len, images)) == 1:
        raise PolyshotError(
            f"{where} holds files but no class folders: put the images of each class into "
            f"a folder of its own, {where}/<class>/<image>."
        )
    depth = 0
    while len(_names_at(depth, folders)) == 1 and _is_around(depth, images):
        depth += 1  # one folder around everything, as most archives have
    # Nor must a cover picture, wherever it lies above them.
    shallowest = min((len(parts) for parts in images if len(parts) > depth + 1), default=0)
    parts = {name.lower() for name in _names_at(depth, folders)}
    if parts and parts <= PART_NAMES:
        if shallowest <= depth + 2:
            raise PolyshotError(
                f"{where} has the parts {', '.join(sorted(parts))} with images directly in them: "
                f"Polyshot expects class folders there, {where}/train/<class>/<image>."
            )
        depth += 1
    return depth


def _is_around(depth: int, images: Sequence[Parts]) -> bool:
    """Whether the only folder at a depth lies around class folders, and is no class itself."""
    loose = sum(len(parts) == depth + 2 for parts in images)
    deeper = [parts for parts in images if len(parts) > depth + 2]
    # Some pictures beside several folders full of them belong to none; many are a class.
    few = loose < len(deeper) and len({parts[depth + 1] for parts in deeper}) > 1
    return bool(deeper) and (not loose or few)


def _is_image(parts: Parts) -> bool:
    return parts[-1].lower().endswith(SUFFIXES)


def _names_at(depth: int, folders: Sequence[Parts]) -> set[str]:
    """Return the names of the folders at a depth."""
    return {parts[depth] for parts in folders if len(parts) > depth}


def groups_of(paths: Sequence[Parts], pattern: str | None) -> list[str] | None:
    """Match the user's pattern against each path; an image that does not match is its own group."""
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        reason = f"The group pattern '{pattern}' is no regular expression: {error}."
        raise PolyshotError(reason) from None
    if compiled.groups < 1:
        raise PolyshotError(f"The group pattern '{pattern}' needs a parenthesis around the group.")
    found = [(name, compiled.search(name)) for name in map("/".join, paths)]
    if not any(match for _, match in found):
        raise PolyshotError(f"The group pattern '{pattern}' matches no image's path.")
    return [str(match.group(1)) if match else name for name, match in found]
