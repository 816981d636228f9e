"""What a user may name where a command asks for a pool: several, and the two forms of the default.

`full` is the best that there is, `fast` what answers quickly without a GPU. Where the package with
the weights of EfficientNet-Lite0 is installed (the extra ``[imagenet]``) they stand on it, else on
the pool that ships. What they reach, and what they take: docs/backbones.md.
"""

import os
from dataclasses import replace

import torch

from polyshot.errors import PolyshotError
from polyshot.models.loaders import LITE0, has_lite0
from polyshot.pool.default import NAME, VARIABLE
from polyshot.pool.pool import Pool

FULL, FAST = "full", "fast"


def load_pools(
    names: str, device: torch.device | str = "cpu", views: str | None = None
) -> tuple[list[Pool], str]:
    """Load the pools of ``a,b``, and say in a line which form of the default they are, if any.

    ``default`` is `full` on a GPU, and `fast` on a CPU where Lite0 is there, unless the environment
    names another pool: on the pool that ships, `fast` loses more than it should. `views` are those
    of all pools, where they are given.
    """
    device = torch.device(device)
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise PolyshotError("No pool is named: give a folder, a backbone's name, full or fast.")
    if parts == [NAME] and VARIABLE not in os.environ:
        parts = [FAST if device.type == "cpu" and has_lite0() else FULL]
    forms = [part for part in parts if part in (FULL, FAST)]
    if forms and len(parts) > 1:
        raise PolyshotError(f"'{forms[0]}' stands alone: it may be several pools already.")
    pools = _form(forms[0], device) if forms else [Pool.named(part, device) for part in parts]
    said = ""
    if forms:
        on = " + ".join(pool.backbone if pool.backbone != "resnet18" else "ours" for pool in pools)
        said = f"{forms[0]} ({on})"
    return [pool.with_views(views) for pool in pools], said


def _form(name: str, device: torch.device) -> list[Pool]:
    if not has_lite0():
        shipped = Pool.default(device)
        return [shipped if name == FULL else replace(shipped, query_views="one")]
    lite0 = Pool.from_backbone(LITE0, device=device)
    return [lite0, Pool.default(device)] if name == FULL else [replace(lite0, query_views="one")]
