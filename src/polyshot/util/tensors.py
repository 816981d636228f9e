"""Tensors and arrays as files: what steps of a training leave, and what they go on from."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.util.files import new_file, write_bytes


def write_array(file: BinaryIO, array: NDArray[Any]) -> None:
    """Write an array as ``.npy``; on a full disk with the system's error, unlike numpy's own."""

    class Plain:  # numpy writes past Python where it sees a real file
        write = file.write

    np.save(Plain(), array, allow_pickle=False)


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain data, to go on from later."""
    whole = io.BytesIO()  # torch's own errors on a full disk are of many kinds
    torch.save(dict(state), whole)
    with new_file(path) as file:
        file.write(whole.getbuffer())


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint; it may hold tensors and plain data only."""
    try:
        return dict(torch.load(path, map_location=device, weights_only=True))
    except Exception as error:  # torch raises many kinds for a damaged file
        raise PolyshotError(
            f"The checkpoint {path} is damaged ({type(error).__name__}): delete it, "
            "and this step starts again."
        ) from None


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Lay tensors out as the content of a safetensors file."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.save(whole, dict(metadata))


def write_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the result of a step as safetensors, with what is known about it."""
    write_bytes(path, tensor_bytes(weights, {"about": json.dumps(about)}))


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and what :func:`write_weights` noted about them (nothing in other files)."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
        return safetensors.load_file(path), about
    except FileNotFoundError:
        raise PolyshotError(f"There is no file {path}.") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise PolyshotError(f"{path} is no safetensors file that can be read: {error}.") from None
