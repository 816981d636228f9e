"""Ray itself: importing it, and joining or starting a cluster."""

import os
from typing import Any

from polyshot.errors import PolyshotError


def import_ray() -> Any:
    """Import Ray, without its reports home; a missing extra is one line."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of GPUs hidden
    try:
        import ray  # noqa: PLC0415 (an extra)
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError:
        raise PolyshotError(
            "The engine 'ray' needs an extra: pip install 'polyshot[ray]', on every machine."
        ) from None
    return ray


STORE = 256 * 2**20
"""Bytes of the object store of a cluster that is started here; what is more goes to disk."""


def connect(ray: Any, address: str) -> bool:
    """Join a cluster, or start one here; returns whether it was started, and is ours to stop."""
    if ray.is_initialized():
        return False
    quiet = {"include_dashboard": False, "object_store_memory": STORE} if not address else {}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="error",
            **quiet,
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        where = f"at {address}" if address else "here"
        raise PolyshotError(f"There is no Ray cluster {where}: {reason}") from None
    return True
