"""A user's own examples and queries on disk: folders of images, or a CSV of paths and labels."""

from collections.abc import Sequence
from pathlib import Path

from polyshot.data.readers import ReadOptions, folder, spreadsheet
from polyshot.data.readers.folder import SUFFIXES, is_junk
from polyshot.errors import PolyshotError, join_names


def read_support(path: Path | str) -> tuple[list[Path], list[str]]:
    """Read a support set: paths and labels, of a folder for each class or of a CSV file.

    `data.readers.spreadsheet` says what a CSV file may look like.
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
    if not spreadsheet.accepts(path):
        raise PolyshotError(
            f"{path} is no support set: give a folder with a folder for each class, or a CSV file "
            "with the columns path and label."
        )
    return spreadsheet.read_rows(path)


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
