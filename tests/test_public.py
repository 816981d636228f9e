"""The public names exist, and importing the package stays cheap."""

import subprocess
import sys

import pytest

import polyshot


def test_every_public_name_exists() -> None:
    for name in polyshot.__all__:
        assert getattr(polyshot, name).__name__ == name
    assert dir(polyshot) == sorted(polyshot.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = polyshot.Nothing  # type: ignore[attr-defined]


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, polyshot; print('torch' in sys.modules, 'numpy' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["False", "False"]


def test_no_extra_is_imported_before_it_is_asked_for() -> None:
    """Extras may be missing, and some take seconds to import."""
    rooms = "polyshot.cli, polyshot.classifier, polyshot.engines, polyshot.models.loaders"
    code = f"import sys, {rooms}; print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extras = {"ray", "onnxruntime", "onnxscript", "timm", "torchvision"}
    extras |= {"transformers", "huggingface_hub"}
    loaded = set(child.stdout.split())
    assert "polyshot.models.loaders" in loaded and not extras & loaded
