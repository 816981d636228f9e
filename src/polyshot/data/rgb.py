"""Pictures of any mode become 8-bit RGB, also HEIC, in which telephones photograph.

HEIC is read by pillow-heif, where that is installed. Without torch: what only decodes starts fast.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB; transparent parts become white, as on a page."""
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


BRANDS = frozenset([b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"])
"""What such files say of themselves in their first bytes; AVIF, which Pillow reads, says avif."""
NO_HEIF = "HEIC, for which pip install 'polyshot[heif]'"


def is_heif(data: bytes) -> bool:
    """Whether a file says that it is HEIC or HEIF."""
    return data[4:8] == b"ftyp" and data[8:12] in BRANDS and b"avif" not in data[8:40]


@cache
def can_read_heif() -> bool:
    """Teach Pillow to read HEIC; False where pillow-heif is not installed."""
    try:
        import pillow_heif  # noqa: PLC0415, an extra
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True
