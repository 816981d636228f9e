"""The examples, run as a user runs them; a small pool stands in for the one that ships."""

from collections.abc import Callable
from pathlib import Path

import pytest

from polyshot.pool.default import VARIABLE
from tests.helpers import random_pool, run_script

FOLDER = Path(__file__).parents[1] / "examples"
QUICK = [
    "size=24", "model.width=4", "base.steps=2", "base.batch=32", "base.warm_up=1",
    "base.validate_every=2", "modulator.steps=1", "modulator.episodes=1",
    "modulator.validate_every=1", "selector.steps=2", "selector.tasks=4", "validation_episodes=4",
]  # fmt: skip
"""A training of a second; what comes out is not looked at."""


@pytest.fixture
def run(tmp_path: Path, few_are_drawn: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    random_pool().save(tmp_path / "pool")
    monkeypatch.setenv(VARIABLE, "pool")
    return lambda script, *arguments: run_script(FOLDER / script, tmp_path, *arguments)


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    others = {"add_a_domain.py"}  # tested with the pools that grow
    for script in FOLDER.glob("*.py"):
        assert f'"{script.name}"' in text or script.name in others, script.name


def test_classify_folders(
    run: Callable[..., str], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = image_folder()
    said = run("classify_folders.py", root, root / "cat", root / "dog" / "000.png")
    assert "Expected accuracy: " in said and "wrote 7 labels to labels.csv" in said
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 8


def test_classify_folders_without_any(run: Callable[..., str]) -> None:
    assert "wrote 100 labels to mine.csv" in run("classify_folders.py", "--out", "mine.csv")


def test_use_from_python(run: Callable[..., str]) -> None:
    said = run("use_from_python.py")
    for word in ("Expected accuracy: ", "right: ", " of 24", "'blue disc': ", "members used: "):
        assert word in said


def test_train_your_own_pool(run: Callable[..., str], tmp_path: Path) -> None:
    options = [word for option in QUICK for word in ("--set", option)]
    said = run("train_your_own_pool.py", *options)
    assert "3 members: base, signs, flowers" in said and "flowers, average: " in said
    assert (tmp_path / "my-run" / "run" / "pool" / "pool.json").is_file()


def test_train_on_ones_own_collections(
    run: Callable[..., str], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    for name in ("birds", "bugs"):
        image_folder(f"collections/{name}", **{f"class {i}": 15 for i in range(34)})
    options = [word for option in QUICK for word in ("--set", option)]
    said = run("train_your_own_pool.py", tmp_path / "collections", *options)
    assert "3 members: base, birds, bugs" in said


def test_evaluate_your_data(run: Callable[..., str], image_folder: Callable[..., Path]) -> None:
    said = run("evaluate_your_data.py", image_folder(), "--episodes", 3)
    assert "photos: tasks of 3 ways, 4 shots and 1 queries" in said and "best: " in said


def test_evaluate_an_example(run: Callable[..., str]) -> None:
    said = run("evaluate_your_data.py", "--episodes", 3)
    assert "support: tasks of 5 ways, 5 shots and 10 queries" in said
