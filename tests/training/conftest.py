"""Two small packs, a third one that may be added, and one training that nothing interrupted."""

from pathlib import Path

import pytest
import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.pool.pool import Pool
from polyshot.training.run import train
from tests.helpers import TINY, toy_packs


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Two threads would only wait for each other."""


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    return toy_packs(tmp_path_factory.mktemp("packs"), "signs", "textures")


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return toy_packs(tmp_path_factory.mktemp("new"), "flowers")[0]


@pytest.fixture
def config() -> Config:
    return TINY


@pytest.fixture(scope="session")
def whole(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests that change it copy it."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole") / "run"
    train(packs, TINY, out, device="cpu")
    return out


@pytest.fixture(scope="session")
def pool(whole: Path) -> Pool:
    return Pool.load(whole / "pool")
