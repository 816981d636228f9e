"""A pool inside a classifier's file: the members that have a say, and nothing else."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from polyshot.classifier.answering import Say
from polyshot.classifier.packed import inside
from polyshot.config import AdaptationConfig
from polyshot.models.backbone import Site, sites_of
from polyshot.models.foreign import Backbone, Foreign, ForeignConfig
from polyshot.models.heads import Metric
from polyshot.models.loaders import can_rebuild, code_of, rebuild
from polyshot.models.modulators import Kind, read_tensors
from polyshot.models.resnet import OURS, ResNetConfig
from polyshot.models.views import Views
from polyshot.pool.files import foreign_base, load_state, own_base
from polyshot.pool.pool import Pool
from polyshot.pool.precision import to_exact
from polyshot.predict.familiar import Common
from polyshot.predict.predict import FittedTasks
from polyshot.predict.rules import Mix
from polyshot.util import checks
from polyshot.util.checks import Name, Range

Factor = Annotated[float, Range(-1e6, 1e6)]
COMMON = "common"
"""Name of the direction that examples have in common, ``[1, d]``."""


@dataclass(frozen=True)
class PoolAbout:
    """A pool of the members that have a say, how they were weighed, and how it has learned."""

    architecture: dict[str, Any]
    size: Annotated[int, Range(8, 4096)]
    kind: Kind
    metric: Metric
    domains: tuple[Name, ...]
    strengths: tuple[Annotated[float, Range(-100, 100)], ...]
    scales: tuple[Factor, ...]
    adaptation: AdaptationConfig
    shape: dict[str, Annotated[int, Range(1, 1 << 20)]]
    """Ways and shots that the scales were fitted to."""
    views: Views
    query_views: Views | None
    layers: tuple[Site, ...]
    """Of a network from elsewhere that is stored."""
    code: dict[str, Any]
    """What its library needs to build it."""
    members: tuple[str, ...]
    """All that the rule weighed."""
    weights: tuple[float, ...]
    learned: str
    """The adaptation."""
    mixes: tuple[Mix, ...]
    """How members answer beside `tsa`; empty where that answers alone."""
    share: float
    """Of `tsa`."""
    familiar: bool | None = None
    """Whether the examples are like those of a source; None where nothing is kept of what they have
    in common (`COMMON`)."""


def about_pool(say: Say, fitted: FittedTasks) -> PoolAbout:
    """Describe a pool of the members that have a say."""
    pool, base = say.pool, say.pool.base
    config = asdict(base.config)
    stored = base if isinstance(base, Foreign) and can_rebuild(base.config) else None
    shape = pool.task_shape
    return PoolAbout(
        architecture=config if isinstance(base, Foreign) else {"name": OURS, **config},
        size=pool.size,
        kind=pool.kind,
        metric=pool.metric,
        domains=tuple(pool.modulators),
        strengths=tuple(pool.strengths.values()),
        scales=tuple(pool.scales),
        adaptation=pool.adaptation,
        shape={"way": shape.way, "shot": shape.shot},
        views=pool.views,
        query_views=pool.query_views,
        layers=tuple(stored.layers) if stored else (),
        code=code_of(stored) if stored else {},
        members=say.names,
        weights=tuple(say.weights.tolist()),
        learned=fitted.adaptation,
        mixes=tuple(fitted.mixes),
        share=float(fitted.shares[0]) if len(fitted.shares) else 0.0,
        familiar=None if say.common is None else bool(say.common.familiar),
    )


def say_tensors(say: Say) -> dict[str, Tensor]:
    """Return the weights that answer, in the smallest form that loses nothing, and `COMMON`."""
    pool, base = say.pool, say.pool.base
    stored: dict[str, nn.Module] = {
        f"modulators.{i}": modulator
        for i, (name, modulator) in enumerate(pool.modulators.items())
        if pool.strengths[name]  # else the member is the base
    }
    if not isinstance(base, Foreign):
        stored["base"] = base
    elif can_rebuild(base.config):
        stored["base"] = base.network
    common = {} if say.common is None else {COMMON: say.common.direction}
    return common | {
        f"{part}.{name}": tensor
        for part, module in stored.items()
        for name, tensor in to_exact(module.state_dict()).items()
    }


def read_say(
    path: Path,
    about: PoolAbout,
    networks: Mapping[str, Tensor],
    number: int,
    beside: Iterator[Any],
    download: bool,
) -> Say:
    """Bring a pool back from its description and the weights of the file `path`.

    `number` is its place there; `beside` gives the networks that the file does not hold.
    """
    own = inside(networks, str(number))
    base = _read_base(path, about, inside(own, "base"), beside, download)
    modulators = {}
    for i, (name, strength) in enumerate(zip(about.domains, about.strengths, strict=True)):
        tensors = inside(own, f"modulators.{i}") if strength else {}
        modulators[name] = read_tensors(sites_of(base), about.kind, tensors)
        if strength:
            load_state(modulators[name], tensors, f"The modulator '{name}' of {path}")
    pool = Pool(
        *(base.config, about.size, about.kind, about.metric, base, modulators),
        strengths=dict(zip(about.domains, about.strengths, strict=True)),
        scales=list(about.scales),
        adaptation=about.adaptation,
        about={"config": {"shape": about.shape}},
        views=about.views,
        query_views=about.query_views,
    )
    weights = torch.tensor(about.weights)
    if len(about.members) != len(weights):
        raise ValueError("each member has a weight")
    common = None
    if about.familiar is not None:
        if own[COMMON].shape != (1, pool.config.dim):
            raise ValueError("what examples have in common is of another length")
        common = Common(own[COMMON].double(), torch.tensor([about.familiar]))
    return Say(pool, about.members, weights, common)


def _read_base(
    path: Path, about: PoolAbout, tensors: dict[str, Tensor], beside: Iterator[Any], download: bool
) -> Backbone:
    shape = dict(about.architecture)
    if shape.get("name") == OURS:
        del shape["name"]
        return own_base(path, checks.build(ResNetConfig, shape, "architecture"), tensors)
    config = checks.build(ForeignConfig, shape, "architecture")
    if not can_rebuild(config):
        give = f"FewShotClassifier.load({path.name!r}, backbone={{}})"
        return foreign_base(path, config, next(beside, None), download, give)
    network = rebuild(config, about.code)
    load_state(network, tensors, f"The network of {path}")
    return Foreign.restored(network, config, about.layers)
