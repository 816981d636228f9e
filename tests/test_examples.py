"""The examples, run as a user runs them; a small pool stands in for the one that ships."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyshot.pool.default import VARIABLE
from tests.helpers import picture, random_pool, run_script

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
    for word in ("Expected accuracy: ", "right: ", " of 24", "'blue disc': ", "networks used: "):
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


def test_run_onnx(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    """It gives the labels that Polyshot gives, and imports nothing of it."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    root = image_folder()
    paths = sorted(root.rglob("*.png"))
    odd = Image.new("RGBA", (50, 40), (200, 30, 30, 100))
    odd.save(tmp_path / "odd.png")
    Image.fromarray(np.full((30, 44), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    picture(7, (400, 300)).save(tmp_path / "large.jpg")
    classifier = random_pool().classifier("base", "ridge", none_rate=0.2)
    classifier.fit(paths, [path.parent.name for path in paths])
    classifier.export(tmp_path / "pets.onnx")
    asked = [*paths, *(tmp_path / name for name in ("odd.png", "deep.png", "large.jpg"))]
    child = subprocess.run(
        [sys.executable, FOLDER / "run_onnx.py", "pets.onnx", *asked],
        cwd=tmp_path,
        env={"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    labels = [line.split("\t")[1] for line in child.stdout.splitlines()]
    assert labels == classifier.predict(asked).tolist()
    script = (FOLDER / "run_onnx.py").read_text(encoding="utf-8")
    wanted = re.findall(r"^(?:import|from) (\w+)", script, flags=re.M)
    assert not {"torch", "polyshot"} & {*wanted}
