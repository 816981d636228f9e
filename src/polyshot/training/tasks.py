"""Episodes of a source with the images they need, embedded once: what choices are made on."""

from collections.abc import Callable

import torch
from torch import Tensor

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.methods.image_tasks import ImageTasks
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.normalise import normalise
from polyshot.models.views import Views, over_views
from polyshot.predict.readout import prepared
from polyshot.util.device import bf16_on

Network = Callable[[Tensor], Tensor]
"""Normalised images [B, 3, S, S] to embeddings [B, d]."""

BATCH = 512
"""Images embedded at once."""


def sampler(pack: Pack, part: str, shape: EpisodeShape, seed: int) -> EpisodeSampler:
    """Make the sampler of a source, without its classes that are too small."""
    try:
        return EpisodeSampler(pack.domain, shape, part=part, seed=seed, drop_small=True)
    except PolyshotError as error:
        kind = {"train": "training", "val": "validation"}[part]
        raise PolyshotError(
            f"{pack.domain.name} cannot be a source: its {kind} classes do not allow episodes of "
            f"{shape}. Leave it out (it can still be a target), or make them smaller: {error}"
        ) from None


def embed(network: Network, images: Images, places: Tensor, views: Views = "one") -> Tensor:
    """Embed images by their places: float32 [n, d], on the device."""
    parts = []

    def raw(pixels: Tensor) -> Tensor:
        return network(pixels.contiguous(memory_format=torch.channels_last)).float()

    with torch.no_grad(), bf16_on(images.device):
        for chunk in torch.split(places, BATCH):
            pixels = normalise(images.bring(images.take(chunk)))
            parts.append(over_views(raw, pixels, views))
    return torch.cat(parts)


class TaskSet:
    """E episodes of one source: W ways, S shots, Q queries a class."""

    def __init__(
        self,
        images: Images,
        source: int,
        part: str,
        shape: EpisodeShape,
        count: int,
        seed: int,
        views: Views = "one",
    ):
        drawn = sampler(images.packs[source], part, shape, seed)(0, count)
        self.images = images
        self.classes = drawn.classes
        """int64 ``[E, W]`` class ids in the domain."""
        ids = torch.cat([drawn.support, drawn.query], 2)  # [E, W, S + Q]
        needed, positions = torch.unique(ids, return_inverse=True)
        self.places = images.places(source, needed)
        """int64 ``[n]``, each image once."""
        self._positions = positions.to(images.device)
        self.shape, self.views = shape, views

    def with_images(self, frozen: bool = False) -> ImageTasks:
        """Return the episodes with their images, for methods that look at these."""
        support = self._positions[..., : self.shape.shot]
        query = self._positions[..., self.shape.shot :].flatten(1)
        return ImageTasks(self._take, len(self.places), support, query, frozen, self.views)

    def embed(self, network: Network) -> Tensor:
        """Embed the images: [n, d]."""
        return embed(network, self.images, self.places, self.views)

    def _take(self, positions: Tensor) -> Tensor:
        return self.images.bring(self.images.take(self.places[positions.to(self.places.device)]))

    def support(self, embeddings: Tensor) -> Tensor:
        """Pick the support sets: [n, d] -> [E, W, S, d]."""
        return embeddings[self._positions[..., : self.shape.shot]]

    def logits(self, embeddings: Tensor, metric: Metric) -> Tensor:
        """Compare queries with prototypes, scale 1: embeddings [n, d] -> [E, W, Q, W]."""
        ready = prepared(embeddings, metric)
        query = ready[self._positions[..., self.shape.shot :]]  # [E, W, Q, d]
        centres = prototypes(self.support(ready))  # [E, W, d]
        flat = prototype_logits(query.flatten(1, 2), centres, metric)  # [E, W * Q, W]
        return flat.view(*query.shape[:3], -1)

    def accuracy(self, network: Network, metric: Metric) -> Tensor:
        """Return the share of right answers of each class in each episode: [E, W]."""
        return hits(self.logits(self.embed(network), metric)).mean(-1)


def hits(logits: Tensor) -> Tensor:
    """Tell right answers, 1, from wrong ones, 0: logits [..., W, Q, W] -> float [..., W, Q]."""
    right = torch.arange(logits.shape[-1], device=logits.device)[:, None]
    return (logits.argmax(-1) == right).float()


def log_likelihood(logits: Tensor) -> Tensor:
    """Log probability of the right answers: logits [..., W, Q, W] -> [..., W, Q]."""
    return logits.log_softmax(-1).diagonal(dim1=-3, dim2=-1).transpose(-1, -2)
