"""scikit-learn's contract, held to by scikit-learn itself."""

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from polyshot import FewShotClassifier, ImageEmbedder, PolyshotError, Pool
from polyshot.classifier import estimator
from polyshot.pool.default import VARIABLE
from tests.helpers import colour_pool as make_pool
from tests.helpers import examples, random_pool

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone, is_classifier  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

POOL = make_pool()
IMAGES, LABELS = examples(4, 4, 4)
QUERIES, WANTED = examples(2, 2, 2, first=50)

OWN_WORDS = "it is refused, in words of our own"
EXPECTED = {
    "check_fit_score_takes_y": "the arguments are called images and labels",
    "check_do_not_raise_errors_in_init_or_set_params": "a list without pools is refused at once",
    "check_n_features_in_after_fitting": OWN_WORDS,
    "check_requires_y_none": OWN_WORDS,
    "check_dtype_object": OWN_WORDS,
    "check_supervised_y_2d": "a table of labels is refused, one with a single column, too",
    "check_classifiers_regression_target": "numbers of any kind are labels",
    "check_methods_sample_order_invariance": "float32: the order of a sum shows in the last digit",
    "check_fit2d_predict1d": "one embedding is taken for a list of one, as one image is",
}
"""Checks of numeric tables that do not hold here, and why."""


def expected_failures(made: Any) -> dict[str, str]:
    return EXPECTED if isinstance(made, FewShotClassifier) and made.takes_embeddings else {}


with warnings.catch_warnings():
    # It says that nothing inherits from scikit-learn's own base, which is not at hand everywhere.
    warnings.simplefilter("ignore")
    CHECKED = parametrize_with_checks(
        [
            FewShotClassifier("embeddings", adaptation="ridge"),
            FewShotClassifier("embeddings", adaptation="none", precision="full"),
            FewShotClassifier(POOL, "average"),  # images are no tables: what holds for all is left
            ImageEmbedder(POOL),
        ],
        expected_failed_checks=expected_failures,
    )


@CHECKED
@pytest.mark.filterwarnings("ignore:Estimator .* does not inherit")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_what_scikit_learn_expects(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_parameters() -> None:
    classifier = FewShotClassifier(POOL, "average", none_rate=0.2)
    given = classifier.get_params()
    assert list(given) == ["pool", "rule", "adaptation", "batch", "none_rate", "precision"]
    assert given["pool"] is POOL and given["none_rate"] == 0.2
    assert classifier.set_params(rule="base", adaptation="head") is classifier
    assert (classifier.rule, classifier.adaptation) == ("base", "head")
    with pytest.raises(ValueError, match="no parameter 'rules', only pool, rule, adapt"):
        classifier.set_params(rules="base")
    classifier.set_params(rule="bse")
    with pytest.raises(PolyshotError, match="Did you mean 'base'"):
        classifier.fit(IMAGES, LABELS)


def test_clones_share_the_pool_and_nothing_that_was_learned() -> None:
    fitted = FewShotClassifier(POOL, "average", "ridge", none_rate=0.3).fit(IMAGES, LABELS)
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params() and copied.pool is POOL
    with pytest.raises(NotFittedError, match="call fit"):
        copied.predict(QUERIES)
    check_is_fitted(fitted)
    with pytest.raises(NotFittedError):
        check_is_fitted(copied)
    several = clone(FewShotClassifier([POOL, make_pool(choice=2)]))
    assert several.pools[0] is POOL and is_classifier(several)
    assert clone(ImageEmbedder(POOL, unit=False)).get_params()["unit"] is False


def test_a_short_description() -> None:
    assert repr(FewShotClassifier()) == "FewShotClassifier('default')"
    shown = repr(FewShotClassifier(POOL, "base", none_rate=0.1).fit(IMAGES, LABELS))
    assert shown == "FewShotClassifier(<pool on resnet18>, rule='base', none_rate=0.1)"
    assert (
        repr(FewShotClassifier([POOL, POOL]))
        == "FewShotClassifier(<pools on resnet18 and resnet18>)"
    )
    assert repr(ImageEmbedder("fast", member="cars")) == "ImageEmbedder('fast', member='cars')"


def test_scores_are_accuracies() -> None:
    classifier = FewShotClassifier(POOL, "average", "none").fit(IMAGES, LABELS)
    assert classifier.score(QUERIES, WANTED) == 1.0
    assert classifier.score(QUERIES, ["red"] * 6) == pytest.approx(1 / 3)
    assert classifier.score(QUERIES, ["red"] * 6, [1, 1, 0, 0, 0, 0]) == 1.0
    with pytest.raises(PolyshotError, match="5 labels for 6 images"):
        classifier.score(QUERIES, WANTED[:5])


def test_cross_validation_and_search() -> None:
    scores = cross_val_score(FewShotClassifier(POOL, "average", "ridge"), IMAGES, LABELS, cv=2)
    assert scores.tolist() == [1.0, 1.0]
    grid = {"rule": ["base", "average", "blend"], "adaptation": ["none", "ridge", "pa"]}
    search = GridSearchCV(FewShotClassifier(POOL), grid, cv=2, error_score="raise")
    search.fit(IMAGES, LABELS)
    assert search.best_score_ == 1.0 and len(search.cv_results_["params"]) == 9
    assert search.predict(QUERIES).tolist() == WANTED
    assert search.best_estimator_.pool is POOL


def test_pipelines() -> None:
    for last in (LogisticRegression(), FewShotClassifier("embeddings", adaptation="ridge")):
        pipeline = make_pipeline(ImageEmbedder(POOL), last).fit(IMAGES, LABELS)
        assert pipeline.score(QUERIES, WANTED) == 1.0
        assert "ImageEmbedder" in repr(pipeline)
    embedder = ImageEmbedder(POOL, member="cars", unit=False)
    made = embedder.fit(IMAGES).transform(IMAGES)
    assert made.shape == (12, POOL.config.dim) == (12, len(embedder.get_feature_names_out()))
    pixels = np.stack([np.asarray(each.resize((POOL.size, POOL.size))) for each in IMAGES])
    expected = POOL.embed(pixels.transpose(0, 3, 1, 2), [2])[0]
    np.testing.assert_allclose(embedder.transform(pixels), expected, atol=1e-5)
    np.testing.assert_array_equal(embedder.fit_transform(IMAGES), made)
    # What classifies by embeddings classifies as the pool's own classifier does.
    own = FewShotClassifier(POOL, "base", "ridge").fit(IMAGES, LABELS)
    np.testing.assert_allclose(
        pipeline.predict_proba(QUERIES), own.predict_proba(QUERIES), atol=0.2
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ImageEmbedder([POOL, POOL]), "takes one pool, not several"),
        (ImageEmbedder(POOL, member="car"), "Did you mean 'cars'"),
        (ImageEmbedder(Pool.from_embeddings(3)), "takes embeddings"),
        (ImageEmbedder(3), "the name of one, not a int"),  # type: ignore[arg-type]
        (ImageEmbedder([3]), "not a list of others"),  # type: ignore[list-item]
    ],
)
def test_embedders_that_cannot_be(given: ImageEmbedder, message: str) -> None:
    with pytest.raises(PolyshotError, match=message):
        given.fit(IMAGES)


def test_pools_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def load(name: str, *_: object) -> tuple[list[Pool], str]:
        loads.append(name)
        return [POOL], ""

    monkeypatch.setattr(estimator, "load_pools", load)
    estimator._named.cache_clear()
    try:
        classifier = FewShotClassifier("colours", "average", "ridge")
        assert not loads and len(pickle.dumps(classifier)) < 500
        for one in (classifier, clone(classifier)):
            assert one.fit(IMAGES, LABELS).predict(QUERIES).tolist() == WANTED
        assert loads == ["colours"]
        monkeypatch.setenv(VARIABLE, "another")
        assert classifier.pools == [POOL] and loads == ["colours"] * 2
    finally:
        estimator._named.cache_clear()


def test_pickles_are_small_and_exact() -> None:
    pool = random_pool("conv1x1")
    again = pickle.loads(pickle.dumps(pool))
    assert again.hash == pool.hash and again.members == pool.members
    before = len(pickle.dumps(pool))
    pool.network(1), pool.network(2)  # what is made of it is not pickled
    assert len(pickle.dumps(pool)) == before
    fitted = FewShotClassifier(POOL, "select", "ridge").fit(IMAGES, LABELS)
    whole = len(pickle.dumps(fitted))
    assert whole < len(pickle.dumps(POOL))  # of the member that answers
    for copied in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), copy.copy(fitted)):
        np.testing.assert_array_equal(copied.predict_proba(QUERIES), fitted.predict_proba(QUERIES))
    other = copy.deepcopy(POOL)
    assert other.base is not POOL.base and other.hash == POOL.hash


def test_six_bit_pools_stay_small_in_pickles(tmp_path: Any) -> None:
    full = random_pool("conv1x1")
    full.save(tmp_path / "six", precision="six")
    pool = Pool.load(tmp_path / "six")
    data = pickle.dumps(pool)
    assert len(data) < 0.6 * len(pickle.dumps(full)) and pickle.loads(data).hash == pool.hash


@pytest.mark.parametrize("adaptation", ["ridge", "tsa"])
def test_several_threads_at_once(adaptation: str) -> None:
    pool = copy.deepcopy(POOL)  # nobody has made its networks yet
    fitted = FewShotClassifier(pool, "auto", adaptation).fit(IMAGES, LABELS)
    before = torch.get_num_threads(), list(warnings.filters)
    expected = fitted.predict_proba(QUERIES)

    def work(number: int) -> Any:
        if number % 2:
            return fitted.predict_proba(QUERIES)
        return clone(fitted).fit(IMAGES, LABELS).predict_proba(QUERIES)

    def embed(number: int) -> Any:
        vectors = np.random.default_rng(number).normal(size=(6, 4))
        made = FewShotClassifier(Pool.from_embeddings(4), adaptation="ridge")
        return (
            made.fit(vectors, list("aabbcc"))
            .add(vectors, list("aabbcc"))
            .score(vectors, list("aabbcc"))
        )

    with ThreadPoolExecutor(4) as threads:
        for answer in threads.map(work, range(12)):
            np.testing.assert_allclose(answer, expected, atol=1e-5)
        assert min(threads.map(embed, range(8))) > 0.5
    assert (torch.get_num_threads(), list(warnings.filters)) == before


@pytest.mark.slow
def test_joblib_in_processes() -> None:
    scores = cross_val_score(
        FewShotClassifier(POOL, "average", "ridge"), IMAGES, LABELS, cv=2, n_jobs=2
    )
    assert scores.tolist() == [1.0, 1.0]


def test_nothing_asks_for_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    classifier = FewShotClassifier(POOL, "average", "ridge")
    with pytest.raises(PolyshotError, match="call fit"):
        classifier.predict(QUERIES)
    assert classifier.fit(IMAGES, LABELS).score(QUERIES, WANTED) == 1.0
    assert pickle.loads(pickle.dumps(classifier)).get_params().keys() and repr(classifier)


@pytest.mark.slow
def test_scikit_learn_stays_an_extra() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from polyshot import FewShotClassifier, ImageEmbedder\n"
        "made = FewShotClassifier('embeddings', adaptation='ridge')\n"
        "made.fit([[1., 0.], [0., 1.]], ['a', 'b'])\n"
        "print(made, made.predict([[2., 0.1]])[0], 'sklearn.base' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split()[-2:] == ["a", "False"]
