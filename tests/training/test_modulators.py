import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from polyshot.config import Config
from polyshot.data.augment import Augment, augment
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.models.heads import Metric, prepared, prototype_logits, prototypes
from polyshot.models.modulators import fold
from polyshot.models.views import normalise
from polyshot.training.base import initial_base
from polyshot.training.modulators import (
    ModulatorStep,
    choose_strength,
    resampled_gain,
)
from polyshot.training.validation import class_accuracies, source_sampler, validation_tasks
from tests.helpers import CPU, record_in


def make(packs: list[Pack], config: Config, resident: bool = True) -> ModulatorStep:
    base = initial_base(config).eval().requires_grad_(False)
    train = Images(packs, "train", CPU, resident)
    validation = validation_tasks(Images(packs, "val", CPU), config)
    return ModulatorStep(base, train, 1, validation[1], config)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("kind", ["conv1x1", "channel"])
def test_the_first_loss_is_the_bases_episode_by_episode(
    kind: str, metric: Metric, packs: list[Pack], config: Config
) -> None:
    own = replace(config.modulator, kind=kind, augment=Augment(), loss_metric=metric)
    config = replace(config, modulator=own)
    step = make(packs, config)
    base, shape = initial_base(config).eval(), own.shape
    drawn = source_sampler(packs[1], "train", shape, step._seed)(own.episodes, 2 * own.episodes)
    losses = []
    for support, query in zip(drawn.support, drawn.query, strict=True):

        def embed(ids: torch.Tensor) -> torch.Tensor:
            pixels = torch.from_numpy(packs[1].images[ids.flatten().numpy()])
            pixels = augment(pixels, Augment(), 0, 0)  # resampling at rest still rounds
            return base(normalise(pixels)).view(*ids.shape, -1)

        centres = prototypes(prepared(embed(support), metric))
        scale = 20.0 if metric == "cosine" else 1 / math.sqrt(config.model.dim)
        logits = prototype_logits(embed(query).flatten(0, 1), centres, metric, scale)
        losses.append(F.cross_entropy(logits, torch.arange(5).repeat_interleave(shape.queries)))
    assert step.loss(1).item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["conv1x1", "channel"])
def test_decay_pulls_towards_the_identity_and_the_base_stays(
    kind: str, packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    sizes = {}
    for decay in (0.0, 300.0):
        own = replace(config.modulator, kind=kind, weight_decay=decay, steps=6)
        base = initial_base(config).eval().requires_grad_(False)
        before = [tensor.clone() for tensor in base.state_dict().values()]
        val = validation_tasks(Images(packs, "val", CPU), config)
        train = Images(packs, "train", CPU)
        record = record_in(tmp_path / str(decay))
        step = ModulatorStep(base, train, 0, val[0], replace(config, modulator=own))
        step.train(record)
        trained = step.modulator()
        identity = {"scale": 1.0, "weight": 0.0, "bias": 0.0}
        sizes[decay] = sum(
            float((p - identity[name.rpartition(".")[2]]).abs().sum())
            for name, p in trained.named_parameters()
        )
        now = base.state_dict().values()
        assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    assert 0 < sizes[300.0] < 0.9 * sizes[0.0]


def test_streamed_episodes_are_the_resident_ones(packs: list[Pack], config: Config) -> None:
    one, other = make(packs, config, True), make(packs, config, False)
    for number in range(config.modulator.steps):
        assert torch.equal(one.loss(number), other.loss(number))
    other.close()


CLASSES = torch.arange(10).repeat(6, 1)  # [E, W]: ten classes in each of six episodes
CANDIDATES = (0.0, 0.25, 0.5, 0.75, 1.0)


def chosen(**gains: list[float]) -> float:
    base = torch.full((6, 10), 0.5)
    accuracy = {0.0: base}
    for s, name in ((0.25, "quarter"), (0.5, "half"), (0.75, "most"), (1.0, "full")):
        accuracy[s] = base + torch.tensor(gains.get(name, [-0.1] * 10))
    return choose_strength(accuracy, CLASSES, CANDIDATES, seed=0).value


@pytest.mark.parametrize("shots", [(), (1,), (1, 5)])
def test_strengths_are_compared_with_the_shots_that_are_named(
    shots: tuple[int, ...], packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    own = replace(config.modulator, steps=6, strengths=(0.0, 1.0), strength_shots=shots)
    step = make(packs, replace(config, modulator=own))
    step.train(record_in(tmp_path))
    *_, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    base = initial_base(config).eval()
    tasks = validation_tasks(Images(packs, "val", CPU), config)[1]
    before, after = (
        class_accuracies(tasks, network, config.metric, shots).mean()
        for network in (base, fold(base, step.modulator(), 1.0))
    )
    assert before != after
    assert last["gains"]["1.0"] == pytest.approx(float(after - before), abs=1e-5)


def test_a_gain_that_all_classes_share_is_accepted() -> None:
    assert chosen(full=[0.05] * 10) == 1.0
    assert chosen(half=[0.05] * 10, full=[0.04] * 10) == 0.5


def test_a_gain_of_one_class_falls_back_to_a_smaller_reliable_one() -> None:
    lucky = [1.0] + [-0.08] * 9
    assert sum(lucky) / 10 > 0
    assert chosen(full=lucky) == 0.0
    assert chosen(full=lucky, half=[0.01] * 10, quarter=[0.005] * 10) == 0.5
    assert chosen(full=[-0.01] * 10) == 0.0


def test_a_single_candidate_is_taken_as_it_is() -> None:
    worse = {0.0: torch.ones(6, 10), 1.0: torch.zeros(6, 10)}
    assert choose_strength(worse, CLASSES, (1.0,), seed=0).value == 1.0


def test_resampling_classes_spreads_as_the_standard_error_of_classes() -> None:
    gain = torch.linspace(-1, 1, 10).repeat(6, 1)
    drawn = resampled_gain(gain, CLASSES, seed=1)
    assert drawn.mean().item() == pytest.approx(0, abs=0.03)
    expected = gain[0].std(correction=0).item() / math.sqrt(10)
    assert drawn.std().item() == pytest.approx(expected, rel=0.1)
