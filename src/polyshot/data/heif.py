"""HEIC, in which telephones photograph: read by pillow-heif, where that is installed.

Without torch: what only decodes starts fast.
"""

from functools import cache

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
