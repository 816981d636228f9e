"""The folder of a grid: where its results, failures and remarks are written.

Everything is written whole or not at all, and one file belongs to one cell, so that several
processes can work on a folder. `grid_reader` reads it for reports.
"""

import subprocess
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyshot import __version__
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result, read_results
from polyshot.training.folder import environment
from polyshot.util.files import read_json, write_json, write_text
from polyshot.util.locks import locked, locked_if_free


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

    def lock_if_free(self, name: str) -> AbstractContextManager[bool]:
        """Hold a lock, or yield False at once where another process has it."""
        return locked_if_free(self.path / "locks" / f"{name}.lock")

    def read(self, file: Path) -> Result | None:
        """Read the result of a cell, or None where there is none yet."""
        if not file.exists():
            return None
        try:
            (result,) = read_results(file)
        except (PolyshotError, ValueError) as error:
            reason = error if isinstance(error, PolyshotError) else f"{file} is not one line."
            raise PolyshotError(f"{reason} Delete this file and run again.") from None
        return result

    def write(self, file: Path, result: Result) -> None:
        """Write the result of a cell."""
        write_text(file, f"{result.to_json()}\n")

    def fail(self, name: str, what: str, error: Exception) -> str:
        """Note that a cell failed; returns the error in one line."""
        message = " ".join(str(error).split())
        if not isinstance(error, PolyshotError):
            message = f"{type(error).__name__}: {message}"
        about = {
            "what": what,
            "error": message,
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "traceback": "".join(traceback.format_exception(error)),
        }
        write_json(self._failure(name), about)
        return message

    def succeed(self, name: str) -> None:
        """Forget a failure."""
        self._failure(name).unlink(missing_ok=True)

    def add_shares(
        self,
        job: str,
        protocol: str,
        about: Mapping[str, Any],
        target: str,
        shares: Sequence[float],
    ) -> None:
        """Note how often each member was selected on a target, beside the targets before."""
        file = self._shares(job, protocol)
        before = read_json(file) if file.exists() else {"targets": [], "shares": []}
        rows = dict(zip(before["targets"], before["shares"], strict=True))
        rows[target] = [round(share, 4) for share in shares]
        table = {"targets": list(rows), "shares": list(rows.values())}
        write_json(file, {**about, "protocol": protocol, **table})

    def copy_shares(self, job: str, old: str, new: str, target: str) -> None:
        """Give a protocol what another has noted of a target, if that is anything."""
        if not self._shares(job, old).exists():
            return
        about = read_json(self._shares(job, old))
        rows = dict(zip(about.pop("targets"), about.pop("shares"), strict=True))
        if target in rows:
            self.add_shares(job, new, about, target, rows[target])

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
            if facts != before:
                write_json(file, facts)

    def _shares(self, job: str, protocol: str) -> Path:
        return self.path / "shares" / f"{protocol}-{job}.json"

    def _failure(self, name: str) -> Path:
        return self.path / "failures" / f"{name}.json"


def _code() -> str:
    """Name the commit of the checkout that runs; the version where it is none."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not in somebody else's checkout
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        return __version__
