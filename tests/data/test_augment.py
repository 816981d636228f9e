"""Augmentation: seeded, within bounds, the same on every device, and it does what it says."""

import pytest
import torch

from polyshot.data.augment import STRONG, WEAK, Augment, augment
from polyshot.errors import PolyshotError
from tests.helpers import DEVICES


def batch(count: int = 8, size: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 256, (count, 3, 6, 6), generator=generator).float()
    smooth = torch.nn.functional.interpolate(small, size, mode="bilinear")
    return smooth.to(torch.uint8)


def as_unit(images: torch.Tensor) -> torch.Tensor:
    return images.float() / 255


def test_the_defaults_change_nothing() -> None:
    images = batch()
    assert torch.allclose(augment(images, Augment(), seed=0, step=0), as_unit(images), atol=1e-5)


@pytest.mark.parametrize("how", [WEAK, STRONG], ids=["weak", "strong"])
def test_seeded_bounded_and_different(how: Augment) -> None:
    images = batch()
    one = augment(images, how, seed=1, step=5)
    assert one.shape == images.shape and one.dtype == torch.float32
    assert one.min() >= 0 and one.max() <= 1
    assert torch.equal(one, augment(images, how, seed=1, step=5))
    assert not torch.equal(one, augment(images, how, seed=1, step=6))
    assert not torch.equal(one, augment(images, how, seed=2, step=5))
    same = images[:1].expand(8, -1, -1, -1)
    assert len({tensor.mean().item() for tensor in augment(same, how, 0, 0)}) == 8  # each its own


@pytest.mark.parametrize("how", [WEAK, STRONG], ids=["weak", "strong"])
def test_device_does_not_matter(how: Augment) -> None:
    results = [augment(batch().to(device), how, 3, 4).cpu() for device in DEVICES]
    assert all(torch.allclose(results[0], other, atol=1e-4) for other in results)


@pytest.mark.parametrize("how", [WEAK, STRONG], ids=["weak", "strong"])
def test_an_image_does_not_depend_on_its_neighbours(how: Augment) -> None:
    images = batch()
    changed = images.clone()
    changed[1:] = 0
    assert torch.equal(augment(images, how, 0, 0)[0], augment(changed, how, 0, 0)[0])


def test_half_of_the_images_are_mirrored_where_allowed() -> None:
    images = batch(400)
    allowed = torch.arange(400) < 300
    result = augment(images, Augment(mirror=True), 0, 0, mirror=allowed)
    mirrored = torch.isclose(result, as_unit(images).flip(3), atol=1e-4).flatten(1).all(1)
    kept = torch.isclose(result, as_unit(images), atol=1e-4).flatten(1).all(1)
    assert (mirrored | kept).all()
    assert not mirrored[300:].any()
    assert 115 < mirrored[:300].sum() < 185
    assert torch.allclose(
        augment(images, Augment(mirror=True), 0, 0, mirror=False), as_unit(images), atol=1e-4
    )


def test_shift_moves_by_whole_images_up_to_its_limit() -> None:
    """A bright column's centre moves by at most the shift, to both sides, at random."""
    images = torch.zeros(300, 3, 5, 40, dtype=torch.uint8)
    images[..., 19:21] = 255
    result = augment(images, Augment(shift=0.1), 0, 0)
    columns = result.sum((1, 2))  # [B, 40]
    centres = (columns * torch.arange(40)).sum(1) / columns.sum(1) - 19.5
    assert centres.abs().max() <= 4.01
    assert centres.min() < -3 and centres.max() > 3 and abs(centres.mean()) < 0.6


def test_resized_crops_zoom_in() -> None:
    images = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 8:24, 8:24] = 255  # a quarter of the area
    zoomed = augment(images, Augment(area=(0.3, 0.5)), 0, 0).mean()
    assert zoomed > 0.4


def test_grey_and_colour() -> None:
    images = batch(200)
    grey = augment(images, Augment(grey=1.0), 0, 0)
    assert torch.allclose(grey[:, 0], grey[:, 1], atol=1e-5)
    some = augment(images, Augment(grey=0.25), 0, 0)
    share = (some.std(1).flatten(1).amax(1) < 1e-5).float().mean()
    assert 0.15 < share < 0.35
    bright = augment(images, Augment(brightness=0.4), 0, 0).mean((1, 2, 3)) / as_unit(images).mean(
        (1, 2, 3)
    )
    assert bright.min() > 0.55 and bright.max() < 1.42 and bright.std() > 0.15
    tinted = augment(images, Augment(tint=0.05), 0, 0) - as_unit(images)
    assert tinted.abs().max() <= 0.0501


@pytest.mark.parametrize(
    "options", [{"area": (0.0, 1.0)}, {"area": (2.0, 1.0)}, {"aspect": 0.5}, {"grey": 2.0}]
)
def test_impossible_ranges_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(PolyshotError):
        Augment(**options)
