"""Any encoded image becomes one square RGB array, or a short reason why it cannot.

Runs in worker processes, so it imports Pillow and numpy only.
"""

import io
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 89_478_485
"""Pillow's own threshold for a suspected decompression bomb (a quarter of a gigabyte as RGB)."""

MAX_BYTES = 256 * 1024 * 1024
"""No photograph is larger than this; an archive member that claims to be is not read."""


@dataclass(frozen=True)
class BadImage:
    """Why one image could not be read."""

    kind: str
    """One of a few words that messages count by: empty, not an image, truncated, ..."""
    where: str = ""
    """The path a user knows it by."""


def decode(data: bytes, size: int) -> NDArray[np.uint8] | BadImage:
    """Decode to RGB, make it square by a shorter-side resize and a centre crop.

    Args:
        data: the encoded file, of any format and colour mode that Pillow reads.
        size: side length in pixels.

    Returns:
        uint8 ``[3, size, size]``, or the reason why the bytes are no usable image.

    """
    if not data:
        return BadImage("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd EXIF or palettes: harmless, thousands of lines
            with Image.open(io.BytesIO(data)) as image:
                full = image.size
                image.draft("RGB", (size, size))  # JPEG only: decodes at 1/2, 1/4 or 1/8
                if image.width * image.height > MAX_PIXELS:
                    return BadImage(f"too large ({full[0]} x {full[1]} pixels)")
                square = ImageOps.fit(
                    to_rgb(ImageOps.exif_transpose(image)),
                    (size, size),
                    Image.Resampling.BICUBIC,
                )
    except UnidentifiedImageError:
        return BadImage("not an image")
    except Image.DecompressionBombError:
        return BadImage("too large (decompression bomb)")
    except MemoryError:
        return BadImage("too large for the memory")
    except Exception as error:  # Pillow's plugins raise a dozen types on damaged files
        kind = "truncated" if "truncated" in str(error).lower() else "corrupt"
        return BadImage(kind)
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert grey, palette, alpha, CMYK, 16-bit and float images to 8-bit RGB.

    Transparent parts become white, which is what a page or a viewer shows behind them.
    """
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bit(np.asarray(image), image.mode)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, over).convert("RGB")
    return image.convert("RGB")


def _to_8_bit(values: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    """Scale integer and float greys to 0..255 by their format's range, not by the image's own.

    A per-image stretch would make a dark photograph bright, and the same object look different.
    """
    grey = values.astype(np.float64)
    if mode == "F":
        grey = grey * 255 if np.nanmax(grey, initial=0.0) <= 1.0 else grey
    else:
        grey = grey / 257  # 16 bits: 65,535 becomes 255
    return np.clip(np.nan_to_num(grey), 0, 255).round().astype(np.uint8)
