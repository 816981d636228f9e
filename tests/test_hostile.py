"""The campaign itself: it finds what is wrong, and a small slice of it finds nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyshot.errors import PolyshotError
from tests.hostile.judging import judged
from tests.hostile.kills import compared, tree_of
from tests.hostile.mutations import damaged, damaged_json
from tests.hostile.processes import Ended
from tests.hostile.trials import RIGHT, Part, Run, Verdict, run_all, run_trial, table

ROOT = Path(__file__).parents[1]


def refuse(_draw: random.Random, folder: Path) -> Verdict:
    def work() -> Verdict:
        raise PolyshotError("No.")

    return judged(folder, work)


def refuse_and_leave(_draw: random.Random, folder: Path) -> Verdict:
    def work() -> Verdict:
        (folder / "out").mkdir()
        (folder / "out" / "x.partial").touch()
        raise PolyshotError("No.")

    return judged(folder, work)


def fail(_draw: random.Random, folder: Path) -> Verdict:
    return judged(folder, lambda: {}["right"])  # a KeyError


def die(_draw: random.Random, _folder: Path) -> Verdict:
    os.kill(os.getpid(), signal.SIGSEGV)
    return RIGHT


def hang(_draw: random.Random, _folder: Path) -> Verdict:
    time.sleep(100)
    return RIGHT


def succeed(draw: random.Random, folder: Path) -> Verdict:
    (folder / "x").write_text(str(draw.random()))
    return RIGHT


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_kind_of_failure_is_found(tmp_path: Path) -> None:
    wanted: dict[str, tuple[Run, str]] = {
        "refuse": (refuse, "refused"),
        "leave": (refuse_and_leave, "left"),
        "fail": (fail, "traceback"),
        "die": (die, "traceback"),
        "hang": (hang, "hang"),
        "succeed": (succeed, "right"),
    }
    parts = [Part(name, "", 1, run, patience=3) for name, (run, _) in wanted.items()]
    done = list(run_all([(part, 0) for part in parts], 0, tmp_path, jobs=2))
    assert {each.part.name: each.verdict.kind for each in done} == {
        name: kind for name, (_, kind) in wanted.items()
    }
    rows = table(done, parts).splitlines()
    assert rows[-1] == "| **all** | 6 | 1 | 1 | 0 | 2 | 1 | 0 | 0 | 1 |"
    assert not (tmp_path / "succeed-0").exists() and (tmp_path / "fail-0").is_dir()


def test_a_trial_is_the_same_whatever_ran_before(tmp_path: Path) -> None:
    drawn = []

    def note(draw: random.Random, _folder: Path) -> Verdict:
        drawn.append(damaged(bytes(1000), draw))
        drawn.append(damaged_json(b'{"a": [1, 2.5, "x"], "b": {"c": null}}', draw))
        return RIGHT

    part = Part("note", "", 3, note)
    for number in (0, 1, 0):
        assert run_trial(part, number, 7, tmp_path) == RIGHT
    assert drawn[:2] == drawn[4:] != drawn[2:4]


def test_runs_are_compared_by_what_they_left(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1, "seconds": 2}')
    before = tree_of(tmp_path)
    (tmp_path / "a.json").write_text('{"x": 1, "seconds": 3}')
    assert compared(tree_of(tmp_path), before) == RIGHT
    (tmp_path / "a.json").write_text('{"x": 2, "seconds": 3}')
    assert compared(tree_of(tmp_path), before).kind == "different"
    (tmp_path / ".a.partial").touch()
    assert compared(tree_of(tmp_path), before).kind == "left"
    assert compared({}, before).kind == "lost"


@pytest.mark.parametrize(
    ("code", "err", "kind"),
    [
        (0, "", "right"),
        (2, "a ━━━ 3/4\nerror: No.\n", "refused"),
        (2, "error: No\nway.\n", "traceback"),
        (1, "Traceback (most recent call last)\nValueError\n", "traceback"),
        (-11, "", "traceback"),
        (None, "", "hang"),
    ],
)
def test_how_a_command_ended(code: int | None, err: str, kind: str) -> None:
    assert Ended(code, "", err, 0.0).verdict().kind == kind


def test_a_slice_of_the_campaign(tmp_path: Path) -> None:
    parts = "images,folders,parquet,packs,classifiers,requests,kill-train"
    options = ["--only", parts, "--trials", "1", "--folder", str(tmp_path), "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| **all** | 7 |" in done.stdout
