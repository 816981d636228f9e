"""A pool without a network: who has embeddings gets the answers of a pool that made them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.pool.pool import Pool

DIM, SIDE = 6, 8
LABELS = ["a", "b", "c"] * 4


def pools(metric: Metric = "cosine") -> tuple[Pool, Pool]:
    """A pool on images, and one for what it makes of them."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, DIM, 3), nn.AdaptiveMaxPool2d(2), nn.Flatten())
    on_images = Pool.from_backbone(network, SIDE, metric=metric)
    return on_images, Pool.from_embeddings(4 * DIM, metric)


def pictures(count: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(
    ("rule", "adaptation"),
    [
        *(("base", adaptation) for adaptation in ("none", "head", "pa")),
        *((rule, "none") for rule in ("auto", "average", "loo", "sum", "sur")),
    ],
)
def test_answers_are_those_of_the_pool_on_images(
    rule: str, adaptation: str, metric: Metric
) -> None:
    on_images, on_embeddings = pools(metric)
    examples, queries = pictures(12, 1), pictures(5, 2)
    known = on_images.classifier(rule, adaptation).fit(list(examples), LABELS)
    given = on_images.embed(examples)[0]
    asked = on_images.embed(queries)[0]
    ours = on_embeddings.classifier(rule, adaptation).fit(given, LABELS)
    chances = known.predict_proba(list(queries))
    np.testing.assert_allclose(ours.predict_proba(asked), chances, rtol=1e-4, atol=1e-6)
    assert list(ours.predict(asked.numpy())) == list(known.predict(list(queries)))
    assert ours.estimate() == known.estimate() and ours.explain() == known.explain()


def test_none_of_these_works_on_embeddings() -> None:
    on_images, on_embeddings = pools()
    given = on_images.embed(pictures(12, 1))[0]
    classifier = on_embeddings.classifier("base", "none", none_rate=0.1).fit(given, LABELS)
    assert "none of these" in classifier.predict(torch.cat([given[:1], -given[:1]]))


def test_auto_never_learns_a_network() -> None:
    _, pool = pools()
    classifier = pool.classifier().fit(torch.randn(12, 4 * DIM), LABELS)
    assert classifier.adaptation_ == "ridge"


@pytest.mark.parametrize("options", [{"adaptation": "tsa"}, {"rule": "blend"}])
def test_what_runs_networks_is_refused(options: dict[str, str]) -> None:
    _, pool = pools()
    with pytest.raises(PolyshotError, match="runs networks on images, but this pool takes emb"):
        pool.classifier(**options)


def test_embeddings_in_every_form() -> None:
    _, pool = pools()
    given = torch.randn(12, 4 * DIM)
    classifier = pool.classifier("base", "none").fit(given, LABELS)
    answers = classifier.predict_proba(given)
    forms: list[Any] = [given.numpy(), given.double(), given.tolist(), list(given), tuple(given)]
    forms += [list(given.numpy()), given.clone().requires_grad_()]
    for form in forms:
        np.testing.assert_allclose(classifier.predict_proba(form), answers, rtol=1e-5, atol=1e-7)
    assert classifier.predict(given[0]).shape == classifier.predict(given[0].tolist()).shape == (1,)
    assert classifier.predict_proba(given.half()).shape == answers.shape
    assert classifier.predict_proba(given.bfloat16()).shape == answers.shape


def spoiled(value: float) -> Tensor:
    given = torch.zeros(3, 4 * DIM)
    given[1, 2] = value
    return given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(3, 5), r"takes embeddings \[n, 24\], not \[3, 5\]"),
        (torch.zeros(5), r"not \[5\]"),
        (torch.zeros(2, 3, SIDE, SIDE), r"not \[2, 3, 8, 8\]"),
        (torch.zeros(3, 4 * DIM, dtype=torch.bool), "of bool"),
        (torch.zeros(0, 4 * DIM), "no embeddings"),
        (spoiled(float("nan")), "not those of rows 1"),
        (spoiled(float("inf")), "not those of rows 1"),
        (
            1e30 * torch.ones(3, 4 * DIM),
            "have entries of 1e[+]30 at most, which",
        ),
        (1e-30 * torch.ones(3, 4 * DIM), "have entries of 1e-30 at most"),
        (["cat.jpg", "dog.jpg"], "one array of floats"),
        (Path("cat.jpg"), "one array of floats"),
        ([[1.0, 2.0], [1.0]], "one array of floats"),
        ([], "not"),
        (None, "one array of floats"),
    ],
)
def test_what_are_no_embeddings_is_said_in_one_line(given: Any, message: str) -> None:
    _, pool = pools()
    classifier = pool.classifier("base", "none")
    with pytest.raises(PolyshotError, match=message) as told:
        classifier.fit(given, ["a", "b", "c"])
    assert "\n" not in str(told.value)
    classifier.fit(torch.randn(3, 4 * DIM), ["a", "b", "c"])
    with pytest.raises(PolyshotError, match=message):
        classifier.predict(given)


def test_images_are_refused() -> None:
    _, pool = pools()
    with pytest.raises(PolyshotError, match=r"takes embeddings .* and no images"):
        pool.embed(pictures(2, 0))
    with pytest.raises(PolyshotError, match=r"takes embeddings .* and no images"):
        pool.base(torch.zeros(1, 3, SIDE, SIDE))


@pytest.mark.parametrize("dim", [0, -1, 2.0, "24", None, 1 << 30])
def test_lengths_that_are_none(dim: Any) -> None:
    with pytest.raises(PolyshotError, match="Embeddings have 1 to"):
        Pool.from_embeddings(dim)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    _, pool = pools("euclidean")
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool")
    assert (again.config, again.metric, again.hash) == (pool.config, "euclidean", pool.hash)
    given = torch.randn(12, 4 * DIM)
    answers = [
        each.classifier("base", "head").fit(given, LABELS).predict_proba(given)
        for each in (pool, again)
    ]
    assert np.array_equal(*answers)
    assert Pool.from_embeddings(7).hash != Pool.from_embeddings(8).hash
