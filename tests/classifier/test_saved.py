"""A classifier in a file: it answers to the bit as before, and what is no such file is refused."""

import copy
import json
import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyshot.classifier import FewShotClassifier
from polyshot.classifier.estimate import Estimate, plain_estimate, read_estimate
from polyshot.classifier.saved import ABOUT, EXAMPLES, FORMAT, LEARNED, NETWORKS
from polyshot.data.readers.queries import read_support
from polyshot.data.toy import draw_example
from polyshot.errors import PolyshotError
from polyshot.models.foreign import Foreign
from polyshot.models.loaders import LITE0, is_installed
from polyshot.pool.pool import Pool
from polyshot.pool.precision import from_stored, rounded, to_exact, to_stored
from polyshot.predict.predict import Adaptation
from polyshot.util.checks import sealed
from tests.helpers import COLOUR_RULES as RULES
from tests.helpers import colour_pool as make_pool
from tests.helpers import coloured, examples, random_pool, saved_vit, thin_lite0

POOL = make_pool()
QUERIES, _ = examples(2, 2, 2, first=50)


def again(classifier: FewShotClassifier, folder: Path, **options: object) -> FewShotClassifier:
    """Save a classifier and load it."""
    file = folder / "colours.polyshot"
    classifier.save(file)
    return FewShotClassifier.load(file, **options)  # type: ignore[arg-type]


def check_same(one: FewShotClassifier, other: FewShotClassifier) -> None:
    """Everything that a user sees is the same, to the bit."""
    (mine, none), (yours, also_none) = (each.answer(QUERIES) for each in (one, other))
    np.testing.assert_array_equal(mine, yours)
    np.testing.assert_array_equal(none, also_none)  # type: ignore[arg-type]
    assert one.explain() == other.explain() and one.estimate() == other.estimate()
    for name in ("classes_", "weights_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in ("adaptation_", "adapted_", "diverged_", "threshold_", "rule", "adaptation"):
        assert getattr(one, name) == getattr(other, name)


# --- to the bit


@pytest.mark.parametrize("adaptation", get_args(Adaptation))
@pytest.mark.parametrize("rule", RULES)
def test_answers_are_the_same(rule: str, adaptation: str, tmp_path: Path) -> None:
    classifier = FewShotClassifier(POOL, rule, adaptation, none_rate=0.2)
    classifier.fit(*examples(4, 3, 1))
    check_same(classifier, again(classifier, tmp_path))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("adaptation", ["head", "pa", "tsa"])
def test_pools_of_maps_and_of_any_metric(adaptation: str, metric: str, tmp_path: Path) -> None:
    pool = replace(random_pool("conv1x1", metric), query_views="three")  # type: ignore[arg-type]
    for share, rule in ((0.3, "auto"), (1.0, "auto"), (0.3, "blend")):
        if share == 1.0 and adaptation != "tsa":
            continue  # the share is of its networks
        own = replace(pool, adaptation=replace(pool.adaptation, tsa_share=share, updates=2))
        classifier = FewShotClassifier(own, rule, adaptation, none_rate=0.3)
        classifier.fit(*examples(3, 2, 2))
        check_same(classifier, again(classifier, tmp_path))


def test_several_pools(tmp_path: Path) -> None:
    other = replace(make_pool(choice=2), size=24, views="three")
    classifier = FewShotClassifier([POOL, other], adaptation="tsa", none_rate=0.3)
    loaded = again(classifier.fit(*examples(3, 2, 2)), tmp_path)
    check_same(classifier, loaded)
    assert [pool.size for pool in loaded.pools] == [POOL.size, 24]


@pytest.mark.parametrize("precision", ["full", "half", "eight", "six"])
def test_every_precision(precision: str, tmp_path: Path) -> None:
    classifier = FewShotClassifier(POOL, adaptation="tsa", precision=precision)  # type: ignore[arg-type]
    classifier.fit(*examples(3, 2, 2))
    check_same(classifier, again(classifier, tmp_path))


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ([7, 7, -2, -2], "int64"),
        ([0.5, 0.5, 2.0, 2.0], "float64"),
        ([True, True, False, False], "bool"),
        (["ä/b", "ä/b", "c d", "c d"], "<U3"),
    ],
)
def test_every_kind_of_label(labels: list[object], dtype: str, tmp_path: Path) -> None:
    classifier = POOL.classifier(adaptation="none").fit(examples(2, 2)[0], labels)  # type: ignore[arg-type]
    loaded = again(classifier, tmp_path)
    check_same(classifier, loaded)
    assert loaded.classes_.dtype == dtype
    assert list(loaded.estimate().per_class) == sorted(set(labels))  # type: ignore[type-var]


@pytest.mark.parametrize("adaptation", ["pa", "tsa"])
def test_nothing_was_learned_from_one_image_a_class(adaptation: str, tmp_path: Path) -> None:
    classifier = POOL.classifier("auto", adaptation).fit(*examples(1, 1, 1))
    loaded = again(classifier, tmp_path)
    assert not loaded.adapted_ and not loaded.can_estimate
    np.testing.assert_array_equal(loaded.predict_proba(QUERIES), classifier.predict_proba(QUERIES))


def test_the_same_classifier_is_the_same_file(tmp_path: Path) -> None:
    classifier = POOL.classifier(adaptation="ridge").fit(*examples(2, 2))
    classifier.save(tmp_path / "a")
    again(classifier, tmp_path).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_pickles_and_copies() -> None:
    fitted = POOL.classifier("select", "ridge").fit(*examples(2, 2, 2))
    for copied in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        check_same(fitted, copied)
    copied.fit(*examples(2, 2))
    assert len(fitted.classes_) == 3


# --- what is in it


def test_only_what_answers_is_stored(tmp_path: Path) -> None:
    """One member is selected: neither the other nor the selector is in the file."""
    POOL.classifier("select", "none").fit(*examples(2, 2)).save(tmp_path / "c")
    with zipfile.ZipFile(tmp_path / "c") as file:
        assert file.testzip() is None
        about = json.loads(file.read(ABOUT))
        (tmp_path / "n").write_bytes(file.read(NETWORKS))
    assert about["format"] == FORMAT and set(about["files"]) == {NETWORKS, LEARNED, EXAMPLES}
    (pool,) = about["pools"]
    assert pool["domains"] == ["birds"] and pool["members"] == ["base", "birds", "cars"]
    from safetensors.torch import load_file

    assert {name.split(".")[1] for name in load_file(tmp_path / "n")} == {"base", "modulators"}


def test_it_needs_no_examples(tmp_path: Path) -> None:
    classifier = POOL.classifier(adaptation="ridge", none_rate=0.3).fit(*examples(2, 2))
    classifier.save(tmp_path / "c", examples=False)
    with zipfile.ZipFile(tmp_path / "c") as file:
        assert EXAMPLES not in file.namelist()
    check_same(classifier, FewShotClassifier.load(tmp_path / "c"))


@pytest.mark.parametrize(("name", "most"), [("shipped", 12e6), (LITE0, 8e6)])
def test_the_files_of_the_defaults_are_small(name: str, most: float, tmp_path: Path) -> None:
    """With what `tsa` learns on the pool that ships; how long it learns changes no size."""
    if name == LITE0 and not is_installed(LITE0):
        pytest.skip("the extra [imagenet] is not installed")
    pool = Pool.default() if name == "shipped" else Pool.from_backbone(LITE0)
    pool = replace(pool.with_views("one"), adaptation=replace(pool.adaptation, updates=1))
    drawn = draw_example(tmp_path / "example", classes=5, shot=5, queries=1)
    images, labels = read_support(drawn.support)
    classifier = pool.classifier().fit(images, labels)
    assert classifier.adaptation_ == ("tsa" if name == "shipped" else "ridge")
    loaded = again(classifier, tmp_path)
    assert (tmp_path / "colours.polyshot").stat().st_size < most
    assert len(pickle.dumps(classifier)) < most
    np.testing.assert_array_equal(
        loaded.predict_proba(images[:3]), classifier.predict_proba(images[:3])
    )


def test_weights_that_were_rounded_once_are_found_out() -> None:
    torch.manual_seed(0)
    tensors = {
        "kernel": torch.randn(6, 5, 3, 3),
        "zeros": torch.zeros(4, 7),
        "small": torch.randn(3, 4) * 1e-30,
        "vector": torch.randn(5),
        "count": torch.tensor(3),
    }
    for precision, largest in (("six", 1.2), ("eight", 1.5), ("half", 2.1), ("full", 4.0)):
        made = rounded(tensors, precision)  # type: ignore[arg-type]
        stored = to_exact(made)
        back = from_stored(stored)
        for name, tensor in made.items():
            assert torch.equal(back[name], tensor), (precision, name)
        kernel = stored["kernel"]
        assert kernel.numel() * kernel.element_size() <= largest * tensors["kernel"].numel()
        again_ = from_stored(to_stored(made, "full"))
        assert all(torch.equal(again_[name], made[name]) for name in made)


# --- networks from elsewhere


class Own(nn.Module):
    """A network of a user's."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3, 8)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.mean((2, 3)))


def test_a_network_of_ones_own_is_given_again(tmp_path: Path) -> None:
    pool = Pool.from_backbone(Own(), size=16)
    classifier = pool.classifier(adaptation="ridge").fit(*examples(2, 2, 2))
    check_same(classifier, again(classifier, tmp_path, backbone=Own()))
    check_same(classifier, pickle.loads(pickle.dumps(classifier)))
    with pytest.raises(PolyshotError, match=r"FewShotClassifier.load\('colours.polyshot', back"):
        FewShotClassifier.load(tmp_path / "colours.polyshot")
    with pytest.raises(PolyshotError, match="has other weights than those"):
        FewShotClassifier.load(tmp_path / "colours.polyshot", backbone=Own(seed=1))


def test_precomputed_embeddings(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(6, 5)).astype(np.float32)
    classifier = Pool.from_embeddings(5).classifier(adaptation="head")
    classifier.fit(vectors, ["a", "b", "c"] * 2)
    loaded = again(classifier, tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(vectors), classifier.predict_proba(vectors))


def test_lite0_goes_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is ours: the package that brought the weights is not asked again."""
    pool = thin_lite0_pool(monkeypatch)
    classifier = pool.classifier(adaptation="ridge").fit(*examples(2, 2, 2))
    monkeypatch.setattr("polyshot.models.loaders.find_spec", lambda _: None)
    check_same(classifier, again(classifier, tmp_path))


def thin_lite0_pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """EfficientNet-Lite0 with few channels, under its name."""
    monkeypatch.setattr("polyshot.models.loaders.EfficientNetLite", lambda _: thin_lite0(seed=1))
    base = Foreign(thin_lite0(), 32, name="efficientnet-lite0")
    return Pool._of_base(base, "cosine", "conv1x1", "one")


def test_an_image_tower_is_built_again(tmp_path: Path) -> None:
    """The model's folder is not asked again, its library is."""
    classifier = Pool.from_backbone(saved_vit(tmp_path / "vit")).classifier(adaptation="ridge")
    classifier.fit(*examples(2, 2, 2))
    shutil.rmtree(tmp_path / "vit")
    check_same(classifier, again(classifier, tmp_path))


# --- what is refused


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "c.polyshot"
    POOL.classifier(adaptation="tsa").fit(*examples(2, 2, 2)).save(file)
    return file


def changed(file: Path, folder: Path, **changes: bytes | None) -> Path:
    """Write a file with other parts, or without some."""
    out = folder / "changed.polyshot"
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            data = changes.get(name.partition(".")[0], source.read(name))
            if data is not None:
                target.writestr(name, data)
    return out


def refuse(file: Path, message: str) -> None:
    with pytest.raises(PolyshotError, match=message) as error:
        FewShotClassifier.load(file)
    assert "\n" not in str(error.value) and str(file) in str(error.value)


def test_files_of_others(tmp_path: Path) -> None:
    refuse(tmp_path / "none", "There is no file")
    refuse(tmp_path, "cannot be read: Is a directory")
    (tmp_path / "text").write_text("hello")
    refuse(tmp_path / "text", "is no saved classifier of Polyshot: name a file that 'polyshot fit'")
    (tmp_path / "empty").write_bytes(b"")
    refuse(tmp_path / "empty", "is no saved classifier")
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        file.writestr("word/document.xml", "")
    refuse(tmp_path / "zip", "is no saved classifier of Polyshot: it has no classifier.json")


def test_damaged_files(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    cut = tmp_path / "cut"
    for length in (100, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:length])
        refuse(cut, r"is damaged \(.*\): copy it again\.")
    draw = np.random.default_rng(0)
    for place in draw.integers(0, len(data), 60):
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(draw.integers(8))
        cut.write_bytes(flipped)
        try:
            loaded = FewShotClassifier.load(cut)
        except PolyshotError as error:
            assert "\n" not in str(error)
        else:  # the bit says nothing: a date, an attribute
            np.testing.assert_array_equal(
                loaded.predict_proba(QUERIES),
                FewShotClassifier.load(saved).predict_proba(QUERIES),
            )


def test_parts_that_do_not_fit(saved: Path, tmp_path: Path) -> None:
    refuse(changed(saved, tmp_path, learned=None), "learned.safetensors is missing")
    refuse(changed(saved, tmp_path, networks=b"other"), "does not match its hash")
    with zipfile.ZipFile(saved) as file:
        about = json.loads(file.read(ABOUT))

    def with_about(**changes: object) -> Path:
        return changed(
            saved, tmp_path, classifier=json.dumps(sealed({**about, **changes})).encode()
        )

    refuse(with_about(format=FORMAT + 1), f"has format {FORMAT + 1}, this Polyshot reads up to")
    refuse(with_about(format="1"), "has format '1'")
    refuse(with_about(classes=["a"]), "damaged")
    refuse(with_about(classes=["a", 3, "b"]), "damaged|3, not text")
    refuse(with_about(pools=[]), "damaged")
    refuse(with_about(rule=3), "rule is 3, not text")
    (pool,) = about["pools"]
    refuse(with_about(pools=[{**pool, "size": 10**9}]), "too large")
    wide = {**pool["architecture"], "width": 4096}
    refuse(with_about(pools=[{**pool, "architecture": wide}]), "wrong shapes")
    refuse(with_about(pools=[{**pool, "weights": [1.0]}]), "damaged")
    refuse(changed(saved, tmp_path, classifier=b"{"), "damaged classifier.json")


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match="call fit"):
        POOL.classifier().save(tmp_path / "c")
    classifier = POOL.classifier(adaptation="none").fit(*examples(2, 2))
    with pytest.raises(PolyshotError, match="cannot be written"):
        classifier.save(tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.name != "c"]
    with pytest.raises(PolyshotError, match=r"There is no precision 'sixx'.*'six'"):
        FewShotClassifier(POOL, precision="sixx")  # type: ignore[arg-type]


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.polyshot"
    classifier = POOL.classifier(adaptation="none").fit(*examples(2, 2))
    classifier.save(file)
    before = file.read_bytes()

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zipfile.ZipFile.writestr", fails)
    with pytest.raises(PolyshotError, match="the disk is full"):
        classifier.fit(*examples(2, 2, 2)).save(file)
    assert file.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == [file.name]


def test_one_picture_is_enough() -> None:
    assert POOL.classifier(adaptation="none").fit(*examples(1, 1)).predict(coloured("red", 3))


def test_estimates_that_cannot_be_are_refused() -> None:
    plain = plain_estimate(Estimate(0.5, 0.1, 0.4, 0.6, 8, {"a": 0.5, 2: 1.0}, "head"))
    assert read_estimate(plain).per_class == {"a": 0.5, 2: 1.0}
    wrong = dict.fromkeys(("accuracy", "half_width", "low", "high"), 7.0)
    for name, value in (wrong | {"images": -1, "of": 3, "per_class": [["a", 2.0]]}).items():
        with pytest.raises(PolyshotError):
            read_estimate({**plain, name: value})
