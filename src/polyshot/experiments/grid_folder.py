"""The folder of a grid: cells, and how the files of each are written.

Layout: ``results/<world>/<method>/<protocol>-<cell>.jsonl``, ``shares/``, ``contributions/``,
``failures/``, ``worlds/`` (trainings), ``locks/``, ``environment.json``. Everything is written
whole or not at all, and one file belongs to one cell: several processes can work on a folder.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyshot.data.pack import Pack, open_packs
from polyshot.data.shapes import EpisodeShape
from polyshot.data.toy import keep_packs
from polyshot.engines.job import Failed
from polyshot.errors import PolyshotError
from polyshot.experiments.protocols import (
    EMBEDDED,
    PARTS,
    check_sources,
    embedded_names,
    part_sources,
)
from polyshot.training.folder import environment
from polyshot.util import __version__
from polyshot.util.files import locked, read_json, write_json
from polyshot.util.progress import Progress


@dataclass(frozen=True)
class Cell:
    """One measurement: a number of a table, or a panel of a figure."""

    target: Pack
    shape: EpisodeShape
    adaptation: str
    episodes: int
    seed: int
    """Of the episodes."""
    part: str = "test"
    """Of the target's class split."""

    @property
    def name(self) -> str:
        """Name of its files."""
        shape = f"{self.shape.way}w{self.shape.shot}s{self.shape.queries}q"
        parts = (self.target.domain.name, shape, self.adaptation, f"{self.episodes}e")
        # Folders made before there were other parts name none.
        return "-".join((*parts, f"seed{self.seed}", *self.mark))

    @property
    def mark(self) -> tuple[str, ...]:
        """The part for names of files, where it is not the usual one."""
        return () if self.part == "test" else (self.part,)

    def __str__(self) -> str:
        adapted = "" if self.adaptation == "none" else f", {self.adaptation}"
        shape = f"{self.shape.way}-way {self.shape.shot}-shot"
        part = f", {PARTS[self.part]}" if self.mark else ""
        return f"{self.target.domain.name}{part}, {shape}{adapted}"


@dataclass(frozen=True)
class GridFolder:
    """A folder that one or several runs of `reproduce` and `tune` fill."""

    path: Path

    def __post_init__(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise PolyshotError(f"{self.path} is a file, a grid needs a folder.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PolyshotError(f"{self.path} cannot be made: {error.strerror}.") from None

    @property
    def worlds(self) -> Path:
        """Where trainings are."""
        return self.path / "worlds"

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold a lock; waits for a process that has it."""
        return locked(self.path / "locks" / f"{name}.lock")

    def fail(self, name: str, what: str, failed: Failed) -> None:
        """Note that a cell failed."""
        about = {
            "what": what,
            "error": failed.message,
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "traceback": failed.traceback,
        }
        write_json(self._failure(name), about)

    def succeed(self, name: str) -> None:
        """Forget a failure."""
        self._failure(name).unlink(missing_ok=True)

    def add_shares(self, job: str, about: Mapping[str, Any], target: str, row: list[float]) -> None:
        """Note how often each member was selected on a target, beside the targets before."""
        _, rows = self._noted_shares(job, about["protocol"])
        rows[target] = row
        table = {"targets": list(rows), "shares": list(rows.values())}
        write_json(self._shares(job, about["protocol"]), {**about, **table})

    def copy_shares(self, job: str, old: str, new: str, target: str) -> None:
        """Give a protocol what another has noted of a target, if that is anything."""
        about, rows = self._noted_shares(job, old)
        if target in rows:
            self.add_shares(job, {**about, "protocol": new}, target, rows[target])

    def _noted_shares(self, job: str, protocol: str) -> tuple[dict[str, Any], dict[str, Any]]:
        file = self._shares(job, protocol)
        about = read_json(file) if file.exists() else {"targets": [], "shares": []}
        return about, dict(zip(about.pop("targets"), about.pop("shares"), strict=True))

    def note(self, command: str, packs: Sequence[Pack], device: torch.device) -> None:
        """Note what is run: code, machine, data, and the command if it is a new one."""
        file = self.path / "environment.json"
        with self.lock("environment"):
            before = read_json(file) if file.exists() else {}
            commands = list(before.get("commands", []))
            if command and command not in commands:
                commands.append(command)
            hashes = {pack.domain.name: pack.hash for pack in packs}
            facts = {**environment(device), "code": _code()}
            facts |= {"commands": commands, "packs": {**before.get("packs", {}), **hashes}}
            kept = {pack.domain.name for pack in packs if not pack.domain.mirror}
            facts["not_mirrored"] = sorted(kept | {*before.get("not_mirrored", [])} - {*hashes})
            if facts != before:
                write_json(file, facts)

    def _shares(self, job: str, protocol: str) -> Path:
        return self.path / "shares" / f"{protocol}-{job}.json"

    def _failure(self, name: str) -> Path:
        return self.path / "failures" / f"{name}.json"


def grid_packs(
    out: Path,
    data: Path | None,
    names: Sequence[str],
    size: int,
    report: Progress | None = None,
) -> tuple[list[Pack], list[Pack]]:
    """Open packs, or draw the embedded domains into a grid's folder.

    Returns those to train on, by name, and the others.
    """
    if data is not None:  # nothing is written, so there need not be a folder yet
        return part_sources(open_packs(data), names)
    check_sources(names, embedded_names())
    grid = GridFolder(out)
    with grid.lock("packs"):  # two processes draw them once
        drawn = keep_packs(grid.path / "packs", embedded_names(), size, report)
    return part_sources(drawn, names or EMBEDDED[0])


def _code() -> str:
    """Name the commit of the checkout that runs; the version where it is none."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command, quiet = ["git", *words], subprocess.DEVNULL
        # Words of ours, and the user's own git, which no other program knows the place of.
        done = subprocess.check_output(command, cwd=here, stderr=quiet, text=True)  # noqa: S603
        return done.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not in somebody else's checkout
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        return __version__
