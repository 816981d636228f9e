"""Networks of timm and torchvision by their names; those of transformers are in `towers`.

None of them is imported before it is asked for, and nothing is fetched unless the user allows it.
What a library says of its images (size, mean, spread) is taken over, with one difference: where it
would crop the middle of an image, here the whole image is shown at the network's size.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlparse

import torch
from torch import nn

from polyshot.errors import PolyshotError
from polyshot.models.foreign import Loaded, first_line

EXAMPLES = {
    "transformers": "<folder or model id>",
    "timm": "resnet50",
    "torchvision": "resnet50",
}
"""What may stand behind the colon, for messages."""
VARIABLE = "POLYSHOT_DOWNLOAD"
"""Of the environment: whether commands may fetch what a user names."""
ALLOW = f"allow the download (download=True, or {VARIABLE}=1 in the environment)"
"""In messages."""


# --- timm


def from_timm(inside: str, size: int | None, download: bool) -> Loaded:
    """Load a network of timm without its classifier; its weights from the local cache."""
    timm = import_library("timm", "timm")
    data: Any = importlib.import_module("timm.data")
    try:
        with warnings.catch_warnings(), _nothing_fetched(not download):
            warnings.simplefilter("ignore")
            network = timm.create_model(inside, pretrained=True, num_classes=0)
    except Exception as error:  # of timm, of the hub, of files and of the network
        if download or "unknown model" in str(error).lower():
            raise PolyshotError(
                f"timm cannot load '{inside}' ({first_line(error)}): check its name and the "
                "network, or make it yourself, Pool.from_backbone(network, size, mean, std)."
            ) from None
        raise PolyshotError(
            f"The weights of 'timm:{inside}' are not in the local cache ({first_line(error)}): "
            f"{ALLOW}, or make the network yourself, Pool.from_backbone(network, size, mean, std)."
        ) from None
    about = data.resolve_model_data_config(network)
    _, height, width = about["input_size"]
    side = _square(f"timm:{inside}", [height, width]) if size is None else size
    return Loaded(network.float(), side, about["mean"], about["std"])


@contextmanager
def _nothing_fetched(forbidden: bool) -> Iterator[None]:
    """Let neither the hub nor torch fetch a file, where that is forbidden."""
    if not forbidden:
        yield
        return
    undo: list[Callable[[], object]] = []
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        before = hub.constants.HF_HUB_OFFLINE
        hub.constants.HF_HUB_OFFLINE = True
        undo.append(lambda: setattr(hub.constants, "HF_HUB_OFFLINE", before))
        # Older versions ask when a session begins, and keep it.
        if (forget := getattr(hub.utils, "reset_sessions", None)) is not None:
            forget()
            undo.append(forget)
    except ModuleNotFoundError:
        pass  # then it cannot fetch anything
    fetch = torch.hub.download_url_to_file

    def refuse(url: str, *_: Any, **__: Any) -> NoReturn:
        raise OSError(f"{Path(urlparse(url).path).name} would have to be fetched")

    torch.hub.download_url_to_file = refuse
    try:
        yield
    finally:
        torch.hub.download_url_to_file = fetch
        for step in undo:
            step()


# --- torchvision


def from_torchvision(inside: str, size: int | None, download: bool) -> Loaded:
    """Load a classifier of torchvision with its default weights, without its last layer."""
    import_library("torchvision", "torchvision")
    models: Any = importlib.import_module("torchvision.models")
    try:
        weights = models.get_model_weights(inside).DEFAULT
    except Exception as error:
        raise PolyshotError(
            f"torchvision has no weights of '{inside}' ({first_line(error)}): check its name."
        ) from None
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(weights.url).path).name
    if not file.is_file() and not download:
        raise PolyshotError(
            f"The weights of 'torchvision:{inside}' are not on this machine: {ALLOW}, or put the "
            f"file {weights.url} at {file}."
        )
    try:
        network = models.get_model(inside, weights=weights, progress=False)
    except Exception as error:
        raise PolyshotError(
            f"torchvision cannot load '{inside}' ({first_line(error)}): if {file} is there, it is "
            "damaged, delete it; else check the network."
        ) from None
    about = weights.transforms()
    linear = [name for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    classes = len(weights.meta.get("categories", ()))
    last = network.get_submodule(linear[-1]) if linear else None
    if last is None or last.out_features != classes or not hasattr(about, "crop_size"):
        raise PolyshotError(
            f"'{inside}' of torchvision is no classifier of images that ends in a linear layer: "
            "make its network yourself, Pool.from_backbone(network, size, mean, std)."
        )
    network.set_submodule(linear[-1], nn.Identity())
    side = _square(f"torchvision:{inside}", about.crop_size) if size is None else size
    return Loaded(network, side, about.mean, about.std)


def _square(name: str, sides: Any) -> int:
    """Return the one side length of images; refuses two that differ."""
    listed = [sides] if isinstance(sides, int) else [int(side) for side in sides]
    if len({*listed}) != 1:
        raise PolyshotError(
            f"'{name}' was trained on images of {' x '.join(map(str, listed))} pixels, which are "
            "square here: give one side length (size=...)."
        )
    return listed[0]


def import_library(name: str, install: str) -> Any:
    """Import a library that a network's name asks for."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise PolyshotError(
                f"Networks '{name}:...' need the package {name}: pip install {install}."
            ) from None
        reason = first_line(error)
    except Exception as error:  # a build that does not fit torch's raises what it likes
        reason = first_line(error)
    raise PolyshotError(
        f"The package {name} cannot be imported ({reason}): install it again, pip install "
        f"{install}."
    )
