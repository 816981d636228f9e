"""How a domain of a user's own is added to a pool: by which classes, in which tasks, how long.

The training that pools are grown by was made for a GPU and for domains of many classes. A domain of
a few classes of a few images is split and asked for smaller tasks; without a GPU an addition learns
from so many images as two cores look at in some minutes (docs/grow.md has what that costs).
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.shapes import largest_shape
from polyshot.data.splits import split_in_two
from polyshot.errors import PolyshotError, unknown
from polyshot.models.backbone import sites_of
from polyshot.models.foreign import ForeignConfig
from polyshot.models.modulators import Modulator
from polyshot.models.views import VIEWS
from polyshot.pool.pool import Pool
from polyshot.training.growth import growth_config
from polyshot.training.modulators import Member

PARTS = ("auto", "train", "all")
BUDGET = 30_000
"""Images of 72 pixels a side that an addition learns from without a GPU; of larger ones fewer."""
EPISODES = 2
"""Of an update, there: many small updates learn more from as many images (docs/grow.md)."""
LOOKS = 4
"""At the validation classes, there."""
LEAST = 20
"""Updates, however large the images are."""


@dataclass(frozen=True)
class Plan:
    """What an addition takes."""

    pack: Pack
    """The domain, under the class split that is trained by."""
    options: tuple[str, ...]
    """Of the training, the user's own among them."""
    remarks: tuple[str, ...]
    """What a user should know before it begins, in one line each."""


def plan_addition(
    pool: Pool, pack: Pack, options: Sequence[str] = (), part: str = "auto", timed: bool = True
) -> Plan:
    """Decide how a domain is added to a pool, on the device of its weights.

    `part` says which classes teach: `train` those of the class split, `all` every one, `auto` the
    former where there are any. `timed` measures how long it will take.
    """
    if part not in PARTS:
        raise unknown("part", part, PARTS)
    name, split = pack.domain.name, pack.domain.split
    remarks = []
    if part == "all" or (part == "auto" and not split.train and not split.val):
        two = split_in_two(pack.domain.class_names)
        pack = replace(pack, domain=pack.domain.with_split(two))
        remarks.append(
            f"{name}: all {len(pack.domain.class_names)} classes are used, {len(two.train)} to "
            f"train on and {len(two.val)} to choose by; measure the gain on images of others."
        )
    fitted, remark = _smaller_tasks(pool, pack, options)
    remarks += remark
    full = growth_config(pool, [*fitted, *options])
    short = [] if pool.device.type != "cpu" else _shorter(pool, full, options)
    chosen = (*fitted, *short, *options)
    if timed:
        remarks.append(_time_in_words(pool, pack, growth_config(pool, chosen), full))
    return Plan(pack, chosen, tuple(remarks))


def _smaller_tasks(pool: Pool, pack: Pack, options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return options that make tasks as small as a domain's classes ask for, and a remark."""
    config, chosen, remarks = growth_config(pool, options), [], []
    shapes = (("modulator.shape", "train", config.modulator.shape), ("shape", "val", config.shape))
    for option, part, shape in shapes:
        found = largest_shape(pack.domain, shape, part)
        if found is None:
            raise PolyshotError(
                f"{pack.domain.name} cannot be added: of its classes that "
                f"{'are trained on' if part == 'train' else 'choices are made by'} fewer than two "
                "have two images. Import more, or take all classes (--part all)."
            )
        if found != shape:
            fields = ("way", "shot", "queries")
            chosen += [f"{option}.{field}={getattr(found, field)}" for field in fields]
            remarks.append(
                f"{pack.domain.name}: tasks of {found} instead of {shape} "
                f"({'training' if part == 'train' else 'validation'}), as its classes allow."
            )
    return chosen, remarks


def _shorter(pool: Pool, config: Config, options: Sequence[str]) -> list[str]:
    """Return options of a training for a CPU, unless the user has said how long it is to be."""
    own, shape = config.modulator, config.modulator.shape
    said = {option.partition("=")[0].strip() for option in options}
    if said & {"modulator.steps", "modulator.episodes"}:
        return []
    side = pool.config.size if isinstance(pool.config, ForeignConfig) else pool.size
    budget = BUDGET * 72**2 // side**2
    each = shape.way * (shape.shot + shape.queries)
    if own.steps * own.episodes * each <= budget:
        return []
    episodes = min(own.episodes, max(EPISODES, budget // (own.steps * each)))
    steps = min(own.steps, max(LEAST, budget // (episodes * each)))
    every = max(1, steps // LOOKS)
    return [
        f"modulator.steps={steps}",
        f"modulator.episodes={episodes}",
        *([] if "modulator.validate_every" in said else [f"modulator.validate_every={every}"]),
    ]


def _time_in_words(pool: Pool, pack: Pack, config: Config, full: Config) -> str:
    own, shape = config.modulator, config.modulator.shape
    learning, looking = _speeds(pool)
    images = own.episodes * shape.way * (shape.shot + shape.queries)
    minutes = _seconds(pool, pack, config, learning, looking) / 60
    where = "a CPU" if pool.device.type == "cpu" else "this GPU"
    said = (
        f"{pack.domain.name}: {own.steps:,} updates of {images} images take about "
        f"{_in_words(minutes)} on {where}"
    )
    if full.modulator == own:
        return f"{said}."
    whole = _seconds(pool, pack, full, learning, looking) / 60
    return (
        f"{said}. The whole training, made for a GPU, would take {_in_words(whole)} here: "
        f"--set modulator.steps={full.modulator.steps} "
        f"--set modulator.episodes={full.modulator.episodes}."
    )


def _in_words(minutes: float) -> str:
    if minutes < 1.5:
        return "a minute"
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"


def _seconds(pool: Pool, pack: Pack, config: Config, learning: float, looking: float) -> float:
    """Add up what an addition takes, from seconds to learn from an image and to look at one."""
    own, shape, domain = config.modulator, config.modulator.shape, pack.domain
    updates = own.steps * own.episodes * shape.way * (shape.shot + shape.queries)
    train, val = (
        int(domain.class_sizes[list(domain.split.part(p))].sum()) for p in ("train", "val")
    )
    looks = 1 + own.steps // max(1, own.validate_every) + len(own.strengths)
    members = 2 + sum(bool(strength) for strength in pool.strengths.values())
    views = len(VIEWS[config.views])
    return updates * learning + views * looking * (looks * val + members * (train + val))


def _speeds(pool: Pool) -> tuple[float, float]:
    """Measure seconds to learn from an image, and to look at one."""
    device = pool.device
    count = 32 if device.type == "cpu" else 512
    identity = Modulator(sites_of(pool.base), pool.kind).to(device).requires_grad_(False)
    change = copy.deepcopy(identity).requires_grad_(True)
    member = Member(pool.base, identity, change)
    images = torch.zeros(count, 3, pool.size, pool.size, device=device)

    def seconds(learns: bool) -> float:
        start = time.perf_counter()
        with torch.set_grad_enabled(learns):
            made = member(images).sum()
        if learns:
            made.backward()
        made.item()
        return (time.perf_counter() - start) / count

    seconds(True)  # the first is slower
    return seconds(True), seconds(False)
