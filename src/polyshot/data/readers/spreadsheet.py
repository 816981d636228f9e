"""A CSV file of paths and labels, as spreadsheets write it; paths are relative to the file.

The columns may be headed by usual names (`PATHS`, `LABELS`) and then stand anywhere; without a
header the path comes first and the label second.
"""

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from polyshot.data.readers import FileItem, Listing, ReadOptions, check_class_names
from polyshot.data.readers.folder import groups_of
from polyshot.errors import PolyshotError, join_names

SUFFIXES = (".csv", ".tsv")
PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
"""Headings of the column of paths, in any case; of several the first counts."""
LABELS = ("label", "class", "class_name", "classname", "category", "target")
"""Likewise of labels."""


def accepts(path: Path) -> bool:
    """A file, by its suffix."""
    return path.is_file() and path.suffix.lower() in SUFFIXES


@contextmanager
def listings(path: Path, options: ReadOptions) -> Iterator[list[Listing]]:
    """List one domain."""
    files, labels = read_rows(path)
    names = sorted(set(labels))
    check_class_names(names, str(path), options.keep_case)
    ids = {name: i for i, name in enumerate(names)}
    order = sorted(range(len(files)), key=lambda i: (labels[i], str(files[i])))
    where = [_shown(files[i], path.parent) for i in order]
    yield [
        Listing(
            name=options.name or path.stem,
            class_names=tuple(names),
            items=[FileItem(files[i], shown) for i, shown in zip(order, where, strict=True)],
            labels=[ids[labels[i]] for i in order],
            groups=groups_of([PurePath(each).parts for each in where], options.group_pattern),
            reader="spreadsheet",
            origin=path.name,
        )
    ]


def _shown(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def read_rows(path: Path) -> tuple[list[Path], list[str]]:
    """Return the paths and the labels; each row has both, each file is there and has one label."""
    try:
        # The mark that spreadsheets put at the beginning is no part of the first path.
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Spreadsheets write semicolons where the comma is a decimal sign.
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            cells = ((reader.line_num, [cell.strip() for cell in row]) for row in reader)
            rows = [(line, row) for line, row in cells if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PolyshotError(f"{path} is no readable CSV file in UTF-8: {error}.") from None
    columns = _columns(rows[0][1]) if rows else None
    if columns:
        del rows[0]
    if not rows:
        raise PolyshotError(f"{path} has no rows: each has the path and the label of an image.")
    places = columns or (0, 1)
    lacking = [
        str(line)
        for line, row in rows
        if len(row) <= max(places) or not all(row[i] for i in places)
    ]
    if lacking:
        raise PolyshotError(f"{path} has rows without path or label: line {join_names(lacking)}.")
    files = [path.parent / row[places[0]] for _, row in rows]
    if missing := [i for i, file in enumerate(files) if not _is_file(file)]:
        named = join_names(str(files[i]) for i in missing)
        only = "" if missing != [0] or columns or len(files) < 2 else _heading(rows[0][1])
        raise PolyshotError(f"{path} names files that do not exist: {named}.{only}")
    labels = [row[places[1]] for _, row in rows]
    _check_once(path, files, labels)
    return files, labels


def _check_once(path: Path, files: list[Path], labels: list[str]) -> None:
    """Refuse files under two labels; the same row twice counts twice, as it always did."""
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for file, label in zip(files, labels, strict=True):
        before = first.setdefault(os.path.normpath(file), label)
        if before != label:
            found.setdefault(os.path.normpath(file), f"{file} ('{before}' and '{label}')")
    if found:
        raise PolyshotError(
            f"{path} lists files under two labels: {join_names(found.values())}. Leave one of each."
        )


def _columns(head: list[str]) -> tuple[int, int] | None:
    """Find path and label in a row, if it is a header."""
    names = [cell.lower().replace(" ", "_") for cell in head]
    path = next((names.index(name) for name in PATHS if name in names), None)
    label = next((names.index(name) for name in LABELS if name in names), None)
    return None if path is None or label is None else (path, label)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a zero in it
        return False


def _heading(row: list[str]) -> str:
    return f" If {', '.join(row)} is a heading, call these columns path and label."
