"""A user's own images: any form, any labels, and an honest estimate."""

import copy
import csv
import io
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyshot.classifier import FewShotClassifier, label_files
from polyshot.classifier.answering import evidence_of
from polyshot.classifier.estimate import each_left_out, held_out_probabilities, wilson
from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.models.resnet import ResNet
from polyshot.models.views import Views
from polyshot.predict import own_networks
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import rule as find_rule
from polyshot.tasks import Table, Tasks
from tests.helpers import COLOUR_CONFIG as CONFIG
from tests.helpers import COLOUR_RULES as RULES
from tests.helpers import CPU, SIZE, coloured, examples, random_pool
from tests.helpers import colour_pool as make_pool

POOL = make_pool()


@pytest.fixture
def passes() -> Iterator[list[int]]:
    """The batch size of every forward pass of a network."""
    seen: list[int] = []

    def note(module: nn.Module, arguments: tuple[torch.Tensor], result: object) -> None:
        if isinstance(module, ResNet):
            seen.append(len(arguments[0]))

    handle = nn.modules.module.register_module_forward_hook(note)
    yield seen
    handle.remove()


@pytest.mark.parametrize("adaptation", ["none", "head"])
@pytest.mark.parametrize("rule", RULES)
def test_learns_from_a_few_images(rule: str, adaptation: str) -> None:
    classifier = POOL.classifier(rule, adaptation)
    assert classifier.fit(*examples(4, 2, 3)) is classifier
    assert classifier.classes_.tolist() == ["blue", "green", "red"]
    queries, labels = examples(5, 5, 5, first=50)
    assert classifier.predict(queries).tolist() == labels
    chances = classifier.predict_proba(queries)
    assert chances.shape == (15, 3)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert classifier.weights_.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("metric", "start", "views"),
    [
        ("cosine", "prototypes", "one"),
        ("euclidean", "random", "one"),
        pytest.param("euclidean", "prototypes", "three", marks=pytest.mark.slow),
        pytest.param("cosine", "random", "five", marks=pytest.mark.slow),
    ],
)
def test_answers_are_those_of_a_batch_of_tasks(metric: Metric, start: str, views: Views) -> None:
    pool = make_pool(metric, start=start)
    pool = replace(pool, views=views, adaptation=replace(pool.adaptation, updates=2))
    images, labels = examples(3, 1, 2)
    queries, _ = examples(2, 2, 2, first=70)
    pixels = np.stack(
        [np.asarray(i.resize((SIZE, SIZE))).transpose(2, 0, 1) for i in images + queries]
    )
    # Of three tasks, ours is the last; the others have its images under other labels.
    support = torch.tensor([[4, 5, -1], [3, -1, -1], [0, 1, 2]])  # blue, green, red
    others = torch.stack([support.roll(1, 0), support.roll(2, 0)]).clamp(min=0)
    positions = torch.cat([others, support[None]])
    mask = torch.cat([torch.ones(2, 3, 3, dtype=torch.bool), (support >= 0)[None]])
    table = Table.of(pixels, CPU, views)
    tasks = Tasks(table, torch.arange(6, 12).expand(3, -1), positions, mask)
    alone = replace(pool, adaptation=replace(pool.adaptation, tsa_share=1.0))
    ways = [(pool, adaptation) for adaptation in ("none", "head", "pa", "tsa")]
    rules = [find_rule(name, pool) for name in RULES]
    for asked, adaptation in (*ways, (alone, "tsa")):
        together = predict_tasks(asked, tasks, rules, adaptation).probabilities[:, -1]
        single = predict_tasks(asked, tasks.part(slice(2, 3)), rules, adaptation).probabilities
        torch.testing.assert_close(single[:, 0], together, atol=2e-5, rtol=0)
        for name, expected in zip(RULES, single[:, 0], strict=True):
            classifier = FewShotClassifier(asked, name, adaptation, precision="full")
            classifier.fit(pixels[:6], labels)
            np.testing.assert_allclose(classifier.predict_proba(pixels[6:]), expected, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(RULES),
    st.sampled_from(["none", "head"]),
    st.permutations(range(6)),
    st.integers(1, 6),
)
def test_no_query_changes_another(rule: str, adaptation: str, order: list[int], count: int) -> None:
    classifier = POOL.classifier(rule, adaptation).fit(*examples(2, 1, 2))
    queries, _ = examples(2, 2, 2, first=30)
    alone = np.concatenate([classifier.predict_proba(query) for query in queries])
    some = order[:count]
    np.testing.assert_allclose(
        classifier.predict_proba([queries[i] for i in some]), alone[some], atol=1e-5
    )


def test_every_form_of_images(tmp_path: Path) -> None:
    images, labels = examples(2, 2, 2)
    paths = []
    for i, image in enumerate(images):
        paths.append(tmp_path / f"{i}.png")
        image.save(paths[-1])
    array = np.stack([np.asarray(image) for image in images])
    tensor = torch.from_numpy(array).permute(0, 3, 1, 2)
    expected = POOL.classifier("average", "none").fit(images, labels).predict_proba(images)
    mixed = [str(paths[0]), images[1], array[2], tensor[3], array[4] / 255, tensor[5] / 255]
    for form in (paths, array, tensor, tensor / 255, array.astype(np.float32) / 255, mixed):
        classifier = POOL.classifier("average", "none").fit(form, labels)
        np.testing.assert_array_equal(classifier.predict_proba(form), expected)
    for one in (paths[0], str(paths[0]), images[0], array[0], tensor[0]):
        np.testing.assert_allclose(classifier.predict_proba(one), expected[:1], atol=2e-6)
        assert classifier.predict(one).tolist() == ["red"]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([7, 7, -2, -2], [-2, 7]),
        (np.array([1, 1, 0, 0]), [0, 1]),
        (torch.tensor([1, 1, 0, 0]), [0, 1]),
        ([torch.tensor(3), np.int64(3), 1, 1], [1, 3]),
        (np.array(["ä", "ä", "b", "b"]), ["b", "ä"]),
        ((True, True, False, False), [False, True]),
    ],
)
def test_every_kind_of_label(labels: list[int], classes: list[object]) -> None:
    images, _ = examples(2, 2)
    classifier = POOL.classifier().fit(images, labels)
    assert classifier.classes_.tolist() == classes
    assert classifier.predict(images).tolist() == [classes[1], classes[1], classes[0], classes[0]]
    assert list(classifier.estimate().per_class) == classes


def test_many_more_classes_than_the_pool_was_trained_on() -> None:
    images = np.random.default_rng(0).integers(0, 256, (70, SIZE, SIZE, 3), dtype=np.uint8)
    classifier = POOL.classifier("average", "head").fit(images, list(range(70)))
    assert classifier.predict(images).tolist() == list(range(70))


def test_a_selected_member_costs_one_pass(passes: list[int]) -> None:
    images, labels = examples(3, 2, 2)
    classifier = POOL.classifier("select", "none").fit(images, labels)
    assert passes == [7, 7]  # the base for the selector, the member it chose
    assert classifier.explain() == [("birds", 1.0)]
    passes.clear()
    classifier.predict(images[:3])
    classifier.estimate()
    assert passes == [3]
    passes.clear()
    POOL.classifier("base", "none").fit(images, labels).predict(images[:4])
    assert passes == [7, 4]
    passes.clear()
    POOL.classifier("average", "none").fit(images, labels).predict(images[:4])
    assert passes == [7, 7, 7, 4, 4, 4]


def test_a_modulator_without_strength_is_the_base(passes: list[int]) -> None:
    pool = copy.deepcopy(POOL)
    pool.strengths["birds"] = 0.0
    images, labels = examples(2, 2)
    classifier = pool.classifier("average", "none").fit(images, labels)
    passes.clear()
    classifier.predict(images[0])
    assert passes == [1, 1]


def test_batches_change_nothing(passes: list[int]) -> None:
    images, labels = examples(3, 3, 2)
    whole = POOL.classifier("base", "none").fit(images, labels).predict_proba(images)
    passes.clear()
    parts = (
        FewShotClassifier(POOL, "base", "none", batch=3).fit(images, labels).predict_proba(images)
    )
    assert passes == [3, 3, 2, 3, 3, 2]
    np.testing.assert_allclose(parts, whole, atol=2e-6)


def test_explain_is_sorted_and_complete() -> None:
    images, labels = examples(2, 2)
    shares = POOL.classifier("average", "none").fit(images, labels).explain()
    assert [name for name, _ in shares] == ["base", "birds", "cars"]
    assert sum(weight for _, weight in shares) == pytest.approx(1)
    assert POOL.classifier("member:cars", "none").fit(images, labels).explain() == [("cars", 1.0)]


@pytest.mark.parametrize("adaptation", ["none", "head"])
@pytest.mark.parametrize("rule", ["select", "average"])
def test_estimate_is_what_leaving_out_gives(rule: str, adaptation: str) -> None:
    images, labels = examples(4, 3, 1)
    images[0], images[4] = images[4], images[0]  # a red one under green, a green one under red
    estimate = POOL.classifier(rule, adaptation).fit(images, labels).estimate()
    right: dict[str, list[bool]] = {"green": [], "red": []}
    turns = [i - labels.index(label) for i, label in enumerate(labels)]
    for i in range(7):  # the only blue one cannot be left out, of the others one of each class is
        rest = [j for j in range(8) if turns[j] != turns[i] or j == 7]
        classifier = POOL.classifier(rule, adaptation)
        classifier.fit([images[j] for j in rest], [labels[j] for j in rest])
        right[labels[i]].append(classifier.predict(images[i]).item() == labels[i])
    every = right["red"] + right["green"]
    assert 0 < sum(every) < len(every)
    assert estimate.images == 7
    assert estimate.accuracy == pytest.approx(np.mean(every))
    assert estimate.per_class == pytest.approx({name: np.mean(ok) for name, ok in right.items()})
    assert (estimate.low, estimate.high) == pytest.approx(wilson(sum(every), 7))
    assert estimate.half_width == pytest.approx((estimate.high - estimate.low) / 2)
    assert estimate.of == ("head" if adaptation == "head" else "prototypes")


@pytest.mark.parametrize("adaptation", ["pa", "tsa"])
@pytest.mark.parametrize("rule", ["auto", "select", "blend", "base"])
def test_learning_on_the_examples(rule: str, adaptation: str) -> None:
    images, labels = examples(4, 2, 3)
    classifier = POOL.classifier(rule, adaptation).fit(images, labels)
    assert classifier.adapted_ and not classifier.diverged_
    plain = POOL.classifier(rule, "none").fit(images, labels)
    assert not plain.adapted_
    queries, wanted = examples(3, 3, 3, first=50)
    assert classifier.predict(queries).tolist() == wanted
    assert np.abs(classifier.predict_proba(queries) - plain.predict_proba(queries)).max() > 1e-4
    assert classifier.explain() == plain.explain()
    estimate = classifier.estimate()
    assert estimate == plain.estimate() and estimate.of == "prototypes"
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(images), classifier.predict_proba(images))


@pytest.mark.parametrize("adaptation", ["pa", "tsa"])
@pytest.mark.parametrize("rule", ["auto", "blend"])
def test_nothing_is_learned_from_one_image_a_class(rule: str, adaptation: str) -> None:
    images, labels = examples(1, 1, 1)
    classifier = POOL.classifier(rule, adaptation).fit(images, labels)
    assert not classifier.adapted_ and not classifier.diverged_
    plain = POOL.classifier(rule, "none").fit(images, labels)
    np.testing.assert_array_equal(classifier.predict_proba(images), plain.predict_proba(images))


def test_learning_that_diverges_is_left_out() -> None:
    config = replace(POOL.adaptation, rates=(1e38,))
    wild = replace(POOL, adaptation=config)
    images, labels = examples(3, 3, 3)
    classifier = wild.classifier("auto", "tsa").fit(images, labels)
    assert classifier.diverged_ and not classifier.adapted_
    plain = POOL.classifier("auto", "none").fit(images, labels)
    np.testing.assert_array_equal(classifier.predict_proba(images), plain.predict_proba(images))


def test_a_network_of_the_tasks_own_costs_one_pass(passes: list[int]) -> None:
    images, labels = examples(3, 2, 2)
    alone = replace(POOL, adaptation=replace(POOL.adaptation, tsa_share=1.0))
    for rule, adaptation in (("blend", "none"), ("blend", "head"), ("auto", "tsa")):
        classifier = alone.classifier(rule, adaptation).fit(images, labels)
        passes.clear()
        classifier.predict(images[:3])
        assert passes == [3]


def test_all_views_of_some_images_are_one_pass(passes: list[int]) -> None:
    images, labels = examples(3, 2, 2)
    pool = replace(POOL, views="five")
    classifier = pool.classifier("blend", "ridge", batch=10).fit(images, labels)
    passes.clear()
    classifier.predict(images[:5])
    assert passes == [10, 10, 5]


@pytest.mark.parametrize(("rule", "adaptation"), [("blend", "ridge"), ("auto", "tsa")])
def test_the_first_query_waits_for_no_network(
    rule: str, adaptation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = examples(3, 2, 2)
    classifier = POOL.classifier(rule, adaptation).fit(images, labels)
    monkeypatch.delattr(own_networks, "fold_task")  # whoever asks for it fails
    classifier.predict(images[:3])


def test_auto_is_what_a_user_gets() -> None:
    for classifier in (POOL.classifier(), FewShotClassifier(POOL)):
        assert (classifier.rule, classifier.adaptation) == ("auto", "auto")


def test_a_small_gpu_learns_by_ridge_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: object) -> None:
        raise torch.OutOfMemoryError

    photos, labels = examples(2, 2, 2)
    wanted = POOL.classifier(adaptation="ridge").fit(photos, labels).predict_proba(photos)
    monkeypatch.setattr("polyshot.predict.predict.learn_own_networks", too_much)
    chosen = POOL.classifier().fit(photos, labels)
    assert (chosen.adaptation_, chosen.adapted_) == ("ridge", True)
    np.testing.assert_array_equal(chosen.predict_proba(photos), wanted)
    with pytest.raises(PolyshotError, match=r"'tsa' learns from 6 examples: .*'ridge'"):
        POOL.classifier(adaptation="tsa").fit(photos, labels)


def test_the_adaptation_of_who_chooses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of one's own, unless that takes long or there is nothing to learn from."""
    monkeypatch.setattr("polyshot.predict.ensemble.TSA_IMAGES", {"cpu": 6})
    for counts, expected in (((2, 2, 2), "tsa"), ((1, 1, 2), "tsa"), ((3, 2, 2), "ridge")):
        images, labels = examples(*counts)
        chosen = POOL.classifier().fit(images, labels)
        assert (chosen.adaptation_, chosen.adapted_) == (expected, True)
        named = POOL.classifier("auto", expected).fit(images, labels)
        np.testing.assert_array_equal(chosen.predict_proba(images), named.predict_proba(images))
    assert POOL.classifier().fit(*examples(1, 1, 1)).adaptation_ == "ridge"


def test_heads_are_left_out_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = examples(4, 3, 2)
    classifier = POOL.classifier("base", "head").fit(images, labels)
    examples_, answering = classifier._examples, classifier._answering
    mask = examples_.task.present[0]
    evidence = evidence_of(
        answering.fitted.pools[0], answering.pools[0], examples_.support(0), answering.mixes
    )

    def left_out() -> torch.Tensor:
        how = ("probabilities", "cosine", POOL.adaptation, "head")
        return held_out_probabilities(evidence, *each_left_out(mask), *how)[mask.mT]

    whole = left_out()
    room = 2 * 3 * 4 * CONFIG.dim  # two tasks at once
    monkeypatch.setattr("polyshot.classifier.estimate.CHUNK", room)
    torch.testing.assert_close(left_out(), whole)
    monkeypatch.setattr("polyshot.classifier.estimate.LARGEST_WORK", 10)
    cheap = POOL.classifier("base", "head").fit(images, labels).estimate()
    assert cheap.of == "prototypes"
    assert cheap.accuracy == POOL.classifier("base", "none").fit(images, labels).estimate().accuracy


@given(st.integers(1, 2000), st.floats(0, 1))
def test_wilson_interval(count: int, share: float) -> None:
    right = round(share * count)
    low, high = wilson(right, count)
    assert 0 <= low <= right / count <= high <= 1 and high - low > 0.5 / (count + 4)


def test_wilson_against_a_table() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_fitting_again_forgets() -> None:
    classifier = POOL.classifier().fit(*examples(2, 2, 2))
    classifier.fit(*examples(2, 2))
    assert classifier.classes_.tolist() == ["green", "red"]
    with pytest.raises(PolyshotError):
        classifier.fit(*examples(2))
    assert classifier.predict(coloured("red", 9)).tolist() == ["red"]


def test_a_fitted_classifier_can_be_stored() -> None:
    images, labels = examples(2, 2, 2)
    classifier = POOL.classifier("average", "head").fit(images, labels)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(images), classifier.predict_proba(images))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"], "There are 1 labels for 4 images: give one for each image."),
        ([], "There are 0 labels for 4 images"),
        (None, "Labels are missing: give one for each image."),
        (["a", None, "b", " "], r"Labels are missing for images\[1, 3\]\."),
        ([1.0, float("nan"), 2.0, 2.0], r"missing for images\[1\]"),
        (["a"] * 4, "All images have the label 'a', which is one class: give images of"),
        (["a", "b", 1, 2], "all text or all numbers, not both"),
        ([["a"], "b", "a", "b"], "not list"),
        (np.eye(4), "not ndarray"),
    ],
)
def test_bad_labels(labels: object, message: str) -> None:
    with pytest.raises(PolyshotError, match=message) as error:
        POOL.classifier().fit(examples(2, 2)[0], labels)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_bad_images(tmp_path: Path) -> None:
    good = io.BytesIO()
    coloured("red", 1).save(good, "PNG")
    names = ["good.png", "text.png", "cut.png", "none.png"]
    contents = [good.getvalue(), b"text", good.getvalue()[:50]]
    for name, content in zip(names, contents, strict=False):
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in names]
    with pytest.raises(PolyshotError, match="3 of 4 images cannot be read") as error:
        POOL.classifier().fit(paths, ["a", "a", "b", "b"])
    assert all(name in str(error.value) for name in names[1:])
    with pytest.raises(PolyshotError, match="There are no images"):
        POOL.classifier().fit([], [])
    fitted = POOL.classifier().fit(*examples(2, 2))
    with pytest.raises(PolyshotError, match="There are no images"):
        fitted.predict([])
    with pytest.raises(PolyshotError, match=r"none\.png"):
        fitted.predict(paths[3])


@pytest.mark.parametrize("adaptation", ["none", "head", "ridge", "pa", "tsa"])
def test_no_answer_that_is_no_number_leaves(adaptation: str) -> None:
    pool = random_pool()
    with torch.no_grad():
        next(pool.base.parameters()).fill_(math.nan)
    with pytest.raises(PolyshotError, match="no finite numbers") as error:
        pool.classifier("average", adaptation).fit(*examples(2, 2))
    assert "\n" not in str(error.value)
    fitted = POOL.classifier("base", adaptation).fit(*examples(2, 2))
    answering = fitted._answering
    for one in answering.fitted.pools:
        for each in [*one.members.values(), *one.blends.values(), *(one.learned or [[]])[0]]:
            each.classifiers.weight.fill_(math.nan)
    for use in (fitted.predict, fitted.predict_proba, fitted.judge, fitted.answer):
        with pytest.raises(PolyshotError, match="no finite numbers"):
            use(coloured("red", 1))


def test_what_needs_more_examples_or_a_fit() -> None:
    classifier = POOL.classifier()
    for use in (
        lambda: classifier.predict(coloured("red", 1)),
        classifier.explain,
        classifier.estimate,
    ):
        with pytest.raises(PolyshotError, match="call fit"):
            use()
    with pytest.raises(PolyshotError, match="from one image a class: give two or more"):
        POOL.classifier().fit(*examples(1, 1, 1)).estimate()


def test_files_are_labelled(tmp_path: Path) -> None:
    for kind, shots, first in (("examples", (3, 2, 2), 0), ("new", (1, 1, 1), 60)):
        for i, (image, label) in enumerate(zip(*examples(*shots, first=first), strict=True)):
            folder = tmp_path / kind / (label if kind == "examples" else "all")
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{i}.png")
    support, query = tmp_path / "examples", tmp_path / "new"
    answer = label_files(POOL, support, [query], "average", "head")
    assert [row.label for row in answer.rows] == ["red", "green", "blue"]
    assert [row.path.name for row in answer.rows] == ["0.png", "1.png", "2.png"]
    for row in answer.rows:
        assert row.runner_up != row.label
        assert row.probability >= row.runner_up_probability > 0
    assert len(answer.members) == 3 and answer.estimate is not None
    assert answer.summary == (
        "Expected accuracy: 100% (65% to 100%), from leaving out each of 7 examples in turn (head)."
    )
    answer.write_csv(tmp_path / "deep" / "table.csv")
    with (tmp_path / "deep" / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["label"] for row in table] == ["red", "green", "blue"]
    assert table[0]["path"] == str(query / "all" / "0.png")
    with pytest.raises(PolyshotError, match="cannot be written"):
        answer.write_csv(tmp_path)
    for extra in support.glob("*/*.png"):
        if extra.name not in ("0.png", "3.png", "5.png"):
            extra.unlink()
    alone = label_files(POOL, support, [query])
    assert alone.estimate is None and "not known" in alone.summary


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"rule": "averag"}, "'average'"),
        ({"rule": "member:car"}, "'cars'"),
        ({"adaptation": "heads"}, "'head'"),
    ],
)
def test_unknown_names(options: dict[str, str], hint: str) -> None:
    with pytest.raises(PolyshotError, match=f"Did you mean {hint}") as error:
        FewShotClassifier(POOL, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rates", "bars"),
    [
        ((0.05,), {"images", "embed", "learn"}),
        ((0.05, 0.5), {"images", "embed", "try rates", "learn"}),
    ],
)
def test_learning_shows_how_far_it_is(rates: tuple[float, ...], bars: set[str]) -> None:
    adaptation = replace(POOL.adaptation, rates=rates, updates=3)
    told: dict[str, list[tuple[int, int]]] = {}
    FewShotClassifier(replace(POOL, adaptation=adaptation), "base", "tsa").fit(
        *examples(4, 4, 4),
        lambda what, done, total: told.setdefault(what, []).append((done, total)),
    )
    assert set(told) == bars
    for what, steps in told.items():
        done, totals = zip(*steps, strict=True)
        assert list(done) == sorted(set(done)) and done[-1] == totals[0], what
        assert len(set(totals)) == 1
    assert told["learn"][-1] == (3 * 12, 3 * 12)  # updates x images
