"""Ensembles: several pools on backbones of their own, and the forms of the default."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from polyshot.evaluation.evaluate import confusion, evaluate
from polyshot.models import loaders
from polyshot.models.loaders import LITE0, LITE2
from polyshot.pool import default, forms
from polyshot.pool.forms import load_pools
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import (
    LEAD,
    POWER,
    SHARPNESS,
    chosen,
    fit_ensemble,
    left_out_loss,
    mixed,
    predict_ensemble,
)
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import rule
from tests.helpers import (
    colour_pool,
    examples,
    pack_of,
    random_pool,
    random_tasks,
    thin_lite0,
)

OURS = colour_pool()


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Two threads would only wait for each other."""


@pytest.fixture(scope="module")
def lite0() -> Pool:
    """A network of another kind and size, with weights by chance."""
    torch.manual_seed(0)
    return Pool.from_backbone(thin_lite0(), 32, views="one")


def test_pools_answer_together_as_by_hand(lite0: Pool) -> None:
    tasks = random_tasks(shot=3)
    pools = [random_pool(), replace(lite0, metric="cosine")]
    rules = [rule("auto", pool) for pool in pools]
    fitted = fit_ensemble(pools, [tasks, tasks], rules, ["ridge", "ridge"])
    alone = [
        predict_tasks(pool, tasks, [own], "ridge").probabilities[0]
        for pool, own in zip(pools, rules, strict=True)
    ]
    logs = sum(
        weight[:, None, None] * each.log()
        for weight, each in zip(fitted.weights, alone, strict=True)
    )
    together = fitted.probabilities([tasks, tasks])
    torch.testing.assert_close(together, torch.softmax(POWER * logs, -1))
    torch.testing.assert_close(fitted.weights.sum(0), torch.ones(len(tasks)))
    answers = predict_ensemble(pools, tasks, ["auto", "base"], "ridge")
    torch.testing.assert_close(answers.probabilities[0], together)


def test_with_one_image_a_class_the_first_pool_leads(lite0: Pool) -> None:
    tasks, pools = random_tasks(shot=1), [random_pool(), lite0]
    fitted = fit_ensemble(pools, [tasks] * 2, [rule("base", p) for p in pools], ["ridge"] * 2)
    torch.testing.assert_close(
        fitted.weights[0] / fitted.weights[1], torch.full((len(tasks),), LEAD)
    )


def test_who_errs_on_left_out_images_counts_less() -> None:
    """Of two equal pools one sees noise: its weight falls by the difference of the losses."""
    tasks, pool = random_tasks(shot=4), random_pool()
    blind = replace(pool, adaptation=replace(pool.adaptation, ridge_scale=100.0))
    fitted = fit_ensemble([pool, blind], [tasks] * 2, [rule("base", pool)] * 2, ["ridge", "ridge"])
    losses = [
        left_out_loss(p, tasks, one) for p, one in zip((pool, blind), fitted.pools, strict=True)
    ]
    ratio = LEAD * torch.exp(SHARPNESS * (losses[1] - losses[0]))
    torch.testing.assert_close(fitted.weights[0] / fitted.weights[1], ratio, rtol=1e-4, atol=1e-6)


def test_a_single_pool_is_itself() -> None:
    tasks, pool = random_tasks(), random_pool()
    one = predict_ensemble([pool], tasks, ["auto"], "ridge").probabilities
    torch.testing.assert_close(one, predict_tasks(pool, tasks, [rule("auto", pool)], "ridge")[0])
    answers = torch.rand(2, 3, 4)
    assert mixed([answers], torch.ones(1, 2)) is answers


def test_a_classifier_of_several_pools(lite0: Pool) -> None:
    classifier = FewShotClassifier([OURS, lite0], adaptation="ridge", none_rate=0.3)
    classifier.fit(*examples(4, 3, 3))
    queries, labels = examples(3, 3, 3, first=60)
    named = classifier.classes_[classifier.predict_proba(queries).argmax(1)]
    assert named.tolist() == labels
    single = np.concatenate([classifier.predict_proba([query]) for query in queries])
    np.testing.assert_allclose(single, classifier.predict_proba(queries), atol=1e-5)
    assert classifier.weights_.sum() == pytest.approx(1, abs=1e-5)
    names = [name for name, _ in classifier.explain()]
    assert any(name.startswith("own ") for name in names)
    assert any(name.startswith("resnet18 ") for name in names)
    estimate = classifier.estimate()
    assert estimate.of == "ridge" and estimate.images == 10
    assert classifier.threshold_ is not None


def test_ensembles_that_cannot_be() -> None:
    with pytest.raises(PolyshotError, match="at least one pool"):
        FewShotClassifier([])
    with pytest.raises(PolyshotError, match="take pools of one metric"):
        FewShotClassifier([OURS, colour_pool("euclidean")])
    with pytest.raises(PolyshotError, match="Precomputed embeddings"):
        FewShotClassifier([OURS, Pool.from_embeddings(8)])


def test_evaluate_measures_several_pools(lite0: Pool) -> None:
    pack = pack_of([16] * 6, "d")
    ours = random_pool()
    ours = replace(ours, size=pack.size)
    first, second = evaluate(
        [lite0, ours], pack, ["auto"], episodes=3, part="all", adapt=["auto"], drop_small=True
    )
    assert (first.adaptation, second.adaptation) == ("none", "auto")
    assert first.pool == second.pool not in (ours.hash, lite0.hash)
    counts = confusion([lite0, ours], pack, "auto", episodes=3, part="all")
    assert int(counts.diagonal().sum()) == round(first.mean * int(counts.sum()))


def test_the_forms_of_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(default.VARIABLE, raising=False)
    monkeypatch.setattr(default, "PACKAGED", tmp_path / "pool")
    OURS.save(tmp_path / "pool")
    there: set[str] = set()
    monkeypatch.setattr(forms, "is_installed", lambda name: name in there)
    (pool,), said = load_pools("fast")
    assert (pool.members, pool.adaptation.tsa_share) == (OURS.members, 1.0)
    assert pool.one_network and rule("auto", pool).mixes == "modulators"
    assert said == "fast (ours)"
    (pool,), said = load_pools("full")
    assert (pool.hash, said) == (OURS.hash, "full (ours)")
    if loaders.is_installed(LITE0):
        there |= {LITE0}
        (full,), said = load_pools("full", views="one")
        assert (full.backbone, full.views) == (LITE0, "one")
        assert full.modulators and said == "full (efficientnet-lite0)"
        (pool,), said = load_pools("default")
        assert (pool.query_views, said) == ("one", "fast (efficientnet-lite0)")
        assert pool.modulators.keys() == full.modulators.keys()
    if loaders.is_installed(LITE2):
        there |= {LITE2}
        (full, beside), said = load_pools("full", views="one")
        assert (full.backbone, beside.backbone, beside.views) == (LITE0, LITE2, "one")
        assert said == "full (efficientnet-lite0 and efficientnet-lite2)"
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "device", torch.device("cuda"))
            tasks = random_tasks(shot=5)
            assert [chosen(pool, tasks, "auto") for pool in (full, beside)] == ["tsa", "ridge"]
        assert len(load_pools("fast")[0]) == 1
    monkeypatch.setenv(default.VARIABLE, str(tmp_path / "pool"))
    (pool,), said = load_pools("default")
    assert (pool.query_views, said) == (None, "")
    pools, said = load_pools(f"{tmp_path / 'pool'}, {tmp_path / 'pool'}")
    assert len(pools) == 2 and not said
    with pytest.raises(PolyshotError, match="No pool is named"):
        load_pools(" , ")
    with pytest.raises(PolyshotError, match="'full' is a pool of its own"):
        load_pools("full,default")
