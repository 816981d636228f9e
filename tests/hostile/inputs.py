"""Malformed inputs, through the functions that the commands call: files that Polyshot reads."""

import os
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyshot.classifier import FewShotClassifier
from polyshot.data.images import BadImage, decode, load_images
from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.pack import Pack
from polyshot.data.readers.queries import read_queries, read_support
from polyshot.pool.pool import Pool
from tests.helpers import coloured

from . import texts
from .judging import judged
from .mutations import damaged, damaged_json
from .sealing import reseal_classifier, reseal_pack, reseal_pool, without_seal
from .trials import REFUSED, RIGHT, Part, Run, Verdict
from .world import World, valid_images

MEMORY = 6 << 30
"""Bytes of address space for one process: what asks for more than that is found out."""


# --- images


def images(draw: random.Random, folder: Path) -> Verdict:
    """An image of any format, as bytes or as a file."""
    known = valid_images()
    name = draw.choice(list(known))
    data = damaged(known[name], draw, list(known.values()))
    size = draw.choice((16, 24, 72))

    def work() -> Verdict:
        made: NDArray[np.uint8] | BadImage
        if draw.random() < 0.8:
            made = decode(data, size)
            if isinstance(made, BadImage):
                return REFUSED if _short(made.kind) else Verdict("traceback", made.kind)
        else:
            file = folder / f"image.{name.rpartition('.')[2]}"
            file.write_bytes(data)
            made = load_images([file], size)[0]
        fine = made.shape == (3, size, size) and made.dtype == np.uint8
        return RIGHT if fine else Verdict("different", f"{made.shape} {made.dtype}")

    return judged(folder, work)


def _short(text: str) -> bool:
    return bool(text) and "\n" not in text and len(text) < 300


# --- sources of imports


def imported(source: Path, draw: random.Random, folder: Path) -> Verdict:
    """Import what lies there; a pack that is made opens, and says what it holds."""
    options = ImportOptions(size=16, skip_bad=draw.random() < 0.5, workers=1)

    def work() -> Verdict:
        for one in import_source(source, folder / "out", options):
            again = Pack.open(one.pack.path)
            if again.hash != one.pack.hash or len(again.images) != len(again.domain.labels):
                return Verdict("different", "the pack is not what was imported")
        return RIGHT

    return judged(folder, work)


def archives(world: World) -> Run:
    """A zip or tar whose bytes are damaged."""
    files = [f for f in sorted(world.archives.iterdir()) if not f.name.startswith("many")]

    def run(draw: random.Random, folder: Path) -> Verdict:
        chosen = draw.choice(files)
        place = folder / chosen.name
        place.write_bytes(damaged(chosen.read_bytes(), draw, [f.read_bytes() for f in files]))
        return imported(place, draw, folder)

    return run


def parquet(world: World) -> Run:
    """A Parquet file whose bytes are damaged, or whose columns are of other kinds."""
    files = sorted(world.parquet.iterdir())

    def run(draw: random.Random, folder: Path) -> Verdict:
        chosen = draw.choice(files)
        place = folder / "here.parquet"
        if draw.random() < 0.25:
            _odd_table(place, draw, chosen)
        else:
            place.write_bytes(damaged(chosen.read_bytes(), draw))
        return imported(place, draw, folder)

    return run


ODD: tuple[Callable[[int], Any], ...] = (
    *(lambda i: [i], lambda i: {"bytes": None}, lambda i: None, lambda i: "x" * i, lambda i: -i),
    *(lambda i: i * 0.5, lambda i: b"\x00" * i, lambda i: {"path": "/etc/passwd"}, lambda i: i > 3),
    *(lambda i: {"bytes": "text"}, lambda i: 2**62 + i, lambda i: float("nan"), lambda i: "../up"),
)


def _odd_table(place: Path, draw: random.Random, valid: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as writer

    table = writer.read_table(valid)
    column = draw.choice(table.column_names)
    value = draw.choice(ODD)
    odd = pa.array([value(i) for i in range(len(table))])
    table = table.set_column(table.column_names.index(column), column, odd)
    if draw.random() < 0.3:
        about = table.schema.metadata or {b"huggingface": b"{}"}
        about = {name: damaged_json(text, draw) for name, text in about.items()}
        table = table.replace_schema_metadata(about)
    writer.write_table(table, place)


def folders(world: World) -> Run:
    """A folder of photographs in which things lie that are none."""

    def run(draw: random.Random, folder: Path) -> Verdict:
        place = folder / "photos"
        shutil.copytree(world.photos, place)
        for i in range(draw.choice((1, 2, 3))):
            label = draw.choice(("red", "green", "blue", "ch at"))
            _put(place / label / f"x{i}.png", draw)
        task = draw.choice(("import", "support", "queries"))
        if task == "import":
            return imported(place, draw, folder)

        def read() -> Verdict:
            files = read_support(place)[0] if task == "support" else read_queries(place)
            load_images(list(files), 16)
            return RIGHT

        return judged(folder, read)

    return run


def _put(path: Path, draw: random.Random) -> None:
    way = draw.randrange(9)
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.symlink_to(path)
    elif way == 2:
        path.symlink_to("/dev/zero")
    elif way == 3:
        path.symlink_to("nowhere")
    elif way == 4:
        (path.parent / "deeper").mkdir(exist_ok=True)
        (path.parent / "deeper" / path.name).symlink_to(path.parent.parent)
    elif way == 5:
        name = draw.choice(
            (b"\xff\xfe.png", b"a\nb.png", b"\x1b[31m.png", b"[bold].png", b"x" * 250)
        )
        Path(os.fsdecode(os.fsencode(path.parent) + b"/" + name)).write_bytes(b"no image")
    elif way == 6:
        with socket.socket(socket.AF_UNIX) as made:
            os.chdir(path.parent)  # a socket's name is short
            made.bind(path.name)
            os.chdir(path.parent.parent.parent)
    elif way == 7:
        path.write_bytes(b"")
    else:
        (path.parent.parent / draw.choice(("RED", "..x", "empty", "[red]", "nul"))).mkdir(
            exist_ok=True
        )


# --- packs, pools and classifiers


def packs(world: World) -> Run:
    """A pack one of whose files is damaged, sometimes with hashes that say it is not."""
    valid = world.packs / "flowers"
    before = Pack.open(valid)

    def run(draw: random.Random, folder: Path) -> Verdict:
        place = folder / "flowers"
        shutil.copytree(valid, place)
        damage_folder(place, "domain.json", draw)
        crafted = (draw.random() < 0.3 and reseal_pack(place)) or _unsealed(place / "domain.json")

        def work() -> Verdict:
            found = Pack.open(place)
            found.images[: len(found.domain.labels)].sum()  # all of it can be read
            same = _about(found) == _about(before) and np.array_equal(found.images, before.images)
            return RIGHT if same or crafted else Verdict("different", "another pack opens")

        return judged(folder, work)

    return run


def _about(pack: Pack) -> tuple[object, ...]:
    domain = pack.domain
    groups = None if domain.groups is None else domain.groups.tolist()
    words = (domain.name, domain.class_names, domain.mirror, domain.split, pack.hash)
    return (*words, domain.labels.tolist(), groups)


def _unsealed(about: Path) -> bool:
    """Whether a description has lost its checksum: then it is one of an older version."""
    return about.is_file() and without_seal(about.read_bytes())


def damage_folder(place: Path, about: str, draw: random.Random) -> None:
    """Damage a file of a folder, its description more often than others."""
    files = [file for file in sorted(place.rglob("*")) if file.is_file()]
    file = place / about if draw.random() < 0.6 else draw.choice(files)
    way = draw.random()
    if way < 0.9:
        change = damaged_json if file.suffix == ".json" else damaged
        file.write_bytes(change(file.read_bytes(), draw))
    elif way < 0.93:
        file.unlink()
    elif way < 0.95:
        file.unlink()
        file.mkdir()
    elif way < 0.97:
        file.unlink()
        file.symlink_to(file)
    else:
        file.write_bytes(draw.choice([f.read_bytes() for f in files]))


@cache
def _queries() -> list[Any]:
    return [coloured(label, 50 + i) for i, label in enumerate(("red", "green", "blue", "blue"))]


def _answers(pool: Pool) -> NDArray[np.floating[Any]]:
    """What a pool says by several rules to one task."""
    labels = ["red", "red", "green", "green", "blue"]
    images = [coloured(label, i) for i, label in enumerate(labels)]
    rules = ("select", "average") if pool.selector is not None else ("average",)
    made = [FewShotClassifier(pool, rule, "none").fit(images, labels) for rule in rules]
    return np.stack([each.predict_proba(_queries()) for each in made])


def _judge_answers(
    found: NDArray[np.floating[Any]], before: NDArray[np.floating[Any]], crafted: bool
) -> Verdict:
    if not np.isfinite(found).all() or abs(found.sum(-1) - 1).max() > 1e-3:
        return Verdict("different", "probabilities that are none")
    same = found.shape == before.shape and np.array_equal(found, before)
    return RIGHT if same or crafted else Verdict("different", "another pool answers")


def pools(world: World) -> Run:
    """A pool one of whose files is damaged, sometimes with hashes that say it is not."""
    valid = (world.colours, world.pool)
    before = {path: _answers(Pool.load(path)) for path in valid}

    def run(draw: random.Random, folder: Path) -> Verdict:
        chosen, place = draw.choice(valid), folder / "pool"
        shutil.copytree(chosen, place)
        damage_folder(place, "pool.json", draw)
        crafted = (draw.random() < 0.4 and reseal_pool(place)) or _unsealed(place / "pool.json")

        def work() -> Verdict:
            return _judge_answers(_answers(Pool.load(place)), before[chosen], crafted)

        return judged(folder, work)

    return run


def classifiers(world: World) -> Run:
    """A saved classifier whose bytes, or whose files inside, are damaged."""
    valid = world.classifier
    before = FewShotClassifier.load(valid)
    wanted = before.predict_proba(_queries())

    def run(draw: random.Random, folder: Path) -> Verdict:
        place = folder / "here.polyshot"
        data, crafted = valid.read_bytes(), False
        if draw.random() < 0.4:
            place.write_bytes(damaged(data, draw))
        else:
            crafted = draw.random() < 0.6
            place.write_bytes(reseal_classifier(data, draw, crafted))
            with zipfile.ZipFile(place) as made:
                crafted = crafted or without_seal(made.read("classifier.json"))

        def work() -> Verdict:
            loaded = FewShotClassifier.load(place)
            found = loaded.predict_proba(_queries())
            if loaded.can_estimate:
                str(loaded.estimate())
            loaded.predict(_queries())
            same = list(loaded.classes_) == list(before.classes_)
            if not same and not crafted:
                return Verdict("different", "other classes")
            return _judge_answers(found[None], wanted[None], crafted)

        return judged(folder, work)

    return run


def parts(world: World) -> list[Part]:
    """All kinds of files; what is made of the world is made when a part begins."""

    def later(make: Callable[[World], Run]) -> Run:
        made = cache(lambda: make(world))

        def run(draw: random.Random, folder: Path) -> Verdict:
            return made()(draw, folder)

        return run

    return [
        Part("images", "of every format that Pillow writes, damaged", 3000, images, memory=MEMORY),
        Part("archives", "zip and tar, damaged", 1400, later(archives), memory=MEMORY),
        Part("folders", "pipes, loops, devices, odd names", 200, later(folders), memory=MEMORY),
        Part("parquet", "damaged, or with odd columns", 700, later(parquet), memory=MEMORY),
        Part("packs", "damaged, or crafted", 900, later(packs), memory=MEMORY),
        Part("pools", "damaged, or crafted", 1000, later(pools), memory=MEMORY),
        Part("classifiers", "damaged, or crafted", 800, later(classifiers), memory=MEMORY),
        Part(
            "texts",
            "options, splits, tables, checkpoints",
            900,
            later(texts.configs),
            memory=MEMORY,
        ),
    ]
