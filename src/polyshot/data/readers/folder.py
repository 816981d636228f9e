"""An image folder: ``root/class/*.jpg``, or ``root/train/class/*.jpg`` with the parts pooled.

Which class a file belongs to is found in the same way for zip and tar files (`arrange`).
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from polyshot.data.readers import FileItem, Item, Listing, ReadOptions, check_class_names
from polyshot.errors import PolyshotError

PART_NAMES = frozenset(
    ["train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"]
)

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".avif",
    ".jp2",
)

JUNK = frozenset({"__macosx", "thumbs.db", "desktop.ini"})

Parts = tuple[str, ...]


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


def arrange(
    files: Sequence[PurePosixPath],
    folders: Sequence[PurePosixPath],
    make_item: Callable[[PurePosixPath], Item],
    where: str,
    options: ReadOptions,
) -> Listing:
    """Assign files to classes: ``class/image``, ``train/class/image``, or deeper inside a class.

    Args:
        files: all files, relative to the root.
        folders: all folders, relative to the root; tells which classes are empty.
        make_item: turns a file's relative path into something a worker can read.
        where: the root as the user named it, for messages.
        options: the user's wishes.
    """
    paths = sorted(path.parts for path in files if not _is_junk(path))
    below = sorted(path.parts for path in folders if not _is_junk(path))
    skip = _depth_of_classes(paths, below, where)
    inside = [parts for parts in paths if len(parts) > skip + 1]
    named = {parts[skip] for parts in inside}
    empty = {parts[skip] for parts in below if len(parts) > skip} - named
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
        name=options.name or "",
        class_names=tuple(unicodedata.normalize("NFC", name) for name in class_names),
        items=[make_item(PurePosixPath(*parts)) for parts in inside],
        labels=[ids[parts[skip]] for parts in inside],
        groups=_groups(inside, options.group_pattern),
        empty_classes=tuple(sorted(empty)),
    )


def _is_junk(path: PurePosixPath) -> bool:
    return any(part.startswith(".") or part.lower() in JUNK for part in path.parts)


def _depth_of_classes(paths: Sequence[Parts], folders: Sequence[Parts], where: str) -> int:
    """How many folders lie above the class folders: a wrapping folder, a train/val/test part."""
    # A README beside the class folders must not decide.
    images = [parts for parts in paths if parts[-1].lower().endswith(SUFFIXES)] or paths
    if images and max(map(len, images)) == 1:
        raise PolyshotError(
            f"{where} holds files but no class folders: put the images of each class into "
            f"a folder of its own, {where}/<class>/<image>."
        )
    depth = 0
    while _all_deeper(images, depth + 2) and len(_names_at(depth, images, folders)) == 1:
        depth += 1  # one folder around everything, as most archives have
    parts = {name.lower() for name in _names_at(depth, images, folders)}
    if parts and parts <= PART_NAMES:
        if not _all_deeper(images, depth + 2):
            raise PolyshotError(
                f"{where} has the parts {', '.join(sorted(parts))} with images directly in them: "
                f"Polyshot expects class folders there, {where}/train/<class>/<image>."
            )
        depth += 1
    return depth


def _all_deeper(paths: Sequence[Parts], depth: int) -> bool:
    return bool(paths) and all(len(parts) > depth for parts in paths)


def _names_at(depth: int, images: Sequence[Parts], folders: Sequence[Parts]) -> set[str]:
    """Return the names of the folders at a depth."""
    return {parts[depth] for parts in images if len(parts) > depth + 1} | {
        parts[depth] for parts in folders if len(parts) > depth
    }


def _groups(paths: Sequence[Parts], pattern: str | None) -> list[str] | None:
    """Match the user's pattern against each path; an image that does not match is its own group."""
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise PolyshotError(
            f"The group pattern '{pattern}' is no regular expression: {error}."
        ) from None
    if compiled.groups < 1:
        raise PolyshotError(f"The group pattern '{pattern}' needs a parenthesis around the group.")
    found = [compiled.search("/".join(parts)) for parts in paths]
    if not any(found):
        raise PolyshotError(f"The group pattern '{pattern}' matches no image's path.")
    return [
        str(match.group(1)) if match else "/".join(parts)
        for match, parts in zip(found, paths, strict=True)
    ]
