"""Networks from elsewhere that a file holds: what their code needs to be built again.

EfficientNet-Lite0 is code of ours. An image tower of transformers is built by that library from its
configuration, which the file has; no weights are fetched. Those of timm and torchvision, and
networks that a user made, cannot be built here: a file names them, and whoever loads it needs them.
"""

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from polyshot.errors import PolyshotError
from polyshot.models.efficientnet import EfficientNetLite
from polyshot.models.foreign import Foreign, ForeignConfig, first_line
from polyshot.models.hub import import_library
from polyshot.models.loaders import LITE0
from polyshot.models.towers import Tower, quiet_transformers

TRANSFORMERS = "transformers"


def can_rebuild(config: ForeignConfig) -> bool:
    """Tell whether a network can be built from what a file holds."""
    return config.name.partition(":")[0] in (LITE0, TRANSFORMERS)


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
    if config.name == LITE0:
        return EfficientNetLite()
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
