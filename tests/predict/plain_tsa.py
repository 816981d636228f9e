"""tsa in its plain form: one task, one update after the other, nothing but torch's own parts.

*Cross-domain Few-shot Learning with Task-specific Adapters* (Li et al., 2022). The fast form in
`polyshot.predict.adapt.tsa` learns many tasks side by side; it is compared with this one.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.models.views import View, apply_view


class Adapted(nn.Module):
    """A frozen convolution with a 1x1 convolution beside it, which starts as nothing."""

    def __init__(self, own: nn.Conv2d) -> None:
        super().__init__()
        self.own = own.requires_grad_(False)
        self.beside = nn.Conv2d(own.in_channels, own.out_channels, 1, own.stride, bias=False)
        nn.init.zeros_(self.beside.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x) + self.beside(x)


class PlainTSA:
    """A network of one task's own: images [n, 3, H, W] with labels [n], each from 0 to W - 1.

    It learns at the `sites`, names of convolutions; by default at all of the blocks. Updates take
    the `crops` in turn; what it has learned sees all `views`.
    """

    def __init__(
        self,
        network: nn.Module,
        images: Tensor,
        labels: Tensor,
        rate: float,
        updates: int,
        leave_self_out: bool,
        crops: Sequence[View],
        views: Sequence[View],
        sites: Sequence[str] | None = None,
    ) -> None:
        self.network, self.labels = network.eval().requires_grad_(False), labels
        self.views = views
        adapters = []
        every = [f"layer{i}.{j}.conv{k}" for i in (1, 2, 3, 4) for j in (0, 1) for k in (1, 2)]
        for name in every if sites is None else sites:
            adapted = Adapted(network.get_submodule(name))
            network.set_submodule(name, adapted)
            adapters.append(adapted.beside.weight)
        width = network(images[:1]).shape[1]
        self.map = torch.eye(width, requires_grad=True)
        optimiser = torch.optim.Adadelta(
            [{"params": adapters, "lr": rate}, {"params": [self.map], "lr": 2 * rate}]
        )
        for update in range(updates):
            unit = self.embed(apply_view(images, crops[update % len(crops)]))
            logits = torch.stack(
                [10 * self.compare(unit, i, leave_self_out) for i in range(len(unit))]
            )
            optimiser.zero_grad()
            F.cross_entropy(logits, labels).backward()
            optimiser.step()
        self.moved = max(float(weight.detach().abs().max()) for weight in adapters)
        self.centres = self.prototypes(self.seen(images))

    def embed(self, images: Tensor) -> Tensor:
        """Embed through the adapters and the map, of unit norm: [n, d]."""
        return F.normalize(self.network(images) @ self.map.T, dim=-1)

    def prototypes(self, unit: Tensor, without: int = -1) -> Tensor:
        """Average each class, perhaps without one image that is not its only one: [W, d]."""
        centres = []
        for c in range(int(self.labels.max()) + 1):
            own = [i for i, label in enumerate(self.labels.tolist()) if label == c]
            centres.append(unit[[i for i in own if i != without] or own].mean(0))
        return F.normalize(torch.stack(centres), dim=-1)

    def compare(self, unit: Tensor, image: int, leave_self_out: bool) -> Tensor:
        """Compare a support image with the prototypes, its own class's without it: [W]."""
        return self.prototypes(unit, image if leave_self_out else -1) @ unit[image]

    @torch.no_grad()
    def seen(self, images: Tensor) -> Tensor:
        """Embed by what was learned, over all views: [n, d]."""
        every = [self.network(apply_view(images, view)) for view in self.views]
        return F.normalize(torch.stack(every).mean(0) @ self.map.T, dim=-1)

    def cosines(self, queries: Tensor) -> Tensor:
        """Compare queries with the classes: [q, W]."""
        return self.seen(queries) @ self.centres.T
