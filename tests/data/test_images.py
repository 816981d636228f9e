"""Every kind of image a camera, a scanner or a program makes becomes 8-bit RGB."""

import io

import numpy as np
import pytest
from PIL import Image

from polyshot.data.images import BadImage, decode
from polyshot.data.rgb import is_heif
from tests.helpers import picture


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(image: Image.Image, kind: str = "PNG", size: int = 16, **options: object) -> np.ndarray:
    result = decode(encoded(image, kind, **options), size)
    assert isinstance(result, np.ndarray), result
    assert result.shape == (3, size, size) and result.dtype == np.uint8
    return result


def test_colours_survive() -> None:
    assert (
        decoded(Image.new("RGB", (20, 20), (10, 200, 90))) == np.array([10, 200, 90])[:, None, None]
    ).all()


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (Image.new("L", (20, 30), 77), "PNG", (77, 77, 77)),
        (Image.new("1", (20, 30), 1), "PNG", (255, 255, 255)),
        (Image.new("RGB", (20, 30), (9, 90, 190)).quantize(4), "PNG", (9, 90, 190)),
        (Image.new("RGB", (20, 30), (9, 90, 190)).quantize(4), "GIF", (9, 90, 190)),
        (Image.new("RGBA", (20, 30), (200, 0, 0, 255)), "PNG", (200, 0, 0)),
        (Image.new("RGBA", (20, 30), (200, 0, 0, 0)), "PNG", (255, 255, 255)),
        (Image.new("LA", (20, 30), (0, 0)), "PNG", (255, 255, 255)),
        (Image.new("CMYK", (20, 30), (0, 0, 0, 0)), "TIFF", (255, 255, 255)),
        (Image.new("CMYK", (20, 30), (0, 0, 0, 255)), "JPEG", (0, 0, 0)),
        (Image.fromarray(np.full((20, 30), 65535, np.uint16)), "PNG", (255, 255, 255)),
        (Image.fromarray(np.full((20, 30), 32896, np.uint16)), "TIFF", (128, 128, 128)),
        (Image.fromarray(np.full((20, 30), 65535, np.int32)), "TIFF", (255, 255, 255)),
        (Image.fromarray(np.full((20, 30), 0.5, np.float32)), "TIFF", (128, 128, 128)),
        (Image.fromarray(np.full((20, 30), 200, np.float32)), "TIFF", (200, 200, 200)),
    ],
)
def test_modes_become_rgb(image: Image.Image, kind: str, expected: tuple[int, int, int]) -> None:
    assert np.abs(decoded(image, kind).astype(int) - np.array(expected)[:, None, None]).max() <= 2


def test_heic_is_read_where_pillow_heif_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    heif.from_pillow(Image.new("RGB", (64, 48), (9, 90, 190))).save(file, quality=90)
    data = file.getvalue()
    made = decode(data, 16)
    assert isinstance(made, np.ndarray)
    assert np.abs(made.astype(int) - np.array([9, 90, 190])[:, None, None]).max() <= 8
    assert isinstance(decode(data[: len(data) // 2], 16), BadImage)
    assert is_heif(data) and not is_heif(encoded(picture(1), "AVIF"))
    monkeypatch.setattr("polyshot.data.images.can_read_heif", lambda: False)
    missing = decode(data, 16)
    assert isinstance(missing, BadImage) and "pip install 'polyshot[heif]'" in missing.kind


def test_palette_with_a_transparent_colour() -> None:
    image = Image.new("P", (20, 20), 0)
    image.putpalette([255, 0, 0] * 256)
    assert (decoded(image, "PNG", transparency=0) == 255).all()


def test_exif_orientation_is_honoured() -> None:
    image = Image.new("RGB", (40, 40))
    image.paste((255, 255, 255), (0, 0, 40, 20))  # white above black
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter clockwise when shown
    turned = decoded(image, "JPEG", exif=exif, quality=95)
    assert turned[0, :, -1].min() > 200 and turned[0, :, 0].max() < 55  # white is on the right


@pytest.mark.parametrize("shape", [(300, 100), (100, 300), (1, 51), (51, 1), (1, 1), (16, 16)])
def test_any_shape_becomes_square_by_a_centre_crop(shape: tuple[int, int]) -> None:
    image = Image.new("RGB", shape, (0, 0, 0))
    side = min(shape)
    left, top = (shape[0] - side) // 2, (shape[1] - side) // 2
    image.paste((255, 0, 0), (left, top, left + side, top + side))
    red = decoded(image)
    assert red[0].mean() > 200 and red[1:].max() < 60


def test_large_jpeg_is_close_to_its_full_decoding() -> None:
    """JPEGs are decoded at a fraction of their size; that must not change what they show."""
    photo = picture(3, (1600, 1200))
    assert (
        np.abs(
            decoded(photo, "JPEG", 72, quality=95).astype(int) - decoded(photo, "PNG", 72)
        ).mean()
        < 3
    )


def test_bad_bytes_are_named() -> None:
    photo = encoded(picture(1, (200, 200)), "JPEG")
    png = encoded(picture(1, (200, 200)), "PNG")
    assert decode(b"", 16) == BadImage("empty file")
    assert decode(b"hello, this is a text file\n" * 40, 16) == BadImage("not an image")
    assert decode(photo[: len(photo) // 2], 16) == BadImage("truncated")
    assert isinstance(decode(png[: len(png) // 2], 16), BadImage)
    assert isinstance(decode(png[:60] + bytes(200) + png[260:], 16), BadImage)


def test_decompression_bombs_are_refused_without_being_decoded() -> None:
    def bomb(side: int) -> bytes:
        return encoded(Image.new("1", (side, side)))

    small, large = bomb(10_000), bomb(20_000)
    assert len(large) < 200_000
    for data in (small, large):
        result = decode(data, 16)
        assert isinstance(result, BadImage) and result.kind.startswith("too large")


def test_postscript_is_not_run() -> None:
    file = io.BytesIO()
    picture(0).save(file, "EPS")
    assert decode(file.getvalue(), 16) == BadImage("not an image")


def test_a_file_says_whether_it_is_heic() -> None:
    """AVIF, which Pillow reads by itself, may call itself the common format of both at first."""
    for brands, expected in ((b"heic", True), (b"mif1heic", True), (b"mif1avif", False)):
        assert is_heif(b"\0\0\0\x1cftyp" + brands) == expected
    assert not is_heif(b"\xff\xd8\xff\xe0heic")
