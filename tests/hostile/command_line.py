"""Malformed inputs and nonsense options by the command line, looked at from all around."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from .inputs import damage_folder
from .mutations import damaged, damaged_json
from .processes import Running
from .trials import HANG, Part, Verdict
from .world import World, training, valid_images

Words = list[object]

KEPT = (".lock", ".labels.lock")
"""Locks of folders that a command goes on in: they stay, since a new one would be another."""

NONSENSE = (
    *("", " ", "-1", "0", "1e999", "nan", "1" + "0" * 30, "../../x", "/", "/dev/null/x", "x" * 300),
    *("a,b,c", ",,,", "[/bold]", "é", "--", "-", ".", "..", "\udcff", "a\nb", "{", "auto", "0.5"),
)

OPTIONS: tuple[tuple[Callable[[World], Words], tuple[str, ...]], ...] = (
    (
        lambda w: ["data", "import", w.photos, "--out", "out", "--size", 16],
        (
            "--size",
            "--name",
            "--only",
            "--seed",
            "--split",
            "--group-pattern",
            "--workers",
            "--out",
        ),
    ),
    (
        lambda w: ["data", "episodes", w.packs / "flowers", "--episodes", 2],
        ("--way", "--shot", "--queries", "--episodes", "--part", "--seed", "--out", "--picture"),
    ),
    (
        lambda w: ["data", "toy", "--out", "out", "--only", "flowers", "--size", 16],
        ("--only", "--size", "--per-class", "--seed", "--out", "--workers"),
    ),
    (
        lambda w: ["example", "out", "--queries", 1],
        ("--domain", "--classes", "--shot", "--seed"),
    ),
    (
        lambda w: ["evaluate", w.packs, "--pool", w.pool, "--episodes", 2, "--device", "cpu"],
        (
            *("--pool", "--targets", "--shape", "--way", "--shot", "--queries", "--methods"),
            *("--adapt", "--part", "--seed", "--out", "--page", "--cache", "--views", "--device"),
        ),
    ),
    (
        lambda w: ["fit", w.photos, "--out", "out", "--pool", w.colours, "--adaptation", "ridge"],
        (*("--out", "--pool", "--rule", "--adaptation", "--none-rate", "--views"), "--precision"),
    ),
    (
        lambda w: ["classify", "--model", w.classifier, "--query", w.photos, "--out", "out"],
        ("--query", "--out", "--page", "--model", "--device", "--support", "--none-rate"),
    ),
    (
        lambda w: ["correct", w.classifier, "--out", "out", "--drop", "0"],
        ("--relabel", "--drop", "--forget", "--add", "--out"),
    ),
    (
        lambda w: training(w.packs, Path("out")),
        ("--sources", "--preset", "--step", "--seed", "--set", "--start", "--members-per-source"),
    ),
    (
        lambda w: ["pool", "remove", w.pool, "signs", "--out", "out"],
        ("--out",),
    ),
    (
        lambda w: ["pool", "publish", w.pool, "--out", "out"],
        ("--out", "--results", "--packs", "--licence", "--precision"),
    ),
    (lambda w: ["card", w.pool, "--out", "out"], ("--out", "--results", "--packs")),
    (
        lambda w: ["reproduce", "seen", "--data", w.packs, "--out", "out", "--processes", 1],
        (
            *("--preset", "--methods", "--targets", "--sources", "--seeds", "--episodes"),
            *("--shots", "--adaptations", "--part", "--set", "--processes"),
        ),
    ),
    (
        lambda w: ["serve", "--folder", "out", "--pool", w.colours],
        ("--port", "--host", "--token", "--pool", "--views", "--device"),
    ),
)


def nonsense(world: World, draw: random.Random, _folder: Path) -> Words:
    """A command of which one option is nonsense."""
    make, options = draw.choice(OPTIONS)
    value = draw.choice(NONSENSE)
    words = make(world)
    if words[0] == "serve" and value in ("auto", "0", "0.5", "-"):
        value = "nan"  # some of these are fine, and it would serve
    option = draw.choice(options)
    if words[0] == "reproduce" and option in ("--seeds", "--episodes") and value.startswith("1"):
        value = "-1"  # as much as was asked for
    return [*words, option, value.encode(errors="surrogateescape").decode(errors="surrogateescape")]


def damaged_files(world: World, draw: random.Random, folder: Path) -> Words:
    """A command on a file or folder that is damaged."""
    return draw.choice((_on_pack, _on_pool, _on_classifier, _on_images, _on_source))(
        world, draw, folder
    )


def _on_pack(world: World, draw: random.Random, folder: Path) -> Words:
    place = folder / "packs"
    shutil.copytree(world.packs, place)
    damage_folder(place / "signs", "domain.json", draw)
    pack = place / "signs"
    return draw.choice(
        (
            ["data", "list", place],
            ["data", "sheet", pack, "out.png"],
            ["data", "split", pack, "--seed", 3],
            ["data", "episodes", pack, "--episodes", 3, "--out", "out.npz"],
            ["evaluate", place, "--pool", world.pool, "--episodes", 2, "--out", "out.jsonl"],
            training(place, Path("out")),
            ["pool", "add", world.pool, pack, "--out", "out"],
        )
    )


def _on_pool(world: World, draw: random.Random, folder: Path) -> Words:
    place = folder / "pool"
    shutil.copytree(world.pool, place)
    damage_folder(place, "pool.json", draw)
    return draw.choice(
        (
            ["info", place],
            ["card", place, "--out", "out.md"],
            ["pool", "list", place],
            ["pool", "remove", place, "signs", "--out", "out"],
            ["pool", "merge", place, world.pool, "--out", "out"],
            ["pool", "publish", place, "--out", "out"],
            ["classify", "--support", world.photos, "--query", world.photos, "--pool", place],
            ["fit", world.photos, "--pool", place, "--out", "out.polyshot"],
        )
    )


def _on_classifier(world: World, draw: random.Random, folder: Path) -> Words:
    place = folder / "here.polyshot"
    place.write_bytes(damaged(world.classifier.read_bytes(), draw))
    return draw.choice(
        (
            ["check", place],
            ["classify", "--model", place, "--query", world.photos, "--out", "out.csv"],
            ["suggest", place, "--query", world.photos],
            ["correct", place, "--drop", "0", "--out", "out.polyshot"],
            ["serve", place, "--folder", "out", "--pool", world.colours, "--host", "no host"],
        )
    )


def _on_images(world: World, draw: random.Random, folder: Path) -> Words:
    photos = folder / "photos"
    shutil.copytree(world.photos, photos)
    known = valid_images()
    for _ in range(3):
        chosen = draw.choice(sorted(photos.glob("*/*")))
        chosen.write_bytes(damaged(known[draw.choice(list(known))], draw))
    odd = (
        photos
        / "red"
        / draw.choice(("[bold].png", "a\nb.png", "\udcff.png", "=1.png", "\x1b[2J.png"))
    )
    odd.write_bytes(known["00.png"])
    ask = ["classify", "--query", photos, "--out", "out.csv", "--page", "out.html"]
    return draw.choice(
        (
            [*ask, "--model", world.classifier],
            ["classify", "--model", world.classifier, "--query", photos],
            [
                "fit",
                photos,
                "--out",
                "out.polyshot",
                "--pool",
                world.colours,
                "--adaptation",
                "ridge",
            ],
            ["suggest", world.classifier, "--query", photos],
            ["data", "import", photos, "--out", "out", "--size", 16, "--skip-bad"],
            ["evaluate", photos, "--pool", world.colours, "--episodes", 2, "--page", "out.html"],
        )
    )


def _on_source(world: World, draw: random.Random, folder: Path) -> Words:
    files = [*world.archives.glob("photos.*"), *world.parquet.iterdir()]
    chosen = draw.choice(sorted(files))
    place = folder / chosen.name
    place.write_bytes(damaged(chosen.read_bytes(), draw))
    if draw.random() < 0.2:
        rows = folder / "results.jsonl"
        rows.write_bytes(damaged_json(b'{"method": "base", "target": "x", "mean": 0.5}', draw))
        return draw.choice(
            (["report", rows, "--out", "out"], ["card", world.pool, "--results", rows])
        )
    return draw.choice(
        (
            ["data", "import", place, "--out", "out", "--size", 16],
            ["data", "import", place, "--out", "out", "--size", 16, "--skip-bad"],
            ["evaluate", place, "--pool", world.colours, "--episodes", 2, "--page", "out.html"],
        )
    )


def run_in(world: World, draw: random.Random, folder: Path) -> Verdict:
    """Run a command in a folder, with a home and a temporary folder that must stay empty."""
    make = nonsense if draw.random() < 0.4 else damaged_files
    words = make(world, draw, folder)
    # So deep that nonsense with a few steps up stays inside.
    around = {"here": folder / "a" / "b" / "here", "home": folder / "home", "tmp": folder / "tmp"}
    for place in around.values():
        place.mkdir(parents=True)
    known = set(folder.iterdir())
    variables = {"HOME": str(around["home"]), "TMPDIR": str(around["tmp"])}
    run = Running(*words, folder=around["here"], environment=variables)
    try:
        ended = run.outcome()
    finally:
        run.sweep()
    verdict = ended.verdict()
    shown = " ".join(map(str, words))[-150:].encode(errors="replace").decode()
    if verdict.failed:
        return Verdict(verdict.kind, f"{shown}: {verdict.detail}")
    outside = [*around["home"].rglob("*"), *around["tmp"].rglob("*")]
    stray = [f for f in outside if not f.is_dir()]  # torch makes an empty folder
    stray += sorted(set(folder.iterdir()) - known)
    here = list(around["here"].rglob("*"))
    named = next(iter(Path(str(words[-1])).parts), "out")  # nonsense may be a name as well
    stray += [
        f for f in here if f.name.endswith((".partial", ".old", ".lock")) and f.name not in KEPT
    ]
    if verdict.kind == "refused" and words[0] not in ("train", "reproduce", "serve"):
        stray += [f for f in here if f.is_file()]
    if verdict.kind == "right":
        stray += [f for f in around["here"].iterdir() if not f.name.startswith(("out", named))]
    return Verdict("left", f"{shown}: {stray[:4]}") if stray else verdict


def parts(world: World) -> list[Part]:
    """One row."""
    about = "damaged files and nonsense options, as commands"
    run = lambda draw, folder: run_in(world, draw, folder)  # noqa: E731
    return [Part("command-line", about, 300, run, patience=2 * HANG)]
