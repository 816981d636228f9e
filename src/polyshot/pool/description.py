"""What ``pool.json`` holds, checked before anything is built."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.models.modulators import Kind
from polyshot.models.views import Views
from polyshot.util import checks
from polyshot.util.checks import Name, Range, Sha256

FORMAT = 5
"""Version of the layout. A reader refuses a newer one and knows how to read every older one.

2: weights may be 8-bit, a modulator of strength 0 may have no file, and there may be statistics of
the selector's tasks. 3: an image may be looked at more than once. 4: weights may be 6-bit. 5: the
base may be from elsewhere, named and not stored, and the maps of modulators of low rank.
"""

Width = Annotated[int, Range(1, 32768)]


@dataclass(frozen=True)
class SelectorShape:
    """The selector's layers."""

    inputs: Width
    hidden: Width
    outputs: Width
    unit_input: bool


@dataclass(frozen=True)
class AttentionShape:
    """The layers of what the rule `urt` asks."""

    inputs: Width
    heads: Annotated[int, Range(1, 64)]
    hidden: Width


@dataclass(frozen=True)
class Normalisation:
    """Of pixels, one number a channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Description:
    """What ``pool.json`` holds; fields with a default are not in files of older formats."""

    architecture: dict[str, Any]
    size: Annotated[int, Range(8, 4096)]
    normalisation: Normalisation
    metric: Metric
    kind: Kind
    domains: tuple[Name, ...]
    strengths: tuple[Annotated[float, Range(-100, 100)], ...]
    scales: tuple[Annotated[float, Range(-1e6, 1e6)], ...]
    selector: SelectorShape | None
    adaptation: AdaptationConfig
    files: dict[str, Sha256]
    about: dict[str, Any]
    urt: AttentionShape | None = None
    task_statistics: tuple[str, ...] = ()
    views: Views = "one"
    query_views: Views | None = None
    one_network: bool = False

    def __post_init__(self) -> None:
        members = len(self.domains) + 1
        if len(self.scales) != members or len(self.strengths) != members - 1:
            raise PolyshotError(
                f"{members} members need as many scales and strengths without the base, not "
                f"{len(self.scales)} and {len(self.strengths)}"
            )
        if len(set(self.domains)) != len(self.domains):
            raise PolyshotError("domains names one twice")
        check_history(self.about)


@dataclass(frozen=True)
class Told:
    """What a step tells of itself, as far as it is read again."""

    strength: Annotated[float, Range(-100, 100)] | None = None
    validation: Annotated[float, Range(-0.001, 1.001)] | None = None
    gain: Annotated[float, Range(-1.001, 1.001)] | None = None
    labels: tuple[float, ...] | None = None


HISTORY: dict[str, Any] = {
    "config": dict[str, Any],
    "packs": dict[str, str],
    "steps": dict[str, dict[str, Any]],
    "added": dict[str, Any],
    "edited": bool,
}
"""What a pool tells of its making, as far as it is read again."""


def check_history(about: Mapping[str, Any]) -> None:
    """Refuse what `HISTORY` and `Told` do not allow; the rest is left alone."""
    for name, kind in HISTORY.items():
        if name in about:
            checks.build(kind, about[name], f"about.{name}")
    told = {field.name for field in fields(Told)}
    for step, found in about.get("steps", {}).items():
        known = {name: value for name, value in found.items() if name in told}
        checks.build(Told, known, f"about.steps.{step}")
