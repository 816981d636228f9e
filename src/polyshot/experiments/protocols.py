"""The paper's experiments as data: who is trained on what and tested where, with which settings.

Choi et al., 2019. A protocol turns the sources that there are, and the domains that are never
sources, into trials; `run.reproduce` does the rest.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from polyshot.config import Config, override
from polyshot.config import preset as look_up
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError, did_you_mean, join_names, unknown
from polyshot.methods.method import Method, find_methods

Overrides = Mapping[str, Mapping[str, float]]
"""Method -> setting -> value."""

SHAPES = (EpisodeShape(5, 5, 10), EpisodeShape(5, 1, 10))
"""5-way 5-shot and 5-way 1-shot, the paper's two."""

EMBEDDED = (("glyphs", "textures", "signs"), ("plankton",))
"""Embedded domains taken where no packs are given: sources, and what is never one."""

PARTS = {"test": "test classes", "val": "validation classes"}
"""Parts of the targets' class splits that are measured on, in words."""

ADDED = "added"
"""Name of the protocol of pools that grow."""

CONTRIBUTORS = ("simple-avg", "average")
"""The averaging methods whose members are looked at."""
CONTRIBUTION_EPISODES = 40


@dataclass(frozen=True)
class Trial:
    """One training and what it is tested on."""

    sources: tuple[Pack, ...]
    targets: tuple[Pack, ...]
    left_out: Pack | None = None
    """Where given, `--targets` chooses the trial by it, and all targets are tested."""
    grown: bool = False
    """Whether what was left out is added to the pool that was trained without it."""

    @property
    def added(self) -> Pack | None:
        """The domain that the pool grows by."""
        return self.left_out if self.grown else None


@dataclass(frozen=True)
class Protocol:
    """A named experiment."""

    name: str
    about: str
    """One line."""
    paper: str
    """The table or figure that it repeats; empty where the paper has none."""
    trials: Callable[[Sequence[Pack], Sequence[Pack]], list[Trial]]
    """(sources, domains that are never sources) -> what is trained and tested."""
    kind: Literal["accuracies", "contributions", "parameters"] = "accuracies"
    """What comes out: accuracies of all methods, right predictions of members, or a plain count."""
    pools_only: bool = False
    """Whether only methods over the pool are measured (`Method.pool`), and the base beside them."""
    options: tuple[str, ...] = ()
    """Options of the config that belong to it, written as for ``--set``."""

    def config(self, config: Config, chosen: Sequence[str] = ()) -> Config:
        """Return the config of its trainings; options that the user has chosen win over its own."""
        names = {option.partition("=")[0].strip() for option in chosen}
        own = [each for each in self.options if each.partition("=")[0] not in names]
        return override(config, own)


def _without_each(sources: Sequence[Pack], why: str) -> list[tuple[Pack, tuple[Pack, ...]]]:
    """Leave each source out in turn: which, and the rest."""
    if len(sources) < 2:
        raise PolyshotError(f"{why}: it needs at least two sources.")
    return [(one, tuple(pack for pack in sources if pack is not one)) for one in sources]


def _unseen(sources: Sequence[Pack], others: Sequence[Pack]) -> list[Trial]:
    each = _without_each(sources, "'unseen' leaves one source out and trains on the rest")
    trials = [Trial(rest, (left_out,)) for left_out, rest in each]
    return [*trials, Trial(tuple(sources), tuple(others))] if others else trials


def _added(sources: Sequence[Pack], others: Sequence[Pack]) -> list[Trial]:
    """Pools without each source in turn, tested on everything before it is added and after."""
    trials = []
    why = "'added' trains without one source and adds it later"
    for new, old in _without_each(sources, why):
        trials += [Trial(old, (new, *old, *others), new, grown) for grown in (False, True)]
    return trials


def _largest(count: int) -> Callable[[Sequence[Pack], Sequence[Pack]], list[Trial]]:
    def trials(sources: Sequence[Pack], others: Sequence[Pack]) -> list[Trial]:
        if len(sources) < count:
            raise PolyshotError(
                f"'sources-{count}' trains on {count} sources, there are {len(sources)}."
            )
        largest = _by_size(sources)[:count]
        # In the order of all sources: where these are all, the world is the same one.
        chosen = tuple(pack for pack in sources if pack in largest)
        return [Trial(chosen, (*sources, *others))]

    return trials


def _one_source(sources: Sequence[Pack], others: Sequence[Pack]) -> list[Trial]:
    largest = _by_size(sources)[0]
    return [Trial((largest,), (*(pack for pack in sources if pack is not largest), *others))]


def _by_size(sources: Sequence[Pack]) -> list[Pack]:
    """Sort sources by their number of images, the largest first."""
    return sorted(sources, key=lambda pack: -len(pack.domain.labels))


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "seen",
            "trained on all sources, tested on new classes of each",
            "figure and table 'On seen domains'",
            lambda sources, _: [Trial(tuple(sources), tuple(sources))],
        ),
        Protocol(
            "unseen",
            "each source left out in turn and tested on, and domains that are never sources",
            "figure and table 'On unseen domains'",
            _unseen,
        ),
        *(
            Protocol(
                f"sources-{count}",
                f"trained on the {count} largest sources, tested on all domains",
                "tables 'varying number of sources'",
                _largest(count),
            )
            for count in (2, 4, 6)
        ),
        Protocol(
            "contributions",
            "right predictions of each member of simple-avg and average, 40 episodes of 50 queries",
            "figure 'Contributions of individual models'",
            lambda sources, others: [Trial(tuple(sources), (*sources, *others))],
            kind="contributions",
        ),
        Protocol(
            "parameters",
            "the number of parameters, ours and the paper's; nothing is trained",
            "table 'comparison of the number of parameters'",
            lambda _, __: [],
            kind="parameters",
        ),
        Protocol(
            ADDED,
            "each source in turn added to the pool of the others, which stay as they are",
            "",
            _added,
            pools_only=True,
        ),
        Protocol(
            "joint",
            "as 'seen', but base and modulators trained together; tested on all domains",
            "",
            lambda sources, others: [Trial(tuple(sources), (*sources, *others))],
            pools_only=True,
            options=("joint=true",),
        ),
        Protocol(
            "one-source",
            "a pool from the largest source alone, a member for each cluster of its classes, "
            "tested on all other domains",
            "",
            _one_source,
            options=("modulator.members=0",),  # as many as there are
        ),
    )
}


def find_protocols(names: Sequence[str]) -> list[Protocol]:
    """Look protocols up, each once."""
    if not names:
        raise PolyshotError(f"Name what to reproduce: {join_names(PROTOCOLS, 20)}.")
    for name in names:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS, 20)
    return [PROTOCOLS[name] for name in dict.fromkeys(names)]


def part_sources(packs: Sequence[Pack], names: Sequence[str]) -> tuple[list[Pack], list[Pack]]:
    """Part packs into sources and the rest; sources are the named, or all that can be trained on.

    The order of the packs stays: worlds with the same sources are the same world.
    """
    known = [pack.domain.name for pack in packs]
    check_sources(names, known)
    chosen = [p for p in packs if (p.domain.name in names if names else p.domain.split.train)]
    if not chosen:
        raise PolyshotError(
            f"There is no domain to train on: {join_names(known)} have no training classes."
        )
    return chosen, [pack for pack in packs if pack not in chosen]


def check_sources(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse sources that are none of the domains there are."""
    for name in names:
        if name not in known:
            raise unknown("domain", name, known, where=" to train on")


def embedded_names() -> tuple[str, ...]:
    """Name the domains that are drawn where no packs are given."""
    return sum(EMBEDDED, ())


def default_episodes(preset: str) -> tuple[int, int | None]:
    """Return how many episodes a cell has, and how many where whole networks are learned."""
    return (100, 5) if preset == "tiny" else (600, None)  # `tiny` is for two cores


def shapes_of(shots: Sequence[str]) -> list[EpisodeShape]:
    """Make the paper's shape with other numbers of shots."""
    if not shots or not all(shot.isdecimal() for shot in shots):
        raise PolyshotError(f"'{','.join(shots)}' are no numbers of shots: write them as 5,1.")
    return [EpisodeShape(5, int(shot), 10) for shot in dict.fromkeys(shots)]


# --- settings of methods: their own, then what tuning chose, then what the command line says


@cache
def shipped(file: str) -> dict[str, Any]:
    """Read a JSON file that Polyshot brings along."""
    text = resources.files("polyshot.experiments").joinpath(file).read_text("utf-8")
    return dict(json.loads(text))


def settings_of(method: Method, preset: str, overrides: Overrides) -> dict[str, float]:
    """Return a method's settings under a preset: its own, or those that tuning chose."""
    chosen = shipped("tuned.json").get(preset, {}).get(method.name, {}).get("settings", {})
    return {**method.settings, **chosen, **overrides.get(method.name, {})}


def split_options(options: Sequence[str]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Part options into settings of methods (``protonet.learning_rate=0.01``) and the config's."""
    methods = {method.name: method for method in find_methods()}
    sections = {section.name for section in dataclasses.fields(Config)}
    own: dict[str, dict[str, float]] = {}
    others = []
    for option in options:
        name, dot, rest = option.partition(".")
        # A method may be called as a section of the config is: 'base', whose settings stay.
        if not dot or name in sections or name not in methods:
            others.append(option)
            continue
        setting, value = _parsed(methods[name], rest, option)
        own.setdefault(name, {})[setting] = value
    return own, others


LARGEST = 1_000_000
"""Of a method's setting."""


def configured(preset: str, options: Sequence[str]) -> tuple[Config, Overrides, list[str]]:
    """Return a preset with options, the settings of methods among these, and the others."""
    overrides, others = split_options(options)
    return override(look_up(preset), others), overrides, others


def _parsed(method: Method, text: str, option: str) -> tuple[str, float]:
    setting, _, value = (part.strip() for part in text.partition("="))
    known = method.settings
    if setting not in known:
        raise PolyshotError(
            f"The option '{option}' names no setting of {method.name}, "
            f"only {join_names(known, 20) or 'none are there'}.{did_you_mean(setting, known)}"
        )
    try:
        number = float(value)
    except ValueError:
        raise PolyshotError(f"The option '{option}' needs a number after '='.") from None
    if not 0 <= number <= LARGEST:  # nor is NaN between them
        raise PolyshotError(f"The option '{option}' needs a number from 0 to {LARGEST:,}.")
    # Names of files are made of settings: 100 and 100.0 must not be two.
    whole = isinstance(known[setting], int) and number.is_integer()
    return setting, int(number) if whole else number
