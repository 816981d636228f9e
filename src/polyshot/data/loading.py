"""A user's own images, in whatever form, as one array; and a support set or queries from disk."""

import csv
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from polyshot.data.decode import MAX_PIXELS, BadImage, decode, to_rgb
from polyshot.data.readers import ReadOptions, folder
from polyshot.data.readers.base import FileItem
from polyshot.data.readers.layout import JUNK, SUFFIXES
from polyshot.data.workers import cores
from polyshot.errors import PolyshotError, join_names
from polyshot.util.progress import Progress

ImageLike = str | Path | bytes | Image.Image | NDArray[Any] | torch.Tensor
Images = ImageLike | Sequence[ImageLike]

CHANNELS = (1, 3, 4)
"""Grey, RGB, RGB with alpha."""
ROUNDING = 1e-3
"""How far beyond 0 and 1 a float may lie: less than half of one of 255 steps."""


def load_images(images: Images, size: int, report: Progress | None = None) -> NDArray[np.uint8]:
    """Make uint8 ``[n, 3, size, size]`` of images of any size and mode.

    Every image goes the way of those that the pool was trained on: RGB, shorter side to `size`,
    centre crop.

    Args:
        images: one image, a sequence of images, or a batch ``[n, h, w, c]`` or ``[n, c, h, w]``.
            An image is a path, the bytes of a file, a PIL image, an array ``[h, w]``, ``[h, w, c]``
            or ``[c, h, w]``, or a tensor; c is 1, 3 or 4. Where both orders are possible, an array
            is ``[h, w, c]`` and a tensor ``[c, h, w]``. Floats lie between 0 and 1.
        size: side length in pixels.
        report: told how many images are done.
    """
    items = as_list(images)
    if not items:
        raise PolyshotError("There are no images: give at least one.")
    made: list[NDArray[np.uint8]] = []
    bad: list[BadImage] = []
    # Threads, since Pillow decodes outside of the interpreter's lock. `decode` changes the filters
    # of warnings, which all threads share: the outer context puts back what was there before.
    with warnings.catch_warnings(), ThreadPoolExecutor(min(cores(), 16)) as threads:
        from_files = all(isinstance(item, str | Path | bytes) for item in items)
        run = threads.map if from_files and len(items) > 1 else map
        for i, result in enumerate(run(lambda item: _load(item, size), items)):
            if isinstance(result, BadImage):
                bad.append(BadImage(result.kind, _name(items[i], i)))
            else:
                made.append(result)
            if report:
                report("images", i + 1, len(items))
    if bad:
        which = "The image" if len(items) == 1 else f"{len(bad)} of {len(items)} images"
        reasons = join_names(f"{one.where} ({one.kind})" for one in bad)
        raise PolyshotError(f"{which} cannot be read: {reasons}.")
    return np.stack(made)


def as_list(images: Images) -> list[ImageLike]:
    """List single images: one image is a list of one, a batch is taken apart."""
    if isinstance(images, str | Path | bytes | Image.Image):
        return [images]
    if isinstance(images, np.ndarray | torch.Tensor):
        if images.ndim in (2, 3):
            return [images]
        if images.ndim == 4 or (isinstance(images, np.ndarray) and images.dtype.kind in "OU"):
            return list(images)
        raise PolyshotError(f"An array of shape {tuple(images.shape)} holds no images.")
    if not isinstance(images, Iterable):
        raise PolyshotError(f"Images cannot be read from a {type(images).__name__}.")
    return list(images)


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
            images = sorted(p for p in path.rglob("*") if _is_image(p.relative_to(path), p))
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


def _is_image(relative: Path, path: Path) -> bool:
    hidden = any(part.startswith(".") or part.lower() in JUNK for part in relative.parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()


def _read_csv(path: Path) -> tuple[list[Path], list[str]]:
    try:
        # The mark that spreadsheets put at the beginning is no part of the first path.
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Spreadsheets write semicolons where the comma is a decimal sign.
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            rows = [
                (reader.line_num, [cell.strip() for cell in row])
                for row in reader
                if any(cell.strip() for cell in row)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PolyshotError(f"{path} is no readable CSV file in UTF-8: {error}.") from None
    columns = (0, 1)
    if rows and {"path", "label"} <= {cell.lower() for cell in rows[0][1]}:
        header = [cell.lower() for cell in rows.pop(0)[1]]
        columns = (header.index("path"), header.index("label"))
    if not rows:
        raise PolyshotError(f"{path} has no rows: each has the path and the label of an image.")
    incomplete = [
        str(line)
        for line, row in rows
        if len(row) <= max(columns) or not all(row[i] for i in columns)
    ]
    if incomplete:
        raise PolyshotError(
            f"{path} has rows without path or label: line {join_names(incomplete)}."
        )
    files = [path.parent / row[columns[0]] for _, row in rows]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise PolyshotError(f"{path} names files that do not exist: {join_names(missing)}.")
    return files, [row[columns[1]] for _, row in rows]


def _name(item: ImageLike, number: int) -> str:
    return str(item) if isinstance(item, str | Path) else f"images[{number}]"


def _load(item: ImageLike, size: int) -> NDArray[np.uint8] | BadImage:
    """Load one image as uint8 ``[3, size, size]``."""
    if isinstance(item, str | Path):
        data = FileItem(Path(item), str(item)).read()
        return data if isinstance(data, BadImage) else decode(data, size)
    if isinstance(item, bytes):
        return decode(item, size)
    if isinstance(item, Image.Image):
        return _squared(item, size)
    if isinstance(item, torch.Tensor):
        tensor = item.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        pixels = _pixels(array, channels_first=True)
    elif isinstance(item, np.ndarray):
        pixels = _pixels(item, channels_first=False)
    else:
        return BadImage(f"a {type(item).__name__}, not a path, picture, array or tensor")
    return pixels if isinstance(pixels, BadImage) else _squared(Image.fromarray(pixels), size)


def _squared(image: Image.Image, size: int) -> NDArray[np.uint8] | BadImage:
    """Do to an opened picture what `decode` does to an encoded one."""
    if not image.width * image.height:
        return BadImage("without pixels")
    if image.width * image.height > MAX_PIXELS:
        return BadImage(f"too large ({image.width} x {image.height} pixels)")
    try:
        upright = to_rgb(ImageOps.exif_transpose(image))
    except (OSError, ValueError, SyntaxError) as error:  # opened, but only now read
        return BadImage("truncated" if "truncated" in str(error).lower() else "corrupt")
    square = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def _pixels(array: NDArray[Any], channels_first: bool) -> NDArray[np.uint8] | BadImage:
    """Bring an array to uint8 ``[h, w]``, ``[h, w, 3]`` or ``[h, w, 4]``."""
    if array.ndim not in (2, 3) or 0 in array.shape:
        return BadImage(f"an array of shape {array.shape}")
    if array.ndim == 3:
        first, last = array.shape[0] in CHANNELS, array.shape[-1] in CHANNELS
        if not (first or last):
            return BadImage(
                f"an array of shape {array.shape}, 1, 3 or 4 channels first or last are expected"
            )
        if first and (channels_first or not last):
            array = array.transpose(1, 2, 0)
        array = array[..., 0] if array.shape[-1] == 1 else array
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return (array / 257).round().astype(np.uint8)  # as `decode` reads 16 bits
    if array.dtype == bool:
        return array.astype(np.uint8) * np.uint8(255)
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        return BadImage(f"an array of {array.dtype}")
    low, high = array.min(), array.max()  # NaN where there is one
    top = 1.0 if np.issubdtype(array.dtype, np.floating) else 255
    if not (low >= -ROUNDING and high <= top + ROUNDING):
        return BadImage(f"{array.dtype} from {low:.3g} to {high:.3g}, 0 to {top:g} is expected")
    return np.clip(array * (255 / top), 0, 255).round().astype(np.uint8)
