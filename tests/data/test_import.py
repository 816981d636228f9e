"""Import: every format gives the same pack, bad input gets one clear line, nothing is left over."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.pack import Pack
from polyshot.data.readers import ReadOptions
from polyshot.errors import PolyshotError
from tests.commands import as_shells_have_it
from tests.helpers import SHARED, full_disk, needs_shared, picture

SMALL = ImportOptions(size=16)
CARRY = Path(__file__).parents[2] / "tools" / "carry_images.py"
MakeFolder = Callable[..., Path]


def bring(path: Path, out: Path, read: ReadOptions | None = None, **options: object) -> Pack:
    [one] = import_source(path, out, ImportOptions(**{"size": 16, **options}), read)
    return one.pack


def refusal(path: Path, out: Path, read: ReadOptions | None = None, **options: object) -> str:
    """Import must fail with one line, and leave nothing in the folder for packs."""
    before = sorted(out.rglob("*")) if out.exists() else []
    with pytest.raises(PolyshotError) as error:
        bring(path, out, read, **options)
    assert (sorted(out.rglob("*")) if out.exists() else []) == before
    assert "\n" not in str(error.value)
    return str(error.value)


# --- formats


def test_a_folder_becomes_a_pack(image_folder: MakeFolder, tmp_path: Path) -> None:
    pack = bring(image_folder(), tmp_path / "packs")
    assert pack.path == tmp_path / "packs" / "photos"
    assert pack.domain.class_names == ("cat", "dog", "owl")
    assert pack.domain.class_sizes.tolist() == [6, 7, 5]
    assert pack.images.shape == (18, 3, 16, 16) and isinstance(pack.images, np.memmap)
    expected = np.asarray(
        picture(100).crop((5, 0, 35, 30)).resize((16, 16), Image.Resampling.BICUBIC)
    )
    assert (
        np.abs(pack.images[6].transpose(1, 2, 0).astype(int) - expected).mean() < 6
    )  # dog/000.png


def archive(root: Path, kind: str, wrapped: bool) -> Path:
    """Pack a folder the way people do, with or without the folder itself."""
    base = root.parent if wrapped else root
    path = root.parent / f"photos.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for entry in sorted(root.rglob("*"), reverse=True):  # order must not matter
                file.write(entry, entry.relative_to(base))
    else:
        with tarfile.open(path, "w:" + kind.partition(".")[2].replace("tar", "")) as file:
            for entry in sorted(root.rglob("*"), reverse=True):
                file.add(entry, entry.relative_to(base), recursive=False)
    return path


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that no other process uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_archives_give_the_same_pack_as_the_folder(
    image_folder: MakeFolder, own_temporary: Path, tmp_path: Path, kind: str, wrapped: bool
) -> None:
    root = image_folder()
    (root / "README.md").write_text("not an image, and not in a class folder")
    (root / ".DS_Store").write_bytes(b"x")
    (root / "cat" / "Thumbs.db").write_bytes(b"x")
    expected = bring(root, tmp_path / "folder")
    pack = bring(archive(root, kind, wrapped), tmp_path / "archive")
    assert pack.hash == expected.hash
    assert pack.domain.name == "photos"
    assert not list(own_temporary.iterdir())


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_entries_that_lead_out_and_links_are_named(
    image_folder: MakeFolder, tmp_path: Path, kind: str
) -> None:
    root = image_folder(cat=2, dog=2)
    file = tmp_path / f"odd.{kind}"
    outside = ["../../evil.png", "/etc/evil.png", "cat/../../evil.png"]
    links = []
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as zipped:
            for path in root.rglob("*.png"):
                zipped.write(path, path.relative_to(root))
            for name in outside:
                zipped.writestr(name, b"evil")
    else:
        with tarfile.open(file, "w") as tarred:
            tarred.add(root, ".")
            for name in outside:
                tarred.addfile(tarfile.TarInfo(name))
            for name, type_ in (("cat/link.png", tarfile.SYMTYPE), ("cat/pipe", tarfile.FIFOTYPE)):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = type_, "/etc/passwd"
                tarred.addfile(entry)
        links = ["cat/link.png (a link)", "cat/pipe (a pipe or device)"]
    message = refusal(file, tmp_path / "packs")
    assert f"{3 + len(links)} entries of odd.{kind} are no files in it" in message
    for each in [*(f"{name} (leads out of the archive)" for name in outside), *links]:
        assert each in message
    assert "pass --skip-bad" in message
    (made,) = import_source(file, tmp_path / "packs", ImportOptions(skip_bad=True))
    assert len(made.pack.images) == 4 and len(made.skipped) == 3 + len(links)


@pytest.mark.parametrize("which", ["*.png", "000.png"])
def test_zips_with_backslashes_give_the_same_pack(
    image_folder: MakeFolder, tmp_path: Path, which: str
) -> None:
    root, windows = image_folder(), tmp_path / "windows.zip"
    with zipfile.ZipFile(windows, "w") as file:
        for path in sorted(root.rglob("*.png")):
            name = str(path.relative_to(root.parent))
            file.write(path, name.replace("/", "\\") if path.match(which) else name)
        file.writestr("photos\\cat\\", b"")
    pack = bring(windows, tmp_path / "packs")
    assert pack.hash == bring(root, tmp_path / "packs").hash
    with zipfile.ZipFile(windows, "a") as file:
        for name in ("..\\..\\evil.png", "\\etc\\evil.png", "photos\\cat\\..\\..\\..\\evil.png"):
            file.writestr(name, b"evil")
        file.writestr("photos/cat\\000.png", b"another")
    message = refusal(windows, tmp_path / "more")
    assert "4 entries of windows.zip" in message and message.count("(leads out of the") == 3
    assert "000.png (the name of another entry)" in message


def test_a_csv_gives_the_same_pack_as_the_folder(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder(cat=3, dog=2)
    kinds = [("dog", 2), ("cat", 3)]
    rows = [f"{label},{label}/{i:03}.png" for label, count in kinds for i in range(count)]
    (root / "set.csv").write_text("class,filename\n" + "\n".join(rows))
    (from_csv,) = import_source(root / "set.csv", tmp_path / "csv")
    (root / "set.csv").unlink()
    (from_folder,) = import_source(root, tmp_path / "folder")
    assert from_csv.pack.hash == from_folder.pack.hash and from_csv.pack.domain.name == "set"
    assert from_csv.pack.source["reader"] == "spreadsheet"


def test_train_val_and_test_folders_are_pooled(image_folder: MakeFolder, tmp_path: Path) -> None:
    flat = image_folder("flat")
    parts = tmp_path / "parts"
    for i, file in enumerate(sorted(flat.rglob("*.png"))):
        target = parts / ("train", "val", "test")[i % 3] / file.relative_to(flat)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    assert bring(parts, tmp_path / "packs").hash == bring(flat, tmp_path / "packs").hash


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", [".", "photos", "deep/photos"])
def test_a_picture_beside_the_class_folders_does_not_decide(
    image_folder: MakeFolder, tmp_path: Path, place: str, packed: bool
) -> None:
    expected = bring(image_folder(), tmp_path / "packs")
    root = tmp_path / "cov"
    shutil.copytree(tmp_path / "photos", root / place, dirs_exist_ok=True)
    covers = {"cover.png", str(Path(place) / "again.JPG")}
    for each in covers:
        picture(3).save(root / each)
    source = archive(root, "zip", wrapped=False) if packed else root
    [made] = import_source(source, tmp_path / "more", SMALL)
    assert made.pack.hash == expected.hash
    assert {(bad.where, bad.kind) for bad in made.skipped} == {
        (each, "in no class folder") for each in covers
    }


def test_a_class_alone_may_have_folders_in_it(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder(cat=5)
    for name in ("indoors", "outdoors"):
        (root / "cat" / name).mkdir()
        picture(7).save(root / "cat" / name / "x.png")
    assert bring(root, tmp_path / "packs").domain.class_names == ("cat",)


def test_images_deeper_in_a_class_and_links_are_found(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    root = image_folder(cat=3, dog=3)
    deep = root / "cat" / "2024" / "may"
    deep.mkdir(parents=True)
    picture(7).save(deep / "x.png")
    (root / "cow").symlink_to(image_folder("elsewhere", cow=4) / "cow")
    (root / "cat" / "again").symlink_to(root / "cat")  # an endless loop if followed
    pack = bring(root, tmp_path / "packs")
    assert dict(zip(pack.domain.class_names, pack.domain.class_sizes.tolist(), strict=True)) == {
        "cat": 4, "cow": 4, "dog": 3,
    }  # fmt: skip


def write_parquet(
    path: Path, rows: list[tuple[bytes | None, int]], names: list[str] | None, **extra: list[int]
) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "image": [{"bytes": data, "path": None} for data, _ in rows],
        "label": [label for _, label in rows],
    }
    table = pyarrow.table(columns | extra)
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=5)
    return path


def png(seed: int) -> bytes:
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return file.getvalue()


def folder_rows() -> list[tuple[bytes, int]]:
    """The default image folder, row by row."""
    return [(png(100 * c + i), c) for c, count in enumerate((6, 7, 5)) for i in range(count)]


def test_parquet_gives_the_same_pack_as_the_folder(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    file = write_parquet(tmp_path / "photos.parquet", folder_rows(), ["cat", "dog", "owl"])
    pack = bring(file, tmp_path / "packs")
    assert pack.domain.name == "photos"
    assert pack.hash == bring(image_folder("other"), tmp_path / "packs").hash


def test_parquet_shards_and_parts_are_pooled(image_folder: MakeFolder, tmp_path: Path) -> None:
    rows, names = folder_rows(), ["cat", "dog", "owl"]
    root = tmp_path / "pets"
    write_parquet(root / "data" / "test-00000-of-00002.parquet", rows[:4], names)
    write_parquet(root / "data" / "test-00001-of-00002.parquet", rows[4:9], names)
    write_parquet(root / "data" / "train-00000-of-00001.parquet", rows[9:], names)
    pack = bring(root, tmp_path / "packs")
    assert pack.domain.name == "pets"
    assert pack.hash == bring(image_folder(), tmp_path / "packs").hash


def test_a_folder_of_parquet_files_is_one_domain_a_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_parquet(tmp_path / "in" / f"{name}.parquet", folder_rows(), ["cat", "dog", "owl"])
    done = import_source(tmp_path / "in", tmp_path / "packs", SMALL)
    assert [one.pack.domain.name for one in done] == ["a", "b"]
    only = import_source(tmp_path / "in", tmp_path / "more", ImportOptions(size=16, only=("b",)))
    assert [one.pack.domain.name for one in only] == ["b"]
    assert "Did you mean 'a'" in refusal(tmp_path / "in", tmp_path / "x", only=("aa",))
    assert "--name takes one" in refusal(tmp_path / "in", tmp_path / "x", ReadOptions(name="n"))


def test_parquet_groups_and_unused_names(tmp_path: Path) -> None:
    rows = [(png(i), label) for i, label in enumerate([0, 0, 0, 2, 2, 2])]
    groups = [5, 5, 7, 5, 9, 9]  # group 5 in two classes is two groups
    file = write_parquet(tmp_path / "film.parquet", rows, ["a", "b", "c"], group=groups)
    pack = bring(file, tmp_path / "packs")
    assert pack.domain.class_names == ("a", "c")
    assert pack.domain.groups is not None and pack.domain.groups.tolist() == [0, 0, 1, 2, 3, 3]
    assert pack.domain.group_count == 4


def test_images_carried_without_parquet_give_the_same_pack(tmp_path: Path) -> None:
    names = ["owls/a", "cats", "dogs"]  # neither sorted nor good for folders
    rows = [(png(i), i % 3) for i in range(9)]
    write_parquet(tmp_path / "film.parquet", rows, names, group=[i // 3 for i in range(9)])
    tool = [sys.executable, str(CARRY)]
    for words in (("wrap", ".", "carried"), ("pack", "carried", "packs", "--no-mirror")):
        done = subprocess.run([*tool, *words], cwd=tmp_path, check=True, capture_output=True)
    options = ImportOptions(mirror=False)
    (wanted,) = import_source(tmp_path / "film.parquet", tmp_path / "out", options)
    assert done.stdout.decode().split() == ["film", wanted.pack.hash]
    carried = Pack.open(tmp_path / "packs" / "film").domain
    assert (carried.class_names, carried.split) == (
        wanted.pack.domain.class_names,
        wanted.pack.domain.split,
    )


def test_parquet_without_names_or_with_string_labels(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "n.parquet", [(png(i), 10 * (i % 2)) for i in range(6)], None)
    assert bring(file, tmp_path / "packs").domain.class_names == ("0", "10")


@pytest.mark.parametrize(
    ("labels", "names", "says"),
    [
        ([0, 1, -1], ["a", "b"], "images without a label"),
        ([0, 1, 5], ["a", "b"], "labels outside its 2 class names"),
        ([0, 1, 1], ["a", "A"], "mean the same: 'a' and 'A'"),
    ],
)
def test_bad_parquet_labels_are_refused(
    tmp_path: Path, labels: list[int], names: list[str], says: str
) -> None:
    file = write_parquet(
        tmp_path / "p.parquet", [(png(i), label) for i, label in enumerate(labels)], names
    )
    assert says in refusal(file, tmp_path / "packs")


def test_broken_parquet_files_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing")
    assert "cannot be read as a Parquet file" in refusal(broken, tmp_path / "packs")
    rows = [(png(0), 0), (None, 0), (b"", 1)]
    message = refusal(write_parquet(tmp_path / "x.parquet", rows, ["a", "b"]), tmp_path / "packs")
    assert "2 of 3 files cannot be read" in message and "no embedded bytes" in message


@pytest.mark.parametrize("names", [None, ["a", "b"]])
@pytest.mark.parametrize("labels", [[[0], [1]], [{"a": 0}, {"a": 1}]])
def test_parquet_labels_that_are_lists_are_refused(
    tmp_path: Path, labels: list[Any], names: list[str] | None
) -> None:
    rows = [(png(i), label) for i, label in enumerate(labels)]
    file = write_parquet(tmp_path / "p.parquet", rows, names)
    assert "labels that are no single names or numbers" in refusal(file, tmp_path / "packs")


def test_parquet_labels_that_are_text_beside_names_are_refused(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "p.parquet", [(png(0), "a"), (png(1), "b")], ["a", "b"])  # type: ignore[list-item]
    assert "labels that are no single names or numbers" in refusal(file, tmp_path / "packs")


def test_parquet_images_that_are_text_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "p.parquet"
    parquet.write_table(pyarrow.table({"image": ["a.png", "b.png"], "label": [0, 1]}), file)
    message = refusal(file, tmp_path / "packs")
    assert "2 of 2 files cannot be read" in message and "no embedded bytes" in message


def test_pipes_and_sockets_are_named_and_never_waited_for(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    root = image_folder(cat=3, dog=3)
    os.mkfifo(root / "cat" / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "dog" / "s.png"))
    (root / "dog" / "null.png").symlink_to("/dev/null")
    message = refusal(root, tmp_path / "packs")
    assert "3 of 9 files cannot be read" in message and "cat/pipe.png (a folder, pipe" in message
    assert len(bring(root, tmp_path / "packs", skip_bad=True).images) == 6


def test_a_missing_parquet_extra_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_parquet(tmp_path / "p.parquet", folder_rows(), None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(
        sys.modules, "pyarrow", None
    )  # importing it now fails, as if it were absent
    assert "pip install 'polyshot[parquet]'" in refusal(file, tmp_path / "packs")


# --- the Visual Decathlon


def decathlon(
    root: Path, domain: str = "gtsrb", first_id: int = 10_000_001, classes: int = 3
) -> Path:
    """A small Decathlon: COCO-style annotations in any order, category names out of order."""
    seed = 0
    for part in ("train", "val", "test"):
        images, annotations = [], []
        for i in range(classes * 4):
            seed += 1
            file = root / "data" / domain / part / f"{i:06}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(seed, (121, 72)).save(file)
            image_id = first_id + seed
            images.append(
                {
                    "id": image_id,
                    "width": 121,
                    "height": 72,
                    "file_name": str(file.relative_to(root)),
                }
            )
            annotations.append(
                {"id": seed, "image_id": image_id, "category_id": first_id + i % classes}
            )
        categories = [
            {"id": first_id + c, "name": f"Sign{classes - c}", "supercategory": ""}
            for c in range(classes)
        ]
        content = {"info": {}, "licenses": [], "images": images, "categories": categories}
        name = f"{domain}_{part}_stripped.json" if part == "test" else f"{domain}_{part}.json"
        (root / "annotations").mkdir(exist_ok=True)
        if part != "test":
            content["annotations"] = annotations[::-1]
        (root / "annotations" / name).write_text(json.dumps(content))
    return root


def test_a_decathlon_root_imports_every_domain_in_it(tmp_path: Path) -> None:
    root = tmp_path / "decathlon-1.0"
    decathlon(root, "gtsrb")
    decathlon(root, "vgg-flowers", 100_000_001)
    decathlon(root, "svhn")
    shutil.rmtree(
        root / "data" / "svhn"
    )  # annotations come for all, images for what was downloaded
    signs, flowers = (one.pack for one in import_source(root, tmp_path / "packs", SMALL))
    assert (signs.domain.name, flowers.domain.name) == ("gtsrb", "vgg-flowers")
    assert signs.domain.class_names == ("Sign3", "Sign2", "Sign1")  # by id, not by name
    assert signs.domain.class_sizes.tolist() == [8, 8, 8]  # train and val pooled, test left out
    assert not signs.domain.mirror and flowers.domain.mirror


def test_the_decathlons_flowers_have_the_papers_split(tmp_path: Path) -> None:
    pack = bring(decathlon(tmp_path / "d", "vgg-flowers", classes=102), tmp_path / "packs", size=8)
    assert pack.domain.split.sizes == (70, 16, 16)


def test_an_imagenet_without_wordnet_ids_is_not_split_at_random_in_silence(tmp_path: Path) -> None:
    def remark(root: Path, out: str, **options: object) -> str:
        [one] = import_source(root, tmp_path / out, ImportOptions(**{"size": 8, **options}))
        return one.remark

    root, split = decathlon(tmp_path / "d", "imagenet12", classes=34), tmp_path / "split.json"
    said = remark(root, "packs")
    assert "imagenet12 is not split by the WordNet tree" in said
    assert "--split" in said and "\n" not in said
    names = [f"Sign{i}" for i in range(1, 35)]
    split.write_text(json.dumps({"train": names[:20], "val": names[20:27], "test": names[27:]}))
    assert remark(root, "own", split_file=split) == ""
    few = decathlon(tmp_path / "few", "imagenet12")  # too few to be a source in any way
    assert "3 classes are too few for a class split: all are for tests" in remark(few, "target")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda root: (root / "data/gtsrb/train/000003.jpg").unlink(),
            "1 of 24 annotated images are not there",
        ),
        (
            lambda root: (root / "annotations/gtsrb_val.json").write_text("{ no"),
            "gtsrb_val.json is no valid JSON",
        ),
        (
            lambda root: (root / "annotations/gtsrb_val.json").write_text("{}"),
            "not in the Decathlon's format",
        ),
        (lambda root: shutil.rmtree(root / "data"), "has annotations (gtsrb) but no images"),
    ],
)
def test_a_damaged_decathlon_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    root = decathlon(tmp_path / "d")
    damage(root)
    assert says in refusal(root, tmp_path / "packs")


# --- options


def test_import_is_deterministic_whatever_the_workers(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    root = image_folder(cat=80, dog=70)
    hashes = {bring(root, tmp_path / str(n), workers=n).hash for n in (1, 2, 3)}
    assert len(hashes) == 1


def test_content_changes_the_hash_and_the_name_does_not(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    root = image_folder()
    first = bring(root, tmp_path / "a").hash
    assert bring(root, tmp_path / "b", ReadOptions(name="other")).hash == first
    assert bring(root, tmp_path / "c", size=24).hash != first
    (root / "cat").rename(root / "cats")
    assert bring(root, tmp_path / "d").hash != first


def test_groups_by_pattern(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder(cat=4, dog=2)
    pack = bring(root, tmp_path / "packs", ReadOptions(group_pattern=r"00([01])\.png"))
    assert pack.domain.groups is not None and pack.domain.groups.tolist() == [0, 1, 2, 3, 4, 5]
    one = bring(root, tmp_path / "one", ReadOptions(group_pattern=r"(0)"))
    assert one.domain.groups is not None and one.domain.groups.tolist() == [0, 0, 0, 0, 1, 1]
    for pattern, says in (
        ("(", "no regular expression"),
        ("x", "needs a parenthesis"),
        ("(x)", "matches no"),
    ):
        assert says in refusal(root, tmp_path / "bad", ReadOptions(group_pattern=pattern))


def test_existing_packs_are_refused_kept_or_replaced(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    root, out = image_folder(), tmp_path / "packs"
    first = bring(root, out)
    assert "--overwrite replaces it, --keep leaves it" in refusal(root, out)
    shutil.rmtree(root / "owl")
    [kept] = import_source(root, out, ImportOptions(size=16, keep=True))
    assert kept.kept and kept.pack.hash == first.hash
    replaced = bring(root, out, overwrite=True)
    assert replaced.domain.class_names == ("cat", "dog")
    assert [path.name for path in out.iterdir()] == ["photos"]


def test_overwrite_does_not_touch_what_is_no_pack(image_folder: MakeFolder, tmp_path: Path) -> None:
    (tmp_path / "packs" / "photos").mkdir(parents=True)
    (tmp_path / "packs" / "photos" / "thesis.txt").write_text("important")
    assert "is no pack" in refusal(image_folder(), tmp_path / "packs", overwrite=True)


def test_a_users_split_and_seed(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    file = tmp_path / "split.json"
    file.write_text(json.dumps({"train": ["cat"], "val": ["dog"], "test": ["owl"]}))
    assert bring(root, tmp_path / "packs", split_file=file).domain.split.sizes == (1, 1, 1)
    file.write_text(json.dumps({"train": ["cat", "owl"], "val": ["dog"], "test": ["owl"]}))
    assert "must not overlap: owl" in refusal(root, tmp_path / "bad", split_file=file)


# --- bad input


def test_missing_empty_and_flat_roots(tmp_path: Path) -> None:
    out = tmp_path / "packs"
    assert "no file or folder" in refusal(tmp_path / "none", out)
    (tmp_path / "empty").mkdir()
    assert "has no images" in refusal(tmp_path / "empty", out)
    (tmp_path / "flat").mkdir()
    picture(0).save(tmp_path / "flat" / "a.png")
    assert "no class folders" in refusal(tmp_path / "flat", out)
    (tmp_path / "notes.txt").write_text("x")
    assert "in no format Polyshot reads" in refusal(tmp_path / "notes.txt", out)
    (tmp_path / "parts" / "train").mkdir(parents=True)
    (tmp_path / "parts" / "test").mkdir()
    picture(0).save(tmp_path / "parts" / "train" / "a.png")
    assert "images directly in them" in refusal(tmp_path / "parts", out)


def test_empty_class_folders_are_named_or_skipped(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    (root / "yak").mkdir()
    assert "1 class folders without images: yak" in refusal(root, tmp_path / "packs")
    assert bring(root, tmp_path / "packs", skip_bad=True).domain.class_names == (
        "cat",
        "dog",
        "owl",
    )


def test_names_that_mean_the_same(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder(**{"Golden Retriever": 3, "golden_retriever": 3, "pug": 3})
    message = refusal(root, tmp_path / "packs")
    assert "'Golden Retriever' and 'golden_retriever'" in message and "--keep-case" in message
    letters = image_folder("letters", **{"a": 3, "A": 3})
    assert "'A' and 'a'" in refusal(letters, tmp_path / "packs")
    assert (
        len(bring(letters, tmp_path / "packs", ReadOptions(keep_case=True)).domain.class_names) == 2
    )


def damage(root: Path) -> None:
    """One of each: empty, text, truncated, scrambled, bomb."""
    good = (root / "cat" / "000.png").read_bytes()
    (root / "cat" / "empty.jpg").write_bytes(b"")
    (root / "cat" / "notes.txt").write_text("these are my cats\n" * 20)
    photo = io.BytesIO()
    picture(1, (300, 300)).save(photo, "JPEG")
    (root / "dog" / "cut.jpg").write_bytes(photo.getvalue()[:3000])
    (root / "dog" / "scrambled.png").write_bytes(good[:60] + bytes(len(good) - 60))
    Image.new("1", (15_000, 15_000)).save(root / "owl" / "bomb.png")


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_bad_images_are_counted_or_skipped(
    image_folder: MakeFolder, tmp_path: Path, kind: str
) -> None:
    root = image_folder()
    expected = bring(root, tmp_path / "clean").hash
    damage(root)
    source = root if kind == "folder" else archive(root, kind, wrapped=True)
    message = refusal(source, tmp_path / "packs")
    assert "5 of 23 files cannot be read" in message
    for kind_of_fault in (
        "1 empty file",
        "1 not an image",
        "1 truncated",
        "1 too large",
        "--skip-bad",
    ):
        assert kind_of_fault in message
    [one] = import_source(source, tmp_path / "packs", ImportOptions(size=16, skip_bad=True))
    assert one.pack.hash == expected
    assert len(one.skipped) == 5 and sum(one.pack.source["skipped"].values()) == 5


def marked(path: Path, name: str, local: int, value: int) -> None:
    """Change two bytes of a zip's headers of one file; `local` is where they are in its own."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        (entry,) = (e for e in file.infolist() if e.filename.endswith(name))
    central = data.rindex(entry.filename.encode()) - 46  # in the directory, at the end
    for place in (entry.header_offset + local, central + local + 2):
        data[place : place + 2] = value.to_bytes(2, "little")
    path.write_bytes(data)


def test_files_of_a_zip_that_cannot_be_unpacked_say_why(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    path = archive(image_folder(), "zip", wrapped=True)
    marked(path, "cat/000.png", local=6, value=1)  # a password
    marked(path, "dog/000.png", local=8, value=97)  # some other compression
    message = refusal(path, tmp_path / "packs")
    assert "1 encrypted" in message
    assert "1 compressed in a way that Python does not know" in message


def test_a_class_of_bad_images_alone_is_dropped_when_skipping(
    image_folder: MakeFolder, tmp_path: Path
) -> None:
    root = image_folder(cat=3, dog=3)
    (root / "yak").mkdir()
    (root / "yak" / "a.jpg").write_bytes(b"no")
    assert bring(root, tmp_path / "packs", skip_bad=True).domain.class_names == ("cat", "dog")
    only = tmp_path / "only" / "yak"
    only.mkdir(parents=True)
    (only / "a.jpg").write_bytes(b"no")
    assert "no readable image" in refusal(tmp_path / "only", tmp_path / "packs", skip_bad=True)


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_broken_archives(tmp_path: Path, own_temporary: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x1f\x8b but no archive at all" * 50)
    assert "cannot be read as a" in refusal(path, tmp_path / "packs")
    assert not list(own_temporary.iterdir())


@contextmanager
def without_root() -> Iterator[None]:
    """Root reads everything; permissions only show to someone else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_unreadable_files_and_folders() -> None:
    scratch = Path(tempfile.mkdtemp())
    try:
        scratch.chmod(0o777)
        for i in range(3):
            folder = scratch / "in" / f"class {i}"
            folder.mkdir(parents=True)
            picture(i).save(folder / "a.png")
        (scratch / "in" / "class 1" / "a.png").chmod(0)
        with without_root():
            message = refusal(scratch / "in", scratch / "packs")
        assert "1 of 3 files cannot be read (1 permission denied)" in message
        (scratch / "in" / "class 2").chmod(0)
        with without_root():
            assert "class 2 cannot be listed: Permission denied" in refusal(
                scratch / "in", scratch / "packs"
            )
        (scratch / "locked").mkdir()
        (scratch / "locked").chmod(0o555)
        (scratch / "in" / "class 2").chmod(0o755)
        (scratch / "in" / "class 1" / "a.png").chmod(0o644)
        with without_root():
            message = refusal(scratch / "in", scratch / "locked" / "packs")
        assert "cannot be written: Permission denied" in message
    finally:
        shutil.rmtree(scratch)


@pytest.mark.parametrize("limit", [0, 100, 5_000, 40_000])
def test_no_room_while_writing(image_folder: MakeFolder, tmp_path: Path, limit: int) -> None:
    root = image_folder(cat=60, dog=60)
    (tmp_path / "packs").mkdir()
    with full_disk(limit):
        message = refusal(root, tmp_path / "packs")
    assert "the disk is full" in message and "Nothing of it was left behind" in message


def test_a_full_disk(image_folder: MakeFolder, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        root = image_folder(cat=60, dog=60)
        assert "MB are needed" in refusal(root, disk / "packs")
        (disk / "filler").write_bytes(bytes(20_000))
        # Fits by the estimate, which counts pixels, but not with the other files.
        small = image_folder("small", cat=27, dog=28)
        assert "the disk is full" in refusal(small, disk / "packs")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_ctrl_c_leaves_nothing_and_a_killed_import_is_cleaned_up(
    tmp_path: Path, image_folder: MakeFolder
) -> None:
    root = image_folder(cat=2, dog=2)
    for name in ("cat", "dog"):
        for i in range(1500):
            os.link(root / name / "000.png", root / name / f"link{i}.png")
    out = tmp_path / "packs"
    command = [
        sys.executable,
        "-m",
        "polyshot",
        "data",
        "import",
        str(root),
        "--out",
        str(out),
        "--size",
        "256",
    ]

    def start() -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        deadline = time.monotonic() + 60
        while not list(out.glob(".photos.partial/images.npy")) and time.monotonic() < deadline:
            assert child.poll() is None, child.communicate()
            time.sleep(0.01)
        time.sleep(0.3)
        assert child.poll() is None, "the import must be under way"
        return child

    child = start()
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = child.communicate(timeout=60)
    assert as_shells_have_it(child.returncode) == 130
    assert list(out.iterdir()) == []
    assert b"Traceback" not in errors

    child = start()
    child.kill()  # not its workers: they hold nothing, and end when it is gone
    child.communicate(timeout=60)
    left = {path.name for path in out.iterdir()}
    assert left == {".photos.partial", ".photos.lock"}  # nothing can be done about kill -9 ...
    bring(root, out, size=8)
    assert [path.name for path in out.iterdir()] == ["photos"]  # ... but the next import cleans up


# --- the real images


@needs_shared
@pytest.mark.parametrize(
    ("name", "classes", "images", "smallest", "largest"),
    [
        pytest.param("actions", 110, 4400, 40, 40, marks=pytest.mark.slow),
        pytest.param("cars", 100, 4000, 40, 40, marks=pytest.mark.slow),
        pytest.param("cifar100", 100, 5000, 50, 50, marks=pytest.mark.slow),
        ("dtd", 10, 600, 60, 60),
        pytest.param("flowers", 102, 4080, 40, 40, marks=pytest.mark.slow),
        ("gtsrb", 43, 4300, 100, 100),
        pytest.param("imagenet", 401, 15954, 25, 40, marks=pytest.mark.slow),
        pytest.param("omniglot", 1623, 32460, 20, 20, marks=pytest.mark.slow),
        ("plankton", 100, 3853, 21, 40),
    ],
)
def test_the_shared_domains_import(
    tmp_path: Path, name: str, classes: int, images: int, smallest: int, largest: int
) -> None:
    pack = bring(SHARED / f"{name}.parquet", tmp_path, size=8)
    sizes = pack.domain.class_sizes
    assert (len(sizes), sizes.sum(), sizes.min(), sizes.max()) == (
        classes,
        images,
        smallest,
        largest,
    )
    assert (pack.domain.groups is not None) == (name == "gtsrb")
    assert pack.domain.split.rule == {"imagenet": "wordnet", "dtd": "target-only"}.get(
        name, "random"
    )
