"""A classifier on the command line: fitted, kept, checked, corrected, asked."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

from polyshot.classifier import FewShotClassifier
from polyshot.models.backbone import sites_of
from tests.commands import done, refused
from tests.helpers import colour_pool, coloured, examples, saved_vit

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pool, examples of which one is mislabelled, and images to classify."""
    folder = tmp_path_factory.mktemp("world")
    colour_pool().save(folder / "pool")
    for kind, shots, first in (("photos", (4, 4, 4), 0), ("new", (2, 2, 2), 50)):
        for i, (image, label) in enumerate(zip(*examples(*shots, first=first), strict=True)):
            place = folder / kind / (label if kind == "photos" else "all")
            place.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{i:02}.png")
    coloured("green", 77).save(folder / "photos" / "red" / "odd.png")
    return folder


@pytest.fixture(scope="module")
def model(world: Path) -> Path:
    out = world / "c.polyshot"
    options = ("--pool", world / "pool", "--rule", "average", "--adaptation", "ridge")
    said = done("fit", world / "photos", "--out", out, *options)
    assert "Expected accuracy: 92%" in said and "3 classes" in said and "ridge" in said
    return out


def test_a_kept_classifier_labels(world: Path, model: Path) -> None:
    table, page = world / "labels.csv", world / "labels.html"
    options = ("--query", world / "new", "--out", table, "--page", page)
    said = done("classify", "--model", model, *options)
    assert "Expected accuracy: 92%" in said and "Members used: base 0.33" in said
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [c for c in COLOURS for _ in range(2)]
    assert page.read_text().count("<img") == 6
    fresh = done(
        *("classify", "--support", world / "photos", "--pool", world / "pool", *options),
        *("--rule", "average", "--adaptation", "ridge"),
    )
    with table.open(newline="") as file:
        assert list(csv.DictReader(file)) == rows
    assert fresh.splitlines()[0] == said.splitlines()[0]


def test_sites_are_those_of_the_backbone_that_is_named(world: Path, tmp_path: Path) -> None:
    vit, out = saved_vit(tmp_path / "vit"), tmp_path / "c.polyshot"
    fit = ("fit", world / "photos", "--out", out, "--pool", vit, "--views", "one")
    done(*fit, "--adaptation", "tsa", "--sites", "model.layers.1.mlp.*, *.q_proj")
    (pool,) = FewShotClassifier.load(out)._answering.pools
    names = [site.layer.removeprefix("network.model.layers.") for site in sites_of(pool.base)]
    assert names == ["0.attention.q_proj", "1.attention.q_proj", "1.mlp.fc1", "1.mlp.fc2"]
    classify = ("classify", "--model", out, "--query", world / "new")
    assert "knows --sites already" in refused(*classify, "--sites", "*.q_proj")
    assert "No layer of the network is called 'nosuch'" in refused(*fit, "--sites", "nosuch")


def test_a_name_that_is_no_utf_8_is_written_in_one_way(
    world: Path, model: Path, tmp_path: Path, wide_terminal: None
) -> None:
    queries = tmp_path / os.fsdecode(b"q\xff")
    queries.mkdir()
    coloured("red", 3).save(queries / "good.png")
    shutil.copy(queries / "good.png", queries / os.fsdecode(b"odd\xfe.png"))
    (queries / os.fsdecode(b"bad\xfe.png")).write_text("no image")
    words = ("classify", "--model", model, "--query", queries)
    names = [f"{tmp_path}/q\\xff/{name}" for name in ("bad\\xfe.png", "good.png", "odd\\xfe.png")]
    table, page, folder = tmp_path / "o.csv", tmp_path / "o.html", tmp_path / "labels"
    done(*words, "--out", table, "--page", page)
    done(*words, "--out", folder)
    for file in (table, *folder.glob("labels-*.csv")):
        rows = csv.DictReader(io.StringIO(file.read_bytes().decode()))
        assert sorted(row["path"] for row in rows) == names
    assert all(name in page.read_bytes().decode() for name in names)
    assert json.loads((folder / "labels.json").read_bytes())["queries"] == [str(queries)]
    assert "0 images labelled" in done(*words, "--out", folder), "it goes on where it was"
    shown = done(*words)
    assert names[1] in shown and names[2] in shown


def test_an_example_whose_name_is_no_utf_8_is_found_by_it(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "photos", tmp_path / "photos")
    odd = tmp_path / "photos" / "red" / os.fsdecode(b"odd\xff.png")
    (tmp_path / "photos" / "red" / "odd.png").rename(odd)
    out = tmp_path / "c.polyshot"
    how = ("--pool", world / "pool", "--adaptation", "none")
    done("fit", tmp_path / "photos", "--out", out, *how)
    done("correct", out, "--relabel", f"{odd}=green")
    done("correct", out, "--relabel", f"{str(odd)[:-5]}\\xff.png=red")


def test_pipes_devices_and_dangling_links_have_rows(
    world: Path, model: Path, tmp_path: Path
) -> None:
    queries = tmp_path / "new"
    shutil.copytree(world / "new" / "all", queries)
    (queries / "nowhere.png").symlink_to(tmp_path / "none.png")
    (queries / "round.png").symlink_to(queries / "round.png")
    (queries / "device.png").symlink_to("/dev/null")
    os.mkfifo(queries / "pipe.png")
    words = ("classify", "--model", model, "--query", queries)
    table, folder = tmp_path / "o.csv", tmp_path / "labels"
    done(*words, "--out", table)
    os.mkfifo(queries / "pipe.tar")  # into a folder of labels tars and tables are read, too
    os.mkfifo(queries / "pipe.parquet")
    done(*words, "--out", folder)
    odd = "a folder, pipe, socket or device, not a file"
    reasons = {"nowhere.png": "no such file or directory", "device.png": odd, "pipe.png": odd}
    tars = {"pipe.tar": odd, "pipe.parquet": odd}
    for file, expected in ((table, reasons), (*folder.glob("labels-*.csv"), reasons | tars)):
        with file.open(newline="") as opened:
            rows = list(csv.DictReader(opened))
        bad = {Path(row["path"]).name: row["reason"] for row in rows if row["reason"]}
        assert "symbolic links" in bad.pop("round.png")
        assert bad == expected and sum(bool(row["label"]) for row in rows) == 6
    assert "4 of 10 images cannot be read" in refused(*words, "--strict")


def test_names_of_files_and_labels_may_hold_the_sign_between_them(
    world: Path, tmp_path: Path
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "c.polyshot"
    shutil.copytree(world / "photos", photos)
    (photos / "red" / "odd.png").rename(photos / "red" / "x=odd=.png")
    done("fit", photos, "--out", out, "--pool", world / "pool", "--adaptation", "none")
    done("correct", out, "--relabel", "0=a=b", "--relabel", f"{photos}/red/x=odd=.png=a=b=")
    names = FewShotClassifier.load(out).example_labels()
    assert names[0] == "a=b" and names.count("a=b=") == 1
    done("correct", out, "--relabel", f"{photos}/red/x=odd=.png=green")
    assert "a=b=" not in FewShotClassifier.load(out).example_labels()


def test_what_looks_wrong_is_found_and_corrected(
    world: Path, model: Path, wide_terminal: None
) -> None:
    said = done("check", model)
    assert "3 classes, 13 examples" in said and "mislabelled, or are odd ones: 1" in said
    assert "odd.png" in said and f"polyshot correct {model} --relabel" in said
    out = world / "better.polyshot"
    odd = world / "photos" / "red" / "odd.png"
    said = done("correct", model, "--relabel", f"{odd}=green", "--out", out)
    assert "Expected accuracy: 100%" in said
    assert "No example looks mislabelled" in done("check", out)
    said = done("correct", out, "--forget", "blue", "--drop", "5", "--add", world / "photos")
    assert "3 classes" in said  # blue came back with what was added
    loaded = FewShotClassifier.load(out)
    assert len(loaded.example_labels()) == 13 - 4 - 1 + 13


def test_what_to_label_next(world: Path, model: Path, wide_terminal: None) -> None:
    said = done("suggest", model, "--query", world / "new", "--count", "2")
    assert said.count(".png") == 2 and "--add more/" in said
    assert (
        str(FewShotClassifier.load(model).next_to_label(world / "new/all/00.png")[0].image) == "0"
    )


def test_without_examples(world: Path, model: Path) -> None:
    out = world / "bare.polyshot"
    options = ("--pool", world / "pool", "--adaptation", "none", "--no-examples")
    done("fit", world / "photos", "--out", out, *options)
    assert out.stat().st_size < model.stat().st_size
    assert "Expected accuracy" in done("classify", "--model", out, "--query", world / "new")
    for command in (("check", out), ("correct", out, "--forget", "red")):
        assert "saved without its examples" in refused(*command)


def test_what_is_refused(world: Path, model: Path, tmp_path: Path) -> None:
    query = ("--query", world / "new")
    assert "--support photos/" in refused("classify", *query)
    assert "knows --rule already" in refused("classify", "--model", model, "--rule", "sum", *query)
    both = refused("classify", "--model", model, "--support", world / "photos", *query)
    assert "knows --support already" in both
    assert "no saved classifier" in refused("check", world / "new" / "all" / "00.png")
    assert "There is no file" in refused("suggest", tmp_path / "none", *query)
    assert "There is no file or folder" in refused("suggest", model, "--query", tmp_path / "none")
    assert "Nothing is to be corrected" in refused("correct", model)
    assert "is not EXAMPLE=LABEL" in refused("correct", model, "--relabel", "3")
    assert "no class 'grey'" in refused("correct", model, "--forget", "grey")
    assert "cannot be shown" in refused("correct", model, "--relabel", "0=x\x1b[31m")
    assert "is not EXAMPLE=LABEL" in refused("correct", model, "--relabel", "3=")
    named = refused("correct", model, "--relabel", "no.png=dog")
    assert "No example is called 'no.png': name it by its file's whole name, or its" in named
    assert "no example 99: they count from 0 to 12" in refused(
        "correct", model, "--relabel", "99=a=b"
    )
    assert "begins with the name of no single example" in refused(
        "correct", model, "--relabel", "no.png=a=b"
    )
    for odd in ("²", "9" * 5000):
        assert "No example is called" in refused("correct", model, "--drop", odd)
    examples = tmp_path / "examples.csv"
    examples.write_text(f"{world}/new/all/00.png,x\x1b[31m\n{world}/new/all/01.png,y\n")
    assert "cannot be shown" in refused("correct", model, "--add", examples)
    assert "cannot be shown" in refused(
        *("fit", examples, "--pool", world / "pool", "--out", tmp_path / "x")
    )
    assert "no example 99" in refused("correct", model, "--drop", "99")
    before = model.read_bytes()
    assert "no class" in refused("correct", model, "--relabel", "0=blue", "--forget", "x")
    assert model.read_bytes() == before
    assert "no precision" in refused(
        "fit", world / "photos", "--out", tmp_path / "x", "--precision", "four"
    )
