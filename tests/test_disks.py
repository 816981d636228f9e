"""Full and read-only disks: one line, and nothing that is half written, whatever was asked for."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyshot.data.toy import draw_example, draw_packs
from tests.commands import refused, training
from tests.helpers import SIZE, random_pool


@contextmanager
def disk(place: Path, kilobytes: int, pool: Path, read_only: bool = False) -> Iterator[Path]:
    """A small disk with a copy of a pool on it, and as much room beside that."""
    place.mkdir(exist_ok=True)
    used = sum(-(-file.stat().st_size // 4096) * 4 for file in pool.rglob("*") if file.is_file())
    size = f"size={used + kilobytes}k"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        subprocess.run(["cp", "-r", str(pool), str(place / "pool")], check=True)
        if read_only:
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool, packs, and a folder to classify."""
    root = tmp_path_factory.mktemp("disks")
    random_pool().save(root / "pool")
    draw_packs(root / "packs", ["glyphs", "signs"], size=SIZE, per_class=16)
    draw_example(root / "example", classes=3, shot=3, queries=30)
    return root


def train(world: Path, to: Path) -> list[object]:
    return training(world / "packs", to / "run", size=SIZE)


def classify(world: Path, to: Path) -> list[object]:
    photos = ("--support", world / "example/support", "--query", world / "example/query")
    how = ("--pool", world / "pool", "--adaptation", "none", "--device", "cpu")
    return ["classify", *photos, *how, "--out", to / "labels.csv"]


def evaluate(world: Path, to: Path) -> list[object]:
    how = ("--targets", "signs", "--episodes", 4, "--device", "cpu")
    return [*("evaluate", world / "packs", "--pool", world / "pool", *how), "--cache", to / "cache"]


def measure(world: Path, to: Path) -> list[object]:
    """Results of so many episodes that their lines do not fit."""
    how = ("--targets", "signs", "--episodes", 600, "--device", "cpu", "--way", 2, "--shot", 1)
    command = ("evaluate", world / "packs", "--pool", world / "pool", "--queries", 1)
    return [*command, *how, "--methods", "base", "--out", to / "results.jsonl"]


def fit(world: Path, to: Path) -> list[object]:
    how = ("--pool", world / "pool", "--adaptation", "none", "--device", "cpu")
    return ["fit", world / "example/support", *how, "--out", to / "photos.polyshot"]


def remove(_: Path, to: Path) -> list[object]:
    return ["pool", "remove", to / "pool", "one"]


WRITERS: dict[str, tuple[Callable[[Path, Path], list[object]], int]] = {
    "train": (train, 40),
    "classify": (classify, 4),
    "evaluate": (evaluate, 12),
    "measure": (measure, 0),
    "fit": (fit, 12),
    "remove": (remove, 40),
}
"""Commands, and kilobytes that are too few for what they write."""


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_and_nothing_is_half(
    world: Path, tmp_path: Path, name: str
) -> None:
    command, room = WRITERS[name]
    with disk(tmp_path / "disk", room, world / "pool") as place:
        assert "the disk is full" in refused(*command(world, place))
        left = {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}
        before = {f"pool/{file.relative_to(world / 'pool')}" for file in world.glob("pool/**/*.*")}
        begun = {"run/.lock", "run/config.json", "run/environment.json", "run/metrics.jsonl"}
        assert left - (begun if name == "train" else set()) == before


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_disk_is_one_line(world: Path, tmp_path: Path, name: str) -> None:
    command, _ = WRITERS[name]
    with disk(tmp_path / "disk", 4096, world / "pool", read_only=True) as place:
        said = refused(*command(world, place))
        assert "cannot be written: " in said and "read-only" in said.lower()
