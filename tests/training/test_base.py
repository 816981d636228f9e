from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyshot.config import Config
from polyshot.data.augment import STRONG, WEAK, Augment, augment, chances
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.protomaml import ProtoMamlLearner
from polyshot.models.views import normalise
from polyshot.training.base import Classifier, CosineLayer, initial_base, prepare
from polyshot.training.episodic import EpisodeBatch, _Loss
from polyshot.training.run import train
from polyshot.training.step import Plan
from tests.helpers import CPU, metrics_of, with_base


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(factor=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_a_cosine_layer_compares_directions_alone(factor: float, seed: int) -> None:
    torch.manual_seed(seed)
    layer, embeddings = CosineLayer(12, 5), torch.randn(7, 12)
    logits = layer(embeddings)
    assert logits.abs().max() <= layer.scale.item() * (1 + 1e-5)
    torch.testing.assert_close(layer(factor * embeddings), logits, atol=1e-4, rtol=1e-4)


def test_the_classifier_is_the_one_asked_for(config: Config) -> None:
    base = initial_base(config)
    assert isinstance(Classifier(base, 5, "cosine").fc, CosineLayer)
    assert isinstance(Classifier(base, 5).fc, torch.nn.Linear)


def test_a_base_learns_by_cosines(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    config = with_base(config, classifier="cosine", steps=100, validate_every=100, mix=0.0)
    pool = train(packs, config, tmp_path / "run", "base", "cpu")
    first, *_, last = (line["loss"] for line in metrics_of(tmp_path / "run"))
    assert last < first - 0.2
    assert pool.about["steps"]["base"]["skipped"] == 0


@pytest.mark.parametrize("how", [WEAK, STRONG, Augment()])
def test_what_is_prepared_is_augmented_and_normalised(how: Augment) -> None:
    images = torch.randint(0, 256, (6, 3, 20, 20), dtype=torch.uint8)
    mirror = torch.tensor([True, False] * 3)
    ready = prepare(images, how, chances(3, 7, 6, CPU), mirror)
    torch.testing.assert_close(ready, normalise(augment(images, how, 3, 7, mirror)))
    assert ready.is_contiguous(memory_format=torch.channels_last)


def test_what_a_gpu_records_of_protomaml_is_its_loss(config: Config) -> None:
    """The recorded module is given images alone; it must make the batch of them."""
    shape = EpisodeShape(3, 2, 2)
    plan = Plan(steps=1, episodes=2, learning_rate=1e-3, shape=shape)
    learner = ProtoMamlLearner(initial_base(replace(config, seed=1)), steps=2, rate=0.01).train()
    images = torch.randn(2 * 3 * 4, 3, 16, 16)
    batch = EpisodeBatch(
        images.view(2, 3, 4, 3, 16, 16), None, torch.zeros(2, 3).long(), [0, 1], shape, 0.5
    )
    torch.testing.assert_close(_Loss(learner, plan)(images), learner.loss(batch))
