"""What a pool tells about the training of its parts, as plain data."""

from typing import Any

from polyshot.training.modulators import Strength
from polyshot.training.selector import Examples
from polyshot.training.step import Best


def about_modulator(strength: Strength, best: Best) -> dict[str, Any]:
    """Describe a modulator: its strength, what it gains over the base, how it came about."""
    return {
        "strength": strength.value,
        "gain": strength.gains.get(strength.value, 0.0),
        "validation": best.value,
        "best": best.number,
        "skipped": best.skipped,
    }


def about_selector(best: Best, learned: Examples, checked: Examples) -> dict[str, Any]:
    """Describe a selector: how good its choices are, and which members were best how often."""
    return {
        "validation": best.value,
        "best": best.number,
        "base_validation": float(checked.accuracy[:, 0].mean()),
        "labels": learned.best().bincount(minlength=learned.accuracy.shape[1]).tolist(),
    }
