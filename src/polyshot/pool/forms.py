"""What a user may name where a command asks for a pool: several, and the two forms of the default.

`full` is the best that there is, `fast` what answers quickly without a GPU. Where the package with
the weights of EfficientNet-Lite0 is installed (the extra ``[imagenet]``) they stand on it, with the
modulators that ship; else on the pool that ships. What they reach, and what they take:
docs/backbones.md.
"""

import os
from dataclasses import replace

import torch

from polyshot.config import ONE_NETWORK
from polyshot.errors import PolyshotError
from polyshot.models.loaders import has_lite0
from polyshot.models.resnet import OURS
from polyshot.pool.default import NAME, ON_LITE0, VARIABLE
from polyshot.pool.pool import Pool

FULL, FAST = "full", "fast"


def load_pools(
    names: str, device: torch.device | str = "cpu", views: str | None = None
) -> tuple[list[Pool], str]:
    """Load the pools of ``a,b``, and say in a line which form of the default they are, if any.

    ``default`` is `full` on a GPU and `fast` on a CPU, unless the environment names another pool.
    `views` are those of all pools, where they are given.
    """
    device = torch.device(device)
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise PolyshotError("No pool is named: give a folder, a backbone's name, full or fast.")
    if parts == [NAME] and VARIABLE not in os.environ:
        parts = [FAST if device.type == "cpu" else FULL]
    forms = [part for part in parts if part in (FULL, FAST)]
    if forms and len(parts) > 1:
        raise PolyshotError(f"'{forms[0]}' is a pool of its own: name it alone.")
    if not forms:
        return [Pool.named(part, device).with_views(views) for part in parts], ""
    pool = _form(forms[0], device)
    on = "ours" if pool.backbone == OURS else pool.backbone
    return [pool.with_views(views)], f"{forms[0]} ({on})"


def _form(name: str, device: torch.device) -> Pool:
    if has_lite0():
        pool = Pool.named(ON_LITE0, device)
        return pool if name == FULL else replace(pool, query_views="one")
    pool = Pool.default(device)
    return (
        pool if name == FULL else replace(pool, adaptation=replace(pool.adaptation, **ONE_NETWORK))
    )
