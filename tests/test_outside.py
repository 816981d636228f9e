"""No command writes outside of the folders that it was given: home, temporary folder and all."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import settings
from tests.helpers import coloured

DRIVER = """
import json, os, sys
written = []

def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.append(os.path.abspath(os.fsdecode(path)))
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "sqlite3.connect"):
        paths = arguments[1:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
        written.extend(os.path.abspath(os.fsdecode(p)) for p in paths if not isinstance(p, int))

sys.addaudithook(watch)
from polyshot.cli import main

codes = []
for words in json.load(sys.stdin):
    try:
        main(words)
    except SystemExit as end:
        codes.append(end.code)
print("\\n" + json.dumps({"codes": codes, "written": sorted(set(written))}))
"""
"""Runs commands one after the other, and notes every path that is opened for writing."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    made = {name: tmp_path / name for name in ("here", "home", "temporary", "photos")}
    for place in made.values():
        place.mkdir()
    for label in ("red", "green", "blue"):
        (made["photos"] / label).mkdir()
        for i in range(4):
            coloured(label, i).save(made["photos"] / label / f"{i}.png")
    return made


def hashes(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def run(commands: list[list[object]], places: dict[str, Path]) -> tuple[list[int], list[str]]:
    """Run commands with a home and a temporary folder of their own."""
    own = {"HOME": str(places["home"]), "TMPDIR": str(places["temporary"])}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MPL", "TORCH"))}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([[str(word) for word in words] for words in commands]),
        cwd=places["here"],
        env={**kept, **own, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["codes"], found["written"]


def test_commands_write_into_named_folders_alone(places: dict[str, Path]) -> None:
    photos = places["photos"]
    packs, pool = ("out/packs", "out/run/pool")
    toy = ["data", "toy", "--out", packs, "--only", "glyphs,signs", "--size", 24]
    on_packs = ["evaluate", packs, "--pool", pool, "--episodes", 2, "--device", "cpu"]
    on_photos = ["evaluate", photos, "--pool", pool, "--episodes", 2, "--device", "cpu"]
    growing = ["--set", "modulator.steps=1", "--device", "cpu"]
    commands: list[list[object]] = [
        [*toy, "--per-class", 15, "--workers", 2],
        ["data", "import", photos, "--out", "out/own", "--size", 24],
        ["data", "sheet", f"{packs}/signs", "out/sheet.png"],
        ["data", "episodes", f"{packs}/signs", "--episodes", 2, "--out", "out/episodes.npz"],
        ["data", "split", f"{packs}/signs"],
        ["example", "out/example", "--queries", 1],
        ["train", packs, "--out", "out/run", "--preset", "tiny", "--device", "cpu", *settings()],
        [*on_packs, "--out", "out/r.jsonl", "--cache", "out/cache", "--confusion", "out/confusion"],
        [*on_photos, "--page", "out/photos.html"],
        ["fit", photos, "--out", "out/a.polyshot", "--pool", pool, "--adaptation", "tsa"],
        ["classify", "--model", "out/a.polyshot", "--query", photos, "--page", "out/l.html"],
        ["correct", "out/a.polyshot", "--drop", "0", "--out", "out/b.polyshot"],
        ["check", "out/b.polyshot"],
        ["suggest", "out/b.polyshot", "--query", photos],
        ["pool", "remove", pool, "signs", "--out", "out/less"],
        ["pool", "add", "out/less", f"{packs}/signs", "--out", "out/more", *growing],
        ["pool", "merge", pool, "out/less", "--out", "out/joint"],
        ["pool", "publish", pool, "--out", "out/hub"],
        ["pool", "list", pool],
        ["card", pool, "--out", "out/card.md"],
        ["report", "out/r.jsonl", "--out", "out/report"],
        ["info", pool],
        ["methods"],
        ["card", "--out", "../beside.md"],  # the only one that is to write elsewhere
    ]
    before = hashes(photos)
    codes, written = run(commands, places)
    assert codes == [0] * len(commands)
    allowed = (f"{places['here'] / 'out'}/", f"{places['temporary']}/", "/dev/", "/proc/")
    outside = [path for path in written if not f"{path}/".startswith(allowed)]
    beside = places["here"].parent
    noticed = {str(beside / f) for f in ("beside.md", ".beside.md.partial", ".beside.md.lock")}
    found = {path for path in outside if not Path(path).is_dir()}
    assert found & noticed and found <= noticed
    assert [str(f) for f in places["home"].rglob("*")] == []
    # torch makes an empty folder for what it might compile
    assert [str(f) for f in places["temporary"].rglob("*") if not f.is_dir()] == []
    assert [f.name for f in places["here"].iterdir()] == ["out"]
    assert hashes(photos) == before
    hidden = [str(f) for f in (places["here"] / "out").rglob(".?*") if f.name != ".lock"]
    assert hidden == []
