"""What ships: the default pool, rounded weights, the example folder, and the model card."""

import csv
import json
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from polyshot.classifier import FewShotClassifier
from polyshot.classifier.label import label_files
from polyshot.config import AdaptationConfig, override, preset, to_dict
from polyshot.data.pack import Pack
from polyshot.data.toy import SIDES, draw_example, draw_packs
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result, append_results
from polyshot.experiments.card import card
from polyshot.pool import default, forms
from polyshot.pool.description import FORMAT
from polyshot.pool.files import modulator_file
from polyshot.pool.pool import Pool
from polyshot.pool.precision import FACTOR, SHAPE, Precision, from_stored, to_stored
from polyshot.predict.familiar import familiar
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import rule as find_rule
from polyshot.tasks import Table, Tasks
from polyshot.util.checks import sealed
from tests.commands import done, refused
from tests.helpers import NAMES, SIZE, random_pool

ROOT = Path(__file__).parents[1]
TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "ship_pool.py")))


SHIPPED = "1d1f439bf0fca0b0e494131a7d5c9236b99be914c9b6036dbc5ad3d8d8476137"
UNCENTRED = "13b08b56f083cae890c1fad8c88aa33748ff992c5d2be1d8212030ccd4c381d5"
"""Hash of the pool that ships, until another does, and of the same without what it does with single
images (`LATER`), which hashes of before did not know."""
LATER = AdaptationConfig()


@pytest.fixture(autouse=True)
def no_pool_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(default.VARIABLE, raising=False)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small pool in the place of the one that ships."""
    folder = tmp_path / "package" / "pools" / "default"
    random_pool().save(folder, "eight")
    monkeypatch.setattr(default, "PACKAGED", folder)
    return folder


# --- the name `default`


@pytest.mark.skipif(not (default.PACKAGED / "pool.json").is_file(), reason="no pool ships")
def test_the_hash_of_the_pool_that_ships_never_changes() -> None:
    """Embeddings and results on the disks of others are found by it."""
    pool = Pool.load(default.PACKAGED)
    before = replace(
        pool.adaptation,
        centre_single=LATER.centre_single,
        tsa_single_rate=LATER.tsa_single_rate,
        tsa_single_share=LATER.tsa_single_share,
        tsa_single_inverse_temperature=LATER.tsa_single_inverse_temperature,
    )
    assert pool.hash == SHIPPED and replace(pool, adaptation=before).hash == UNCENTRED


CASES = [("strokes", 1, "none"), ("strokes", 1, "ridge"), ("plankton", 1, "ridge")]
"""Domains, examples a class and what is learned: the first domain is like a source."""
MORE_CASES = [("strokes", 2, "ridge"), ("plankton", 1, "none"), ("plankton", 1, "tsa")]


@pytest.mark.skipif(not (default.PACKAGED / "pool.json").is_file(), reason="no pool ships")
@pytest.mark.parametrize(
    ("one_network", "cases"), [(False, [*CASES, *MORE_CASES]), (True, CASES)], ids=["many", "one"]
)
def test_a_classifier_answers_as_an_evaluation_does(
    tmp_path: Path, one_network: bool, cases: list[tuple[str, int, str]]
) -> None:
    """Also single images, which go without what those of the nearest source have in common."""
    pool = replace(Pool.load(default.PACKAGED), size=48, views="one", one_network=one_network)
    auto, known = find_rule("auto", pool), []
    drawn = draw_packs(tmp_path, ["strokes", "plankton"], size=48, per_class=4, workers=1)
    packs = {pack.domain.name: pack for pack in drawn}
    for domain, shots, adaptation in cases:
        images = np.stack([packs[domain].images[i] for i in range(12)])  # of three classes
        support = torch.tensor([[0, 1], [4, 5], [8, 9]])[None, :, :shots]
        queries = torch.tensor([[2, 3, 6, 7, 10, 11]])
        tasks = Tasks(Table.of(images, torch.device("cpu"), "one"), queries, support, None)
        (expected,) = predict_tasks(pool, tasks, [auto], adaptation).probabilities[0]
        plain = replace(auto, centred=False)
        (without,) = predict_tasks(pool, tasks, [plain], adaptation).probabilities[0]
        like = bool(familiar(pool, tasks))
        changed = not torch.allclose(without, expected, atol=1e-4)
        assert changed == (shots == 1 and (like or adaptation != "ridge"))
        made = pool.classifier(adaptation=adaptation)
        made.fit(images[support.flatten()], np.repeat(["a", "b", "c"], shots))
        assert made.adapted_ == (adaptation != "none")
        asked = images[queries[0]]
        near = 1e-3 if adaptation == "tsa" else 1e-5  # what is learned by gradient is rounded
        np.testing.assert_allclose(made.predict_proba(asked), expected, atol=near)
        made.save(tmp_path / "one.polyshot")
        again = FewShotClassifier.load(tmp_path / "one.polyshot")
        np.testing.assert_array_equal(again.predict_proba(asked), made.predict_proba(asked))
        again.add(asked[:1], ["a"]).forget(examples=len(support.flatten()))
        np.testing.assert_allclose(again.predict_proba(asked), expected, atol=near)
        known.append(like)
    assert any(known) and not all(known)


def test_the_packaged_pool_is_the_default(packaged: Path) -> None:
    assert default.has_default()
    assert default.pool_path("default") == default.default_pool() == packaged
    assert Pool.default().hash == Pool.load(packaged).hash
    assert f"{len(NAMES) + 1} members" in done("info", "default")


def test_a_folder_called_default_is_named_with_its_place(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("default", "run/pool"):
        Path(folder).mkdir(parents=True)
    assert default.pool_path("./default") == Path("default") != packaged
    assert default.pool_path(Path("run/pool")) == Path("run/pool")


def test_another_pool_can_take_its_place(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = random_pool(metric="euclidean")
    other.save(tmp_path / "other")
    monkeypatch.setenv(default.VARIABLE, str(tmp_path / "other"))
    assert Pool.default().hash == other.hash
    monkeypatch.setenv(default.VARIABLE, str(tmp_path))
    with pytest.raises(PolyshotError, match=r"POLYSHOT_POOL names .* which is no pool"):
        Pool.default()


def test_a_package_without_a_pool_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(forms, "is_installed", lambda _: False)
    assert not default.has_default()
    draw_example(tmp_path / "e", classes=2, shot=1, queries=1)
    paths = ["--support", tmp_path / "e" / "support", "--query", tmp_path / "e" / "query"]
    for command in (["classify", *paths], ["evaluate", tmp_path / "e" / "support"], ["card"]):
        assert "comes without a trained pool: name one with --pool" in refused(*command)


def test_the_pool_in_this_package_loads_and_is_small_enough() -> None:
    if not (default.PACKAGED / "pool.json").is_file():
        pytest.skip("no pool is in this package yet")
    assert TOOL.folder_bytes(default.PACKAGED) <= TOOL.LARGEST
    assert Pool.default().selector is not None


def test_the_packaged_folder_is_package_data() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "pools/**/*" in project["tool"]["setuptools"]["package-data"]["polyshot"]
    assert default.PACKAGED.is_relative_to(ROOT / "src" / "polyshot" / "pools")


# --- 8-bit and 6-bit weights


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(3, 2), (4, 3, 1, 1), (2, 3, 3, 3)]),
    st.floats(1e-20, 1e20),
    st.sampled_from(["eight", "six"]),
)
def test_rounding_moves_no_weight_by_more_than_half_a_step(
    seed: int, shape: tuple[int, ...], size: float, precision: Precision
) -> None:
    draw = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=draw) * size
    tensor[0] = 0
    stored = to_stored({"weight": tensor}, precision)
    packed = torch.int8 if precision == "eight" else torch.uint8
    assert stored["weight"].dtype == packed and stored["weight" + FACTOR].shape == shape[:1]
    again = from_stored(stored)
    assert list(again) == ["weight"] and again["weight"].dtype == torch.float32
    step = tensor.abs().flatten(1).amax(1) / (127 if precision == "eight" else 31)
    assert bool(((again["weight"] - tensor).abs().flatten(1) <= 0.501 * step[:, None]).all())
    assert not again["weight"][0].any()
    # What was rounded once stays as it is, but for the last bit of its factor.
    twice = from_stored(to_stored(again, precision))["weight"]
    torch.testing.assert_close(twice, again["weight"], rtol=1e-6, atol=0)


def test_vectors_and_counts_are_never_rounded() -> None:
    tensors = {"bias": torch.rand(5), "count": torch.tensor(7), "ids": torch.arange(6).view(2, 3)}
    for precision in get_args(Precision):
        stored = to_stored(tensors, precision)
        assert set(stored) == set(tensors)
        assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
    full = to_stored({"weight": torch.rand(4, 3).T}, "full")["weight"]
    assert full.is_contiguous() and full.dtype == torch.float32


def test_factors_that_do_not_fit_are_refused() -> None:
    stored = to_stored({"weight": torch.rand(4, 3)}, "eight")
    stored["weight" + FACTOR] = torch.rand(3)
    with pytest.raises(PolyshotError, match=r"wrong shapes: \[3\] factors for \[4, 3\] weights"):
        from_stored(stored)


def test_packed_weights_that_are_damaged_are_refused() -> None:
    good = to_stored({"weight": torch.rand(4, 3)}, "six")
    for damage in (
        {"weight": good["weight"][:-6]},
        {"weight": torch.zeros(9, dtype=torch.uint8)},
        {"weight" + SHAPE: torch.tensor([4, 2])},
        {"weight" + SHAPE: torch.tensor([4, 4])},
    ):
        with pytest.raises(PolyshotError, match="weight cannot be unpacked"):
            from_stored(good | damage)


def test_bell_shaped_weights_take_less_than_six_bits() -> None:
    weights = torch.randn(64, 576, generator=torch.Generator().manual_seed(0))
    stored = to_stored({"weight": weights}, "six")["weight"]
    assert len(stored) < 6 / 8 * weights.numel()


def test_small_pools_leave_modulators_of_no_strength_out(tmp_path: Path) -> None:
    pool = random_pool()
    for precision in get_args(Precision):
        there = precision == "full"
        pool.save(tmp_path / precision, precision)
        assert (tmp_path / precision / modulator_file("off")).exists() == there
        about = json.loads((tmp_path / precision / "pool.json").read_text())
        assert about["precision"] == precision and about["format"] == FORMAT
        again = Pool.load(tmp_path / precision)
        images = np.zeros((2, 3, SIZE, SIZE), dtype=np.uint8)
        assert torch.equal(*again.embed(images, [0, 3]))
        again.save(tmp_path / "again")  # what was loaded can be saved and loaded to the bit
        assert Pool.load(tmp_path / "again").hash == again.hash
    stored = load_file(tmp_path / "eight" / "selector.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in stored.values())


def test_a_modulator_that_is_used_must_be_there(tmp_path: Path) -> None:
    random_pool().save(tmp_path / "pool", "eight")
    file = tmp_path / "pool" / "pool.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(sealed(about | {"strengths": [1.0, 0.5, 0.25]})))
    with pytest.raises(PolyshotError, match="lacks its file modulators/off"):
        Pool.load(tmp_path / "pool")


def test_pools_of_the_first_format_are_read(tmp_path: Path) -> None:
    pool = random_pool()
    pool.save(tmp_path / "pool")
    file = tmp_path / "pool" / "pool.json"
    about = json.loads(file.read_text()) | {"format": 1}
    del about["precision"], about["checksum"]  # there was none
    file.write_text(json.dumps(about))
    assert Pool.load(tmp_path / "pool").hash == pool.hash


def test_a_precision_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match="Did you mean 'eight'"):
        random_pool().save(tmp_path / "pool", "eigth")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


# --- making the shipped folder


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    draw_packs(folder, ["signs"], size=SIZE, per_class=16, workers=1)
    return folder


def test_what_shipping_costs_is_measured(packs: Path, tmp_path: Path) -> None:
    pool, opened = random_pool(), [Pack.open(packs / "signs")]
    for precision, least in (("eight", 0.99), ("six", 0.985)):
        shipped = TOOL.ship(pool, tmp_path / "small", precision)
        changes = TOOL.embedding_changes(pool, shipped, opened, images=20)
        assert [change.member for change in changes] == ["base", *NAMES]
        assert all(least < change.worst <= change.mean < 1.0001 for change in changes)
    same = TOOL.embedding_changes(pool, pool, opened, images=20)
    assert all(change.worst == pytest.approx(1) for change in same)
    costs = TOOL.accuracy_costs(pool, pool, opened, ["base", "average"], episodes=5)
    assert [(c.target, c.method) for c in costs] == [("signs", "base"), ("signs", "average")]
    assert all(c.difference == c.half_width == 0 for c in costs)


def test_the_tool_that_makes_the_shipped_folder(
    packs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_pool().save(tmp_path / "pool")
    measure = ["--packs", str(packs), "--images", "10", "--episodes", "4"]
    assert TOOL.main([str(tmp_path / "pool"), str(tmp_path / "out"), *measure]) == 0
    said = capsys.readouterr().out
    assert "MB as trained" in said and "cosine mean" in said and "mean difference" in said
    assert json.loads((tmp_path / "out" / "pool.json").read_text())["precision"] == "six"
    assert TOOL.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert "is no pool" in capsys.readouterr().err


# --- the example folder


def size_of(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


def test_an_example_of_mixed_sizes_that_repeats(tmp_path: Path) -> None:
    made = [draw_example(tmp_path / name, "signs", 3, 2, 4) for name in ("one", "two")]
    roots = [each.support.parent for each in made]
    files = [sorted(p.relative_to(root) for p in root.rglob("*.*")) for root in roots]
    assert files[0] == files[1] and len(files[0]) == 3 * (2 + 4) + 1
    for file in files[0]:
        assert (roots[0] / file).read_bytes() == (roots[1] / file).read_bytes()
    assert len(list(made[0].support.iterdir())) == 3
    sizes = {size_of(file) for file in roots[0].rglob("*.png")}
    assert len(sizes) > 10 and all(0.75 * SIDES[0] <= n < SIDES[1] for s in sizes for n in s)
    with made[0].answers.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [f"query/{i:03}.png" for i in range(12)]
    assert {row["label"] for row in rows} == {p.name for p in made[0].support.iterdir()}
    assert [row["label"] for row in rows] != sorted(row["label"] for row in rows)
    right = [(roots[0] / row["path"], row["label"]) for row in rows]
    assert made[0].right(right) == (12, 12)
    assert made[0].right([(path, "none") for path, _ in right]) == (0, 12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--domain", "sings"], "Did you mean 'signs'?"),
        (["--classes", "500"], "2 to 48 classes"),
    ],
)
def test_examples_that_cannot_be(options: list[str], said: str, tmp_path: Path) -> None:
    assert said in refused("example", tmp_path / "e", *options)
    assert list(tmp_path.iterdir()) == []


def test_an_example_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert "mine exists: choose a folder" in refused("example", tmp_path / "mine")
    (tmp_path / "file").write_text("in the way")
    assert "cannot be written" in refused("example", tmp_path / "file" / "e")


def test_the_example_is_classified_by_the_default_pool(packaged: Path, tmp_path: Path) -> None:
    said = done("example", tmp_path / "e", "--classes", 2, "--shot", 2, "--queries", 2)
    command = said.splitlines()[-1].split()
    assert command[:2] == ["polyshot", "classify"]
    assert "Members used: " in done(*command[1:])


# --- the card


def trained_pool(**about: object) -> Pool:
    pool = random_pool()
    config = to_dict(override(preset("tiny"), ["base.steps=7", "modulator.kind=channel", "seed=3"]))
    steps = {"base": {"validation": 0.5}, "modulator:one": {"validation": 0.75}}
    pool.about = {"config": config, "packs": dict.fromkeys(NAMES, "0" * 64), "steps": steps} | about
    return pool


def result(of: Pool, mean: float = 0.8, **changes: object) -> Result:
    plain = {
        "method": "average", "target": "one", "seen": True, "way": 5, "shot": 5, "queries": 10,
        "part": "test", "adaptation": "none", "seed": 0, "episodes": 600, "group_disjoint": True,
        "fingerprint": "f", "mean": mean, "half_width": 0.01,
        "per_episode": [mean - 0.01, mean + 0.01, mean],
        "pool": of.hash, "pack": "p", "version": "0",
    }  # fmt: skip
    return Result(**(plain | changes))  # type: ignore[arg-type]


def test_a_card_tells_what_a_user_should_know() -> None:
    pool = trained_pool()
    results = [
        result(pool),
        result(pool, pool="other", mean=0.82),
        result(pool, target="two", mean=0.6),
        result(pool, target="three", seen=False, shot=1, adaptation="head"),
    ]
    text = card(pool, results)
    for part in (
        "# Model card", "## Data", "## Licence of the data", "## Recipe", "## Accuracy",
        "## Limits", "## Remake it", pool.hash[:12], "Preset `tiny`, seed 3",
        "- modulator:one: 75.0 % on validation classes", "off equal the base (strength 0)",
        "### 5-way 5-shot, seen domains (new classes)", "### 5-way 1-shot, unseen domains",
        "| one | 81.0 ±1.1, seeds ±12.7 |", "| two | 60.0 ±1.1 |",
        "Where 2 trainings were measured: their mean", "| **average** | 70.5 ±0.8 |",
        "| domain | average + head |", "3 of 4 results are of this pool, or of a training",
        "--sources one,two,off --preset tiny --seed 3 --out run",
        "--set base.steps=7 --set modulator.kind=channel\n",
    ):  # fmt: skip
        assert part in text, part
    assert "No results were given." in card(pool)


def test_a_card_knows_results_of_its_own_training_and_of_those_without_a_source() -> None:
    pool = trained_pool()
    config = pool.about["config"]
    trained = {"preset": config["preset"], "train_seed": config["seed"], "pool": "world"}
    text = card(
        pool,
        [
            result(pool, **trained, sources=list(pool.about["packs"])),
            result(pool, **trained | {"pool": "another"}, sources=["two"], seen=False),
            result(pool, **trained | {"pool": "another"}, sources=["two"], seen=False, target="x"),
        ],
    )
    assert "1 of 3 results are of this pool, or of a training by its recipe, seed and" in text
    assert "sources, the others of 1 trainings with other seeds or sources." in text
    assert "By trainings without one, each left out in turn." in text


def test_a_card_tells_how_often_the_pool_looks() -> None:
    pool = trained_pool()
    assert "looks at an image" not in card(pool)
    text = card(pool.with_views("five"))
    assert "looks at an image 5 times (`views=five`), which was set after the training." in text
    assert text.rstrip().removesuffix("```").rstrip().endswith("SHIPPED --views five")


def test_a_card_that_lies_with_the_pool_is_shown(packs: Path, tmp_path: Path) -> None:
    trained_pool().save(tmp_path / "pool")
    (tmp_path / "pool" / "CARD.md").write_text("# Mine\n")
    assert done("card", tmp_path / "pool") == "# Mine\n"
    assert done("card", tmp_path / "pool", "--packs", packs).startswith("# Model card\n")


def test_a_card_keeps_validation_classes_apart() -> None:
    pool = trained_pool()
    text = card(pool, [result(pool, mean=0.8), result(pool, mean=0.6, part="val")])
    heading = "### 5-way 5-shot, seen domains (new classes)"
    assert f"{heading}\n" in text and f"{heading}, validation classes\n" in text
    assert "| one | 80.0 ±1.1 |" in text and "| one | 60.0 ±1.1 |" in text


def test_the_sources_of_a_card(packs: Path) -> None:
    drawn = Pack.open(packs / "signs")
    pool = trained_pool(packs={"signs": drawn.hash, "else": "0" * 64})
    text = card(pool, packs=[drawn])
    assert f"| signs | polyshot signs | 33 of 48 | 768 | `{drawn.hash[:12]}` |" in text
    assert "signs: drawn by Polyshot's own code" in text
    assert "| else | | | | |" in text and "else: this card cannot tell" in text


def test_a_card_of_a_pool_that_does_not_say_how_it_was_trained(tmp_path: Path) -> None:
    random_pool().save(tmp_path / "pool")
    assert "it can have no card" in refused("card", tmp_path / "pool")


def test_the_card_command(packs: Path, tmp_path: Path) -> None:
    pool = trained_pool()
    pool.save(tmp_path / "pool")
    append_results(tmp_path / "r.jsonl", [result(pool)])
    said = done("card", tmp_path / "pool", "--results", tmp_path / "r.jsonl", "--packs", packs)
    assert said.startswith("# Model card\n") and "| one | 80.0 ±1.1 |" in said
    file = tmp_path / "new" / "CARD.md"
    assert f"wrote {file}" in done("card", tmp_path / "pool", "--out", file)
    assert file.read_text(encoding="utf-8").startswith("# Model card\n")
    shutil.rmtree(tmp_path / "pool")
    assert "is no pool" in refused("card", tmp_path / "pool")


def test_the_shipped_pool_its_card_and_the_page_belong_together() -> None:
    folder = default.PACKAGED
    pool, text = Pool.load(folder), (folder / default.CARD).read_text(encoding="utf-8")
    assert pool.hash[:12] in text
    card_of_the_page = (ROOT / "docs" / "default-pool.md").read_text(encoding="utf-8")
    included = ROOT / card_of_the_page.removeprefix("--8<-- ").strip().strip('"')
    assert included.samefile(ROOT / "src/polyshot/pools/default" / default.CARD)
    assert TOOL.folder_bytes(folder) < TOOL.LARGEST
    assert len(pool.modulators) == 8 and pool.selector is not None and pool.statistics


def test_the_shipped_pool_labels_images_that_it_has_never_seen(tmp_path: Path) -> None:
    example = draw_example(tmp_path / "example", "flowers", queries=8)
    pool = Pool.default().with_views("one")
    quick = replace(pool, adaptation=replace(pool.adaptation, updates=4))
    answer = label_files(quick, example.support, [example.query])
    right, count = example.right((row.path, row.label) for row in answer.rows)
    assert count == 40 and right > 28  # 8 by chance
