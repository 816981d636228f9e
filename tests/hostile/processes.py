"""The program in a process of its own, forked from this one: torch is there already.

What is run is ``polyshot.cli.main`` with a command's words, in a session, a folder and an
environment of its own, with real files as its output and a real exit code. A process that starts
Python anew would spend seconds to import torch, and most kills would hit that.
"""

import atexit
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from polyshot.cli import main

from .trials import HANG, REFUSED, Verdict


@dataclass(frozen=True)
class Ended:
    """What a command did; `code` is negative for a signal, None where it had to be stopped."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def verdict(self) -> Verdict:
        """Refused in one line, apart from progress, or a failure; 'right' is not judged here."""
        if self.code is None:
            return Verdict("hang", self.err[-300:])
        lines = [line for line in self.err.splitlines() if line.strip() and not _is_bar(line)]
        if self.code == 0 and "Traceback" not in self.err:
            return Verdict("right")
        if self.code == 2 and len(lines) == 1 and lines[0].startswith("error: "):
            return REFUSED
        # What typer itself refuses is a short usage with a box around the reason.
        if self.code == 2 and lines and lines[0].startswith("Usage: ") and len(lines) <= 8:
            return REFUSED
        # 'reproduce' goes on with other cells where some failed, and says so in the end.
        if self.code == 1 and "Traceback" not in self.err and lines[-1].startswith("Errors are in"):
            return REFUSED
        told = " / ".join(line.strip() for line in lines[-3:])
        return Verdict("traceback", f"exit {self.code}: {told[-400:]}")


def _is_bar(line: str) -> bool:
    """Whether a line is progress; a bar at its beginning is empty."""
    return "━" in line or "-:--:--" in line


class Running:
    """A command under way."""

    def __init__(
        self,
        *words: object,
        folder: Path,
        memory: int = 0,
        environment: Mapping[str, str] | None = None,
    ):
        self.log = folder.parent / f"{folder.name}.log"
        self.words = [str(word) for word in words]
        self.since = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                code = self._child(folder, memory, environment or {})
            finally:
                os._exit(code)
        self.code: int | None = None

    def _child(self, folder: Path, memory: int, environment: Mapping[str, str]) -> int:
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        for number, end in ((0, None), (1, "out"), (2, "err")):
            name = os.devnull if end is None else f"{self.log}.{end}"
            flags = os.O_RDONLY if end is None else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(name, flags), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        code = 0
        try:
            main(self.words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        with suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]  # as Python does when it ends
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        return code

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        """Wait that long at most; tells whether it has ended."""
        until = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < until:
            time.sleep(0.004)
        return self.ended()

    def kill(self, whole: bool = False) -> None:
        """``kill -9``: the process alone, or with all that it started."""
        if not self.ended():
            (os.killpg if whole else os.kill)(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def sweep(self) -> None:
        """End what its children may be, so that nothing of one trial disturbs the next."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def outcome(self, limit: float = HANG) -> Ended:
        """Wait for its end, which is a hang beyond the limit."""
        ended = self.wait(limit)
        if not ended:
            self.kill(whole=True)
            self.code = None
        seconds = time.monotonic() - self.since
        out, err = (
            Path(f"{self.log}.{end}").read_text(errors="replace") if self._wrote(end) else ""
            for end in ("out", "err")
        )
        for end in ("out", "err"):
            Path(f"{self.log}.{end}").unlink(missing_ok=True)
        return Ended(self.code if ended else None, out, err, seconds)

    def _wrote(self, end: str) -> bool:
        return Path(f"{self.log}.{end}").exists()


def polyshot(*words: object, folder: Path, limit: float = HANG, memory: int = 0) -> Ended:
    """Run a command to its end."""
    run = Running(*words, folder=folder, memory=memory)
    try:
        return run.outcome(limit)
    finally:
        run.sweep()
