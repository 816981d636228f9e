"""Episodes of the sources that choices are made on, and how networks do on them.

E episodes, W ways, S shots, Q queries of each class, d entries an embedding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyshot.config import Config
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric, prepared, prototype_logits, prototypes
from polyshot.tasks import Network, Tasks, draw_tasks
from polyshot.util import counter_rng


def source_sampler(pack: Pack, part: str, shape: EpisodeShape, seed: int) -> EpisodeSampler:
    """Make the sampler of a source, without its classes that are too small."""
    try:
        return EpisodeSampler(pack.domain, shape, part=part, seed=seed, drop_small=True)
    except PolyshotError as error:
        kind = {"train": "training", "val": "validation"}[part]
        raise PolyshotError(
            f"{pack.domain.name} cannot be a source: its {kind} classes do not allow episodes of "
            f"{shape}. Leave it out (it can still be a target), or make them smaller: {error}"
        ) from None


def validation_tasks(val: Images, config: Config, frozen: bool = False) -> list[Tasks]:
    """Draw the validation episodes of every source; with `frozen`, for networks that stay."""
    seed = counter_rng.key("validation", config.seed)
    return _drawn(val, "val", config, config.validation_episodes, seed, frozen)


def selector_tasks(train: Images, config: Config, count: int) -> list[Tasks]:
    """Draw training episodes of every source, for who learns on embeddings of the members."""
    return _drawn(train, "train", config, count, counter_rng.key("tasks", config.seed))


def _drawn(
    images: Images, part: str, config: Config, count: int, seed: int, frozen: bool = False
) -> list[Tasks]:
    samplers = [source_sampler(pack, part, config.shape, seed) for pack in images.packs]
    return [draw_tasks(images, i, s, count, config.views, frozen) for i, s in enumerate(samplers)]


def logits_by_class(support: Tensor, query: Tensor, metric: Metric) -> Tensor:
    """Compare raw queries [E, W * Q, d] with prototypes of [E, W, S, d], scale 1: [E, W, Q, W]."""
    centres = prototypes(prepared(support, metric))  # [E, W, d]
    flat = prototype_logits(prepared(query, metric), centres, metric)  # [E, W * Q, W]
    way = support.shape[1]
    return flat.view(len(support), way, -1, way)


def network_logits(tasks: Tasks, network: Network, metric: Metric) -> Tensor:
    """Compare queries with prototypes by a network, scale 1: ``[E, W, Q, W]``."""
    return logits_by_class(*tasks.embedded(network), metric)


def class_accuracies(
    tasks: Tasks, network: Network, metric: Metric, shots: Sequence[int] = ()
) -> Tensor:
    """Return the share of right answers of each class in each episode: ``[E, W]``.

    With `shots` it is the mean over so many of the support images of each class, the first ones.
    """
    support, query = tasks.embedded(network)
    looks = [support[:, :, :shot] for shot in shots] or [support]
    right = [hits(logits_by_class(each, query, metric)).mean(-1) for each in looks]
    return torch.stack(right).mean(0)


def hits(logits: Tensor) -> Tensor:
    """Tell right answers, 1, from wrong ones, 0: logits [..., W, Q, W] -> float [..., W, Q]."""
    right = torch.arange(logits.shape[-1], device=logits.device)[:, None]
    return (logits.argmax(-1) == right).float()


def log_likelihood(logits: Tensor) -> Tensor:
    """Log probability of the right answers: logits [..., W, Q, W] -> [..., W, Q]."""
    return logits.log_softmax(-1).diagonal(dim1=-3, dim2=-1).transpose(-1, -2)


def accuracy(probabilities: Tensor) -> Tensor:
    """Share of right answers where the queries stand class by class: ``[E, W * Q, W]`` -> []."""
    episodes, _, way = probabilities.shape
    return hits(probabilities.reshape(episodes, way, -1, way)).mean()
