"""What tests of commands share: the program in this process or in one of its own."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from polyshot.cli import main

SMALL = {
    "size": 24,
    "model.width": 8,
    "base.steps": 8,
    "base.batch": 32,
    "base.validate_every": 4,
    "base.warm_up": 2,
    "modulator.steps": 2,
    "modulator.episodes": 1,
    "modulator.validate_every": 1,
    "selector.steps": 10,
    "selector.tasks": 10,
    "validation_episodes": 5,
}
"""Seconds on one core."""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


def polyshot(*arguments: object) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return Outcome(int(end.value.code or 0), out.getvalue(), err.getvalue())


def done(*arguments: object) -> str:
    """Run what must succeed; returns its output."""
    outcome = polyshot(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def refused(*arguments: object) -> str:
    """Run what must be refused: in one line, apart from progress; returns it."""
    outcome = polyshot(*arguments)
    assert outcome.code == 2
    lines = [line for line in outcome.err.splitlines() if line.strip() and "━" not in line]
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("error: ")
    return lines[0]


def settings(**changes: object) -> list[object]:
    """Make the options of a small training; ``base_steps=3`` changes ``base.steps``."""
    chosen = SMALL | {name.replace("_", ".", 1): value for name, value in changes.items()}
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


def training(
    packs: Path, out: Path, *more: object, sources: str = "glyphs,signs", **changes: object
) -> list[object]:
    chosen = ("--sources", sources) if sources else ()
    options = (*chosen, "--preset", "tiny", "--out", out, "--device", "cpu")
    return ["train", packs, *options, *settings(**changes), *more]


def as_shells_have_it(code: int) -> int:
    """Return a process's exit code; of one that a signal ended 128 and more, as `$?` has it.

    Where Ctrl-C meets code that Python runs from text (dataclasses are made so), Python ends by the
    signal in place of the code 130, however the program handles it.
    """
    return 128 - code if code < 0 else code


class Child:
    """The program in a session of its own."""

    def __init__(self, *arguments: object):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "polyshot", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def wait_until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + 300
        while not ready():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def press_ctrl_c(self) -> None:
        """Interrupt all its processes, as a terminal does."""
        assert self.process.poll() is None, "it must be under way"
        os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=300)
        assert as_shells_have_it(self.process.returncode) == 130, err
        assert out == "" and "Traceback" not in err and "error" not in err
