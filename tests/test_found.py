"""What `make hostile` found, each once and small; the campaign itself is in tests/hostile."""

import io
import json
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from polyshot.classifier import FewShotClassifier
from polyshot.classifier.saved import ABOUT
from polyshot.data import importer
from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.pack import Pack
from polyshot.data.splits import read_split_file
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import read_results
from polyshot.training.folder import enter
from polyshot.util.checks import sealed
from tests.commands import refused
from tests.helpers import CPU, TINY, colour_pool, examples, picture, toy_packs


def png() -> bytes:
    file = io.BytesIO()
    picture(0).save(file, "PNG")
    return file.getvalue()


def test_a_zip_with_an_entry_without_a_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(".", b"")
        for name in ("a/1.png", "b/2.png"):
            archive.writestr(name, png())
    [made] = import_source(tmp_path / "x.zip", tmp_path / "out", ImportOptions(size=16))
    assert made.pack.domain.class_names == ("a", "b")


def test_class_names_that_cannot_be_shown(tmp_path: Path) -> None:
    for name in (b"a", b"\xff", b"c\nd"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path / "photos") + b"/" + name))
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(png())
    with pytest.raises(PolyshotError, match="cannot be shown") as error:
        import_source(tmp_path / "photos", tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [[1.5, 2], "ab", {"0": "a", "1": "b"}, [None, "b"]])
def test_parquet_with_class_names_that_are_no_texts(tmp_path: Path, names: object) -> None:
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = pa.table({"image": [{"bytes": png()}] * 2, "label": [0, 1]})
    parquet.write_table(rows.replace_schema_metadata(about), tmp_path / "x.parquet")
    with pytest.raises(PolyshotError, match="class names that are no texts"):
        import_source(tmp_path / "x.parquet", tmp_path / "out")


def test_json_in_json_in_json(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("[" * 100_000)
    with pytest.raises(PolyshotError, match="cannot be read"):
        read_split_file(file, ["a"])
    with pytest.raises(PolyshotError, match="is no result"):
        read_results(file)
    file.write_bytes(b"\xff\xfe{")
    with pytest.raises(PolyshotError):
        read_results(file)


@pytest.mark.parametrize("packs", [7, True, ["glyphs"], [{"name": "glyphs"}], [{"name": 3}], None])
def test_a_run_whose_environment_is_damaged(tmp_path: Path, packs: object) -> None:
    sources = toy_packs(tmp_path / "packs", "glyphs", each=3)
    enter(tmp_path / "run", sources, TINY, None, CPU)
    enter(tmp_path / "run", sources, TINY, None, CPU)
    file = tmp_path / "run" / "environment.json"
    file.write_text(json.dumps(sealed({**json.loads(file.read_text()), "packs": packs})))
    with pytest.raises(PolyshotError, match=r"environment\.json is damaged"):
        enter(tmp_path / "run", sources, TINY, None, CPU)


def crafted(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change a classifier's description, and seal it again."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(files[ABOUT])
    change(about)
    files[ABOUT] = json.dumps(sealed(about)).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.update(pools=[]),
        lambda about: about["pools"][0]["mixes"].append("probabilities"),
        lambda about: about["estimate"].update(accuracy="all"),
        lambda about: about["estimate"].update(per_class=[["red", "x"]]),
    ],
)
def test_classifiers_that_do_not_fit_themselves(
    tmp_path: Path, change: Callable[[dict[str, object]], None]
) -> None:
    file = tmp_path / "x.polyshot"
    made = FewShotClassifier(colour_pool(), "select", "ridge", none_rate=0.3)
    made.fit(*examples(3, 3, 3))
    made.estimate()
    made.save(file)
    crafted(file, lambda about: None)
    FewShotClassifier.load(file)
    crafted(file, change)
    with pytest.raises(PolyshotError, match="is damaged"):
        FewShotClassifier.load(file)


def test_a_second_query_is_looked_at_before_labels_are_begun(tmp_path: Path) -> None:
    made = FewShotClassifier(colour_pool(), "average", "ridge").fit(*examples(2, 2, 2))
    made.save(tmp_path / "x.polyshot")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "1.png").write_bytes(png())
    words = ["classify", "--model", tmp_path / "x.polyshot", "--query", tmp_path / "new"]
    assert "none" in refused(*words, "--query", tmp_path / "none", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_import_ends_where_threads_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if "Executor" in type(thread).__name__:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    chunks = [(i,) for i in range(5)]
    with pytest.raises(RuntimeError, match="new thread"):
        list(importer.map_in_order(np.sqrt, chunks, workers=2))


def test_a_pack_is_not_damaged_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [pack] = toy_packs(tmp_path, "glyphs", each=3)

    def fail(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(OSError, match="allocate"):
        Pack.open(pack.path)
