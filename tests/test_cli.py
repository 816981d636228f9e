"""The program as users run it: exit codes, one-line errors, help that starts at once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyshot.cli import display, main
from polyshot.cli.doctor import Check, examine, probe_bf16


class Outcome:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(display.out, "_width", 200)  # where another test has made it already

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(int(end.value.code or 0), captured.out, captured.err)

    return call


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom polyshot.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'PIL') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip().splitlines()[-1] == "[]"


def test_ctrl_c_waits_for_the_import_of_torch() -> None:
    code = """
import os, signal, sys
from polyshot.cli import torch_undisturbed

class Press:
    def find_spec(self, name, path, target=None):
        if name == "torch.version":  # one of the first
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
try:
    with torch_undisturbed():
        import torch
except KeyboardInterrupt:
    print("torch.compiler" in sys.modules)  # one of the last
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "True\n"


@pytest.mark.parametrize(
    "command", [[], ["data"], ["data", "import"], ["data", "episodes"], ["doctor"]]
)
def test_every_command_has_help(run: Callable[..., Outcome], command: list[str]) -> None:
    outcome = run(*command, "--help")
    assert outcome.code == 0 and "Usage" in outcome.out


def test_help_keeps_what_stands_in_brackets(run: Callable[..., Outcome]) -> None:
    assert "pip install 'polyshot[onnx]'" in " ".join(run("export", "--help").out.split())


def test_names_are_neither_markup_nor_commands_of_a_terminal(
    run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "x[/bold] [red]y"
    with display.progress("images") as report:
        report(hostile, 1, 2)
    display.show_table((hostile, "n"), [(f"{hostile}\x1b[2J\x07", 1)])
    shown = capsys.readouterr()
    assert hostile in shown.err
    assert shown.out.count(hostile) == 2 and "\x1b[2J" not in shown.out and "\x07" not in shown.out
    said = run("data", "list", f"{hostile}\n\x1b[2J")
    assert said.code == 2 and said.err == f"error: There is no folder {hostile}\\n\\x1b[2J.\n"


def test_names_that_the_terminal_has_no_letters_for(tmp_path: Path) -> None:
    out = os.fsencode(tmp_path) + b"/\xff"
    words = [sys.executable, "-m", "polyshot", "example", out, "--shot", "1", "--queries", "1"]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    ended = subprocess.run(words, capture_output=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    assert b"/\\xff/support: 1" in ended.stdout


def test_bars_count_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    with display.progress("images") as report:
        for name in ("selector", "embed"):
            report(name, 0, 100)
            time.sleep(0.01)
            report(name, 50, 100)
            report(name, 100, 100)
    lines = capsys.readouterr().err.splitlines()
    assert any("selector" in line and "tasks/s" in line for line in lines)
    assert any("embed" in line and "images/s" in line for line in lines)


def test_version(run: Callable[..., Outcome]) -> None:
    assert run("--version").out.startswith("polyshot 0.")


def width(path: Path) -> int:
    with Image.open(path) as image:
        return image.width


def test_the_way_of_the_data(
    run: Callable[..., Outcome], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = image_folder(**{f"class {i}": 8 for i in range(40)})
    packs = tmp_path / "packs"
    done = run("data", "import", root, "--out", packs, "--size", 16)
    assert done.code == 0 and "320 images of 40 classes" in done.out
    table = run("data", "list", packs).out
    assert "photos" in table and "28/6/6" in table and "320" in table
    sheet = tmp_path / "pictures" / "sheet.png"
    assert run("data", "sheet", packs / "photos", sheet).code == 0
    assert width(sheet) > 200
    shown = run("data", "split", packs / "photos").out
    assert "rule 'random', seed 0" in shown and "class 7" in shown
    drawn = run(
        "data", "episodes", packs / "photos", "--shot", 3, "--queries", 5, "--episodes", 50,
        "--out", tmp_path / "e.npz", "--picture", tmp_path / "e.png",
    )  # fmt: skip
    assert drawn.code == 0 and "50 episodes of 5 ways, 3 shots and 5 queries" in drawn.out
    assert np.load(tmp_path / "e.npz")["support"].shape == (50, 5, 3)
    assert width(tmp_path / "e.png") > 200
    again = run("data", "episodes", packs / "photos", "--shot", 3, "--queries", 5, "--episodes", 50)
    assert again.out.split()[-1] == drawn.out.splitlines()[0].split()[-1]  # the fingerprint


def test_a_split_can_be_recorded(
    run: Callable[..., Outcome], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    pack = tmp_path / "packs" / "photos"
    run("data", "import", image_folder(), "--out", tmp_path / "packs", "--size", 16)
    assert "target-only" in run("data", "split", pack).out
    file = tmp_path / "split.json"
    file.write_text(json.dumps({"train": ["cat"], "val": ["dog"], "test": ["owl"]}))
    assert "rule 'file'" in run("data", "split", pack, "--file", file).out
    assert "rule 'file'" in run("data", "split", pack).out
    assert run("data", "split", pack, "--file", file, "--seed", 1).code == 2


def test_toy_packs(run: Callable[..., Outcome], tmp_path: Path) -> None:
    arguments = (
        "data",
        "toy",
        "--out",
        tmp_path,
        "--size",
        16,
        "--per-class",
        2,
        "--only",
        "signs,strokes",
    )
    assert run(*arguments).code == 0
    table = run("data", "list", tmp_path).out
    assert "signs" in table and "strokes" in table and "glyphs" not in table
    again = run(*arguments)
    assert again.code == 2 and "exists" in again.err
    assert run(*arguments, "--overwrite").code == 0
    assert run("data", "list", tmp_path).out == table  # drawn again, the same
    wrong = run("data", "toy", "--out", tmp_path, "--only", "sings")
    assert wrong.code == 2 and "Did you mean 'signs'" in wrong.err


@pytest.mark.parametrize(
    "command",
    [
        ["data", "import", "nowhere", "--out", "packs"],
        ["data", "import", ".", "--out", "packs", "--size", "2"],
        ["data", "list", "nowhere"],
        ["data", "sheet", "nowhere", "out.png"],
        ["data", "split", "."],
        ["data", "episodes", "nowhere"],
        ["data", "toy", "--out", "packs", "--size", "1"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*command)
    assert outcome.code == 2
    assert outcome.err.strip().splitlines()[-1].startswith("error: ")
    assert len([line for line in outcome.err.splitlines() if line.strip()]) == 1
    assert list(tmp_path.glob("packs/*")) == []


def test_names_are_shown_as_they_are(
    run: Callable[..., Outcome], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Brackets are markup to the library that draws the tables."""
    root = image_folder(**{"[red]apple": 3, "pear [100 %]": 3, "[bold]": 3})
    run("data", "import", root, "--out", tmp_path / "packs", "--size", 16)
    shown = run("data", "split", tmp_path / "packs" / "photos").out
    assert "[bold], [red]apple, pear [100 %]" in shown


def test_a_picture_that_cannot_be_written(
    run: Callable[..., Outcome], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    run("data", "import", image_folder(), "--out", tmp_path / "packs", "--size", 16)
    outcome = run("data", "sheet", tmp_path / "packs" / "photos", tmp_path / "sheet.xyz")
    assert outcome.code == 2 and "cannot be written" in outcome.err


def test_doctor(run: Callable[..., Outcome]) -> None:
    outcome = run("doctor")
    assert outcome.code == 0
    for word in ("Python", "torch", "polyshot", "cores", "memory", "bf16 on cpu", "[parquet]"):
        assert word in outcome.out


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    known = metadata.version

    def version(name: str) -> str:
        if name in ("pyarrow", "pillow"):
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "torch" else known(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(examine.__globals__, "_hardware", list)  # it takes seconds
    checks = {check.what: check for check in examine()}
    assert checks["[parquet]"] == Check(
        "[parquet]", "note", "missing pyarrow: pip install 'polyshot[parquet]'"
    )
    assert checks["pillow"].verdict == "bad" and "pip install 'pillow" in checks["pillow"].found
    assert checks["torch"].verdict == "note" and "tested with" in checks["torch"].found


def test_the_bf16_probe_survives_a_crash() -> None:
    check = probe_bf16("no such device")
    assert check.verdict == "note" and "fp32 is used" in check.found
