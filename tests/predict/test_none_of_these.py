"""None of these: a threshold that keeps its promise, and foreign images that are found out."""

import csv
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from polyshot.classifier import FewShotClassifier, label_files
from polyshot.config import override, preset
from polyshot.data import toy
from polyshot.data.toy import draw_packs
from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.pool.pool import Pool
from polyshot.predict.none_of_these import NONE, learn_nearness, set_threshold, with_none
from polyshot.training.run import train
from tests.helpers import COLOUR_RULES as RULES
from tests.helpers import COLOURS, coloured, examples
from tests.helpers import colour_pool as make_pool

POOL = make_pool()

# --- the threshold


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
)
def test_at_most_the_rate_of_examples_and_one_more_fall_below(
    values: list[int], rate: float
) -> None:
    """Whichever of n + 1 images is the new one, few enough of them are called none of these."""
    count = len(values) - 1
    false_alarms = 0
    for i, new in enumerate(values):
        others = torch.tensor([float(v) for v in values[:i] + values[i + 1 :]])
        if math.floor(rate * (count + 1) + 1e-9) < 1 or not count:
            with pytest.raises(PolyshotError):
                set_threshold(others, rate)
            return
        threshold = set_threshold(others, rate)
        assert threshold.examples == count and 0 < threshold.rate <= rate + 1e-9
        # Neither is a stricter one possible: the next rank would promise more than the rate.
        assert (threshold.rank + 1) / (count + 1) > rate
        false_alarms += bool(threshold.below(torch.tensor([float(new)]))[0])
    assert false_alarms <= rate * len(values) + 1e-9


def test_a_threshold_by_hand() -> None:
    nearness = torch.tensor([0.9, 0.5, 0.7, 0.8, 0.6, 0.95, 0.85, 0.75, 0.65])
    threshold = set_threshold(nearness, 0.25)  # of 10: the second
    assert (threshold.rank, threshold.examples, threshold.rate) == (2, 9, 0.2)
    assert threshold.value == pytest.approx(0.6, abs=2e-5)
    assert threshold.below(torch.tensor([0.59, 0.6, 0.61])).tolist() == [True, False, False]
    assert set_threshold(torch.rand(99), 0.29).rank == 29  # 0.29 * 100 is below 29 in floats


def test_a_rate_that_needs_more_examples_says_how_many() -> None:
    with pytest.raises(PolyshotError) as error:
        set_threshold(torch.rand(15), 0.05)
    assert str(error.value) == (
        "A none_rate of 0.05 needs 19 examples that have another of their class, there are 15: "
        "give more examples, or a rate of 0.063 or more."
    )
    assert set_threshold(torch.rand(15), 0.063).rank == 1
    assert set_threshold(torch.rand(19), 0.05).rank == 1


# --- nearness


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_nearness_is_that_of_a_naive_loop(metric: Metric) -> None:
    draw = torch.Generator().manual_seed(0)
    mask = torch.tensor([[[1, 1, 1], [1, 0, 0], [1, 1, 0]]], dtype=torch.bool)
    networks = [
        (weight, torch.randn(1, 3, 3, 6, generator=draw), scale)
        for weight, scale in ((0.75, 2.0), (0.25, 3.0))
    ]

    def naive(image: list[np.ndarray], left_out: tuple[int, int] | None) -> float:
        best = -math.inf
        for c in range(3):
            total = 0.0
            for (weight, support, scale), x in zip(networks, image, strict=True):
                kept = [s for s in range(3) if mask[0, c, s] and (c, s) != left_out]
                own = support[0, c, kept].double().numpy()
                if metric == "cosine":
                    own = own / np.linalg.norm(own, axis=1, keepdims=True)
                    p = own.mean(0)
                    total += weight * float(x @ p / np.linalg.norm(x) / np.linalg.norm(p))
                else:
                    total -= weight * scale * float(np.square(x - own.mean(0)).sum())
            best = max(best, total)
        return best

    near, left_out = learn_nearness(networks, mask, metric)
    places = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]  # the only one of its class stays
    expected = [
        naive([support[0, c, s].double().numpy() for _, support, _ in networks], (c, s))
        for c, s in places
    ]
    np.testing.assert_allclose(left_out, expected, rtol=1e-4)
    queries = [torch.randn(4, 6, generator=draw) for _ in networks]
    expected = [naive([q[i].double().numpy() for q in queries], None) for i in range(4)]
    np.testing.assert_allclose(near.of(queries), expected, rtol=1e-4)
    assert not len(learn_nearness([(1.0, torch.rand(1, 3, 1, 6), 1.0)], mask[..., :1], metric)[1])


# --- the classifier


def chequered(seed: int) -> Image.Image:
    """A picture unlike a plain colour."""
    draw = np.random.default_rng(seed)
    squares = 255 * ((np.indices((19, 23)).sum(0) // draw.integers(1, 4)) % 2)
    return Image.fromarray(squares.astype(np.uint8)).convert("RGB")


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("adaptation", ["none", "head", "pa", "tsa"])
def test_every_rule_and_adaptation(adaptation: str, metric: Metric) -> None:
    pool = POOL if metric == "cosine" else make_pool("euclidean")
    images, labels = examples(7, 6, 7)
    own, wanted = examples(4, 4, 4, first=60)
    strange = [chequered(seed) for seed in range(5)]
    for rule in RULES if metric == "cosine" else ["auto", "blend"]:
        plain = pool.classifier(rule, adaptation).fit(images, labels)
        classifier = pool.classifier(rule, adaptation, none_rate=0.05).fit(images, labels)
        assert classifier.threshold_ is not None and plain.threshold_ is None
        assert (classifier.threshold_.rank, classifier.threshold_.examples) == (1, 20)
        answers = classifier.predict([*own, *strange])
        kept = answers[:12] != NONE
        assert kept.mean() >= 0.75, rule
        assert answers[:12][kept].tolist() == [w for w, k in zip(wanted, kept, strict=True) if k]
        assert answers[12:].tolist() == [NONE] * 5, rule
        # Probabilities and the estimate are those without it.
        queries = [*own, *strange]
        np.testing.assert_array_equal(
            classifier.predict_proba(queries), plain.predict_proba(queries)
        )
        if adaptation == "none":
            assert classifier.estimate() == plain.estimate()


@pytest.mark.parametrize(("rule", "adaptation"), [("auto", "tsa"), ("blend", "tsa"), ("sum", "pa")])
def test_learning_does_not_move_the_threshold(rule: str, adaptation: str) -> None:
    """What is learned has seen the examples: by it they would seem nearer than they are."""
    learned, plain = (
        POOL.classifier(rule, name, none_rate=0.1).fit(*examples(4, 4, 4))
        for name in (adaptation, "none")
    )
    assert learned.adapted_
    assert learned.threshold_ == plain.threshold_
    again = pickle.loads(pickle.dumps(learned))
    images, _ = examples(2, 2, 2, first=40)
    queries = [*images, chequered(1)]
    assert again.predict(queries).tolist() == learned.predict(queries).tolist()


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(RULES), st.permutations(range(8)), st.integers(1, 8))
def test_no_query_changes_another(rule: str, order: list[int], count: int) -> None:
    classifier = POOL.classifier(rule, "none", none_rate=0.2).fit(*examples(3, 3, 3))
    queries = [*examples(2, 2, 1, first=30)[0], *(chequered(seed) for seed in range(3))]
    alone = np.concatenate([classifier.predict(query) for query in queries])
    some = order[:count]
    assert classifier.predict([queries[i] for i in some]).tolist() == alone[some].tolist()


def test_the_examples_themselves_are_kept() -> None:
    images, labels = examples(4, 4, 4)
    for copies in (images, [coloured(label, 1) for label in labels]):  # all the same, by class
        classifier = POOL.classifier(none_rate=0.08).fit(copies, labels)
        assert NONE not in classifier.predict(copies)


def test_numbers_and_the_answer_in_one_array() -> None:
    images, names = examples(5, 5)
    numbers = [list(COLOURS).index(name) for name in names]
    classifier = POOL.classifier("base", "none", none_rate=0.1).fit(images, numbers)
    answers = classifier.predict([images[0], chequered(1)])
    assert answers.dtype == object and answers.tolist() == [0, NONE]
    long = with_none(np.array(["a", "b"]), np.array([False, True]))
    assert long.dtype.kind == "U" and long.tolist() == ["a", NONE]


@pytest.mark.parametrize("rate", [0, 1, -0.1, 5, math.nan])
def test_no_share_of_false_alarms(rate: float) -> None:
    with pytest.raises(PolyshotError, match=r"more than 0 and less than 1 \(0\.05 is one in"):
        FewShotClassifier(POOL, none_rate=rate)


def test_what_cannot_be_promised_is_refused() -> None:
    classifier = POOL.classifier(none_rate=0.05)
    with pytest.raises(PolyshotError, match="call fit"):
        classifier.predict(coloured("red", 1))
    with pytest.raises(PolyshotError, match="no class has two images: give two"):
        classifier.fit(*examples(1, 1, 1))
    with pytest.raises(PolyshotError, match=r"needs 19 examples .* there are 8: .* 0\.112 or more"):
        classifier.fit(*examples(4, 4, 1))
    images, _ = examples(10, 10)
    for name in (NONE, "None of These "):
        labels = [name] * 10 + ["other"] * 10
        with pytest.raises(PolyshotError, match=f"A class is called '{name}'.*rename it") as error:
            classifier.fit(images, labels)
        assert "\n" not in str(error.value)
        assert POOL.classifier().fit(images, labels).predict(images[0]).tolist() == [name]


# --- embedded domains


def draw(folder: Path, domain: str, numbers: range) -> Path:
    """Draw five classes of an embedded domain into a folder for each."""
    for c, name in enumerate(toy.DOMAINS[domain].class_names[:5]):
        (folder / name).mkdir(parents=True)
        for i in numbers:
            pixels = toy.draw_one(domain, c, i, 24, 0).transpose(1, 2, 0)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Pool:
    """A base that has seen letters, textures and vehicles for some seconds."""
    folder = tmp_path_factory.mktemp("trained")
    names = ["glyphs", "textures", "vehicles"]
    packs = draw_packs(folder / "packs", names, size=24, per_class=16, workers=1)
    options = ["size=24", "model.width=8", "base.steps=160", "base.batch=64", "base.warm_up=5"]
    rarely = ["base.validate_every=160", "validation_episodes=5"]
    config = override(preset("tiny"), [*options, *rarely])
    return train(packs, config, folder / "run", step="base", device="cpu")


def test_images_of_another_domain_are_found_out(trained: Pool, tmp_path: Path) -> None:
    support = draw(tmp_path / "examples", "signs", range(8))
    own = draw(tmp_path / "own", "signs", range(8, 16))
    foreign = [draw(tmp_path / name, name, range(8)) for name in ("strokes", "plankton")]
    answer = label_files(trained, support, [own, *foreign], "base", "head", none_rate=0.05)
    none = np.array([row.label == NONE for row in answer.rows])
    assert none[:40].mean() <= 0.15 and none[40:].mean() >= 0.8
    for row in answer.rows:
        assert (row.probability is None) == (row.label == NONE)
        assert row.runner_up != row.label and 0 < row.runner_up_probability <= 1
    assert answer.threshold is not None and answer.threshold.rate == 2 / 41
    assert answer.none_summary == (
        f"None of these: {none.sum()} of 120 images. Of images that are of your classes about 4.9% "
        "are expected to get this answer by mistake (from leaving out each of 40 examples)."
    )
    plain = label_files(trained, support, [own, *foreign], "base", "head")
    assert plain.estimate == answer.estimate and plain.none_summary == ""
    for one, other in zip(plain.rows, answer.rows, strict=True):
        if other.label == NONE:  # what it would have been is not lost
            assert (other.runner_up, other.runner_up_probability) == (one.label, one.probability)
        else:
            assert one == other
    answer.write_csv(tmp_path / "labels.csv")
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] == NONE for row in rows] == none.tolist()
    assert [row["probability"] == "" for row in rows] == none.tolist()
