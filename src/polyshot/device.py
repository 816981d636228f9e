"""Which device to compute on."""

import torch

from polyshot.errors import PolyshotError


def best_device(wanted: str | None = None) -> torch.device:
    """Return the device asked for, or the GPU where there is one."""
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise PolyshotError(f"There is no device '{wanted}' here: try cpu.") from None
    return device
