"""The program that decodes what users upload, in a process of its own that may die.

It reads frames on its standard input, each the length (8 bytes), whether the image is to be kept (1
byte) and the bytes of a file, and answers each by a line of JSON and the bytes that it counts: the
picture as RGB, and of one that is kept its file and its thumbnail; or by a reason. Its memory is
limited. Started by `decoding`.
"""

import io
import json
import sys
import warnings
from typing import Any, BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from polyshot.data.rgb import NO_HEIF, can_read_heif, is_heif, to_rgb

SIDE = 512
"""Pixels of the shorter side that are kept: networks look at fewer."""
THUMBNAIL = 192
"""Side length of a thumbnail: sharp at 96 on fine screens."""
LOSSLESS = 256
"""Side length up to which images are kept without loss."""
READY = b"ready\n"
"""What it says first, so that its start does not count as time to decode."""
FORMATS = (
    "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "MPO", "PPM", "ICO", "AVIF", "JPEG2000", "HEIF",
)  # fmt: skip
"""What is read. Others have plugins that run programs (EPS) or are no photographs."""


def decode(data: bytes, pixels: int, keep: bool = True) -> tuple[dict[str, Any], list[bytes]]:
    """Decode a file: what is known of it, and the RGB; to keep it, its file and thumbnail, too."""
    if is_heif(data) and not can_read_heif():
        return {"status": 422, "reason": NO_HEIF}, []
    try:
        readable = [kind for kind in FORMATS if kind in Image.OPEN]  # of this build of Pillow
        with Image.open(io.BytesIO(data), formats=readable) as image:
            if image.width * image.height > pixels:
                size = f"{image.width:,} x {image.height:,} pixels"
                return {"status": 413, "reason": f"too large: {size}"}, []
            image.draft("RGB", (SIDE, SIDE))  # JPEG only: decodes at 1/2, 1/4 or 1/8
            upright = to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        return {"status": 422, "reason": "not an image of a known kind"}, []
    except MemoryError:
        return {"status": 413, "reason": "too large for the memory"}, []
    except Exception:  # Pillow's plugins raise a dozen types on damaged files
        return {"status": 422, "reason": "damaged"}, []
    factor = SIDE / min(upright.size)
    if factor < 1:
        width, height = (max(SIDE, round(factor * side)) for side in upright.size)
        # A panorama keeps its middle, which is what a square crop sees.
        upright = ImageOps.fit(upright, (min(width, 4 * SIDE), min(height, 4 * SIDE)))
    about = {"status": 200, "width": upright.width, "height": upright.height}
    if not keep:
        return about, [upright.tobytes()]
    small = max(upright.size) <= LOSSLESS
    kept, thumbnail = io.BytesIO(), io.BytesIO()
    upright.save(kept, "PNG" if small else "JPEG", **({} if small else {"quality": 93}))
    ImageOps.fit(upright, (THUMBNAIL, THUMBNAIL)).save(thumbnail, "JPEG", quality=80)
    return about, [upright.tobytes(), kept.getvalue(), thumbnail.getvalue()]


def answer(source: BinaryIO, sink: BinaryIO, pixels: int) -> None:
    """Decode frames until there are no more."""
    while len(head := source.read(9)) == 9:
        data = source.read(int.from_bytes(head[:8], "little"))
        about, parts = decode(data, pixels, keep=bool(head[8]))
        line = json.dumps({**about, "lengths": [len(part) for part in parts]})
        sink.write(b"".join([line.encode(), b"\n", *parts]))
        sink.flush()


def _limit_memory(size: int) -> None:
    try:
        import resource  # noqa: PLC0415 (not on Windows)
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which closes stdin
    warnings.simplefilter("ignore")  # odd EXIF and palettes are harmless
    Image.MAX_IMAGE_PIXELS = None  # the limit is ours
    Image.init()  # plugins and libraries, before memory is limited
    can_read_heif()
    _limit_memory(int(sys.argv[2]))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    answer(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
