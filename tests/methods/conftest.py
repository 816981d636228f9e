"""A tiny world in which every method trains in a second, and tasks to classify."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyshot.config import AdaptationConfig, BaseConfig, Config, ModulatorConfig, SelectorConfig
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.data.toy.packs import draw_packs
from polyshot.methods.image_tasks import ImageTasks
from polyshot.models.resnet import ResNetConfig
from polyshot.training.tasks import TaskSet
from polyshot.training.world import World
from polyshot.util.progress import Progress

CPU = torch.device("cpu")
SHAPE = EpisodeShape(5, 2, 3)
TINY = Config(
    size=16,
    model=ResNetConfig(width=8, stem="small/2"),
    base=BaseConfig(
        steps=60, batch=64, learning_rate=0.1, warm_up=5, cool_down=1.0, validate_every=20
    ),
    modulator=ModulatorConfig(steps=4, episodes=2, shape=SHAPE, validate_every=2),
    selector=SelectorConfig(steps=6, tasks=12, batch=8, hidden=8, validate_every=4),
    adaptation=AdaptationConfig(steps=15, updates=8),
    shape=SHAPE,
    validation_episodes=6,
)


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Two threads would only wait for each other."""


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    folder = tmp_path_factory.mktemp("packs")
    return draw_packs(folder, ["signs", "glyphs"], size=16, per_class=8, workers=1)


@pytest.fixture(scope="session")
def world(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(packs, tmp_path_factory.mktemp("worlds"))


def make_world(
    packs: list[Pack], folder: Path, report: Progress | None = None, config: Config = TINY
) -> World:
    return World(packs, config, folder, CPU, report)


def tasks_of(pack: Pack, shape: EpisodeShape, count: int = 3, seed: int = 0) -> ImageTasks:
    """Episodes over all classes of a pack."""
    images = Images([pack], "all", CPU)
    return TaskSet(images, 0, "all", shape, count, seed).with_images(frozen=True)


def from_table(images: Tensor, support: Tensor, query: Tensor) -> ImageTasks:
    """Tasks of images uint8 [n, 3, side, side] by their positions [E, W, S] and [E, Q]."""
    return ImageTasks(lambda positions: images[positions], len(images), support, query)
