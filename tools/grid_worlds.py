"""What tools share that make choices on the trained worlds of a grid."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyshot.config import Config, preset
from polyshot.data.pack import Pack, open_packs
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import interval
from polyshot.experiments.grid_folder import GridFolder
from polyshot.experiments.protocols import part_sources
from polyshot.training.training_run import TrainingRun
from polyshot.util import __version__
from polyshot.util.device import best_device


def grid_parser(about: str | None) -> argparse.ArgumentParser:
    """Ask for a grid, for packs and for a file to write lines to."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    parser.add_argument("packs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="strong")
    return parser


def sources_of(packs: Path, names: str = "") -> list[Pack]:
    """Return the sources among the packs, `a,b,c` of them or all that can be trained on."""
    return part_sources(open_packs(packs), words(names))[0]


def without(sources: list[Pack], names: str) -> list[tuple[Pack, tuple[Pack, ...]]]:
    """Leave out each of the sources `a,b,c` in turn: it, and the others."""
    known = {pack.domain.name: pack for pack in sources}
    for name in words(names):
        if name not in known:
            raise SystemExit(f"There is no source '{name}', only {', '.join(known)}.")
    left = [known[name] for name in words(names)]
    return [(pack, tuple(other for other in sources if other is not pack)) for pack in left]


def world_of(given: argparse.Namespace, sources: tuple[Pack, ...]) -> TrainingRun:
    """Return the world of some sources in the grid; what it lacks is trained when asked for."""
    folder = GridFolder(given.grid).worlds
    return TrainingRun(sources, preset(given.preset), folder, best_device())


def words(text: str) -> list[str]:
    """Split `a,b,c`."""
    return [word for word in text.split(",") if word]


def choice_row(
    method: str,
    pack: Pack,
    seen: bool,
    shot: int,
    adaptation: str,
    values: Sequence[float],
    settings: Mapping[str, float],
    config: Config,
) -> Result:
    """Turn the accuracies of a target's validation episodes into a row of `choices`."""
    mean, half_width = interval(values)
    name = pack.domain.name
    return Result(
        *(method, name, seen, 5, shot, 10, "val", adaptation, 1),
        episodes=len(values),
        group_disjoint=pack.domain.groups is not None,
        fingerprint="",
        mean=mean,
        half_width=half_width,
        per_episode=[round(value, 4) for value in values],
        pool="",
        pack=pack.hash,
        version=__version__,
        draw=f"choose-{name}-{shot}",
        preset=config.preset,
        train_seed=config.seed,
        settings=dict(settings),
    )
