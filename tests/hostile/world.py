"""What is valid, made once: packs, pools, classifiers, images of every format, archives."""

import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from filelock import FileLock
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.data.rgb import can_read_heif
from tests.commands import SMALL
from tests.helpers import colour_pool, coloured, picture

from .processes import polyshot

SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
"""A training of seconds."""


class World:
    """A folder of valid things."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def made(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a file or folder, which is made when it is wanted for the first time."""
        place = self.folder / name
        with FileLock(self.folder / f"{name}.lock"):
            if not place.exists():
                partial = self.folder / f"{name}.new" / place.name
                shutil.rmtree(partial.parent, ignore_errors=True)
                partial.parent.mkdir()
                make(partial)
                partial.rename(place)
                shutil.rmtree(partial.parent)
        return place

    @property
    def packs(self) -> Path:
        """Three small domains."""
        return self.made("packs", self._draw)

    def _draw(self, place: Path) -> None:
        only = ("--only", "glyphs,signs,flowers", "--size", 24, "--per-class", 15)
        _done("data", "toy", "--out", place, *only, "--workers", 1, folder=self.folder)

    @property
    def pool(self) -> Path:
        """A pool that was trained on two of them, in seconds."""
        return self.made("pool", self._train)

    def _train(self, place: Path) -> None:
        out = place.parent / "run"
        _done(*training(self.packs, out), folder=self.folder)
        shutil.copytree(out / "pool", place)
        shutil.rmtree(out)

    @property
    def colours(self) -> Path:
        """A tiny pool that tells colours apart, with a selector."""
        return self.made("colours", lambda place: colour_pool().save(place))

    @property
    def classifier(self) -> Path:
        """A classifier of colours with its examples."""

        def make(place: Path) -> None:
            labels = [label for label in ("red", "green", "blue") for _ in range(3)]
            images = [coloured(label, i) for i, label in enumerate(labels)]
            made = FewShotClassifier(colour_pool(), "select", "ridge", none_rate=0.3)
            made.fit(images, labels).save(place)

        return self.made("colours.polyshot", make)

    @property
    def photos(self) -> Path:
        """A folder for each class, of mixed formats."""

        def make(place: Path) -> None:
            for c, label in enumerate(("red", "green", "blue", "ch at")):
                (place / label).mkdir(parents=True)
                for i in range(6):
                    image = picture(10 * c + i) if label == "ch at" else coloured(label, i)
                    end = ("png", "jpg", "bmp")[i % 3]
                    image.save(place / label / f"{i}.{end}")

        return self.made("photos", make)

    @property
    def many(self) -> Path:
        """Enough photographs that an import takes a while."""

        def make(place: Path) -> None:
            for c in range(12):
                (place / f"class {c:02}").mkdir(parents=True)
                for i in range(40):
                    image = picture(100 * c + i, (320, 240))
                    image.save(place / f"class {c:02}" / f"{i}.jpg", quality=80)

        return self.made("many", make)

    @property
    def archives(self) -> Path:
        """The photographs as a zip, and as tars."""

        def make(place: Path) -> None:
            place.mkdir()
            for source in (self.photos, self.many):
                files = sorted(f for f in source.rglob("*") if f.is_file())
                with zipfile.ZipFile(place / f"{source.name}.zip", "w") as packed:
                    for file in files:
                        packed.write(file, str(file.relative_to(source)))
                for end, mode in (("tar", "w"), ("tar.gz", "w:gz"), ("tar.xz", "w:xz")):
                    with tarfile.open(place / f"{source.name}.{end}", mode) as tar:  # type: ignore[call-overload]
                        for file in files:
                            tar.add(file, str(file.relative_to(source)))
            deflated = zipfile.ZIP_DEFLATED
            with zipfile.ZipFile(place / "deflated.zip", "w", deflated) as packed:
                for file in sorted(f for f in self.photos.rglob("*") if f.is_file()):
                    packed.write(file, str(file.relative_to(self.photos)))

        return self.made("archives", make)

    @property
    def parquet(self) -> Path:
        """The photographs as Parquet: with class names, with texts and groups."""

        def make(place: Path) -> None:
            import pyarrow as pa
            from pyarrow import parquet

            place.mkdir()
            files = sorted(f for f in self.photos.rglob("*") if f.is_file())
            names = sorted({file.parent.name for file in files})
            images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
            labels = [names.index(file.parent.name) for file in files]
            features = {
                "image": {"_type": "Image"},
                "label": {"_type": "ClassLabel", "names": names},
            }
            about = {"huggingface": json.dumps({"info": {"features": features}})}
            table = pa.table({"image": images, "label": labels}).replace_schema_metadata(about)
            parquet.write_table(table, place / "named.parquet", row_group_size=7)
            plain = {
                "img": [image["bytes"] for image in images],
                "label": [names[label] for label in labels],
                "group": [i // 2 for i in range(len(labels))],
            }
            parquet.write_table(pa.table(plain), place / "plain.parquet", compression="none")

        return self.made("parquet", make)


def training(packs: Path, out: Path) -> list[object]:
    """The words of a short training."""
    return [
        *("train", packs, "--sources", "glyphs,signs", "--preset", "tiny", "--out", out),
        *("--device", "cpu", *SETTINGS),
    ]


def _done(*words: object, folder: Path) -> None:
    ended = polyshot(*words, folder=folder, limit=600)
    assert ended.code == 0, ended.err


@cache
def valid_images() -> dict[str, bytes]:
    """An image in every format and mode that Pillow writes."""
    draw = random.Random(0)
    colour = picture(1, (31, 23))
    deep = Image.fromarray(np.arange(31 * 23, dtype=np.uint16).reshape(23, 31) * 91)
    alpha = colour.copy()
    alpha.putalpha(128)

    def several() -> dict[str, object]:  # anew: Pillow keeps one format's settings for the next
        return {"save_all": True, "append_images": [picture(i, (31, 23)) for i in (2, 3)]}

    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a photo"
    wanted: list[tuple[str, Image.Image, dict[str, object]]] = [
        ("PNG", colour, {}),
        ("PNG", alpha, {}),
        ("PNG", deep, {}),
        ("PNG", colour.convert("P"), {"transparency": 3}),
        ("PNG", colour.convert("1"), {}),
        ("PNG", colour, several()),
        ("JPEG", colour, {"exif": exif}),
        ("JPEG", colour, {"progressive": True}),
        ("JPEG", colour.convert("CMYK"), {}),
        ("JPEG", colour.convert("L"), {}),
        ("MPO", colour, several()),
        ("GIF", colour.convert("P"), {}),
        ("GIF", colour, several()),
        ("BMP", colour, {}),
        ("BMP", colour.convert("P"), {}),
        ("DIB", colour, {}),
        ("TIFF", colour, {}),
        ("TIFF", colour, {"compression": "tiff_lzw"}),
        ("TIFF", colour, {"compression": "jpeg"}),
        ("TIFF", colour, {"compression": "tiff_adobe_deflate", "exif": exif}),
        ("TIFF", colour.convert("1"), {"compression": "group4"}),
        ("TIFF", deep, {}),
        ("TIFF", colour, several()),
        ("WEBP", colour, {}),
        ("WEBP", alpha, {"lossless": True}),
        ("WEBP", colour, several()),
        ("AVIF", colour, {}),
        ("JPEG2000", colour, {}),
        ("ICO", colour, {}),
        ("ICNS", colour.resize((32, 32)), {}),
        ("PPM", colour, {}),
        ("PPM", colour.convert("1"), {}),
        ("TGA", colour, {"compression": "tga_rle"}),
        ("PCX", colour, {}),
        ("SGI", colour, {}),
        ("DDS", colour, {}),
        ("IM", colour, {}),
        ("MSP", colour.convert("1"), {}),
        ("XBM", colour.convert("1"), {}),
        ("SPIDER", colour.convert("F"), {}),
        ("EPS", colour, {}),
        ("PDF", colour, {}),
        ("QOI", colour, {}),
        ("BLP", colour.convert("P"), {}),
        ("HEIF", colour.resize((64, 48)), {}),  # where pillow-heif is there
    ]
    made: dict[str, bytes] = {}
    Image.init()
    can_read_heif()
    for i, (kind, image, options) in enumerate(wanted):
        if kind in Image.SAVE:
            file = io.BytesIO()
            image.copy().save(file, kind, **options)
            made[f"{i:02}.{kind.lower()}"] = file.getvalue()
    made["psd"] = b"8BPS\0\1" + bytes(6) + b"\0\3\0\0\0\x17\0\0\0\x1f\0\x08\0\3" + bytes(3000)
    made["fits"] = b"".join(
        line.ljust(80).encode()
        for line in (
            "SIMPLE  = T",
            "BITPIX  = 8",
            "NAXIS   = 2",
            "NAXIS1  = 31",
            "NAXIS2  = 23",
            "END",
        )
    ).ljust(2880) + draw.randbytes(2880)
    made["svg"] = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"
    made["heic"] = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + draw.randbytes(500)
    return made
