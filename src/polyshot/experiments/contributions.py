"""What each member of the averaging methods contributes: right predictions in every episode.

The paper's figure 'Contributions of individual models': Simple-Avg's networks against DoA's.
"""

from collections.abc import Mapping
from typing import Any

import torch

from polyshot.errors import PolyshotError
from polyshot.methods.method import Fitted
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.methods.simple_avg import Average
from polyshot.tasks import Tasks


def contributions(fitted: Mapping[str, Fitted], tasks: Tasks) -> dict[str, Any]:
    """Count each member's right answers in each episode, for methods that have members.

    Returns:
        ``{"queries": of an episode, "methods": {name: {"members": [M], "correct": [E][M]}}}``.

    """
    methods = {name: _of_one(name, each, tasks) for name, each in fitted.items()}
    return {"queries": tasks.query.shape[1], "methods": methods}


def _of_one(name: str, fitted: Fitted, tasks: Tasks) -> dict[str, Any]:
    if isinstance(fitted, Average):
        members = list(fitted.names)
    elif isinstance(fitted, PoolWithRule):
        members = list(fitted.pool.members)
    else:
        raise PolyshotError(f"'{name}' has no members whose predictions could be counted.")
    predicted = fitted.member_probabilities(tasks).argmax(-1)  # [M, E, W * Q]
    each = predicted.shape[-1] // tasks.way
    labels = torch.arange(tasks.way, device=predicted.device).repeat_interleave(each)
    return {"members": members, "correct": (predicted == labels).sum(-1).T.tolist()}
