"""Base and modulators trained together."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.table import Batches, Images
from polyshot.errors import PolyshotError
from polyshot.models.modulators import Kind, fold
from polyshot.training.joint import JointClassifier, JointStep, rows_of_sources
from polyshot.training.run import train
from tests.helpers import (
    SMALL,
    Interrupt,
    explicit,
    random_base,
    random_modulator,
    step_files,
    until_done,
    with_base,
)

both_kinds = pytest.mark.parametrize("kind", get_args(Kind))


@both_kinds
def test_each_image_goes_through_its_member(kind: Kind) -> None:
    base = random_base(SMALL)
    network = JointClassifier(base, 7, kind, [2, 3, 1]).eval()  # batch norm as in prediction
    modulators = [random_modulator(SMALL, kind, i) for i in (1, 2)]
    for own, given_ in zip(network.modulators, modulators, strict=True):
        own.load_state_dict(given_.state_dict())
    images = torch.randn(6, 3, 16, 16)
    with torch.no_grad():
        made = network(images)
        wanted = [
            explicit(base, modulators[0], images[:2], 1.0),
            explicit(base, modulators[1], images[2:5], 1.0),
            base(images[5:]),
        ]
        torch.testing.assert_close(made, network.fc(torch.cat(wanted)), rtol=1e-3, atol=1e-3)


@both_kinds
def test_gradients_reach_base_and_each_modulator_from_its_own_images(kind: Kind) -> None:
    network = JointClassifier(random_base(SMALL), 7, kind, [3, 3, 3]).train()
    with torch.no_grad():  # zero kernels have gradients too, but let nothing be special
        for own in network.modulators:
            own.load_state_dict(random_modulator(SMALL, kind).state_dict())
    network.base.requires_grad_(True)
    loss = torch.nn.functional.cross_entropy(
        network(torch.randn(9, 3, 16, 16)), torch.arange(9) % 7
    )
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9), st.floats(0, 1), st.integers(0, 99))
def test_rows_are_shared_by_weight(sizes: list[int], sampling: float, more: int) -> None:
    batch = 2 * len(sizes) + more
    rows = rows_of_sources(sizes, sampling, batch)
    assert sum(rows) == batch and min(rows) >= 2
    for a, n in zip(rows, sizes, strict=True):
        for b, m in zip(rows, sizes, strict=True):
            assert n >= m or a <= b + 1


def test_a_batch_too_small_for_its_sources_is_refused() -> None:
    with pytest.raises(PolyshotError, match=r"base\.batch=5 is too small for joint training: 3"):
        rows_of_sources([1, 2, 3], 0.5, 5)


def test_rows_of_a_batch_are_of_their_sources(packs: list[Pack]) -> None:
    sources = torch.tensor([0, 0, 1, 1, 1, 0, 1])
    for resident in (True, False):
        images = Images(packs, "train", torch.device("cpu"), resident)
        batches = Batches(images, len(sources), 0.0, 3, last=5, sources=sources)
        batch = batches.draw(2)
        batches.close()
        first = len(packs[0].domain.split.train)
        assert torch.equal(batch.sources, sources)
        assert torch.equal(batch.labels >= first, sources.bool())
        assert batch.mirror.tolist() == [packs[s].domain.mirror for s in sources.tolist()]


@pytest.fixture
def joint(config: Config) -> Config:
    return replace(config, joint=True)


@both_kinds
def test_joint_training_makes_a_whole_pool(
    kind: Kind, packs: list[Pack], joint: Config, tmp_path: Path
) -> None:
    joint = replace(joint, modulator=replace(joint.modulator, kind=kind, strengths=(1.0,)))
    out, progress = tmp_path / "run", Interrupt(2)
    pool = train(packs, joint, tmp_path / "whole", device="cpu")
    _, times = until_done(lambda: train(packs, joint, out, device="cpu", progress=progress))
    assert times > 3
    assert step_files(out) == step_files(tmp_path / "whole")
    assert pool.members == ("base", "signs", "textures") and pool.selector is not None
    assert pool.strengths == {"signs": 1.0, "textures": 1.0}
    assert len(set(pool.member_hashes())) == 3
    assert set(pool.about["steps"]) >= {"base", "modulator:signs", "modulator:textures", "selector"}


def test_joint_training_learns(packs: list[Pack], joint: Config, tmp_path: Path) -> None:
    longer = with_base(joint, steps=120, batch=64, learning_rate=0.1, validate_every=120)
    longer = replace(longer, validation_episodes=60)
    before = train(packs, with_base(longer, steps=0), tmp_path / "none", "base", "cpu")
    after = train(packs, longer, tmp_path / "run", "base", "cpu")
    untrained, trained = (p.about["steps"]["base"]["validation"] for p in (before, after))
    assert trained > untrained + 0.04


def test_without_steps_all_members_are_the_base(packs: list[Pack], joint: Config) -> None:
    images = [Images(packs, part, torch.device("cpu")) for part in ("train", "val")]
    step = JointStep(images[0], images[1], joint)
    step.close()
    pixels = torch.randn(5, 3, 16, 16)
    base = step.module.base.eval()
    with torch.no_grad():
        for modulator in step.module.modulators:
            torch.testing.assert_close(fold(base, modulator)(pixels), base(pixels))


def test_joint_training_and_clusters_exclude_each_other(joint: Config) -> None:
    with pytest.raises(PolyshotError, match=r"take joint or modulator\.members"):
        replace(joint, modulator=replace(joint.modulator, members=2))
