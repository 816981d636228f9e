"""Labelling into a folder, shard by shard: from any source, once, and on where it was."""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polyshot.classifier import FewShotClassifier, many
from polyshot.classifier.label import label_by
from polyshot.classifier.many import Counts, label_many
from polyshot.data.readers import queries
from polyshot.data.readers.queries import Files, Rows, Tar, shards
from polyshot.engines import Resources
from polyshot.engines.local import Local
from polyshot.errors import PolyshotError
from tests.commands import done, refused
from tests.helpers import COLOURS, colour_pool, coloured, examples, full_disk

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = list(COLOURS)


def encoded(i: int) -> bytes:
    data = io.BytesIO()
    coloured(NAMES[i % 3], i).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "colours.polyshot"
    FewShotClassifier(colour_pool(), adaptation="none").fit(*examples(4, 4, 4)).save(file)
    return file


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 files, two of them damaged, a Parquet file of 12 rows, two tars of 5 images each."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(30):
        file = root / ("a", "b")[i % 2] / f"{i:02}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes({3: b"no image", 8: b""}.get(i, encoded(i)))
    (root / "b" / "notes.txt").write_text("not meant")
    (root / "b" / ".hidden.png").write_bytes(b"junk")
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"image": {"bytes": encoded(i), "path": None}} for i in range(11)]
    rows.append({"image": {"bytes": None, "path": "elsewhere.png"}})
    parquet.write_table(pa.Table.from_pylist(rows), root / "rows.parquet", row_group_size=5)
    for number in range(2):
        with tarfile.open(root / f"{number:05}.tar", "w") as tar:
            for i in range(5):
                for suffix, data in (("png", encoded(i)), ("cls", b"1")):
                    member = tarfile.TarInfo(f"{i:03}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return root


def label(model: Path, out: object, *queries: object, **more: Any) -> Counts:
    engine = more.pop("engine", Local())
    how = {"size": 8} | more
    return label_many(engine, Resources(), model, [*map(str, queries)], str(out), **how)


def rows_of(out: Path) -> list[dict[str, str]]:
    return [
        row
        for file in sorted(out.glob("labels-*.csv"))
        for row in csv.DictReader(io.StringIO(file.read_text()))
    ]


def test_every_image_has_one_row_whatever_it_lies_in(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    counts = label(model, tmp_path / "labels", photos, report=lambda *news: told.append(news))
    rows = rows_of(tmp_path / "labels")
    assert counts.images == len(rows) == 30 + 12 + 10 == told[-1][1]
    assert len({row["path"] for row in rows}) == len(rows)
    assert counts.shards == 4 + 3 + 2 == len(list((tmp_path / "labels").glob("labels-*.csv")))
    bad = {Path(row["path"]).name: row["reason"] for row in rows if row["reason"]}
    assert bad == {
        "03.png": "not an image",
        "08.png": "empty file",
        "rows.parquet#11": "no embedded bytes",
    }
    assert counts.unread == 3 and "3 images cannot be read" in str(counts)
    files = [row for row in rows if row["path"].endswith(".png") and not row["reason"]]
    right = [NAMES[int(Path(row["path"]).stem) % 3] == row["label"] for row in files]
    assert sum(right) > 0.9 * len(right), "embedded and plain images alike"
    about = json.loads((tmp_path / "labels" / "labels.json").read_text())
    assert about["complete"] and about["shards"] == 9


def test_answers_are_those_of_classify(model: Path, photos: Path, tmp_path: Path) -> None:
    label(model, tmp_path / "labels", photos / "a", size=100)
    paths = sorted((photos / "a").glob("*.png"))
    expected = label_by(FewShotClassifier.load(model), paths).rows
    rows = rows_of(tmp_path / "labels")
    assert [row["path"] for row in rows] == [str(row.path) for row in expected]
    assert [row["label"] for row in rows] == [row.label for row in expected]
    chances = [float(row["probability"]) for row in rows if row["probability"]]
    assert chances == pytest.approx([row.probability for row in expected if row.label], abs=1e-5)


class Stops(Local):
    """An engine that is lost after some shards."""

    def __init__(self, after: int):
        super().__init__()
        self.after = after

    def stream(self, make: Any, arguments: Any, items: Iterable[Any], resources: Any) -> Any:
        for i, result in enumerate(super().stream(make, arguments, items, resources)):
            if i == self.after:
                raise KeyboardInterrupt
            yield result


def test_it_goes_on_where_it_was(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels"
    for after in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            label(model, out, photos, engine=Stops(after))
    assert "complete" not in json.loads((out / "labels.json").read_text())
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("labels-*.csv")}
    assert len(before) == 5
    counts = label(model, out, photos)
    assert (counts.before, counts.shards) == (5, 9) and "5 shards were there" in str(counts)
    assert {file: (out / file).stat().st_mtime_ns for file in before} == before
    label(model, tmp_path / "whole", photos)
    assert rows_of(out) == rows_of(tmp_path / "whole")
    assert label(model, out, photos).images == 0


def test_the_lock_of_a_killed_writer_is_cleared_away(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    """Killed when a table had its name already: it is not written again, so nobody else clears."""
    label(model, tmp_path / "out", photos / "rows.parquet")
    (table, *_) = sorted((tmp_path / "out").glob("*.csv"))
    lock = table.with_name(f".{table.name}.lock")
    lock.touch()
    label(model, tmp_path / "out", photos / "rows.parquet")
    assert not lock.exists() and table.exists()


def test_other_work_in_the_same_folder_is_refused(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    out, few = tmp_path / "labels", tmp_path / "few"
    few.mkdir()
    for i in range(9):
        (few / f"{i}.png").write_bytes(encoded(i))
    label(model, out, few)
    other = tmp_path / "other.polyshot"
    FewShotClassifier(colour_pool(), adaptation="none").fit(*examples(3, 3, 3)).save(other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    (tmp_path / "file").write_text("")
    bad: list[tuple[Callable[[], Counts], str]] = [
        (lambda: label(other, out, few), "labels by another classifier"),
        (lambda: label(model, out, few, size=5), "shards of another size"),
        (lambda: label(model, tmp_path / "full", few), "is not empty"),
        (lambda: label(model, tmp_path / "file", few), "is a file"),
        (lambda: label(model, tmp_path / "new", tmp_path / "none"), "no file or folder"),
        (lambda: label(model, tmp_path / "new", tmp_path / "full"), "has no image"),
        (lambda: label(model, tmp_path / "new", "nosuch://bucket"), "cannot be reached"),
        (lambda: label(tmp_path / "file", tmp_path / "new", few), "polyshot|classifier"),
        (lambda: label(tmp_path / "none", tmp_path / "new", few), "cannot be read"),
        (lambda: label(model, tmp_path / "new", few, size=0), "1 is the least"),
    ]
    for work, message in bad:
        with pytest.raises(PolyshotError, match=message) as error:
            work()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()
    (few / "00.png").write_bytes(encoded(1))  # before all that were labelled
    with pytest.raises(PolyshotError, match="files were added or removed"):
        label(model, out, few)


def test_strict_stops_at_what_cannot_be_read(model: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match=r"1 of 8 images of a shard .*08.png \(empty file\)"):
        label(model, tmp_path / "labels", photos / "a", strict=True)
    assert rows_of(tmp_path / "labels") == []


def test_a_full_disk_is_one_line_and_nothing_is_half_written(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    class Full(Local):
        """Its results come when there is room for nothing any more."""

        def stream(self, *how: Any) -> Iterator[Any]:
            for result in super().stream(*how):
                with full_disk(100):
                    yield result

    out = tmp_path / "labels"
    with pytest.raises(PolyshotError, match=r"write .*labels-000000.*: the disk is full"):
        label(model, out, photos, engine=Full())
    assert {file.name for file in out.iterdir()} == {"labels.json", ".labels.lock"}
    with full_disk(1000), pytest.raises(PolyshotError, match="disk is full"):
        label(model, out, photos)  # nor for the classifier
    assert label(model, out, photos).images == 52


def test_urls_are_read_and_written(model: Path, photos: Path, tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for file in photos.rglob("*"):
        if file.is_file():
            memory.pipe_file(f"/photos/{file.relative_to(photos)}", file.read_bytes())
    try:
        counts = label(model, "memory://labels", "memory://photos")
        assert counts.images == 52 and counts.unread == 3
        names = [Path(name).name for name in memory.ls("/labels", detail=False)]
        assert len(names) == 10 and not any(name.endswith("partial") for name in names)
        assert label(model, "memory://labels", "memory://photos").images == 0
        label(model, tmp_path / "labels", photos)
        for name in names:
            text = memory.cat_file(f"/labels/{name}").decode()
            if name.startswith("labels-"):
                assert "memory://" in text or "no image" in text
    finally:
        memory.rm("/photos", recursive=True)
        memory.rm("/labels", recursive=True)


def test_damaged_containers_are_rows_or_one_line(model: Path, photos: Path, tmp_path: Path) -> None:
    whole = (photos / "00000.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:2000])
    (tmp_path / "bad.tar").write_bytes(b"x" * 2000)
    label(model, tmp_path / "labels", tmp_path / "cut.tar", tmp_path / "bad.tar")
    reasons = [row["reason"] for row in rows_of(tmp_path / "labels")]
    assert reasons[-1] == "a tar that ends early or is damaged"
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(PolyshotError, match="cannot be read as a Parquet file"):
        label(model, tmp_path / "more", tmp_path / "bad.parquet")


def test_listing_holds_one_shard_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files there are: they are listed as they are asked for."""
    asked: list[int] = []

    def names(_: str) -> Iterator[str]:
        for i in range(10**9):
            asked.append(i)
            yield f"{i}.png"

    monkeypatch.setattr(queries, "_files", names)
    every = shards(["folder"], 100)
    first, second = next(every), next(every)
    assert isinstance(first, Files) and first.names[0] == "0.png" and len(asked) == 200
    assert first.key != second.key and first.key == Files(first.names).key
    assert len({Rows("a", 0, 0).key, Rows("a", 1, 0).key, Tar("a").key, Tar("b").key}) == 4


def test_a_worker_decodes_some_images_at_a_time(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    own = FewShotClassifier.read

    def watched(self: FewShotClassifier, images: Any, *more: Any) -> Any:
        read.append(len(images))
        return own(self, images, *more)

    monkeypatch.setattr(FewShotClassifier, "read", watched)
    monkeypatch.setattr(many, "BATCH", 4)
    for i in range(10):
        (tmp_path / f"{i}.png").write_bytes(encoded(i))
    work = many.worker(torch.device("cpu"), model.read_bytes())
    (shard,) = shards([str(tmp_path)], 100)
    assert work(many.Numbered(0, shard)).images == 10 and read == [4, 4, 2]


def test_the_command(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels"
    words = ("classify", "--model", model, "--query", photos / "a", "--query", photos / "b")
    said = done(*words, "--out", f"{out}/", "--shard", 10)
    assert said.startswith("30 images labelled in 4 shards; 2 images cannot be read")
    assert len(rows_of(out)) == 30
    assert "0 images labelled in 0 shards, 4 shards were there" in done(
        *words, "--out", out, "--shard", 10
    )
    assert "by a classifier that is kept" in refused(
        "classify", "--support", photos, "--query", photos, "--out", tmp_path / "new"
    )
    assert "labels into a folder" in refused(*words, "--out", "a.csv", "--engine", "ray")
