"""What a grid's folder holds (`grid_folder` writes it), read and checked."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyshot.errors import PolyshotError, unknown
from polyshot.evaluation.results import Result, read_results
from polyshot.experiments.protocols import ADDED
from polyshot.util.checks import unsealed

Read = TypeVar("Read")
RESULTS = (".jsonl", ".parquet")
"""Files of results: as a grid writes them, and as they are kept."""


@dataclass(frozen=True)
class Failure:
    """Something that could not be measured."""

    what: str
    error: str
    when: str


@dataclass(frozen=True)
class Shares:
    """How often the selector chose each member."""

    protocol: str
    preset: str
    method: str
    members: list[str]
    targets: Mapping[str, list[float]]
    """Target -> one share a member."""
    part: str = "test"
    """Of the targets' classes."""


@dataclass(frozen=True)
class Contributions:
    """Right predictions of each member of the methods that average."""

    protocol: str
    preset: str
    target: str
    queries: int
    """Of an episode."""
    members: Mapping[str, list[str]]
    """Method -> its members."""
    correct: Mapping[str, NDArray[np.int64]]
    """Method -> ``[E, M]``, for each episode one number a member."""
    train_seed: int | None = None

    @property
    def title(self) -> str:
        """Say where it was measured."""
        seed = "" if self.train_seed is None else f"seed {self.train_seed}"
        where = ", ".join(filter(None, (self.preset, self.protocol, seed)))
        return f"{self.target} ({where})" if where else self.target

    def ends(self) -> tuple[int, int]:
        """Return the fewest and the most right predictions of all methods; never the same."""
        every = np.concatenate([counts.ravel() for counts in self.correct.values()])
        return int(every.min()), int(max(every.max(), every.min() + 1))

    def best(self, method: str) -> NDArray[np.bool_]:
        """Tell in which episodes each member was the best, or one of the best: ``[E, M]``."""
        counts = self.correct[method]
        best: NDArray[np.bool_] = counts == counts.max(1, keepdims=True)
        return best


@dataclass
class Curve:
    """One step of a training: points are (update, value)."""

    world: str
    run: str
    """Where its file lies in the world: ``.``, or a method's folder."""
    step: str
    loss: list[tuple[float, float]] = field(default_factory=list)
    validation: list[tuple[float, float]] = field(default_factory=list)
    not_numbers: int = 0
    """Values that were infinite or no number: a training that diverged."""

    @property
    def title(self) -> str:
        """Name the step, and the method where it is one's own."""
        return " ".join(filter(None, [self.run if self.run != "." else "", self.step]))

    def updates(self) -> tuple[float, float]:
        """Return the first and the last update; never the same."""
        every = [x for x, _ in (*self.loss, *self.validation)] or [0.0]
        return min(every), max(*every, min(every) + 1)


@dataclass(frozen=True)
class Training:
    """One training setting: which sources, preset and seed."""

    preset: str
    seed: int | None
    sources: list[str]


@dataclass(frozen=True)
class Grid:
    """All that a grid folder holds."""

    folder: Path
    results: list[Result]
    failures: list[Failure]
    shares: list[Shares]
    contributions: list[Contributions]
    worlds: dict[str, Training]
    curves: list[Curve]
    environment: dict[str, Any]


def read_grid(folder: Path, run: str = "") -> Grid:
    """Read a grid folder, or a file of results; all but results may be missing.

    Of a file that several runs share, `run` names the one whose results are wanted.
    """
    if not folder.is_dir() and not (folder.is_file() and folder.suffix in RESULTS):
        raise PolyshotError(f"There is no folder {folder}: run 'polyshot reproduce' first.")
    results = _results(folder, run)
    worlds = _each(folder, "worlds/*/world.json", _world)
    return Grid(
        folder,
        results,
        list(_each(folder, "failures/*.json", _failure).values()),
        list(_each(folder, "shares/*.json", _shares).values()),
        list(_each(folder, "contributions/*.json", _contributions).values()),
        {path.parent.name: world for path, world in worlds.items()},
        _curves(folder / "worlds"),
        _each(folder, "environment.json", dict).get(folder / "environment.json", {}),
    )


def _results(folder: Path, run: str) -> list[Result]:
    found: dict[tuple[object, ...], tuple[Path, Result]] = {}
    files = [folder] if folder.is_file() else sorted((folder / "results").rglob("*.jsonl"))
    for path in files:
        lines = read_results(path)
        if run and run not in (runs := sorted({result.run for result in lines})):
            raise unknown("run", run, runs, len(runs), where=f" in {path}")
        for number, result in enumerate(lines, 1):
            if run and result.run != run:
                continue
            if reason := _wrong(result):
                raise PolyshotError(
                    f"{path}, line {number}, '{result.method}' on {result.target}: {reason}; "
                    "delete the line and run 'polyshot reproduce' again."
                )
            cell = (
                *(result.preset, result.protocol, result.target, result.shot, result.way),
                *(result.method, result.adaptation, result.train_seed, result.draw, result.part),
                # Pools that grow are tested on every domain, once for each that is added.
                *((result.added, *result.sources) if result.protocol == ADDED else ()),
            )
            before, other = found.setdefault(cell, (path, result))
            if other.settings == result.settings and other.episodes != result.episodes:
                # Measured again on more episodes of the same draw, which begin with the first.
                longer = (path, result) if result.episodes > other.episodes else (before, other)
                found[cell] = longer
            elif other.per_episode != result.per_episode:
                twice = f"'{result.method}' on {result.target} was measured twice, with different "
                if other.run != result.run:
                    raise PolyshotError(
                        f"{twice}numbers, in {path}, by the runs '{other.run}' and '{result.run}': "
                        "name the one that is wanted, with --run."
                    )
                raise PolyshotError(
                    f"{twice}numbers, in {before} and {path}: delete one of the two."
                )
    if not found:
        raise PolyshotError(
            f"{folder} has no results (results/*.jsonl): run 'polyshot reproduce' first."
        )
    return [result for _, result in found.values()]


def _wrong(result: Result) -> str:
    """Say what makes a result unusable; JSON lets NaN and any length through."""
    texts = (result.method, result.target, result.adaptation, result.protocol, result.preset)
    if not all(isinstance(text, str) for text in texts):
        return "a name is not text"
    if not isinstance(result.per_episode, list):
        return "the accuracies of its episodes are missing"
    seconds = (result.seconds or 0.0, result.added_seconds or 0.0)
    numbers = [result.mean, result.half_width, *result.per_episode, *seconds]
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        return "a value is not a number"
    if len(result.per_episode) != result.episodes or result.episodes < 2:
        return f"{result.episodes} episodes are noted, {len(result.per_episode)} are there"
    if not all(0 <= n <= 1 for n in (result.mean, *result.per_episode)):
        return "an accuracy is not between 0 and 1"
    error = result.calibration_error
    if error is not None and not (isinstance(error, int | float) and 0 <= error <= 1):
        return "its calibration error is not between 0 and 1"
    if abs(sum(result.per_episode) / result.episodes - result.mean) > 0.001:
        return "the mean is not that of its episodes"
    return ""


def _each(folder: Path, pattern: str, read: Callable[[Any], Read]) -> dict[Path, Read]:
    """Read the JSON files of a pattern, in the order of their names."""
    found = {}
    for path in sorted(folder.glob(pattern)):
        try:
            found[path] = read(unsealed(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise PolyshotError(
                f"{path} is damaged ({what}): delete it and run 'polyshot reproduce' again."
            ) from None
    return found


def _failure(about: Mapping[str, Any]) -> Failure:
    return Failure(str(about["what"]), str(about["error"]), str(about.get("when", "")))


def _world(about: Mapping[str, Any]) -> Training:
    sources = list(map(str, about.get("sources", [])))
    return Training(str(about.get("preset", "")), about.get("seed"), sources)


def _shares(about: Mapping[str, Any]) -> Shares:
    members = list(map(str, about["members"]))
    rows = dict(zip(map(str, about["targets"]), about["shares"], strict=True))
    for row in rows.values():
        _check_row(row, members, 1)
    method, part = str(about.get("method", "select")), str(about.get("part", "test"))
    return Shares(about["protocol"], about["preset"], method, members, rows, part)


def _contributions(about: Mapping[str, Any]) -> Contributions:
    queries = int(about["queries"])
    members, correct = {}, {}
    for method, own in about["methods"].items():
        members[method] = list(map(str, own["members"]))
        if not own["correct"]:
            raise ValueError(f"{method} has no episodes")
        for episode in own["correct"]:
            _check_row(episode, members[method], queries)
        correct[method] = np.array(own["correct"])
    place = about["protocol"], about["preset"], about["target"]
    return Contributions(*place, queries, members, correct, about.get("train_seed"))


def _check_row(row: Sequence[float], members: Sequence[str], most: float) -> None:
    if len(row) != len(members):
        raise ValueError(f"{len(row)} numbers for {len(members)} members")
    if not all(0 <= value <= most + 1e-6 for value in row):  # false for NaN as well
        raise ValueError(f"a number is not between 0 and {most}")


def _curves(worlds: Path) -> list[Curve]:
    curves: dict[tuple[str, str, str], Curve] = {}
    files = {*worlds.glob("*/**/metrics.jsonl"), *worlds.glob("*/**/*-metrics.jsonl")}
    for path in sorted(files):
        world, *inside = path.relative_to(worlds).parts
        run = "/".join([*inside[:-1], inside[-1].removesuffix("metrics.jsonl").rstrip("-")])
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                about = json.loads(line)
                key = (world, run.rstrip("/") or ".", str(about["step"]))
                number = float(about["number"])
            except (ValueError, KeyError, TypeError):  # cut off by a kill
                continue
            curve = curves.setdefault(key, Curve(*key))
            for points, value in ((curve.loss, "loss"), (curve.validation, "validation")):
                if not isinstance(about.get(value), int | float):
                    continue
                if math.isfinite(about[value]):
                    points.append((number, float(about[value])))
                else:
                    curve.not_numbers += 1
    return [c for c in curves.values() if max(len(c.loss), len(c.validation)) > 1 or c.not_numbers]
