"""Drawing without replacement for many rows at once, with and without groups."""

from bisect import bisect_left

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.util.counter_rng import bits

FAR = torch.iinfo(torch.int64).max


def draw_distinct(random: Tensor, limit: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """Draw ordered samples without replacement, uniformly, at a cost that does not grow with limit.

    The i-th number is drawn below ``limit - i``: its rank among what is left. Such ranks are a
    Lehmer code; decoding it from the last to the first turns ranks into values. A prefix of the
    sample does not depend on how long the sample is.

    Args:
        random: float32 ``[m, ...]`` in ``[0, 1)``.
        limit: float32 ``[...]``, how many there are to draw from, below 2^24 (a product of 24 bits
            and such a number never rounds up to the number), at least m where the result is used.
        dtype: of the result; a small type is faster, where every limit fits.

    Returns:
        Integers ``[m, ...]``, distinct along the first axis.
    """
    left = torch.arange(len(random), dtype=torch.float32, device=random.device)
    values = (random * (limit - left.view(-1, *[1] * (random.ndim - 1)))).to(dtype)
    rows, reached = values.unbind(), torch.empty_like(values)
    for i in range(len(rows) - 2, -1, -1):
        later = values[i + 1 :]
        # Into a tensor of the same type: faster than adding booleans.
        later += torch.ge(later, rows[i], out=reached[i + 1 :])
    return values


def draw_group_disjoint(
    key: int, numbers: Tensor, groups: Tensor, shots: Tensor, queries: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw support and query images of a class so that they share no group.

    Support images are taken in random order; an image of a new group is passed over if too few
    images for the queries would be left in the groups not yet touched. Without such a squeeze this
    is a uniform draw. The queries are drawn uniformly from the untouched groups. Rows must allow it
    (see :func:`allows`).

    Args:
        key: of the random stream.
        numbers: int64 ``[R]``, names each row's part of the stream.
        groups: int64 ``[R, n]`` group of each image of the row's class, numbered from 0 within the
            class, -1 where the class has fewer than n images.
        shots: int64 ``[R]`` support images wanted.
        queries: int64 ``[R]`` query images wanted.

    Returns:
        Positions in the class, int64 ``[R, max shots]`` and ``[R, max queries]``; what lies beyond
        a row's own numbers is arbitrary.

    """
    rows, count = groups.shape
    positions = torch.arange(count, device=groups.device)
    exists = groups >= 0
    # 32 random bits above the position: a random order without ties, whose outcome would depend
    # on the device.
    order = (bits(key, numbers, count).T.long() + 2**31 << 24) + positions
    sizes = torch.zeros(rows, count, dtype=torch.int64, device=groups.device)
    sizes.scatter_add_(1, groups.clamp(min=0), exists.long())
    own_group_size = sizes.gather(1, groups.clamp(min=0))  # [R, n]
    left = exists.sum(1)  # images in untouched groups, [R]
    touched = torch.zeros_like(exists)
    free = exists.clone()
    support = []
    for shot in range(int(shots.max())):
        fits = touched | (left[:, None] - own_group_size >= queries[:, None])
        pick = torch.where(free & fits, order, FAR).argmin(1, keepdim=True)  # [R, 1]
        support.append(pick)
        active = (shot < shots)[:, None]
        left -= torch.where(active & ~touched.gather(1, pick), own_group_size.gather(1, pick), 0)[
            :, 0
        ]
        touched |= active & (groups == groups.gather(1, pick)) & exists
        free &= ~(active & (positions == pick))
    untouched = torch.where(exists & ~touched, order, FAR)
    query = untouched.topk(int(queries.max()), dim=1, largest=False, sorted=True).indices
    return torch.cat(support, 1), query


def allows(group_sizes: NDArray[np.int64], shots: int, queries: int) -> bool:
    """Whether :func:`draw_group_disjoint` can serve a class, whatever the order it draws in.

    At most ``shots - 1`` images are touched when the next group is opened, so a group of at most
    ``n - (shots - 1) - queries`` images may always be opened; such groups must hold enough images.
    Without groups each image is a group of one, and this says ``n >= shots + queries``.
    """
    largest = group_sizes.sum() - (shots - 1) - queries
    return bool(group_sizes[group_sizes <= largest].sum() >= shots)


def most_shots(group_sizes: NDArray[np.int64], queries: int) -> int:
    """Largest number of shots that the class allows beside its queries; 0 if none."""
    shots = range(1, int(group_sizes.sum()) + 1)
    return bisect_left(shots, True, key=lambda shot: not allows(group_sizes, shot, queries))
