"""Full disks, read-only disks and too little memory; afterwards the same command with enough."""

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from .kills import SCENES, Scene, compared, copy_pool, reference_of, tree_of
from .processes import Ended, polyshot
from .trials import HANG, REFUSED, RIGHT, Part, Run, Verdict
from .world import World

Tree = Mapping[str, str]

HIDDEN = (".partial", ".old", ".new")


def _photos(world: World, folder: Path) -> None:
    shutil.copy(world.classifier, folder / "colours.polyshot")


MORE = (
    Scene(
        "classify",
        "classify",
        lambda world, _: [
            *("classify", "--model", "colours.polyshot", "--query", world.photos),
            *("--out", "out/labels.csv", "--page", "out/labels.html", "--device", "cpu"),
        ],
        0,
        _photos,
    ),
    Scene(
        "correct",
        "correct",
        lambda world, _: ["correct", "colours.polyshot", "--add", world.photos, "--device", "cpu"],
        0,
        _photos,
    ),
    Scene("remove", "pool remove", lambda *_: ["pool", "remove", "pool", "signs"], 0, copy_pool),
    Scene(
        "publish",
        "pool publish",
        lambda *_: ["pool", "publish", "pool", "--out", "out", "--precision", "half"],
        0,
        copy_pool,
    ),
    Scene("sheet", "data sheet", lambda w, _: ["data", "sheet", w.packs / "signs", "out.png"], 0),
    Scene("toy", "data toy", lambda *_: ["data", "toy", "--out", "out", "--only", "flowers"], 0),
    Scene("example", "example", lambda *_: ["example", "out"], 0),
)
"""Further commands that write."""


class Disk:
    """A file system in memory of a size, at a folder."""

    def __init__(self, place: Path):
        self.place = place
        place.mkdir()
        self._mount("mount", "-t", "tmpfs", "-o", "size=1g", "hostile", place)

    def be(self, options: str) -> None:
        """Give it another size, or make it read-only."""
        self._mount("mount", "-o", f"remount,{options}", place := self.place)
        assert place.is_dir()

    def used(self) -> int:
        """Bytes that are taken."""
        found = os.statvfs(self.place)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def end(self) -> None:
        """Unmount it."""
        self._mount("umount", "--lazy", self.place)

    def _mount(self, *words: object) -> None:
        subprocess.run([str(word) for word in words], check=True, capture_output=True)


def may_mount() -> bool:
    """Whether this process may make file systems."""
    place = Path(os.environ.get("TMPDIR", "/tmp")) / f"hostile-mount-{os.getpid()}"
    try:
        Disk(place).end()
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        if place.exists():
            place.rmdir()
    return True


Shortage = Callable[[random.Random, Disk, int], str]
"""Given the disk and the bytes that a command writes, what the disk becomes."""


def full(draw: random.Random, disk: Disk, size: int) -> str:
    """Leave room for a part of what is written."""
    return f"size={max(4096, int(disk.used() + draw.uniform(0, 1.1) * size))}"


def read_only(*_: object) -> str:
    """Take nothing."""
    return "ro"


def disks(world: World, shortage: Shortage, enough: str) -> Run:
    """A disk that is short of something, until it has enough."""

    def run(draw: random.Random, folder: Path) -> Verdict:
        scene = draw.choice((*SCENES, *MORE))
        words = scene.words(world, draw)
        reference = reference_of(scene, world, words)
        disk = Disk(folder / "here")
        try:
            scene.before(world, disk.place)
            before = tree_of(disk.place)
            disk.be(shortage(draw, disk, reference.size))
            first = polyshot(*words, folder=disk.place)
            if first.code == 0 and shortage is read_only:
                return Verdict("different", "it succeeds on a read-only disk")
            verdict = judged(first, disk.place, before, reference.tree, scene)
            if verdict.failed:
                return verdict
            disk.be(enough)
            return _again(scene, words, disk.place, reference.tree, first)
        finally:
            disk.end()

    return run


def memory(world: World) -> Run:
    """Less memory than the command needs, or just enough."""

    def run(draw: random.Random, folder: Path) -> Verdict:
        scene = draw.choice((*SCENES, *MORE))
        words = scene.words(world, draw)
        reference = reference_of(scene, world, words)
        place = folder / "here"
        place.mkdir()
        scene.before(world, place)
        before = tree_of(place)
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        first = polyshot(*words, folder=place, memory=now + int(draw.uniform(0, 300) * 2**20))
        # A library that gets no memory may crash: then it is as after a kill.
        crashed = first.code is not None and first.code < 0
        verdict = (
            Verdict("crashed") if crashed else judged(first, place, before, reference.tree, scene)
        )
        if verdict.failed:
            return verdict
        again = _again(scene, words, place, reference.tree, first)
        return verdict if crashed and not again.failed else again

    return run


def judged(ended: Ended, place: Path, before: Tree, wanted: Tree, scene: Scene) -> Verdict:
    """It succeeds, or is refused in one line and leaves what was there as it was."""
    verdict = ended.verdict()
    if verdict.kind != "refused":
        return verdict
    now = tree_of(place)
    if now == wanted:  # all was done before the shortage
        return REFUSED
    if gone := [name for name in before if now.get(name) != before[name]]:
        return Verdict("lost", f"{scene.name}: {gone[:5]} after {ended.err[-200:]}")
    stray = [name for name in now if name not in before]
    if scene.goes_on:
        stray = [name for name in stray if name.endswith(HIDDEN)]
    if stray:
        return Verdict("left", f"{scene.name}: {stray[:5]} after {ended.err[-200:]}")
    return REFUSED


def _again(scene: Scene, words: list[object], place: Path, wanted: Tree, first: Ended) -> Verdict:
    """Run it with enough of everything: what is left is as after an uninterrupted run."""
    if first.code != 0 and tree_of(place) != wanted:
        again = polyshot(*words, folder=place)
        if again.code != 0:
            told = [file.read_text()[:300] for file in place.rglob("failures/*.json")]
            return Verdict("lost", f"{scene.name}, again: {again.err[-300:]} {told}")
    verdict = compared(tree_of(place), wanted)
    if verdict.failed:
        return Verdict(verdict.kind, f"{scene.name}: {verdict.detail}")
    return REFUSED if first.code else RIGHT


def parts(world: World) -> list[Part]:
    """Three rows; two of them need a process that may mount."""
    lacking, locked = disks(world, full, "size=1g"), disks(world, read_only, "rw")
    about = "room for a part of the output, then for all"
    of_disks = [
        Part("disk-full", about, 100, lacking, 4 * HANG),
        Part("disk-read-only", "then writable", 40, locked, 4 * HANG),
    ]
    if not may_mount():
        print("Trials of disks are skipped: only root may mount file systems.")
        of_disks = []
    about = "little or hardly enough, then plenty"
    return [*of_disks, Part("memory", about, 80, memory(world), 4 * HANG)]
