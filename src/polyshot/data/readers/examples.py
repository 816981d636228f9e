"""A user's own examples and queries on disk: folders of images, or a CSV of paths and labels."""

import csv
from collections.abc import Sequence
from pathlib import Path

from polyshot.data.readers import ReadOptions, folder
from polyshot.data.readers.folder import SUFFIXES, is_junk
from polyshot.errors import PolyshotError, join_names


def read_support(path: Path | str) -> tuple[list[Path], list[str]]:
    """Read a support set: paths and labels, of a folder for each class or of a CSV file.

    A CSV file has the columns path and label, in this order where it has no header; paths are
    relative to the file.
    """
    path = Path(path)
    if path.is_dir():
        with folder.listings(path, ReadOptions()) as (listing,):
            if listing.empty_classes:
                raise PolyshotError(
                    f"{path} has classes without images: {join_names(listing.empty_classes)}. "
                    "Add images, or remove the folders."
                )
            paths = [path / item.where for item in listing.items]
            return paths, [listing.class_names[label] for label in listing.labels]
    if not path.exists():
        raise PolyshotError(f"There is no file or folder {path}.")
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise PolyshotError(
            f"{path} is no support set: give a folder with a folder for each class, or a CSV file "
            "with the columns path and label."
        )
    return _read_csv(path)


def read_queries(paths: Path | str | Sequence[Path | str]) -> list[Path]:
    """List images: files as they are, folders searched for image files, all levels down."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            named = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
            images = sorted(f for f in named if not is_junk(f.relative_to(path)) and f.is_file())
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


def _read_csv(path: Path) -> tuple[list[Path], list[str]]:
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
    columns = (0, 1)
    if rows and {"path", "label"} <= {cell.lower() for cell in rows[0][1]}:
        header = [cell.lower() for cell in rows.pop(0)[1]]
        columns = (header.index("path"), header.index("label"))
    if not rows:
        raise PolyshotError(f"{path} has no rows: each has the path and the label of an image.")
    lacking = [
        str(line)
        for line, row in rows
        if len(row) <= max(columns) or not all(row[i] for i in columns)
    ]
    if lacking:
        raise PolyshotError(f"{path} has rows without path or label: line {join_names(lacking)}.")
    files = [path.parent / row[columns[0]] for _, row in rows]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise PolyshotError(f"{path} names files that do not exist: {join_names(missing)}.")
    return files, [row[columns[1]] for _, row in rows]
