"""Whatever form a user's images come in, the network sees the same pixels."""

import io
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from polyshot.data.images import decode, first_readable, load_sizes, read_images
from polyshot.data.importer import import_source
from polyshot.data.readers.queries import list_support, read_queries, read_support
from polyshot.errors import PolyshotError
from tests.helpers import picture

SIZE = 16


def load_images(images: Any, size: int, **options: Any) -> NDArray[np.uint8]:
    return load_sizes(images, [size], **options)[size]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "one.png"
    picture(1).save(path)
    return path


def test_every_form_gives_the_same_pixels(file: Path) -> None:
    image = picture(1)
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    expected = decode(file.read_bytes(), SIZE)
    forms = [
        file,
        str(file),
        file.read_bytes(),
        image,
        array,
        np.ascontiguousarray(array.transpose(2, 0, 1)),
        array.astype(np.int64),
        array.astype(np.uint16) * 257,
        array / 255,
        (array / 255).astype(np.float32),
        tensor,
        tensor.int(),
        tensor / 255,
        (tensor / 255).double().requires_grad_(),
        np.dstack([array, np.full(array.shape[:2], 255, np.uint8)]),
    ]
    for form in forms:
        loaded = load_images(form, SIZE)
        assert loaded.shape == (1, 3, SIZE, SIZE) and loaded.dtype == np.uint8
        np.testing.assert_array_equal(loaded[0], expected)
    many = np.stack([expected] * len(forms))
    np.testing.assert_array_equal(load_images(forms, SIZE), many)
    for paths in (np.array([str(file)] * 2), np.array([file] * 2)):
        np.testing.assert_array_equal(load_images(paths, SIZE), many[:2])


def test_batches_are_taken_apart() -> None:
    arrays = np.stack([np.asarray(picture(i)) for i in range(4)])
    one_by_one = load_images(list(arrays), SIZE)
    first = arrays.transpose(0, 3, 1, 2)
    for batch in (arrays, first, torch.from_numpy(first.copy()), torch.from_numpy(arrays)):
        np.testing.assert_array_equal(load_images(batch, SIZE), one_by_one)
    assert len(np.unique(one_by_one, axis=0)) == 4


def test_a_pack_of_the_right_size_is_left_alone() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, SIZE, SIZE), dtype=np.uint8)
    np.testing.assert_array_equal(load_images(images, SIZE), images)


def test_order_of_axes_where_both_are_possible() -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    as_array = load_images(array, SIZE)
    as_tensor = load_images(torch.from_numpy(array.transpose(2, 0, 1).copy()), SIZE)
    np.testing.assert_array_equal(as_array, as_tensor)


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 70),
    height=st.integers(1, 70),
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F"]),
)
def test_wild_sizes_and_modes(width: int, height: int, mode: str) -> None:
    image = Image.new("RGB", (width, height), (255, 255, 255)).convert(mode)
    loaded = load_images(image, SIZE)
    assert loaded.shape == (1, 3, SIZE, SIZE)
    if mode != "I":  # 255 of 65,535 is dark
        assert loaded.min() > 250


def test_grey_bool_and_turned_images() -> None:
    grey = np.asarray(picture(3).convert("L"))
    loaded = load_images(grey, SIZE)[0]
    np.testing.assert_array_equal(loaded[0], loaded[2])
    np.testing.assert_array_equal(load_images(grey[..., None], SIZE)[0], loaded)
    np.testing.assert_array_equal(load_images(torch.from_numpy(grey.copy())[None], SIZE)[0], loaded)
    assert load_images(np.ones((4, 4), bool), SIZE).min() == 255
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    picture(3).save(file, "JPEG", exif=exif)
    with Image.open(file) as opened:
        from_picture = load_images(opened, SIZE)
    np.testing.assert_array_equal(from_picture, load_images(file.getvalue(), SIZE))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((5, 6, 7), np.uint8), r"images\[0\] .*\(5, 6, 7\).*channels"),
        (np.zeros((0, 5), np.uint8), r"shape \(0, 5\)"),
        (np.full((4, 4), 128.0), "from 128 to 128, 0 to 1 is expected"),
        (torch.full((3, 4, 4), -2.0), "float32 from -2"),
        (np.full((4, 4), np.nan), "from nan"),
        (np.full((4, 4), 300), "from 300 to 300, 0 to 255 is expected"),
        (np.array([["a"]]), "an array of <U1"),
        (b"", "empty file"),
        (np.zeros((2, 2, 2, 2, 2)), "holds no images"),
        (np.zeros(4), "holds no images"),
        ([], "no images"),
        (np.zeros((0, 4, 4, 3)), "no images"),
        (7, "from a int"),
        ([None], "NoneType"),
        ("missing.png", r"missing\.png \(no such file"),
    ],
)
def test_bad_images_are_named_in_one_line(image: object, message: str) -> None:
    with pytest.raises(PolyshotError, match=message) as error:
        load_images(image, SIZE)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_all_bad_files_are_named_up_to_five(file: Path, tmp_path: Path) -> None:
    bad = []
    for i in range(7):
        bad.append(tmp_path / f"bad{i}.png")
        bad[-1].write_bytes(file.read_bytes()[:60] if i else b"text")
    with pytest.raises(PolyshotError) as error:
        load_images([file, *bad, tmp_path], SIZE)
    text = str(error.value)
    assert text.startswith("8 of 9 images cannot be read: ") and text.endswith("and 3 more.")
    assert "bad0.png (not an image)" in text and "bad4.png (" in text and "bad5" not in text


def test_a_truncated_picture_that_was_only_opened(tmp_path: Path) -> None:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    with (
        Image.open(io.BytesIO(file.getvalue()[:1500])) as opened,
        pytest.raises(PolyshotError, match=r"images\[0\] \(truncated\)"),
    ):
        load_images(opened, SIZE)


def test_what_can_be_read_is_and_the_rest_has_a_reason(file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    given = [tmp_path / "notes.txt", file, tmp_path / "none.png", picture(1)]
    read = read_images(given, [SIZE, 8])
    assert read.places == [1, 3] and read.names == [str(file), ""] and len(read) == 2
    kinds = {0: "not an image", 2: "no such file or directory"}
    assert {i: bad.kind for i, bad in read.bad.items()} == kinds
    assert (read.pixels[SIZE] == load_images([file, picture(1)], SIZE)).all()
    assert read.of_sizes([8])[8].shape == (2, 3, 8, 8)
    with pytest.raises(PolyshotError, match="not read in 9 x 9"):
        read.of_sizes([8, 9])
    assert first_readable(given[:3]) == 1 and first_readable(given[:1]) is None
    nothing = read_images(given[:1], [SIZE])
    assert nothing.pixels[SIZE].shape == (0, 3, SIZE, SIZE) and len(nothing) == 0


def test_threads_leave_the_filters_of_warnings_alone(file: Path) -> None:
    before = list(warnings.filters)
    seen: list[int] = []
    load_images([file] * 64, SIZE, report=lambda name, done, total: seen.append(done))
    assert list(warnings.filters) == before
    assert seen == list(range(1, 65))


def test_support_from_a_folder_for_each_class(image_folder: Callable[..., Path]) -> None:
    root = image_folder(cat=2, dog=3)
    paths, labels = read_support(str(root))
    assert labels == ["cat"] * 2 + ["dog"] * 3
    assert all(path.parent.name == label for path, label in zip(paths, labels, strict=True))
    assert load_images(paths, SIZE).shape[0] == 5
    (root / "owl").mkdir()
    with pytest.raises(PolyshotError, match="classes without images: owl"):
        read_support(root)


def test_a_picture_beside_the_classes_is_no_example(image_folder: Callable[..., Path]) -> None:
    root = image_folder("set/photos", cat=2, dog=3).parent
    shutil.copy(root / "photos" / "cat" / "000.png", root / "cover.png")
    paths, labels, beside = list_support(root)
    assert (paths, labels) == read_support(root) and labels == ["cat"] * 2 + ["dog"] * 3
    assert [str(bad) for bad in beside] == [f"{root}/cover.png (in no class folder)"]


@pytest.mark.parametrize(
    "text",
    [
        "cat/000.png,cat\ndog/000.png,dog\n",
        "path,label\ncat/000.png,cat\n\ndog/000.png,dog\n",
        "\ufeffLabel;Path\r\ncat;cat/000.png\r\ndog; dog/000.png\r\n",
        "id\tpath\tlabel\n1\tcat/000.png\tcat\n2\tdog/000.png\tdog",
        'path,label\n"cat/000.png","cat"\n"dog/000.png","dog"\n',
        "filename,class\ncat/000.png,cat\ndog/000.png,dog\n",
        "Category;width;File Name\ncat;3;cat/000.png\ndog;4;dog/000.png\n",
    ],
)
def test_support_from_csv(image_folder: Callable[..., Path], text: str) -> None:
    root = image_folder(cat=2, dog=1)
    (root / "set.csv").write_text(text, encoding="utf-8", newline="")
    paths, labels = read_support(root / "set.csv")
    assert labels == ["cat", "dog"]
    assert paths == [root / "cat" / "000.png", root / "dog" / "000.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no rows"),
        (b"path,label\n", "no rows"),
        (b"cat/000.png,cat\ncat/001.png,\ncat/001.png\n,cat\n", "without path or label: line 2, 3"),
        (b"cat/000.png,cat\ncat/none.png,cat\n", r"do not exist: .*none\.png\.$"),
        (b"caf\xe9,cat", "UTF-8"),
        (b"foto,art\ncat/000.png,cat\n", r"If foto, art is a heading, call these columns path"),
        (b"filename,class\n", "no rows"),
    ],
)
def test_bad_csv(image_folder: Callable[..., Path], text: bytes, message: str) -> None:
    root = image_folder(cat=2)
    (root / "set.csv").write_bytes(text)
    with pytest.raises(PolyshotError, match=message):
        read_support(root / "set.csv")


def test_what_is_no_support_set(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder(cat=2)
    (tmp_path / "empty").mkdir()
    for path, message in [
        (tmp_path / "none", "no file or folder"),
        (tmp_path / "empty", "no images"),
        (root / "cat", "no class folders"),
        (root / "cat" / "000.png", "no support set"),
    ]:
        with pytest.raises(PolyshotError, match=message):
            read_support(path)


def test_a_csv_with_one_file_under_two_labels(image_folder: Callable[..., Path]) -> None:
    root = image_folder(cat=2, dog=1)
    table, rows = root / "set.csv", ["cat/000.png,cat", "dog/000.png,dog", "cat/000.png,cat"]
    table.write_text("\n".join(rows))
    assert read_support(table)[1] == ["cat", "dog", "cat"], "the same row twice counts twice"
    table.write_text("\n".join([*rows, "./cat/../cat/000.png,dog"]))
    message = r"set.csv lists files under two labels: .*000\.png \('cat' and 'dog'\)\. Leave one"
    with pytest.raises(PolyshotError, match=message):
        read_support(table)
    with pytest.raises(PolyshotError, match=message):
        import_source(table, root / "packs")


def test_queries(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder(cat=2, dog=1)
    (root / "dog" / "notes.txt").write_text("no image")
    (root / ".hidden").mkdir()
    picture(1).save(root / ".hidden" / "x.png")
    os.rename(root / "dog" / "000.png", root / "dog" / "000.PNG")  # noqa: PTH104
    found = [root / "cat/000.png", root / "cat/001.png", root / "dog/000.PNG"]
    assert read_queries(root) == found
    assert read_queries([str(root / "dog" / "notes.txt"), root]) == [root / "dog/notes.txt", *found]
    (root / "cat" / "folder.png").mkdir()
    (root / "cat" / "link.png").symlink_to(tmp_path)
    assert read_queries(root) == found
    (tmp_path / "empty").mkdir()
    for paths, message in [
        ([], "no images to classify"),
        ([tmp_path / "empty"], "no image files"),
        (["nowhere"], "no file or folder nowhere"),
    ]:
        with pytest.raises(PolyshotError, match=message):
            read_queries(paths)
