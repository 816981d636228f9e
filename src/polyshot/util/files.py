"""Files of a run: written whole or not at all, never pickled code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.pool.precision import save_tensors


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain data as JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read what :func:`write_json` wrote."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise PolyshotError(f"{path} cannot be read ({error}): start a new run.") from None


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain data, to go on from later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state), _partial(path))
    _partial(path).replace(path)


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint; it may hold tensors and plain data only."""
    try:
        return dict(torch.load(path, map_location=device, weights_only=True))
    except Exception as error:  # torch raises many kinds for a damaged file
        raise PolyshotError(
            f"The checkpoint {path} is damaged ({type(error).__name__}): delete it, "
            "and this step starts again."
        ) from None


def write_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the result of a step as safetensors, with what is known about it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    save_tensors(tensors, _partial(path), {"about": json.dumps(about)})
    _partial(path).replace(path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and what :func:`write_weights` noted about them (nothing in other files)."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
        return load_file(path), about
    except FileNotFoundError:
        raise PolyshotError(f"There is no file {path}.") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise PolyshotError(f"{path} is no safetensors file that can be read: {error}.") from None


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")
