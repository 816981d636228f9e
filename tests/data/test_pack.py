"""Packs: what is damaged, newer or no pack at all is refused with one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.pack import Domain, Pack, PackWriter, find_packs, open_packs
from polyshot.data.splits import ClassSplit
from polyshot.errors import PolyshotError
from polyshot.util.checks import sealed
from tests.helpers import make_domain


@pytest.fixture
def pack(image_folder: Callable[..., Path], tmp_path: Path) -> Pack:
    [one] = import_source(image_folder(), tmp_path / "packs", ImportOptions(size=16))
    return one.pack


def test_what_is_written_is_read(tmp_path: Path) -> None:
    domain = make_domain([3, 4, 5], group_size=2)
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    with PackWriter(tmp_path / "d", 8) as writer:
        writer.append(images[:5])
        writer.append(images[5:5])
        writer.append(images[5:])
        writer.finish(domain, {"reader": "test"})
    pack = Pack.open(tmp_path / "d")
    assert np.array_equal(pack.images, images) and pack.size == 8
    assert np.array_equal(pack.domain.labels, domain.labels)
    assert pack.domain.groups is not None and np.array_equal(pack.domain.groups, domain.groups)
    assert pack.domain.split == domain.split and pack.domain.class_names == domain.class_names
    assert pack.source == {"reader": "test"}
    assert np.array_equal(np.load(tmp_path / "d" / "images.npy"), images)  # plain numpy reads it


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_the_header_fits_any_number_of_images(
    counts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    total = sum(counts)
    if not total:
        return
    path = tmp_path_factory.mktemp("packs") / "d"
    with PackWriter(path, 8) as writer:
        for count in counts:
            writer.append(np.full((count, 3, 8, 8), count, np.uint8))
        writer.finish(Domain("d", ("a",), np.zeros(total, np.int64)), {})
    assert Pack.open(path).images.shape == (total, 3, 8, 8)


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), PackWriter(tmp_path / "d", 8) as writer:
        writer.append(np.zeros((2, 3, 8, 8), np.uint8))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_overwrite_killed_between_two_renames_is_mended(pack: Pack) -> None:
    old = pack.path.with_name(".photos.old")
    pack.path.rename(old)
    with pytest.raises(PolyshotError, match="exists"), PackWriter(pack.path, 16):
        pass  # the old pack came back before anything was written
    assert Pack.open(pack.path).hash == pack.hash


def change_bytes(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changes: object) -> None:
    file = path / "domain.json"
    file.write_text(json.dumps(sealed(json.loads(file.read_text()) | changes)))


def split(*parts: list[int]) -> dict[str, object]:
    return dict(zip(("train", "val", "test"), parts, strict=True)) | {"rule": "file"}


def test_a_flipped_bit_in_a_header_is_one_line(pack: Pack) -> None:
    for name in ("images.npy", "labels.npy"):
        whole = (pack.path / name).read_bytes()
        for offset in range(128):
            change_bytes(pack.path / name, offset)
            try:
                assert Pack.open(pack.path).hash == pack.hash  # a blank became another
            except PolyshotError as error:
                assert "\n" not in str(error)
            (pack.path / name).write_bytes(whole)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: change_bytes(path / "images.npy", -1), "does not match its hash"),
        (lambda path: change_bytes(path / "images.npy", 5000), "does not match its hash"),
        (lambda path: change_bytes(path / "labels.npy", -8), "does not match its hash"),
        (lambda path: edit(path, classes=["cat", "dog", "fish"]), "does not match its hash"),
        (lambda path: edit(path, format=2), "has format 2, this Polyshot reads up to 1: upgrade"),
        (lambda path: edit(path, format="x"), "has format 'x'"),
        (lambda path: edit(path, images=17), "its counts differ"),
        (lambda path: edit(path, split={}), "domain.json: split.train is missing"),
        (lambda path: edit(path, name="../../x"), "name is '../../x', a name that is no path"),
        (lambda path: edit(path, name="a\nb"), "a name that is no path"),
        (lambda path: edit(path, mirror="no"), "mirror is 'no', not true or false"),
        (lambda path: edit(path, classes=["cat", 3, "yak"]), "classes[1] is 3, not text"),
        (lambda path: edit(path, size=10**400), "is too large: 4096 is the most"),
        (lambda path: edit(path, hash="0"), "hash is '0', which is no sha256"),
        (lambda path: edit(path, split=split([0, 1], [1], [2])), "its split is none of 3 classes"),
        (lambda path: edit(path, split=split([0], [1], [3])), "its split is none of 3 classes"),
        (lambda path: (path / "domain.json").write_text("[" * 10**5), "damaged domain.json"),
        (lambda path: (path / "images.npy").unlink(), "is damaged"),
        (lambda path: (path / "labels.npy").write_bytes(b""), "is damaged"),
        (
            lambda path: (path / "images.npy").write_bytes((path / "images.npy").read_bytes()[:-9]),
            "is damaged",
        ),
        (lambda path: (path / "domain.json").write_text("{"), "damaged domain.json"),
        (lambda path: (path / "domain.json").write_text("[]"), "damaged domain.json"),
        (lambda path: (path / "domain.json").unlink(), "is no pack: it has no domain.json"),
    ],
)
def test_damage_is_named(pack: Pack, damage: Callable[[Path], object], says: str) -> None:
    damage(pack.path)
    with pytest.raises(PolyshotError) as error:
        Pack.open(pack.path)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_recorded_split_stays_and_the_hash_too(pack: Pack) -> None:
    pack.record_split(ClassSplit((0,), (1,), (2,), rule="file"))
    again = Pack.open(pack.path)
    assert again.domain.split.sizes == (1, 1, 1)
    assert again.hash == pack.hash
    assert sorted(path.name for path in pack.path.iterdir()) == [
        "domain.json",
        "images.npy",
        "labels.npy",
    ]


def test_packs_are_found(pack: Pack, tmp_path: Path) -> None:
    assert find_packs(tmp_path / "packs") == [pack.path] == find_packs(pack.path)
    with pytest.raises(PolyshotError, match="no folder"):
        find_packs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolyshotError, match="There are no packs in"):
        find_packs(tmp_path / "empty")


def test_packs_are_opened_by_name(pack: Pack, tmp_path: Path) -> None:
    assert [one.hash for one in open_packs(tmp_path / "packs", ["photos"])] == [pack.hash]
    assert [one.hash for one in open_packs(tmp_path / "packs")] == [pack.hash]
    with pytest.raises(PolyshotError, match=r"no pack 'potos'.*Did you mean 'photos'"):
        open_packs(tmp_path / "packs", ["potos"])
