"""Several members of one diverse source: its training classes in clusters, a modulator for each.

Classes are compared by the base's embeddings. k-means (Lloyd 1982, started by k-means++, Arthur and
Vassilvitskii 2007) groups them; how many groups there are is told by the silhouette (Rousseeuw
1987), compared with that of a cloud of the same shape without any groups, as in the gap statistic
(Tibshirani et al. 2001).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.foreign import Backbone
from polyshot.tasks import Table
from polyshot.training.validation import source_sampler
from polyshot.util import counter_rng
from polyshot.util.files import read_json, write_json

MOST = 8
"""Clusters of a source, where their number is looked for."""
ROOMY = 2
"""A cluster found that way has this many times the classes of an episode."""
PER_CLASS = 50
"""Images that a class's mean is taken over."""
STARTS = 8
"""Starts of k-means; the tightest clusters win."""
ROUNDS = 50
REFERENCES = 4
"""Clouds without groups that the silhouette is compared with."""
CLEAR = 0.02
"""Groups count if the silhouette is this much above that of the clouds."""

FILE = Path("steps", "clusters.json")
"""In the folder of a run."""

Clusters = list[tuple[int, ...]]
"""Class ids of each cluster, ascending; the clusters by their first class."""


class Member(NamedTuple):
    """A member to be: the source that it is of, and its part of that source."""

    source: int
    pack: Pack
    """With the member's name and, of the training classes, the member's."""

    @property
    def name(self) -> str:
        """``imagenet``, or ``imagenet/1`` for a cluster."""
        return self.pack.domain.name


def check_clusters(packs: Sequence[Pack], config: Config) -> None:
    """Refuse more clusters than a source's training classes allow, before anything is trained."""
    wanted, way = config.modulator.members, config.modulator.shape.way
    names = [pack.domain.name for pack in packs]
    for pack in packs if wanted != 1 else ():
        usable = len(source_sampler(pack, "train", config.modulator.shape, 0).class_ids)
        if wanted * way > usable:
            raise PolyshotError(
                f"{pack.domain.name} has {usable} training classes: enough for {usable // way} "
                f"members with {way}-way episodes, not for {wanted}. Ask for fewer, or for auto."
            )
        above = pack.domain.name.rpartition("/")[0]
        if above in names:
            raise PolyshotError(
                f"'{pack.domain.name}' could be a member of '{above}': rename one of the two."
            )


def known_members(packs: Sequence[Pack], config: Config, out: Path) -> list[Member]:
    """List the members of a run; none as long as their clusters have not been looked for."""
    if config.modulator.members == 1:
        return [Member(i, pack) for i, pack in enumerate(packs)]
    if not (out / FILE).exists():
        return []
    known = read_json(out / FILE)
    return [
        Member(i, part)
        for i, pack in enumerate(packs)
        for part in member_packs(pack, [tuple(each) for each in known[pack.domain.name]])
    ]


def write_members(
    packs: Sequence[Pack], base: Backbone, config: Config, out: Path, device: torch.device
) -> None:
    """Look for the clusters of all sources of a run, and write them down."""
    images = Images(packs, "train", device)
    found = [find_clusters(base, images, i, config) for i in range(len(packs))]
    names = (pack.domain.name for pack in packs)
    write_json(out / FILE, dict(zip(names, found, strict=True)))


def find_clusters(base: Backbone, images: Images, source: int, config: Config) -> Clusters:
    """Group the training classes of a source that are large enough; a single cluster holds all."""
    pack, own = images.packs[source], config.modulator
    classes = source_sampler(pack, "train", own.shape, 0).class_ids
    seed = counter_rng.key("clusters", config.seed, source)
    points = class_means(base, images, source, classes)
    if own.members:
        labels = cluster(points, own.members, own.shape.way, seed)
    else:
        labels = natural_clusters(points, ROOMY * own.shape.way, seed)
    count = 1 + int(labels.max())
    groups = [tuple(classes[i] for i in (labels == k).nonzero()[:, 0]) for k in range(count)]
    return sorted(groups) if count > 1 else [tuple(pack.domain.split.train)]


def member_packs(pack: Pack, clusters: Clusters) -> list[Pack]:
    """Return the source once for each cluster, as ``name/1``, with only its training classes."""
    if len(clusters) == 1:
        return [pack]
    domain = pack.domain
    parts = [replace(domain.split, train=classes) for classes in clusters]
    return [
        replace(pack, domain=replace(domain, name=f"{domain.name}/{i}", split=part))
        for i, part in enumerate(parts, 1)
    ]


def class_means(base: Backbone, images: Images, source: int, classes: Sequence[int]) -> Tensor:
    """Average the unit embeddings of each class: unit vectors [classes, d], float64 on the CPU."""
    labels = images.packs[source].domain.labels
    ids = [np.flatnonzero(labels == each)[:PER_CLASS] for each in classes]
    places = images.places(source, torch.from_numpy(np.concatenate(ids)))
    table = Table(images.taker(places), len(places), images.device, frozen=False)
    embeddings = F.normalize(table.embed(base).cpu().double(), dim=1)
    parts = torch.split(embeddings, [len(each) for each in ids])
    return F.normalize(torch.stack([part.mean(0) for part in parts]), dim=1)


def natural_clusters(points: Tensor, least: int, seed: int) -> Tensor:
    """Group points [n, d] into as many clusters as they clearly have, 1 to 8: labels [n]."""
    clouds = [_cloud(points, counter_rng.key(seed, "cloud", i)) for i in range(REFERENCES)]
    best, gap = torch.zeros(len(points), dtype=torch.int64), CLEAR
    for k in range(2, min(MOST, len(points) // least) + 1):
        labels = cluster(points, k, least, seed)
        usual = [silhouette(cloud, cluster(cloud, k, least, seed)) for cloud in clouds]
        found = silhouette(points, labels) - sum(usual) / len(usual)
        if found > gap:
            best, gap = labels, found
    return best


def cluster(points: Tensor, k: int, least: int, seed: int) -> Tensor:
    """Group points [n, d] into k clusters of at least `least` points: labels [n], 0 to k - 1."""
    best, lowest = torch.zeros(len(points), dtype=torch.int64), torch.inf
    for start in range(STARTS):
        centres = _spread_out(points, k, counter_rng.key(seed, "start", start))
        labels = best
        for _ in range(ROUNDS):
            before, labels = labels, _assigned(torch.cdist(points, centres).square(), least)
            centres = torch.stack([points[labels == i].mean(0) for i in range(k)])
            if torch.equal(before, labels):
                break
        spread = float((points - centres[labels]).square().sum())
        if spread < lowest:
            best, lowest = labels, spread
    return best


def silhouette(points: Tensor, labels: Tensor) -> float:
    """How much nearer points [n, d] are to their own cluster than to the next: -1 to 1."""
    member = F.one_hot(labels).to(points.dtype)  # [n, k]
    sizes = member.sum(0)
    total = torch.cdist(points, points) @ member  # [n, k] summed distances to each cluster
    own = total.gather(1, labels[:, None])[:, 0] / (sizes[labels] - 1).clamp(min=1)
    other = (total / sizes).scatter(1, labels[:, None], torch.inf).amin(1)
    score = (other - own) / torch.maximum(own, other).clamp(min=1e-12)
    return float(score.where(sizes[labels] > 1, 0.0).mean())


def _assigned(distance: Tensor, least: int) -> Tensor:
    """Give each point [n, k] its nearest centre, then fill small clusters with who loses least."""
    labels = distance.argmin(1)
    near = distance.gather(1, labels[:, None])  # [n, 1]
    sizes = labels.bincount(minlength=distance.shape[1])
    while bool((sizes < least).any()):
        small = int(sizes.argmin())
        spare = sizes[labels] > least
        moved = int((distance[:, small] - near[:, 0]).where(spare, torch.inf).argmin())
        sizes[labels[moved]] -= 1
        sizes[small] += 1
        labels[moved], near[moved] = small, distance[moved, small]
    return labels


def _spread_out(points: Tensor, k: int, seed: int) -> Tensor:
    """Choose k of the points as centres: each with a chance by its distance from those before."""
    random = counter_rng.uniform(seed, torch.arange(k), 1)[0].double()
    chosen = [int(random[0] * len(points))]
    for i in range(1, k):
        distance = torch.cdist(points, points[chosen]).amin(1).square()
        steps = distance.cumsum(0)
        place = int(torch.searchsorted(steps, random[i] * steps[-1], right=True))
        chosen.append(min(place, len(points) - 1))
    return points[chosen]


def _cloud(points: Tensor, seed: int) -> Tensor:
    """Draw a cloud with the mean and covariance of the points, normal and without groups."""
    mean = points.mean(0)
    _, scale, axes = torch.linalg.svd(points - mean, full_matrices=False)
    rows = torch.arange(len(points))
    uniform = counter_rng.uniform(seed, rows, len(scale)).double().T  # [n, r]
    normal = torch.special.ndtri(uniform.clamp(2**-25, 1 - 2**-25))
    cloud: Tensor = mean + normal * (scale / len(points) ** 0.5) @ axes
    return cloud
