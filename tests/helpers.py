"""What several test files share: no test file imports from another one."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from polyshot.config import AdaptationConfig, BaseConfig, Config, ModulatorConfig, SelectorConfig
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.data.toy.packs import draw_packs
from polyshot.models.resnet import ResNetConfig
from polyshot.tasks import Table, Tasks, draw_tasks
from polyshot.training.loop import Record
from polyshot.training.metrics import Metrics
from polyshot.training.training_run import TrainingRun
from polyshot.util.progress import Progress

from .conftest import make_domain
from .models.reference import (  # noqa: F401 (of the section above, until it is here)
    assert_near,
    copied,
    explicit,
    random_base,
    random_modulator,
    same_states,
)
from .pools import SIZE, SMALL, random_pool  # noqa: F401

# --- configs, packs and trainings

CPU = torch.device("cpu")
SHAPE = EpisodeShape(5, 2, 3)
ONE_SHOT = EpisodeShape(5, 1, 3)
TINY = Config(
    preset="tiny",
    size=16,
    model=ResNetConfig(width=4, stem="small/2"),
    base=BaseConfig(steps=7, batch=16, learning_rate=0.05, warm_up=2, validate_every=3),
    modulator=ModulatorConfig(steps=4, episodes=2, shape=SHAPE, validate_every=2),
    selector=SelectorConfig(steps=6, tasks=12, batch=8, hidden=8, validate_every=4),
    adaptation=AdaptationConfig(steps=15, updates=8),
    shape=SHAPE,
    validation_episodes=8,
)
"""Trains a whole pool of two sources in a second; it learns next to nothing."""


def with_base(config: Config, **changes: object) -> Config:
    """Change what concerns step 1."""
    return replace(config, base=replace(config.base, **changes))  # type: ignore[arg-type]


LEARNED = replace(
    with_base(TINY, steps=60, batch=64, learning_rate=0.1, warm_up=5, cool_down=1.0),
    model=ResNetConfig(width=8, stem="small/2"),
    validation_episodes=6,
)
"""Its base tells colours apart."""


def toy_packs(folder: Path, *names: str, each: int = 6, size: int = TINY.size) -> list[Pack]:
    """Draw toy domains with so many images a class."""
    return draw_packs(folder, names, size=size, per_class=each, workers=1)


def pack_of(
    sizes: Sequence[int], name: str = "d", size: int = TINY.size, group_size: int = 0
) -> Pack:
    """A pack in memory: each class is a coarse pattern of colours, its images are varied."""
    draw = np.random.default_rng(len(name))
    domain = make_domain(list(sizes), group_size, name)
    patterns = draw.integers(0, 256, (len(sizes), 3, 4, 4))[domain.labels]
    cell = np.arange(size) * 4 // size
    varied = (patterns + draw.integers(-70, 71, patterns.shape))[..., cell[:, None], cell[None, :]]
    pixels = np.clip(varied + draw.integers(-20, 21, varied.shape), 0, 255).astype(np.uint8)
    return Pack(Path(name), domain, pixels, f"hash of {name}", {})


def make_run(
    packs: Sequence[Pack], folder: Path, report: Progress | None = None, config: Config = TINY
) -> TrainingRun:
    """A training run on the CPU."""
    return TrainingRun(packs, config, folder, CPU, report)


def tasks_of(pack: Pack, shape: EpisodeShape, count: int = 3, seed: int = 0) -> Tasks:
    """Episodes over all classes of a pack."""
    sampler = EpisodeSampler(pack.domain, shape, part="all", seed=seed)
    return draw_tasks(Images([pack], "all", CPU), 0, sampler, count, frozen=True)


def from_table(images: Tensor, support: Tensor, query: Tensor, mask: Tensor | None = None) -> Tasks:
    """Tasks of images uint8 [n, 3, side, side] by their positions [E, W, S] and [E, Q]."""
    return Tasks(Table.of(images, CPU), query, support, mask)


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two networks are equal to the bit."""
    mine, yours = one.state_dict(), other.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(t, yours[n]) for n, t in mine.items())


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files with the time of their last change."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def step_files(run: Path) -> dict[str, bytes]:
    """What the steps of a run have written."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted((run / "steps").rglob("*"))
        if file.is_file()
    }


def metrics_of(run: Path) -> list[dict[str, float]]:
    """The lines that a training wrote about itself."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def record_in(folder: Path, report: Progress | None = None) -> Record:
    """Let a training write into a folder."""
    return Record(folder / "checkpoint.pt", Metrics(folder / "metrics.jsonl"), report)


class Steps:
    """A progress callback that counts the updates of each step."""

    def __init__(self) -> None:
        self.updates: dict[str, int] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        self.updates[name] = self.updates.get(name, 0) + 1


class Interrupt:
    """A progress callback that raises KeyboardInterrupt at every n-th update."""

    def __init__(self, every: int):
        self.every, self.calls = every, 0

    def __call__(self, name: str, done: int, total: int) -> None:
        if name.startswith("embed"):  # which starts again every time
            return
        self.calls += 1
        if self.calls % self.every == 0:
            raise KeyboardInterrupt


Made = TypeVar("Made")


def until_done(work: Callable[[], Made]) -> tuple[Made, int]:
    """Start work again as often as it is interrupted: what it made, and how often that was."""
    interruptions = 0
    while True:
        try:
            return work(), interruptions
        except KeyboardInterrupt:
            interruptions += 1
