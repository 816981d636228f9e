"""What is asked of a grid: protocols, methods, targets and shapes, and whether that can be run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError, did_you_mean, join_names, unknown
from polyshot.evaluation.compare import BASELINE
from polyshot.experiments.grid_folder import Cell
from polyshot.experiments.protocols import PARTS, SHAPES, Overrides, Protocol, Trial, find_protocols
from polyshot.methods.method import Method, find_methods
from polyshot.pool.files import check_domains

EPISODE_SEED = 0


@dataclass(frozen=True)
class Request:
    """What is asked of a grid."""

    protocols: Sequence[str]
    """Names."""
    methods: Sequence[str] = ()
    """Names; all by default."""
    targets: Sequence[str] = ()
    """Names of the domains to test on; all by default. What no target needs is not trained. Of
    `added` they are the domains to add, each tested on all domains."""
    seeds: int = 1
    """Trainings of each world, with the config's seed and the next ones."""
    episodes: int = 600
    """Of each cell."""
    slow_episodes: int | None = None
    """Of adaptations that learn whole networks (`Method.slow`); as many as others by default."""
    shapes: Sequence[EpisodeShape] = SHAPES
    adapt: bool = True
    """Measure with further adaptation, too."""
    beyond: bool = False
    """Measure methods and adaptations that the paper does not have, too; methods that are named
    count in any case."""
    adaptations: Sequence[str] = ()
    """Names of the adaptations to measure, instead of what `adapt` and `beyond` say; ``none`` is
    one of them."""
    part: str = "test"
    """Of the targets' class splits: ``test``, or ``val`` to make choices on. Targets without such
    classes are left out; contributions are of test classes in any case."""
    overrides: Overrides = field(default_factory=dict)
    """Settings of methods, by method."""
    options: Sequence[str] = ()
    """What of the config was chosen on purpose, as ``modulator.members=4``: options that belong to
    a protocol override all else."""

    def found_methods(self) -> list[Method]:
        """Look the methods up."""
        found = find_methods(list(dict.fromkeys(self.methods)))
        return [method for method in found if self.methods or self.beyond or not method.beyond]

    @property
    def _slow(self) -> int:
        return self.episodes if self.slow_episodes is None else self.slow_episodes

    def adaptations_of(self, method: Method) -> tuple[str, ...]:
        """List what is measured of a method."""
        if self.adaptations:
            return tuple(name for name in method.adaptations if name in self.adaptations)
        every = method.adaptations if self.beyond else method.adaptations_of_paper()
        return every if self.adapt else every[:1]

    def cells(self, method: Method, targets: Sequence[Pack]) -> list[Cell]:
        """List the cells of a method on some targets."""
        counts = dict.fromkeys(self.adaptations_of(method), self.episodes)
        counts |= {each: min(self._slow, self.episodes) for each in counts if each in method.slow}
        return [
            Cell(target, shape, adaptation, count, EPISODE_SEED, self.part)
            for target in targets
            for shape in self.shapes
            for adaptation, count in counts.items()
        ]

    def check_options(self) -> None:
        """Refuse what no domains could make right, before any are opened or drawn."""
        methods = self.found_methods()
        for protocol in find_protocols(self.protocols):
            if not methods_of(protocol, methods):
                known = [method.name for method in methods_of(protocol, find_methods())]
                raise PolyshotError(
                    f"'{protocol.name}' measures the base and methods over the pool, not "
                    f"{join_names([method.name for method in methods])}: take some of "
                    f"{join_names(known, 20)}."
                )
        if self.seeds < 1:
            raise PolyshotError(f"{self.seeds} seeds train nothing: ask for at least 1.")
        if min(self.episodes, self._slow) < 2:
            raise PolyshotError("An interval needs at least 2 episodes of each cell.")
        if self.part not in PARTS:
            raise unknown("part", self.part, PARTS, where=" to measure on")
        adaptations = list(dict.fromkeys(a for method in methods for a in method.adaptations))
        for name in self.adaptations:
            if name not in adaptations:
                raise PolyshotError(
                    f"None of the methods has an adaptation '{name}', only "
                    f"{join_names(adaptations, 20)}.{did_you_mean(name, adaptations)}"
                )

    def check_targets(self, names: Sequence[str]) -> None:
        """Refuse targets that are none of the domains there are."""
        for name in self.targets:
            if name not in names:
                raise unknown("target", name, names, 20)

    def check(self, sources: Sequence[Pack], others: Sequence[Pack], config: Config) -> None:
        """Refuse what cannot be run at all, before anything is spent on it."""
        self.check_options()
        names = [pack.domain.name for pack in (*sources, *others)]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise PolyshotError(
                f"Domains must have different names, these are twice: {join_names(doubles)}."
            )
        check_domains(names)
        self.check_targets(names)
        for pack in others:  # sources are checked by their world
            if pack.size != config.size:
                raise PolyshotError(
                    f"{pack.domain.name} has images of {pack.size} pixels, the training wants "
                    f"{config.size}: import it with --size {config.size}, or leave it out."
                )

    def trials(
        self, sources: Sequence[Pack], others: Sequence[Pack]
    ) -> list[tuple[Protocol, Trial]]:
        """List what is trained and tested, as far as it is wanted.

        Targets without classes in the part are left out; those that were named are refused.
        """
        found = []
        protocols = find_protocols(self.protocols)
        for protocol in protocols:
            part = "test" if protocol.kind == "contributions" else self.part
            for trial in protocol.trials(sources, others):
                chosen = self._targets(trial)
                measured = tuple(pack for pack in chosen if pack.domain.split.part(part))
                names = [pack.domain.name for pack in chosen if pack not in measured]
                if empty := [name for name in names if name in self.targets]:
                    raise PolyshotError(
                        f"{join_names(empty)} has no {PARTS[part]}: leave it out of the targets, "
                        "or measure on another part."
                    )
                if measured:
                    found.append((protocol, replace(trial, targets=measured)))
        if not found:
            what = join_names([protocol.name for protocol in protocols], 20)
            raise PolyshotError(
                f"There is nothing to measure in {what} with the targets asked for, on "
                f"{PARTS[self.part]}."
            )
        return found

    def _targets(self, trial: Trial) -> tuple[Pack, ...]:
        """Return the targets of a trial that were asked for: all where no names are given."""
        if not self.targets:
            return trial.targets
        if trial.left_out is not None:
            return trial.targets if trial.left_out.domain.name in self.targets else ()
        return tuple(pack for pack in trial.targets if pack.domain.name in self.targets)


def methods_of(protocol: Protocol, methods: Sequence[Method], grown: bool = False) -> list[Method]:
    """List the methods that a protocol measures; the base is the same when its pool has grown."""
    if not protocol.pools_only:
        return list(methods)
    return [
        method
        for method in methods
        if method.pool is not None or (method.name == BASELINE and not grown)
    ]
