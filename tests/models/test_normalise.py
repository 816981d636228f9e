import torch

from polyshot.models.normalise import MEAN, STD, normalise


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
