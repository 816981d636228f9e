"""Images in any form (paths, bytes, PIL, arrays, tensors) become square RGB, or a short reason."""

import io
import stat
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from polyshot.data.rgb import NO_HEIF, can_read_heif, is_heif, to_rgb
from polyshot.errors import PolyshotError, join_names, one_line
from polyshot.util.device import cores
from polyshot.util.progress import Progress

MAX_PIXELS = 89_478_485
"""Pillow's own threshold for a suspected decompression bomb (a quarter of a gigabyte as RGB)."""
MAX_BYTES = 256 * 1024 * 1024
"""No photograph is larger than this; an archive member that claims to be is not read."""
CHANNELS = (1, 3, 4)
"""Grey, RGB, RGB with alpha."""
ROUNDING = 1e-3
"""How far beyond 0 and 1 a float may lie: less than half of one of 255 steps."""


@dataclass(frozen=True)
class BadImage:
    """Why one image could not be read."""

    kind: str
    """One of a few words that messages count by: empty, not an image, truncated, ..."""
    where: str = ""
    """The path a user knows it by."""

    def __str__(self) -> str:
        return f"{self.where} ({self.kind})"


@dataclass(frozen=True, eq=False)
class ReadImages:
    """Images that were read, and those of the same list that could not be; n could."""

    pixels: dict[int, NDArray[np.uint8]]
    """By side length, ``[n, 3, size, size]``."""
    names: list[str]
    """Of files, ``n``; empty where an image came from elsewhere."""
    places: list[int]
    """Where each stood in the list."""
    bad: dict[int, BadImage]
    """The others, by where they stood."""

    def __len__(self) -> int:
        return len(self.places)

    def of_sizes(self, sizes: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        """Return the pixels in these sizes, which must be those that were read."""
        if missing := set(sizes) - set(self.pixels):
            raise PolyshotError(f"These images were not read in {min(missing)} x {min(missing)}.")
        return self.pixels


ImageLike = str | Path | bytes | Image.Image | NDArray[Any] | torch.Tensor | BadImage
Images = ImageLike | Sequence[ImageLike] | ReadImages


def load_images(images: Images, size: int, report: Progress | None = None) -> NDArray[np.uint8]:
    """Make uint8 ``[n, 3, size, size]`` of images of any size and mode (`load_sizes`)."""
    return load_sizes(images, [size], report)[size]


def load_sizes(
    images: Images, sizes: Sequence[int], report: Progress | None = None
) -> dict[int, NDArray[np.uint8]]:
    """Make uint8 ``[n, 3, size, size]`` for each size of images that are decoded once.

    Every image goes the way of those that the pool was trained on: RGB, shorter side to `size`,
    centre crop. Given are one image, a sequence of images, or a batch ``[n, h, w, c]`` or
    ``[n, c, h, w]``. An image is a path, the bytes of a file, a PIL image, an array ``[h, w]``,
    ``[h, w, c]`` or ``[c, h, w]``, or a tensor; c is 1, 3 or 4. Where both orders are possible, an
    array is ``[h, w, c]`` and a tensor ``[c, h, w]``. Floats lie between 0 and 1.
    """
    read = read_images(images, sizes, report)
    if read.bad:
        raise cannot_read(read)
    return read.pixels


def cannot_read(read: ReadImages) -> PolyshotError:
    """Say in one line which images cannot be read, and why."""
    count = len(read) + len(read.bad)
    which = "The image" if count == 1 else f"{len(read.bad)} of {count} images"
    return PolyshotError(f"{which} cannot be read: {join_names(map(str, read.bad.values()))}.")


def read_images(images: Images, sizes: Sequence[int], report: Progress | None = None) -> ReadImages:
    """Read what can be read of images that `load_sizes` takes; the others come with a reason."""
    if isinstance(images, ReadImages):
        return images
    items = as_list(images)
    if not items:
        raise PolyshotError("There are no images: give at least one.")
    made: list[list[NDArray[np.uint8]]] = []
    places: list[int] = []
    bad: dict[int, BadImage] = {}
    sizes = list(dict.fromkeys(sizes))
    # Threads, since Pillow decodes outside of the interpreter's lock.
    with _no_warnings(), ThreadPoolExecutor(min(cores(), 16)) as threads:
        from_files = all(isinstance(item, str | Path | bytes) for item in items)
        run = threads.map if from_files and len(items) > 1 else map
        for i, result in enumerate(run(lambda item: _load(item, sizes), items)):
            if isinstance(result, BadImage):
                name = str(items[i]) if isinstance(items[i], str | Path) else f"images[{i}]"
                bad[i] = BadImage(result.kind, name)
            else:
                made.append(result)
                places.append(i)
            if report:
                report("images", i + 1, len(items))
    pixels = {
        size: np.array([each[i] for each in made], np.uint8).reshape(-1, 3, size, size)
        for i, size in enumerate(sizes)
    }
    return ReadImages(pixels, names_of(items[i] for i in places), places, bad)


def names_of(items: Iterable[Any]) -> list[str]:
    """Name images that are files; the others have no name."""
    return [one_line(str(item)) if isinstance(item, str | Path) else "" for item in items]


def first_readable(paths: Sequence[Path]) -> int | None:
    """Return the place of the first file that is an image, or None."""
    tried = (isinstance(_load(path, [8]), BadImage) for path in paths)
    return next((i for i, bad in enumerate(tried) if not bad), None)


def as_list(images: Images) -> list[ImageLike]:
    """List single images: one image is a list of one, a batch is taken apart."""
    assert not isinstance(images, ReadImages)
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


def decode(data: bytes, size: int) -> NDArray[np.uint8] | BadImage:
    """Decode a file of any kind that Pillow reads: square RGB, uint8 ``[3, size, size]``."""
    made = _decode(data, [size])
    return made if isinstance(made, BadImage) else made[0]


def _decode(data: bytes, sizes: Sequence[int]) -> list[NDArray[np.uint8]] | BadImage:
    """Decode a file once, and make it square in several sizes."""
    if not data:
        return BadImage("empty file")
    if is_heif(data) and not can_read_heif():
        return BadImage(NO_HEIF)
    try:
        with _no_warnings(), Image.open(io.BytesIO(data), formats=_formats()) as image:
            full, size = image.size, max(sizes)
            image.draft("RGB", (size, size))  # JPEG only: decodes at 1/2, 1/4 or 1/8
            if image.width * image.height > MAX_PIXELS:
                return BadImage(f"too large ({full[0]} x {full[1]} pixels)")
            return _fitted(image, sizes)
    except UnidentifiedImageError:
        return BadImage("not an image")
    except Image.DecompressionBombError:
        return BadImage("too large (decompression bomb)")
    except MemoryError:
        return BadImage("too large for the memory")
    except Exception as error:  # Pillow's plugins raise a dozen types on damaged files
        return _damaged(error)


def _formats() -> list[str]:
    """List what Pillow reads without other programs: it would run EPS, which is a program."""
    Image.init()
    return [kind for kind in Image.ID if kind != "EPS"]


class _Quiet:
    """Who decodes, and the filters of warnings from before: all threads share these."""

    lock = threading.Lock()
    users = 0
    filters: "warnings.catch_warnings[None]"


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Hear no warnings of odd EXIF or palettes: they are harmless, and thousands of lines."""
    with _Quiet.lock:
        if not _Quiet.users:
            _Quiet.filters = warnings.catch_warnings()
            _Quiet.filters.__enter__()
            warnings.simplefilter("ignore")
        _Quiet.users += 1
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.users -= 1
            if not _Quiet.users:
                _Quiet.filters.__exit__(None, None, None)


def _fitted(image: Image.Image, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    upright = to_rgb(ImageOps.exif_transpose(image))
    squares = (ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC) for size in sizes)
    return [np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1)) for square in squares]


def _damaged(error: Exception) -> BadImage:
    return BadImage("truncated" if "truncated" in str(error).lower() else "corrupt")


def read_file(path: Path, offset: int = 0, length: int | None = None) -> bytes | BadImage:
    """Read an image file, or a stretch of a larger file; what is no plain file is named."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # to read from a pipe would wait for a writer
            return BadImage("a folder, pipe, socket or device, not a file")
        length = status.st_size if length is None else length
        if length > MAX_BYTES:
            return BadImage(f"too large ({length / 2**20:,.0f} MiB)")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except PermissionError:
        return BadImage("permission denied")
    except OSError as error:
        return BadImage(error.strerror.lower() if error.strerror else "unreadable")


def _load(item: ImageLike, sizes: Sequence[int]) -> list[NDArray[np.uint8]] | BadImage:
    """Load one image as uint8 ``[3, size, size]``, for each size."""
    if isinstance(item, BadImage):  # who fetched it knows why
        return item
    if isinstance(item, str | Path):
        data = read_file(Path(item))
        return data if isinstance(data, BadImage) else _decode(data, sizes)
    if isinstance(item, bytes):
        return _decode(item, sizes)
    if isinstance(item, Image.Image):
        return _squared(item, sizes)
    if isinstance(item, torch.Tensor):
        tensor = item.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        pixels = _pixels(array, channels_first=True)
    elif isinstance(item, np.ndarray):
        pixels = _pixels(item, channels_first=False)
    else:
        return BadImage(f"a {type(item).__name__}, not a path, picture, array or tensor")
    return pixels if isinstance(pixels, BadImage) else _squared(Image.fromarray(pixels), sizes)


def _squared(image: Image.Image, sizes: Sequence[int]) -> list[NDArray[np.uint8]] | BadImage:
    """Do to an opened picture what `decode` does to an encoded one."""
    if not image.width * image.height:
        return BadImage("without pixels")
    if image.width * image.height > MAX_PIXELS:
        return BadImage(f"too large ({image.width} x {image.height} pixels)")
    try:
        return _fitted(image, sizes)
    except (OSError, ValueError, SyntaxError) as error:  # opened, but only now read
        return _damaged(error)


def _pixels(array: NDArray[Any], channels_first: bool) -> NDArray[np.uint8] | BadImage:
    """Bring an array to uint8 ``[h, w]``, ``[h, w, 3]`` or ``[h, w, 4]``."""
    if array.ndim not in (2, 3) or 0 in array.shape:
        return BadImage(f"an array of shape {array.shape}")
    if array.ndim == 3:
        first, last = array.shape[0] in CHANNELS, array.shape[-1] in CHANNELS
        if not (first or last):
            wanted = "1, 3 or 4 channels first or last are expected"
            return BadImage(f"an array of shape {array.shape}, {wanted}")
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
