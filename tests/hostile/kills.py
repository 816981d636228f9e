"""Commands that are killed at a random moment, and then run again."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool

from . import serving
from .processes import Running, polyshot
from .trials import HANG, RIGHT, Part, Verdict
from .world import SETTINGS, World, training

TIMES = ("seconds", "added_seconds", "when", "description_hash", "images_per_second")
"""What differs between two runs that are alike."""


@dataclass(frozen=True)
class Scene:
    """A command that writes into ``out`` of the folder that it runs in."""

    name: str
    about: str
    words: Callable[[World, random.Random], list[object]]
    trials: int
    before: Callable[[World, Path], None] = lambda _world, _folder: None
    """Puts what the command changes into a folder."""
    goes_on: bool = False
    """Whether it keeps what it has done, to go on from there."""


def part_of(scene: Scene, world: World) -> Part:
    """Make a row of the table."""

    def run(draw: random.Random, folder: Path) -> Verdict:
        words = scene.words(world, draw)
        reference = reference_of(scene, world, words)
        return killed_and_again(scene, world, words, reference, draw, folder)

    about = f"`{scene.about}` killed and run again"
    return Part(f"kill-{scene.name}", about, scene.trials, run, patience=4 * HANG)


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run."""

    seconds: float
    size: int
    """Bytes that it wrote."""
    tree: Mapping[str, str]


def reference_of(scene: Scene, world: World, words: list[object]) -> Reference:
    key = hashlib.sha256(repr(words).encode()).hexdigest()[:12]

    def make(place: Path) -> None:
        folder = place.parent / "uninterrupted"
        folder.mkdir()
        scene.before(world, folder)
        ended = polyshot(*words, folder=folder)
        assert ended.code == 0, ended.err
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        about = {"seconds": ended.seconds, "size": size, "tree": tree_of(folder)}
        place.write_text(json.dumps(about))

    return Reference(**json.loads(world.made(f"reference-{scene.name}-{key}", make).read_text()))


def killed_and_again(
    scene: Scene,
    world: World,
    words: list[object],
    reference: Reference,
    draw: random.Random,
    folder: Path,
) -> Verdict:
    """Kill the command once, and run it to its end."""
    place = folder / "here"
    place.mkdir()
    scene.before(world, place)
    first = Running(*words, folder=place)
    try:
        first.wait(draw.uniform(0, 1.05 * reference.seconds))
        first.kill(whole=draw.random() < 0.5)
        if (half := not_whole(place)) is not None:
            return half
        again = polyshot(*words, folder=place)
    finally:
        first.sweep()
    verdict = again.verdict()
    # It may have been killed when all was done.
    finished = verdict.kind == "refused" and _says_done(again.err)
    if verdict.kind != "right" and not finished:
        return Verdict("traceback" if verdict.kind == "refused" else verdict.kind, again.err[-400:])
    return compared(tree_of(place), reference.tree)


def _says_done(err: str) -> bool:
    """Whether a command refuses because all that it would do is done."""
    return " exists: " in err or "The pool has the domain" in err


def compared(found: Mapping[str, str], wanted: Mapping[str, str]) -> Verdict:
    """Compare what a run left with what an uninterrupted one leaves."""
    if more := sorted(set(found) - set(wanted)):
        return Verdict("left", ", ".join(more[:5]))
    if gone := sorted(set(wanted) - set(found)):
        return Verdict("lost", ", ".join(gone[:5]))
    if other := [name for name in wanted if found[name] != wanted[name]]:
        return Verdict("different", ", ".join(other[:5]))
    return RIGHT


def not_whole(folder: Path) -> Verdict | None:
    """Look for what has its name and is not whole, right after a kill."""
    try:
        for about in folder.rglob("[!.]*/domain.json"):
            if not any(part.startswith(".") for part in about.relative_to(folder).parts[:-1]):
                Pack.open(about.parent)
        for about in folder.rglob("[!.]*/pool.json"):
            if not any(part.startswith(".") for part in about.relative_to(folder).parts[:-1]):
                Pool.load(about.parent)
    except PolyshotError as error:
        return Verdict("lost", str(error))
    return None


def tree_of(folder: Path) -> dict[str, str]:
    """Hash every file of a folder; times in JSON are left out."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): _hashed(file) for file in files}


def _hashed(file: Path) -> str:
    if file.name in ("metrics.jsonl", "environment.json") or file.suffix == ".lock":
        return "there"  # how long steps took, and the machine
    data = file.read_bytes()
    if file.suffix == ".json":
        data = json.dumps(_timeless(json.loads(data))).encode()
    elif file.suffix == ".jsonl":
        lines = [json.dumps(_timeless(json.loads(line))) for line in data.splitlines()]
        data = "\n".join(lines).encode()
    return hashlib.sha256(data).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in TIMES}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _import(world: World, draw: random.Random) -> list[object]:
    archives = (world.archives / f"many.{end}" for end in ("zip", "tar", "tar.gz"))
    source = draw.choice((world.many, world.many, *archives))
    workers = draw.choice((1, 2))
    return ["data", "import", source, "--out", "out", "--size", 64, "--workers", workers]


def _reproduce(world: World, draw: random.Random) -> list[object]:
    return [
        *("reproduce", "seen", "--data", world.packs, "--preset", "tiny", "--out", "out"),
        *("--episodes", 4, "--shots", 2, "--sources", "glyphs,signs", "--targets", "glyphs"),
        *("--methods", "base,protonet,average", "--device", "cpu", "--no-adapt", *SETTINGS),
        *("--processes", draw.choice((1, 1, 1, 2))),
    ]


def _evaluate(world: World, draw: random.Random) -> list[object]:
    more = draw.choice(((), ("--cache", "out/cache"), ("--confusion", "out/confusion")))
    return [
        *("evaluate", world.packs, "--pool", world.pool, "--episodes", 40, "--adapt", "ridge"),
        *("--part", "all", "--out", "out/results.jsonl", "--device", "cpu", *more),
    ]


def copy_pool(world: World, folder: Path) -> None:
    shutil.copytree(world.pool, folder / "pool")


def _add(world: World, draw: random.Random) -> list[object]:
    out = draw.choice(((), ("--out", "out")))
    return ["pool", "add", "pool", world.packs / "flowers", "--device", "cpu", *out]


def _fit(world: World, draw: random.Random) -> list[object]:
    adaptation = draw.choice(("tsa", "head", "ridge"))
    return [
        *("fit", world.photos, "--out", "out/photos.polyshot", "--pool", world.pool),
        *("--adaptation", adaptation, "--device", "cpu"),
    ]


def _label(world: World, _draw: random.Random) -> list[object]:
    return [
        *("classify", "--model", world.classifier, "--query", world.many, "--out", "out/labels/"),
        *("--shard", 40, "--device", "cpu"),
    ]


SCENES = (
    Scene("import", "data import", _import, 30),
    Scene("label", "classify --out folder/", _label, 10, goes_on=True),
    Scene("train", "train", lambda world, _: training(world.packs, Path("out")), 40, goes_on=True),
    Scene("reproduce", "reproduce", _reproduce, 30, goes_on=True),
    Scene("evaluate", "evaluate", _evaluate, 25, goes_on=True),
    Scene("add", "pool add", _add, 25, copy_pool, goes_on=True),
    Scene("fit", "fit", _fit, 20),
)


def parts(world: World) -> list[Part]:
    """All commands that are killed."""
    return [*(part_of(scene, world) for scene in SCENES), serving.part(world)]
