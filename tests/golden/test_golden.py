"""The numbers of before a refactor are met again: answers, weights and rows of grids."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from .scenes import NO_LABEL, SCENES, run_scene

FOLDER = Path(__file__).parent
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def fixed_threads(one_thread: None) -> Iterator[None]:
    """Sum in one order, and leave torch as it was."""
    yield
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_met_again(name: str) -> None:
    with np.load(FOLDER / f"{name}.npz") as file:
        recorded = dict(file)
    found = run_scene(name)
    assert (found["inputs"] == recorded["inputs"]).all(), f"{name}: other inputs were drawn"
    missing, new = sorted(recorded.keys() - found.keys()), sorted(found.keys() - recorded.keys())
    assert not missing and not new, f"{name} lacks {missing[:5]}, has in addition {new[:5]}"
    faults = [fault for key in recorded if (fault := compare(key, found[key], recorded[key]))]
    assert not faults, f"{name}: {len(faults)} of {len(recorded)} differ:\n" + "\n".join(
        faults[:20]
    )


def compare(key: str, found: np.ndarray, recorded: np.ndarray) -> str:
    """Say what is wrong with an array, or nothing."""
    if found.shape != recorded.shape:
        return f"{key}: of shape {found.shape}, was {recorded.shape}"
    if key.startswith("label/"):
        # What was too close to call may have any label now, and what is now had some.
        wrong = (found != recorded) & (found != NO_LABEL) & (recorded != NO_LABEL)
        return f"{key}: {wrong.sum()} of {wrong.size} labels differ" if wrong.any() else ""
    off = np.abs(found.astype(np.float64) - recorded.astype(np.float64))
    largest = float(off.max()) if off.size else 0.0
    scale = max(1.0, float(np.abs(recorded).max())) if off.size else 1.0
    if largest <= TOLERANCE * scale:  # false for NaN as well
        return ""
    return f"{key}: differs by up to {largest:.3g}, {TOLERANCE * scale:.3g} is allowed"


def test_a_difference_is_named() -> None:
    answers = np.array([[0.2, 0.8], [0.6, 0.4]])
    assert not compare("answers/x", answers + 1e-6, answers)
    assert "up to 0.0001" in compare("answers/x", answers + 1e-4, answers)
    assert compare("answers/x", answers * np.nan, answers)
    assert compare("answers/x", answers[:1], answers)
    labels = np.array([1, 0, NO_LABEL], np.uint8)
    assert not compare("label/x", np.array([1, NO_LABEL, 2], np.uint8), labels)
    assert "1 of 3" in compare("label/x", np.array([0, 0, 2], np.uint8), labels)
