"""Making a trained pool small enough to ship, and measuring what that costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from polyshot.data.pack import Pack
from polyshot.evaluation.evaluate import evaluate
from polyshot.evaluation.stats import paired
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision

LARGEST = 25_000_000
"""Bytes that a shipped pool may take."""


@dataclass(frozen=True)
class Change:
    """What the rounding did to one member's embeddings: cosines between before and after."""

    member: str
    mean: float
    worst: float


@dataclass(frozen=True)
class Cost:
    """What the rounding cost on one target, after minus before on the same episodes, as shares."""

    target: str
    method: str
    before: float
    difference: float
    half_width: float
    """Of the difference's 95 % interval."""


def ship(pool: Pool, out: Path, precision: Precision = "six") -> Pool:
    """Save a pool for shipping and load it as a user will."""
    pool.save(out, precision)
    return Pool.load(out, pool.device)


def folder_bytes(folder: Path) -> int:
    """Count the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def embedding_changes(
    before: Pool, after: Pool, packs: Sequence[Pack], images: int = 200
) -> list[Change]:
    """Compare the embeddings of some images of each pack, spread over it, member by member."""
    cosines = []
    for pack in packs:
        count = min(images, len(pack.images))
        ids = np.linspace(0, len(pack.images) - 1, count).round().astype(np.int64)
        old, new = (pool.embed(pack.images, ids=ids) for pool in (before, after))  # [M, n, d]
        cosines.append(torch.cosine_similarity(old, new, dim=-1))
    found = torch.cat(cosines, 1)  # [M, images]
    return [
        Change(member, float(row.mean()), float(row.min()))
        for member, row in zip(before.members, found, strict=True)
    ]


def accuracy_costs(
    before: Pool, after: Pool, packs: Sequence[Pack], methods: Sequence[str], episodes: int
) -> list[Cost]:
    """Measure both pools on the same test episodes of each pack."""
    costs = []
    for pack in packs:
        old, new = (evaluate(pool, pack, methods, episodes=episodes) for pool in (before, after))
        for one, other in zip(old, new, strict=True):
            difference, half_width = paired(other.per_episode, one.per_episode)
            costs.append(Cost(one.target, one.method, one.mean, difference, half_width))
    return costs
