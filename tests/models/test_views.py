from typing import get_args

import pytest
import torch
from torch import Tensor

from polyshot.models.views import MEAN, STD, VIEWS, View, Views, apply_view, normalise, over_views


def gradient(side: int = 20) -> Tensor:
    """Images whose red grows to the right and whose green grows downwards, 0 to 1."""
    line = (torch.arange(side) + 0.5) / side
    red, green = line.expand(side, side), line.expand(side, side).T
    return torch.stack([red, green, torch.zeros(side, side)]).unsqueeze(0)


def test_every_name_has_its_views_and_the_whole_image_comes_first() -> None:
    assert set(VIEWS) == set(get_args(Views))
    assert [len(VIEWS[name]) for name in get_args(Views)] == [1, 3, 5]
    assert all(views[0] == View(1.0) for views in VIEWS.values())


def test_the_whole_image_is_not_even_copied() -> None:
    images = gradient()
    assert apply_view(images, View(1.0)) is images


@pytest.mark.parametrize(("right", "down"), [(-1, -1), (1, -1), (-1, 1), (1, 1), (0, 0)])
def test_a_part_lies_where_it_should(right: int, down: int) -> None:
    part = apply_view(gradient(), View(0.5, right, down))[0]
    for channel, where in ((part[0], right), (part[1], down)):
        assert channel.mean().item() == pytest.approx(0.5 + 0.25 * where, abs=0.02)
    assert part[0].std() < gradient()[0, 0].std() * 0.6  # half of the range


def test_from_farther_away_the_border_is_mirrored() -> None:
    wide = apply_view(gradient(), View(1.2))[0, 0]
    assert wide[:, 0].mean() > wide[:, 2].mean()  # beyond the border it grows again
    assert wide.mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", get_args(Views))
def test_the_mean_over_the_views_counts(name: Views) -> None:
    images = torch.rand(2, 3, 3, 12, 12)

    def embed(pixels: Tensor) -> Tensor:
        return pixels.amax((-1, -2)) ** 2

    expected = torch.stack([embed(apply_view(images, view)) for view in VIEWS[name]]).mean(0)
    torch.testing.assert_close(over_views(embed, images, name), expected)
    torch.testing.assert_close(over_views(embed, images, name, together=True), expected)


def test_bytes_and_floats_are_normalised_alike() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8)
    result = normalise(images)
    assert torch.equal(result, normalise(images.float() / 255))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    assert torch.allclose(result * std + mean, images / 255)


def test_a_prediction_first_does_not_spoil_a_training_later() -> None:
    with torch.inference_mode():
        normalise(torch.rand(1, 3, 2, 2))
    images = torch.rand(1, 3, 2, 2, requires_grad=True)
    normalise(images).square().sum().backward()
    assert images.grad is not None
