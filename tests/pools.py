"""Small pools with random weights, and tasks of random embeddings."""

import torch

from polyshot.config import AdaptationConfig
from polyshot.models.heads import Metric
from polyshot.models.modulators import Kind
from polyshot.models.resnet import ResNetConfig
from polyshot.models.selector import MemberAttention, Selector, task_embedding
from polyshot.pool.pool import Pool

from .models.reference import random_base, random_modulator

SMALL = ResNetConfig(width=4, stem="small/2")
SIZE = 16


def random_pool(
    kind: Kind = "conv1x1",
    metric: Metric = "cosine",
    adaptation: AdaptationConfig | None = None,
    selector: bool = True,
) -> Pool:
    """A pool of the members base, one, two (of strength 0.5) and off (of strength 0)."""
    modulators = {name: random_modulator(SMALL, kind, i) for i, name in enumerate(NAMES)}
    for modulator in modulators.values():
        with torch.no_grad():  # far from the base, but not so far that embeddings explode
            for name, parameter in modulator.named_parameters():
                parameter.lerp_(torch.full_like(parameter, float(name.endswith("scale"))), 0.7)
    torch.manual_seed(5)
    chooser = Selector(SMALL.dim, 4, hidden=16)
    typical = task_embedding(_embeddings(7, episodes=50))
    chooser.standardise(torch.nn.functional.normalize(typical, dim=-1))  # now it is undecided
    attention = MemberAttention(SMALL.dim, hidden=8)
    with torch.no_grad():  # far from treating all members alike
        for layer in (attention.ask, attention.key):
            layer.weight.mul_(8)
    return Pool(
        config=SMALL,
        size=SIZE,
        kind=kind,
        metric=metric,
        base=random_base(SMALL),
        modulators=modulators,
        strengths={"one": 1.0, "two": 0.5, "off": 0.0},
        selector=chooser if selector else None,
        unit_input=True,
        scales=[10.0, 8.0, 12.0, 10.0] if metric == "cosine" else [0.2, 0.1, 0.3, 0.2],
        adaptation=adaptation or AdaptationConfig(steps=15),
        about={"measured": {"one": 0.5}, "note": "Übung"},
        urt=attention,
    )


NAMES = ("one", "two", "off")


def _embeddings(seed: int, way: int = 4, shot: int = 3, episodes: int = 5) -> torch.Tensor:
    """Support sets of overlapping classes, as the base of `random_pool` may embed them."""
    draw = torch.Generator().manual_seed(seed)
    dim, members = SMALL.dim, 1 + len(NAMES)
    centres = torch.randn(members, episodes, way, 1, dim, generator=draw).abs()
    noise = torch.randn(members, episodes, way, shot, dim, generator=draw)
    return (centres + 0.8 * noise).relu()[0]
