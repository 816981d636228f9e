"""Better step by step: corrections of fitted and of saved classifiers, and what they ask for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from polyshot.classifier import FewShotClassifier
from polyshot.classifier.examples import LOSSLESS, Pictures, encode
from polyshot.data.images import decode
from polyshot.errors import PolyshotError
from polyshot.models.resnet import ResNet
from polyshot.pool.pool import Pool
from tests.helpers import COLOUR_RULES as RULES
from tests.helpers import colour_pool as make_pool
from tests.helpers import coloured, examples, picture

POOL = make_pool()
IMAGES, LABELS = examples(3, 3, 2)
MORE, MORE_LABELS = examples(1, 1, 2, first=30)
QUERIES, WANTED = examples(2, 2, 2, first=60)
Step = Callable[[FewShotClassifier], object]
STEPS: dict[str, Step] = {
    "add": lambda c: c.add(MORE, MORE_LABELS),
    "new class": lambda c: c.add([coloured("red", 90), coloured("blue", 91)], ["x", "y"]),
    "forget": lambda c: c.forget("blue"),
    "forget examples": lambda c: c.forget(examples=[0, 7]),
    "relabel": lambda c: c.relabel([0, 3], ["green", "red"]),
}


def loaded(classifier: FewShotClassifier, folder: Path) -> FewShotClassifier:
    classifier.save(folder / "c.polyshot")
    return FewShotClassifier.load(folder / "c.polyshot")


SAVED_RULES, SAVED_ADAPTATIONS = ("auto", "select", "blend"), ("ridge", "tsa", "auto")


EVERY_SAVED_STEP = [
    pytest.param(step, rule, adaptation, marks=[pytest.mark.slow] if (s + r + a) % 3 else [])
    for s, step in enumerate(STEPS)
    for r, rule in enumerate(SAVED_RULES)
    for a, adaptation in enumerate(SAVED_ADAPTATIONS)
]
"""Any two of them together; `make slow` has all three with one another."""


@pytest.mark.parametrize(("step", "rule", "adaptation"), EVERY_SAVED_STEP)
def test_a_saved_one_goes_on_as_if_it_had_not_been(
    step: str, rule: str, adaptation: str, tmp_path: Path
) -> None:
    live = FewShotClassifier(POOL, rule, adaptation, none_rate=0.4).fit(IMAGES, LABELS)
    other = loaded(live, tmp_path)
    for each in (live, other):
        STEPS[step](each)
    np.testing.assert_array_equal(live.classes_, other.classes_)
    np.testing.assert_array_equal(live.predict_proba(QUERIES), other.predict_proba(QUERIES))
    assert live.threshold_ == other.threshold_ and live.estimate() == other.estimate()
    again = loaded(other, tmp_path)
    np.testing.assert_array_equal(again.predict_proba(QUERIES), other.predict_proba(QUERIES))


@pytest.mark.parametrize("rule", ["average", "sum", "blend", "base", "member:cars"])
@pytest.mark.parametrize("adaptation", ["none", "ridge", "tsa"])
def test_steps_end_where_a_fit_would(rule: str, adaptation: str) -> None:
    """For rules whose weights do not depend on the examples; batches of embeddings differ."""
    stepped = FewShotClassifier(POOL, rule, adaptation, precision="full")
    stepped.fit([*IMAGES, coloured("red", 40)], [*LABELS, "blue"])
    stepped.add(MORE, MORE_LABELS).relabel(8, "red").forget(examples=[1])
    kept = [0, *range(2, 8)]
    images = [*(IMAGES[i] for i in kept), coloured("red", 40), *MORE]
    labels = [*(LABELS[i] for i in kept), "red", *MORE_LABELS]
    fresh = FewShotClassifier(POOL, rule, adaptation, precision="full").fit(images, labels)
    np.testing.assert_allclose(
        stepped.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=2e-3
    )
    assert stepped.estimate().images == fresh.estimate().images


def test_only_new_images_are_embedded(tmp_path: Path) -> None:
    classifier = loaded(POOL.classifier("average", "ridge").fit(IMAGES, LABELS), tmp_path)
    seen: list[int] = []

    def note(module: nn.Module, arguments: tuple[torch.Tensor], result: object) -> None:
        if isinstance(module, ResNet):
            seen.append(len(arguments[0]))

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        classifier.add(MORE, MORE_LABELS).forget("green").relabel(0, "blue")
    finally:
        handle.remove()
    assert seen == [4, 4, 4]


def test_several_pools_and_embeddings(tmp_path: Path) -> None:
    other = replace(make_pool(choice=2), size=24, views="three")
    live = FewShotClassifier([POOL, other], adaptation="tsa").fit(IMAGES, LABELS)
    again = loaded(live, tmp_path)
    for each in (live, again):
        each.add(MORE, MORE_LABELS)
    np.testing.assert_array_equal(live.predict_proba(QUERIES), again.predict_proba(QUERIES))
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(8, 5)).astype(np.float32)
    given = Pool.from_embeddings(5).classifier(adaptation="ridge").fit(vectors[:6], list("aabbcc"))
    given = loaded(given, tmp_path).add(vectors[6:], ["a", "d"])
    whole = Pool.from_embeddings(5).classifier(adaptation="ridge").fit(vectors, list("aabbccad"))
    np.testing.assert_allclose(
        given.predict_proba(vectors), whole.predict_proba(vectors), atol=1e-6
    )


def test_a_class_with_one_image_grows(tmp_path: Path) -> None:
    """What `auto` learns is chosen anew: there was nothing to learn a network from."""
    classifier = POOL.classifier().fit(*examples(1, 1, 1))
    assert classifier.adaptation_ == "ridge"
    classifier = loaded(classifier, tmp_path).add(IMAGES, LABELS)
    assert classifier.adaptation_ == "tsa" and classifier.predict(QUERIES).tolist() == WANTED


# --- what is refused, and changes nothing


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda c: c.forget("gren"),
            "no class 'gren', only blue, green, red. Did you mean 'green'",
        ),
        (lambda c: c.forget("blue").forget("red"), "Without 'red' there is only 'green' left"),
        (lambda c: c.forget(), "Nothing is named to be forgotten"),
        (lambda c: c.forget(examples=[6, 7]), r"leave 'blue' without examples: .*forget\('blue'\)"),
        (lambda c: c.forget(examples=8), "no example 8: they count from 0 to 7"),
        (lambda c: c.forget(examples=[1, 1]), "named twice"),
        (lambda c: c.forget(examples="a.png"), "No example is called 'a.png'"),
        (lambda c: c.relabel([], "red"), "No examples are named"),
        (lambda c: c.relabel([0, 1], ["red"]), "There are 1 labels for 2 images"),
        (lambda c: c.relabel(0, 5), "all text or all numbers, not both"),
        (lambda c: c.relabel(0, ["a"][0:0]), "There are 0 labels"),
        (lambda c: c.relabel(list(range(8)), "red"), "All images have the label 'red'"),
        (lambda c: c.relabel(0, None), "Labels are missing"),
        (lambda c: c.relabel(0, {"a": 1}), "not dict"),
        (lambda c: c.relabel(0, "x\x1b[31m"), r"cannot be shown: rename x\\x1b\[31m"),
        (lambda c: c.add(MORE, ["a\nb", *MORE_LABELS[1:]]), r"cannot be shown: rename a\\nb"),
        (lambda c: c.revise([*range(8)], [*LABELS[:7], "\udcff"]), "cannot be shown"),
        (lambda c: c.fit(IMAGES, [*LABELS[:7], "\x07"]), "cannot be shown"),
        (lambda c: c.add(MORE, MORE_LABELS[1:]), "There are 3 labels for 4 images"),
        (lambda c: c.add(MORE, [1, 2, 3, 4]), "all text or all numbers, not both"),
        (lambda c: c.add([], []), "There are no images"),
        (lambda c: c.add("vanished.png", ["red"]), "vanished.png .no such file"),
        (lambda c: c.next_to_label("vanished.png"), "vanished.png .no such file"),
    ],
)
def test_bad_steps(step: Step, message: str) -> None:
    classifier = POOL.classifier(adaptation="none").fit(IMAGES, LABELS)
    with pytest.raises(PolyshotError, match=message) as error:
        step(classifier)
    assert "\n" not in str(error.value)
    assert {"green", "red"} <= {*classifier.classes_}
    assert len(classifier.predict(QUERIES)) == 6


def test_none_rates_that_the_rest_does_not_allow() -> None:
    classifier = POOL.classifier(adaptation="none", none_rate=0.12).fit(IMAGES, LABELS)
    before = classifier.predict_proba(QUERIES)
    with pytest.raises(PolyshotError, match=r"none_rate of 0\.12 needs 8 examples"):
        classifier.forget("blue")
    np.testing.assert_array_equal(classifier.predict_proba(QUERIES), before)
    with pytest.raises(PolyshotError, match="A class is called 'none of these'"):
        classifier.add(MORE[:1], ["none of these"])


def test_without_examples_nothing_goes_on(tmp_path: Path) -> None:
    POOL.classifier(adaptation="none").fit(IMAGES, LABELS).save(tmp_path / "c", examples=False)
    classifier = FewShotClassifier.load(tmp_path / "c")
    assert classifier.estimate().images == 8
    steps: list[Step] = [*STEPS.values(), lambda c: c.suspects(), lambda c: c.curve()]
    for step in steps:
        with pytest.raises(PolyshotError, match="saved without its examples"):
            step(classifier)
    for step in steps:
        with pytest.raises(PolyshotError, match="call fit"):
            step(POOL.classifier())
    with pytest.raises(PolyshotError, match="call fit"):
        POOL.classifier().next_to_label(QUERIES)


# --- what it asks for


def test_suspects(tmp_path: Path) -> None:
    paths = []
    for i, image in enumerate(IMAGES):
        image.save(tmp_path / f"{i}.png")
        paths.append(tmp_path / f"{i}.png")
    labels = list(LABELS)
    labels[1], labels[4] = "blue", "red"  # a red one and a green one under wrong names
    for adaptation in ("none", "ridge", "tsa"):
        classifier = loaded(POOL.classifier("auto", adaptation).fit(paths, labels), tmp_path)
        found = classifier.suspects()
        assert {(each.example, each.likely) for each in found[:2]} == {(1, "red"), (4, "green")}
        gaps = [each.probability - each.own_probability for each in found]
        assert gaps == sorted(gaps, reverse=True) and gaps[-1] >= 0
        assert found[0].name == str(paths[found[0].example])
        assert found[0].label == labels[found[0].example]
    for each in found[:2]:
        classifier.relabel(each.name, each.likely)
    assert classifier.suspects() == [] and classifier.predict(QUERIES).tolist() == WANTED
    with pytest.raises(PolyshotError, match="No class has two examples"):
        POOL.classifier().fit(*examples(1, 1)).suspects()


def test_what_to_label_next() -> None:
    classifier = POOL.classifier("average", "none").fit(*examples(4, 4))
    red, green = ([coloured(c, s) for s in (50, 51)] for c in ("red", "green"))
    mixed = [np.asarray(r) // 2 + np.asarray(g) // 2 for r, g in zip(red, green, strict=True)]
    images = [np.asarray(red[0]), mixed[0], np.asarray(green[0]), mixed[0], mixed[1]]
    order = classifier.next_to_label(images)
    assert sorted(each.image for each in order) == list(range(5))
    assert classifier.next_to_label(images, 2) == order[:2]
    first = order[0]
    doubts = 1 - np.abs(np.diff(classifier.predict_proba(images))[:, 0])
    assert first.image == doubts.argmax() and first.image in (1, 3, 4)
    # The twin of an image that was asked about would tell nothing new.
    places = [[each.image for each in order].index(twin) for twin in (1, 3)]
    assert max(places) == 4
    chances = classifier.predict_proba(images)[first.image]
    assert first.probability == pytest.approx(chances.max())
    assert first.label == classifier.classes_[chances.argmax()] != first.runner_up


def test_the_curve_of_what_is_learned_already() -> None:
    curve = POOL.classifier("average", "ridge").fit(*examples(6, 6, 4)).curve()
    assert curve.shots == (1, 2, 5) and curve.of == "ridge"
    assert all(
        lo <= mean <= hi for lo, mean, hi in zip(curve.low, curve.accuracy, curve.high, strict=True)
    )
    assert curve.accuracy[-1] > 0.95 and curve.more_would_help is False
    assert "would hardly help" in str(curve)
    two = POOL.classifier("average", "none").fit(*examples(2, 2)).curve()
    assert two.shots == (1,) and two.gain is None and two.more_would_help is None
    assert "nothing can be told" in str(two)


def test_the_curve_of_what_is_hard() -> None:
    """Classes that overlap: more examples tell their means better."""
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    vectors = draw.normal(size=(120, 30)) * 3 + 1.5 * draw.normal(size=(3, 30))[labels]
    classifier = Pool.from_embeddings(30).classifier(adaptation="ridge").fit(vectors, labels)
    curve = classifier.curve()
    assert curve.shots == (1, 2, 4, 8, 16, 32)
    assert curve.accuracy[0] < curve.accuracy[2] < curve.accuracy[4]
    assert curve.gain is not None and curve.gain_low < curve.gain < curve.gain_high
    assert curve == classifier.curve() != classifier.curve(seed=1)
    few = Pool.from_embeddings(30).classifier(adaptation="ridge")
    few.fit(vectors[::5], labels[::5])
    assert few.curve().gain > curve.gain


def test_small_images_are_kept_without_loss() -> None:
    small = np.asarray(picture(1, (LOSSLESS, LOSSLESS))).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(encode(small), LOSSLESS), small)
    large = np.asarray(picture(1, (224, 224))).transpose(2, 0, 1)
    again = decode(encode(large), 224)
    assert np.abs(again.astype(float) - large).mean() < 3
    assert len(encode(large)) < 20_000
    some = Pictures(LOSSLESS, [small, encode(small)]).joined([1], Pictures(LOSSLESS, [small]))
    np.testing.assert_array_equal(some.pixels, [small, small])
    assert some.files[0] == some.files[1]
    with pytest.raises(PolyshotError, match="damaged"):
        Pictures(16, [b"nothing"]).pixels  # noqa: B018


def test_every_rule_can_be_corrected() -> None:
    for rule in RULES:
        classifier = POOL.classifier(rule, "head").fit(IMAGES, LABELS).add(MORE, MORE_LABELS)
        if rule != "soup":  # the mean of random networks need not tell colours apart
            assert classifier.predict(QUERIES).tolist() == WANTED
            continue
        anew = POOL.classifier(rule, "head").fit([*IMAGES, *MORE], [*LABELS, *MORE_LABELS])
        np.testing.assert_allclose(
            classifier.predict_proba(QUERIES), anew.predict_proba(QUERIES), atol=1e-5
        )


def test_judge_tells_from_which_rate_on_an_image_is_none() -> None:
    images, labels = examples(4, 4, 4)
    asked = [coloured("red", 99), picture(3), coloured("blue", 5)]
    fitted = FewShotClassifier(POOL, "average", "ridge").fit(images, labels)
    chances, rates = fitted.judge(asked)
    assert rates is not None and np.array_equal(chances, fitted.predict_proba(asked))
    for rate in (0.08, 0.2, 0.5, 0.93):
        own = FewShotClassifier(POOL, "average", "ridge", none_rate=rate)
        _, none = own.fit(images, labels).answer(asked)
        assert none is not None and none.tolist() == (rates <= rate).tolist()
    fitted.fit(*examples(1, 1, 1))
    assert fitted.judge(asked)[1] is None  # nothing can be left out


def test_revise_does_all_corrections_at_once() -> None:
    images, labels = examples(4, 4, 4)
    made = FewShotClassifier(POOL, "average", "ridge").fit(images, labels)
    other = FewShotClassifier(POOL, "average", "ridge").fit(images, labels)
    given = [*labels[1:8], *labels[9:], "yak", "yak"]
    kept = [i for i in range(12) if i not in (0, 8)]
    made.revise(kept, given, [picture(7), picture(8)])
    other.forget(examples=[0, 8]).add([picture(7), picture(8)], ["yak", "yak"])
    assert made.example_labels() == given == other.example_labels()
    asked = [picture(9), coloured("green", 50)]
    assert np.array_equal(made.predict_proba(asked), other.predict_proba(asked))
    assert made.revise([0, 1, 4], ["a", "b", "b"]).example_labels() == ["a", "b", "b"]
    assert [label for _, label, _ in made.example_pictures()] == ["a", "b", "b"]
    with pytest.raises(PolyshotError, match="labels for"):
        made.revise([0, 1], ["a"])
