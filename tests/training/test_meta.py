"""A base that ends with episodes of all sources."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyshot.config import (
    Config,
    MetaConfig,
    for_hash,
    from_dict,
    on_backbone,
    override,
    preset,
    to_dict,
)
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.loaders import LITE0
from polyshot.pool.pool import Pool
from polyshot.training.meta import MetaStep
from polyshot.training.run import train
from polyshot.util.tensors import read_weights
from tests.helpers import TINY, Interrupt, metrics_of, step_files, until_done

META = MetaConfig(
    steps=4,
    episodes=2,
    shape=EpisodeShape(way=3, shot=1, queries=2),
    learning_rate=1e-3,
    validate_every=2,
    shots=(1,),
)
ENDING = replace(TINY, meta=META)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.fixture(scope="module")
def ended(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ended") / "run"
    train(packs, ENDING, out, "base", "cpu")
    return out


def test_a_base_goes_on_from_supervised_learning_and_the_best_state_is_kept(
    ended: Path, packs: list[Pack], tmp_path: Path
) -> None:
    train(packs, TINY, tmp_path / "plain", "base", "cpu")
    plain, _ = read_weights(tmp_path / "plain" / "steps" / "base.safetensors")
    before, _ = read_weights(ended / "steps" / "supervised.safetensors")
    assert equal(plain, before)
    after, about = read_weights(ended / "steps" / "base.safetensors")
    validated = {
        line["number"]: line["validation"]
        for line in metrics_of(ended)
        if line["step"] == "meta" and "validation" in line
    }
    assert list(validated) == [0, 2, 4]
    assert about["validation"] == max(validated.values())
    assert about["best"] == min(n for n, v in validated.items() if v == about["validation"])
    assert equal(before, after) == (about["best"] == 0)


def test_every_layer_learns_but_the_statistics_of_batch_norm(
    ended: Path, packs: list[Pack]
) -> None:
    train_images, val = (Images(packs, part, torch.device("cpu")) for part in ("train", "val"))
    base = Pool.load(ended / "pool").base
    step = MetaStep(base, train_images, val, ENDING)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    step.loss(0).backward()
    step.close()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in base.parameters())
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, before[name])  # a pass moves none of them


def test_one_that_is_interrupted_again_and_again_ends_with_the_same_bits(
    ended: Path, packs: list[Pack], tmp_path: Path
) -> None:
    progress = Interrupt(3)
    _, times = until_done(lambda: train(packs, ENDING, tmp_path, "base", "cpu", progress=progress))
    assert times > 2
    assert step_files(tmp_path) == step_files(ended)
    assert not list((tmp_path / "checkpoints").rglob("*.pt"))


def test_what_is_left_out_changes_no_name_and_no_config_of_before() -> None:
    plain = to_dict(TINY)
    assert "meta" not in for_hash(plain)
    assert for_hash(to_dict(ENDING))["meta"]["steps"] == 4
    del plain["meta"]
    assert from_dict(plain) == TINY
    assert from_dict(to_dict(ENDING)) == ENDING


def test_a_base_from_elsewhere_and_joint_training_have_no_episodes_at_their_end(
    packs: list[Pack], tmp_path: Path
) -> None:
    assert on_backbone(override(preset("strong"), ["meta.steps=9"]), LITE0).meta == MetaConfig()
    train(packs, replace(ENDING, joint=True), tmp_path, "base", "cpu")
    assert not (tmp_path / "steps" / "supervised.safetensors").exists()
    assert {line["step"] for line in metrics_of(tmp_path)} == {"joint"}


def test_episodes_that_a_source_cannot_give_are_refused_before_any_work(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    wide = replace(META, shape=EpisodeShape(way=500, shot=1, queries=2))
    with pytest.raises(PolyshotError, match="500 ways"):
        train(packs, replace(config, meta=wide), tmp_path / "run", "base", "cpu")
    assert not (tmp_path / "run").exists()
