"""The commands about pools as users run them: one small pool, trained once, goes through all."""

import csv
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from polyshot.data.pack import Pack
from polyshot.data.toy import draw_packs
from polyshot.evaluation.evaluate import evaluate
from polyshot.evaluation.results import Result, read_results
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.pool.pool import Pool
from tests.commands import Child, done, polyshot, refused, settings, training
from tests.helpers import files_of, picture, random_pool

MODEL = ResNetConfig(width=8, stem="small/2")
SHORT = ("--episodes", 4, "--shot", 2, "--queries", 5)


pytestmark = pytest.mark.usefixtures("one_thread", "wide_terminal")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "packs"
    draw_packs(folder, ["glyphs", "signs", "plankton"], size=24, per_class=16, workers=1)
    return folder


@pytest.fixture(scope="module")
def run(packs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its pool."""
    out = tmp_path_factory.mktemp("trained") / "run"
    said = done(*training(packs, out))
    assert f"wrote {out / 'pool'}: 3 members, hash {Pool.load(out / 'pool').hash[:12]}" in said
    return out


@pytest.fixture(scope="module")
def pool(run: Path) -> Path:
    return run / "pool"


# --- help


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "classify", "example", "info", "card", "demo"]
)
def test_every_command_has_help(command: str) -> None:
    assert "Usage" in done(command, "--help")


# --- train


def test_what_is_done_is_skipped(packs: Path, run: Path) -> None:
    before = files_of(run)
    said = done(*training(packs, run))
    assert Pool.load(run / "pool").hash[:12] in said
    assert files_of(run) == before


def test_steps_one_by_one_give_the_same_pool(packs: Path, pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    early = refused(*training(packs, out, "--step", "selector"))
    assert "not done the step 'base' yet" in early
    for step, members in (("base", 1), ("modulators", 3), ("selector", 3)):
        said = done(*training(packs, out, "--step", step))
        assert f"{members} member" in said
        if step == "modulators":
            assert "no selector" in refused(
                "evaluate", packs, "--pool", out / "pool", *SHORT, "--methods", "select"
            )
            assert "(selector)" not in done("info", out / "pool")
    assert Pool.load(out / "pool").hash == Pool.load(pool).hash


def test_the_run_folder_is_for_one_config_and_one_set_of_packs(packs: Path, run: Path) -> None:
    before = files_of(run)
    assert "base.steps: 8 and 9" in refused(*training(packs, run, base_steps=9))
    assert "seed: 0 and 7" in refused(*training(packs, run, "--seed", 7))
    assert "plankton is new" in refused(*training(packs, run, sources="glyphs,signs,plankton"))
    assert files_of(run) == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--set", "base.steps"], "must look like base.steps=100"),
        (["--set", "base.stepz=3"], "Did you mean 'steps'?"),
        (["--set", "base.steps=many"], "wrong kind"),
        (["--set", "base=3"], "must name one value"),
        (["--set", "model.width=0"], "at least 1"),
        (["--set", "size=40"], "glyphs has images of 24 pixels, the training wants 40"),
        (["--preset", "tinny"], "Did you mean 'tiny'?"),
        (["--sources", "glyphs,sings"], "Did you mean 'signs'?"),
        (["--sources", "signs,signs"], "twice: signs"),
        (["--step", "bas"], "Did you mean 'base'?"),
        (["--device", "nonsense"], "There is no kind of device 'nonsense'"),
        (["--start", "nowhere"], "There is no file nowhere"),
    ],
)
def test_trainings_that_cannot_be(
    changed: list[str], said: str, packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(*training(packs, tmp_path / "run", *changed))
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_no_packs_or_no_run(packs: Path, tmp_path: Path) -> None:
    assert "There are no packs in" in refused(*training(tmp_path, tmp_path / "run"))
    assert "There is no folder" in refused(*training(tmp_path / "none", tmp_path / "run"))
    (tmp_path / "file").write_text("in the way")
    assert "is a file" in refused(*training(packs, tmp_path / "file"))


def test_sources_with_too_few_classes(
    packs: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    together = tmp_path / "packs"
    done("data", "import", image_folder(), "--out", together, "--size", 24)  # three classes
    few = image_folder("few", **{f"class {i}": 15 for i in range(12)})
    done("data", "import", few, "--out", together, "--size", 24)
    out = tmp_path / "run"
    for name in ("photos", "few"):
        assert f"{name} cannot be a source" in refused(*training(together, out, sources=name))
    assert not out.exists()
    # Where no sources are named, a domain without training classes is none.
    (together / "few").rename(tmp_path / "aside")
    (together / "signs").symlink_to(packs / "signs")
    said = done(*training(together, out, "--step", "base", sources="", base_steps=0))
    assert "wrote" in said
    assert list(Pool.load(out / "pool").about["packs"]) == ["signs"]


def test_weights_to_start_from(packs: Path, tmp_path: Path) -> None:
    given, start = ResNet(MODEL).state_dict(), tmp_path / "start.safetensors"
    save_file(given | {"fc.weight": torch.zeros(3, 64), "fc.bias": torch.zeros(3)}, start)
    options = ("--start", start, "--step", "base")
    done(*training(packs, tmp_path / "run", *options, sources="signs", base_steps=0))
    base = Pool.load(tmp_path / "run" / "pool").base.state_dict()
    assert all(torch.equal(base[name], tensor) for name, tensor in given.items())
    without = training(packs, tmp_path / "run", "--step", "base", sources="signs", base_steps=0)
    assert "weights to start from differ" in refused(*without)


def test_wrong_weights_to_start_from(packs: Path, tmp_path: Path) -> None:
    files = {
        "other keys": {"x": torch.zeros(3)},
        "other shapes": ResNet(ResNetConfig(width=4, stem="small/2")).state_dict(),
    }
    for name, tensors in files.items():
        save_file(tensors, tmp_path / name)
        wrong = training(packs, tmp_path / f"run {name}", "--start", tmp_path / name)
        assert "do not fit a ResNet-18 of width 8" in refused(*wrong)
    (tmp_path / "text").write_text("weights")
    wrong = training(packs, tmp_path / "run", "--start", tmp_path / "text")
    assert "no safetensors file" in refused(*wrong)


# --- evaluate


def test_evaluate_shows_and_appends(pool: Path, packs: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    said = done("evaluate", packs, "--pool", pool, *SHORT, "--adapt", "head", "--out", file)
    for word in ("glyphs", "plankton", "signs", "average, seen", "select + head", "unseen"):
        assert word in said
    assert "average, unseen" not in said  # there is one alone
    assert f"wrote 24 results to {file}" in said
    for line in file.read_text().splitlines():
        assert set(json.loads(line)) == {field.name for field in fields(Result)}
    results = read_results(file)
    assert {r.target: r.seen for r in results} == {"glyphs": True, "plankton": False, "signs": True}
    assert {r.pool for r in results} == {Pool.load(pool).hash}
    for r in results:
        assert (r.way, r.shot, r.queries, r.episodes, r.part) == (5, 2, 5, 4, "test")
        assert len(r.per_episode) == 4 and r.mean == pytest.approx(np.mean(r.per_episode))
        assert f"{100 * r.mean:.1f} ±{100 * r.half_width:.1f}" in said
    again = done(
        "evaluate", packs, "--pool", pool, *SHORT, "--targets", "signs,signs",
        "--methods", "average", "--out", file,
    )  # fmt: skip
    assert "wrote 0 results" in again and "2 were there already" in again
    assert "plankton" not in again
    assert read_results(file) == results


def test_targets_that_were_measured_before_an_interruption_are_kept(
    pool: Path, packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.jsonl"

    def measured(used: Pool, pack: Pack, *rest: object, **more: object) -> list[Result]:
        if pack.domain.name == "signs":  # the last one
            raise KeyboardInterrupt
        return evaluate(used, pack, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("polyshot.evaluation.evaluate.evaluate", measured)
    assert polyshot("evaluate", packs, "--pool", pool, *SHORT, "--out", file).code != 0
    assert [r.target for r in read_results(file)] == ["glyphs"] * 4 + ["plankton"] * 4
    monkeypatch.undo()
    # A killed process may leave half a line, and half of a target's rows.
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:6]) + lines[6][:100])
    said = done("evaluate", packs, "--pool", pool, *SHORT, "--out", file)
    assert "wrote 6 results" in said and "6 were there already" in said
    done("evaluate", packs, "--pool", pool, *SHORT, "--out", tmp_path / "whole.jsonl")
    whole = read_results(tmp_path / "whole.jsonl")
    assert len(whole) == 12 and read_results(file) == whole
    notes = tmp_path / "notes.md"
    notes.write_text("# Mine\n")
    assert "line 1, is no result" in refused("evaluate", packs, "--pool", pool, "--out", notes)
    assert notes.read_text() == "# Mine\n"
    assert "a file of lines" in refused("evaluate", packs, "--pool", pool, "--out", "r.parquet")


def test_the_cache_spares_the_second_evaluation_the_embedding(
    pool: Path, packs: Path, tmp_path: Path
) -> None:
    options = ("--targets", "plankton", "--cache", tmp_path / "c")
    command = ("evaluate", packs, "--pool", pool, *SHORT, *options)
    first = polyshot(*command)
    assert first.code == 0 and "embed plankton" in first.err
    before = files_of(tmp_path / "c")
    second = polyshot(*command)
    assert second.code == 0 and "embed" not in second.err
    assert second.out == first.out
    assert before and files_of(tmp_path / "c") == before


def test_confusions_are_drawn(pool: Path, packs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "pictures"
    done("evaluate", packs, "--pool", pool, *SHORT, "--targets", "signs", "--confusion", folder)
    assert [file.name for file in folder.iterdir()] == ["signs.png"]
    with Image.open(folder / "signs.png") as image:
        assert min(image.size) > 400 and len(image.convert("L").getcolors(256) or ()) > 10


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--methods", "selekt"], "Did you mean 'select'?"),
        (["--methods", "member:sings"], "Did you mean 'signs'?"),
        (["--targets", "planktn"], "Did you mean 'plankton'?"),
        (["--way", "50"], "50 ways are asked for"),
        (["--shot", "12"], "12 + 5 images are needed"),
        (["--part", "tset"], "Did you mean 'test'?"),
        (["--device", "nonsense"], "There is no kind of device 'nonsense'"),
        (["--out", "."], "cannot be written"),
    ],
)
def test_evaluations_that_cannot_be(
    changed: list[str],
    said: str,
    pool: Path,
    packs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("evaluate", packs, "--pool", pool, *SHORT, *changed)


def test_small_classes_can_be_left_out(
    pool: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = image_folder(a=7, b=8, c=9, d=6)
    done("data", "import", root, "--out", tmp_path / "packs", "--size", 24)
    command = ("evaluate", tmp_path / "packs", "--pool", pool, *SHORT, "--part", "all", "--way", 3)
    assert "pass --drop-small" in refused(*command)
    assert "photos" in done(*command, "--drop-small")


def test_packs_of_another_size_are_refused(pool: Path, tmp_path: Path) -> None:
    draw_packs(tmp_path, ["signs"], size=16, per_class=7, workers=1)
    said = refused("evaluate", tmp_path, "--pool", pool, *SHORT)
    assert "signs has images of 16 pixels" in said and "--size 24" in said


@pytest.mark.parametrize("command", ["evaluate", "info", "classify"])
def test_a_folder_that_is_no_pool(command: str, packs: Path, tmp_path: Path) -> None:
    picture(1).save(tmp_path / "a.png")
    for folder in (packs, tmp_path / "none", tmp_path / "a.png"):
        arguments: dict[str, list[object]] = {
            "evaluate": [packs, "--pool", folder],
            "info": [folder],
            "classify": ["--pool", folder, "--support", packs, "--query", tmp_path / "a.png"],
        }
        assert f"{folder} is no pool" in refused(command, *arguments[command])


def test_a_damaged_pool(pool: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pool"
    for file in pool.rglob("*.*"):
        (copy / file.relative_to(pool)).parent.mkdir(parents=True, exist_ok=True)
        (copy / file.relative_to(pool)).write_bytes(file.read_bytes())
    done("info", copy)
    (copy / "selector.safetensors").unlink()
    assert "lacks its file selector.safetensors" in refused("info", copy)
    (copy / "pool.json").write_text("{")
    assert "damaged pool.json" in refused("info", copy)


# --- classify


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of images of wild sizes and modes, and queries."""
    root = tmp_path_factory.mktemp("wild")
    deep = np.random.default_rng(0).integers(0, 65536, (33, 50), dtype=np.uint16)
    images = {
        "examples/cat/grey.png": picture(1, (300, 7)).convert("L"),
        "examples/cat/alpha.png": picture(2, (5, 90)).convert("RGBA"),
        "examples/dog/print.jpg": picture(3, (64, 64)).convert("CMYK"),
        "examples/dog/deep.png": Image.fromarray(deep),
        "examples/owl/dot.png": picture(4, (1, 1)),
        "new/0.png": picture(5, (900, 20)),
        "new/1.jpg": picture(6).convert("CMYK"),
        "new/deeper/palette.gif": picture(7).convert("P"),
        "one each/cat/a.png": picture(1),
        "one each/dog/a.png": picture(2),
        "one class/cat/a.png": picture(1),
        "one class/cat/b.png": picture(2),
        "flat/a.png": picture(1),
    }
    for name, image in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / name)
    rows = [("path", "label"), ("examples/cat/grey.png", "Katze")]
    rows += [(f"examples/dog/{name}", "Hund") for name in ("print.jpg", "deep.png")]
    with (root / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (root / "bad.png").write_bytes(b"no image")
    (root / "empty").mkdir()
    return root


def classify(pool: Path, support: Path, *queries: Path) -> list[object]:
    asked = [word for query in queries for word in ("--query", query)]
    return ["classify", "--pool", pool, "--support", support, *asked, "--device", "cpu"]


def test_classify_tells_what_to_expect_then_the_labels(pool: Path, wild: Path) -> None:
    queries = (wild / "new", wild / "flat" / "a.png")
    lines = done(*classify(pool, wild / "examples", *queries), "--rule", "average")
    first, *others = lines.splitlines()
    assert re.fullmatch(
        r"Expected accuracy: \d+% \(\d+% to \d+%\), from leaving out each of 4 examples in turn "
        r"\(prototypes\)\.",
        first,
    )
    for name in ("0.png", "1.jpg", "palette.gif", "a.png"):
        assert sum(line.count(name) for line in others) == 1
    assert others[-2:] == [
        "Learned on the examples: tsa",
        "Members used: base 0.33, glyphs 0.33, signs 0.33",
    ]


@pytest.mark.parametrize("rule", ["select", "average", "base", "member:signs"])
@pytest.mark.parametrize("adaptation", ["none", "head"])
def test_the_table_of_labels(
    rule: str, adaptation: str, pool: Path, wild: Path, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "labels.csv"
    said = done(
        *classify(pool, wild / "examples", wild / "new"),
        "--out", file, "--rule", rule, "--adaptation", adaptation,
    )  # fmt: skip
    assert f"wrote 3 rows to {file}" in said and "Members used: " in said
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    columns = ["path", "label", "probability", "runner_up", "runner_up_probability", "reason"]
    assert list(rows[0]) == columns
    assert [Path(row["path"]).name for row in rows] == ["0.png", "1.jpg", "palette.gif"]
    for row in rows:
        assert {row["label"], row["runner_up"]} < {"cat", "dog", "owl"}
        first, second = float(row["probability"]), float(row["runner_up_probability"])
        assert 1 >= first >= second >= 0 and first >= 1 / 3 and first + second <= 1.0001


def test_a_csv_of_examples(pool: Path, wild: Path) -> None:
    said = done(*classify(pool, wild / "table.csv", wild / "new"))
    assert "each of 2 examples" in said and "Hund" in said and "Katze" in said


def test_one_image_a_class_gives_no_estimate(pool: Path, wild: Path) -> None:
    asked = classify(pool, wild / "one each", wild / "new")
    assert done(*asked).startswith("Expected accuracy: not known, no class has two images.")
    assert "no class has two images: give two" in refused(*asked, "--none-rate", "0.2")


def test_a_bad_photo_stops_nothing(pool: Path, wild: Path, tmp_path: Path) -> None:
    examples, new, out = tmp_path / "examples", tmp_path / "new", tmp_path / "labels.csv"
    shutil.copytree(wild / "examples", examples)
    shutil.copytree(wild / "new", new)
    (examples / "cat" / "notes.txt").write_text("fed at noon")
    shutil.copy(new / "0.png", examples / "cover.png")
    (new / "0.png").write_bytes((new / "0.png").read_bytes()[:900])
    asked = [*classify(pool, examples, new), "--adaptation", "none", "--out", out]
    page = tmp_path / "labels.html"
    outcome = polyshot(*asked, "--page", page)
    assert outcome.code == 0, outcome.err
    left_out = f"{examples}/cat/notes.txt (not an image), {examples}/cover.png (in no class folder)"
    assert f"2 examples are left out: {left_out}." in outcome.err
    assert f"1 of 3 images cannot be read: {new}/0.png (truncated)." in outcome.err
    with out.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["reason"] for row in rows] == ["truncated", "", ""]
    assert list(rows[0].values()) == [str(new / "0.png"), "", "", "", "", "truncated"]
    assert f"<li>{new}/0.png: truncated</li>" in page.read_text(encoding="utf-8")
    # The others are labelled as if it were not there.
    (new / "0.png").unlink()
    (examples / "cat" / "notes.txt").unlink()
    done(*asked)
    with out.open(newline="", encoding="utf-8") as opened:
        assert list(csv.DictReader(opened)) == rows[1:]


def test_strict_stops_before_anything_is_learned(
    pool: Path, wild: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned(*_: object) -> None:
        raise AssertionError("it must not learn")

    monkeypatch.setattr("polyshot.classifier.classifier.FewShotClassifier.fit", learned)
    shutil.copytree(wild / "new", tmp_path / "new")
    shutil.copy(wild / "bad.png", tmp_path / "new")
    asked = classify(pool, wild / "examples", tmp_path / "new")
    assert "1 of 4 images cannot be read: " in refused(*asked, "--strict")
    shutil.copytree(wild / "examples", tmp_path / "examples")
    shutil.copy(wild / "bad.png", tmp_path / "examples" / "cat")
    asked = classify(pool, tmp_path / "examples", wild / "new")
    assert "1 of 6 examples cannot be read: " in refused(*asked, "--strict")
    shutil.copy(wild / "bad.png", tmp_path / "examples" / "owl" / "dot.png")
    assert "2 of 6 examples cannot be read, so that nothing is left of owl" in refused(*asked)
    (tmp_path / "file").touch()
    for option, out, said in [
        ("--out", "new", "a folder of labels is made by a classifier that is kept"),
        ("--page", "new", "a folder, name a file"),
        ("--out", "file/a.csv", "file is no folder"),
        ("--out", "labels.parquet", "labels are CSV, name a file such as labels.csv, or a folder"),
        ("--page", "file/a.csv", "file is no folder"),
    ]:
        assert said in refused(*asked, option, tmp_path / out)


def test_more_classes_than_the_pool_saw(pool: Path, tmp_path: Path) -> None:
    for i in range(90):  # the sources have 85 training classes
        (tmp_path / "many" / f"class {i}").mkdir(parents=True)
        picture(i, (24, 24)).save(tmp_path / "many" / f"class {i}" / "a.png")
    query = tmp_path / "many" / "class 42" / "a.png"
    for adaptation in ("none", "head"):
        options = ("--adaptation", adaptation, "--out", tmp_path / "labels.csv")
        done(*classify(pool, tmp_path / "many", query), *options)
        assert ",class 42," in (tmp_path / "labels.csv").read_text()


def test_none_of_these_is_an_answer_where_it_is_allowed(
    pool: Path, wild: Path, tmp_path: Path
) -> None:
    for i in range(20):
        folder = tmp_path / "examples" / ("dark" if i % 2 else "light")
        folder.mkdir(parents=True, exist_ok=True)
        dark = np.random.default_rng(i).integers(0, 40, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(dark if i % 2 else 255 - dark).save(folder / f"{i}.png")
    queries = (tmp_path / "examples", wild / "new", wild / "flat")
    asked = [*classify(pool, tmp_path / "examples", *queries), "--none-rate", "0.05"]
    said = done(*asked)
    table, file = said.splitlines(), tmp_path / "labels.csv"
    (counted,) = (line for line in table if line.startswith("None of these: "))
    found = re.match(r"None of these: (\d+) of 24 images\. .* about 4\.8% are expected", counted)
    assert found and 0 < int(found[1]) <= 4  # the examples themselves are kept
    assert counted.endswith("alone decides: more examples, or a higher rate, find more.")
    assert sum("none of these" in line for line in table) == int(found[1])
    assert counted in done(*asked, "--out", file)
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [row for row in csv.DictReader(opened) if row["label"] == "none of these"]
    assert len(rows) == int(found[1])
    assert all(row["probability"] == "" and row["runner_up"] in ("dark", "light") for row in rows)
    assert "None of these" not in done(*asked[:-2])
    # A class may have that name only where it is not an answer.
    (tmp_path / "examples" / "dark").rename(tmp_path / "examples" / "none of these")
    assert "A class is called 'none of these'" in refused(*asked)
    done(*asked[:-2])


@pytest.mark.parametrize(
    ("support", "query", "said"),
    [
        ("one class", "new", "All images have the label 'cat'"),
        ("none", "new", "There is no file or folder"),
        ("examples", "none", "There is no file or folder"),
        ("examples", "bad.png", r"The image cannot be read: .*bad.png \(not an image\)"),
        ("examples", "empty", "has no image files"),
        ("flat", "new", "no class folders"),
        ("empty", "new", "empty"),
        ("bad.png", "new", "no support set"),
    ],
)
def test_what_cannot_be_classified(
    support: str, query: str, said: str, pool: Path, wild: Path
) -> None:
    assert re.search(said, refused(*classify(pool, wild / support, wild / query)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--rule", "selekt"], "Did you mean 'select'?"),
        (["--adaptation", "hed"], "only auto, none, head, ridge, pa, tsa. Did you mean 'head'?"),
        (["--device", "nonsense"], "There is no kind of device 'nonsense'"),
        (["--out", "."], "cannot be written"),
        (["--none-rate", "5"], "more than 0 and less than 1 (0.05 is one in twenty), not 5."),
        (["--none-rate", "0.05"], "needs 19 examples that have another of their class, there are"),
    ],
)
def test_classifications_that_cannot_be(
    changed: list[str], said: str, pool: Path, wild: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(wild)
    assert said in refused(*classify(pool, wild / "examples", wild / "new"), *changed)


# --- info


def test_info_counts_as_the_paper_does() -> None:
    said = done("info")
    for number in (
        "11,176,512", "1,224,448", "9,795,584", "7,680", "61,440", "66,696", "66,825",
    ):  # fmt: skip
        assert f" {number} " in said


def test_info_of_a_pool(pool: Path) -> None:
    said = done("info", pool)
    assert "3 members (conv1x1 modulators), 24 px, cosine metric, preset tiny, seed 0" in said
    assert Pool.load(pool).hash[:12] in said
    for word in ("base", "glyphs", "signs", "(selector)", "validation", "175,752"):
        assert word in said


# --- Ctrl-C


def test_ctrl_c_while_a_task_is_learned(
    pool: Path, wild: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyshot.cli import display

    seen: list[str] = []

    @contextmanager
    def pressing(_: str) -> Iterator[Callable[[str, int, int], None]]:
        def report(what: str, *_: int) -> None:
            seen.append(what)
            if what == "learn":
                raise KeyboardInterrupt

        yield report

    monkeypatch.setattr(display, "progress", pressing)
    command = classify(pool, wild / "examples", wild / "new")
    outcome = polyshot(*command, "--adaptation", "tsa")
    assert seen.count("examples") > 1 and seen.count("learn") == 1
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "Interrupted.\n")


def test_ctrl_c_in_a_training_which_then_goes_on(packs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    metrics = out / "metrics.jsonl"
    command = training(packs, out, base_steps=30, base_validate_every=3)
    child = Child(*command)
    child.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2)
    child.press_ctrl_c()
    assert not (out / "pool").exists()
    before = metrics.read_text().splitlines()
    assert done(*command).startswith(f"wrote {out / 'pool'}: 3 members")
    after = metrics.read_text().splitlines()
    assert after[: len(before)] == before  # it went on, nothing was done again
    lines = [(line["step"], line["number"]) for line in map(json.loads, after)]
    assert len(set(lines)) == len(lines)
    assert ("base", 30) in lines and ("selector", 10) in lines
    done("info", out / "pool")


def test_ctrl_c_in_an_evaluation(pool: Path, packs: Path, tmp_path: Path) -> None:
    cache, file = tmp_path / "cache", tmp_path / "results.jsonl"
    options = ("--episodes", 50_000, "--adapt", "head", "--cache", cache, "--out", file)
    child = Child("evaluate", packs, "--pool", pool, *options)
    child.wait_until(lambda: list(cache.glob("*.npy")))
    child.press_ctrl_c()
    assert not file.exists()  # no half of a result
    done("evaluate", packs, "--pool", pool, *SHORT, "--cache", cache)


def test_ctrl_c_in_a_classification(pool: Path, wild: Path, tmp_path: Path) -> None:
    patient = Pool.load(pool)  # it learns on the examples until it is interrupted
    patient = replace(patient, adaptation=replace(patient.adaptation, updates=10**6))
    patient.save(tmp_path / "patient")
    command = classify(tmp_path / "patient", wild / "examples", wild / "new")
    child = Child(*command, "--adaptation", "tsa", "--views", "one")
    maps = Path(f"/proc/{child.process.pid}/maps")
    child.wait_until(lambda: "libtorch_cpu" in maps.read_text())
    time.sleep(1)  # by now it reads or learns
    child.press_ctrl_c()


# --- demo


@pytest.mark.slow
def test_the_demo_can_be_left_and_entered(
    tmp_path: Path, few_are_drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_pool().save(tmp_path / "small")  # the README's demo ends with the pool that ships
    monkeypatch.setenv("POLYSHOT_POOL", str(tmp_path / "small"))
    out = tmp_path / "demo"
    options = settings(size=16, base_steps=4, modulator_steps=1, selector_tasks=4)
    command = ("demo", "--out", out, "--episodes", 4, *options)
    child = Child(*command)
    child.wait_until(lambda: len(list((out / "packs").glob("[a-z]*"))) >= 2)
    child.press_ctrl_c()
    assert not (out / "index.html").exists()
    kept = {
        file: state
        for pack in (out / "packs").glob("[a-z]*")  # the one that was being drawn has a dot
        for file, state in files_of(pack).items()
    }
    assert kept

    said = done(*command)
    assert f"Look at {out / 'index.html'}" in said
    for word in ("raw pixels", "average, seen", "average, unseen", "average + head", "plankton"):
        assert word in said
    now = files_of(out)
    assert {file: now[file] for file in kept} == kept  # packs that were drawn are kept
    page = (out / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|<link", page)
    assert page.count("<img") == 8
    results = read_results(out / "results.jsonl")
    assert len(results) == 8 * 7  # three rules, with and without a head, and raw pixels
    assert {r.target for r in results if not r.seen} == {"aerial", "plankton"}
    assert {r.method for r in results} == {"base", "select", "average", "raw pixels"}

    untouched = files_of(out / "run") | files_of(out / "packs") | files_of(out / "cache")
    again = done(*command)
    # Nothing is drawn, trained or embedded again.
    assert files_of(out / "run") | files_of(out / "packs") | files_of(out / "cache") == untouched
    assert again.splitlines()[:-2] == said.splitlines()[:-2]
    assert read_results(out / "results.jsonl") == results


def test_a_demo_that_cannot_be(tmp_path: Path) -> None:
    assert "Did you mean 'steps'?" in refused("demo", "--out", tmp_path, "--set", "base.step=1")
    (tmp_path / "file").write_text("in the way")
    small = settings(size=16)
    assert "file" in refused("demo", "--out", tmp_path / "file", *small)
