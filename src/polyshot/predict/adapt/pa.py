"""pa: a linear map of the embedding, learned on the support set.

*Universal Representation Learning from Multiple Domains for Few-shot Classification* (Li et al.,
2021): the map starts as the identity and is learned by nearest prototypes of the support set. There
its learning rate is another on seen than on unseen domains; here it is the low one everywhere. And
here a query's cosines are the mean of those with and without the map, which costs nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.predict.adapt.learn import Learned, learn_tasks
from polyshot.tasks import pick
from polyshot.util.device import for_device

LR_FACTOR = 2.0
"""Learning rate of a map, in those of a modulator."""
AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Numbers of the maps that are learned side by side: on a CPU they should stay in its caches."""


@dataclass(frozen=True, eq=False)
class Maps:
    """Maps of E tasks on embeddings of unit norm (`learn.Learnable`)."""

    support: Tensor
    """``[E, W, S, d]``, of unit norm."""
    lr_factors: Sequence[float] = (LR_FACTOR,)
    leave_self_out: bool = False

    def at_once(self, images: int) -> int:
        """Return how many tasks to learn side by side."""
        return max(1, for_device(AT_ONCE, self.support.device) // self.support.shape[-1] ** 2)

    def start(self, rows: Tensor) -> list[Tensor]:
        """Return identities ``[k, d, d]``."""
        return [identities(len(rows), self.support)]

    def inputs(self, rows: Tensor, places: Tensor) -> list[Tensor]:
        """Return embeddings ``[k, W * S', d]``, over all views already."""
        return [pick(self.support[rows], places).flatten(1, 2)]

    def embed(self, leaves: Sequence[Tensor], rows: Tensor, inputs: Tensor) -> Tensor:
        """Map embeddings ``[k, W * S', d]``."""
        return inputs @ leaves[0].mT


def learn_maps(
    support: Tensor,
    mask: Tensor | None,
    scale: Tensor,
    plain: Callable[[Tensor, Tensor], Tensor],
    config: AdaptationConfig,
) -> Learned:
    """Learn a map for each task that gains by it: `Learned.leaves` are the maps, ``[k, d, d]``.

    `support` are raw embeddings ``[E, W, S, d]``, `mask` bool ``[E, W, S]`` (None where shots are
    even), `scale` ``[E]`` is of cosines without a map, `plain` as `learn_tasks` asks for it.
    """
    if mask is None:
        mask = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
    return learn_tasks(Maps(F.normalize(support, dim=-1)), mask, config, scale, plain)


def identities(count: int, like: Tensor) -> Tensor:
    """Return maps that change nothing, ``[count, d, d]``, of embeddings ``[..., d]``."""
    dim = like.shape[-1]
    return torch.eye(dim, dtype=like.dtype, device=like.device).repeat(count, 1, 1)
