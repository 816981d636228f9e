"""Two small real packs and a config that trains on them in seconds."""

from dataclasses import replace
from pathlib import Path

import pytest

from polyshot.config import BaseConfig, Config, ModulatorConfig, SelectorConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.toy.packs import draw_packs
from polyshot.models.resnet import ResNetConfig

SHAPE = EpisodeShape(5, 2, 3)
SMALL = Config(
    size=16,
    model=ResNetConfig(width=4, stem="small/2"),
    base=BaseConfig(steps=7, batch=16, learning_rate=0.05, warm_up=2, validate_every=3),
    modulator=ModulatorConfig(steps=4, episodes=2, shape=SHAPE, validate_every=2),
    selector=SelectorConfig(steps=6, tasks=12, batch=8, hidden=8, validate_every=4),
    shape=SHAPE,
    validation_episodes=8,
)


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Two threads would only wait for each other."""


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    folder = tmp_path_factory.mktemp("packs")
    return draw_packs(folder, ["signs", "textures"], size=16, per_class=6, workers=1)


@pytest.fixture
def config() -> Config:
    return SMALL


def with_base(config: Config, **changes: object) -> Config:
    return replace(config, base=replace(config.base, **changes))


def step_files(run: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted((run / "steps").rglob("*"))
        if file.is_file()
    }
