"""Malformed texts: options, configs, class splits, tables; and checkpoints."""

import json
import random
from pathlib import Path
from typing import Any

from polyshot.config import from_dict, override, preset, to_dict
from polyshot.data.pack import Pack
from polyshot.data.readers.queries import read_support
from polyshot.data.splits import read_split_file
from polyshot.evaluation.evaluate import evaluate
from polyshot.evaluation.results import append_results, read_results
from polyshot.experiments.protocols import configured
from polyshot.pool.pool import Pool
from polyshot.training.folder import enter
from polyshot.util.tensors import read_checkpoint, read_weights, write_checkpoint
from tests.helpers import CPU, SHAPE

from .judging import judged
from .mutations import RAW, damaged, damaged_json
from .trials import REFUSED, RIGHT, Run, Verdict
from .world import World


def _options(world: World, draw: random.Random, folder: Path) -> Verdict:
    words = []
    for _ in range(draw.choice((1, 2))):
        value = draw.choice((*RAW, "1e-3", "-5", "adam", "10000000000000", "1_0", "\uff10"))
        words.append(
            draw.choice(
                (
                    f"{draw.choice(_paths(to_dict(preset('tiny'))))}={value}",
                    value,
                    f"={value}",
                    "a.b.c=1",
                )
            )
        )
    if draw.random() < 0.5:
        override(preset("tiny"), words)
    else:
        configured(draw.choice(("tiny", "paper", "strong", "x")), words)
    return RIGHT


def _config(world: World, draw: random.Random, folder: Path) -> Verdict:
    text = damaged_json(json.dumps(to_dict(preset("tiny"))).encode(), draw)
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_bytes(text)
    other = damaged_json(b'{"packs": [], "start": null}', draw)
    (folder / "run" / "environment.json").write_bytes(other)
    if draw.random() < 0.3:
        try:
            plainer = json.loads(text)
        except (ValueError, RecursionError):
            return REFUSED
        from_dict(plainer if isinstance(plainer, dict) else {})
        return RIGHT
    packs = [Pack.open(world.packs / name) for name in ("glyphs", "signs")]
    enter(folder / "run", packs, preset("tiny"), None, CPU)
    return RIGHT


def _split(world: World, draw: random.Random, folder: Path) -> Verdict:
    names = Pack.open(world.packs / "glyphs").domain.class_names
    valid = {"train": names[:4], "val": names[4:6], "test": names[6:]}
    (folder / "split.json").write_bytes(damaged_json(json.dumps(valid).encode(), draw))
    made = read_split_file(folder / "split.json", names)
    ids = made.part("all")
    fine = len(set(ids)) == len(ids)
    return RIGHT if fine else Verdict("different", "a class is in two parts")


def _examples(world: World, draw: random.Random, folder: Path) -> Verdict:
    files = sorted(world.photos.glob("*/*"))
    rows = "".join(f"{file},{file.parent.name}\n" for file in files)
    text = damaged(f"path,label\n{rows}".encode(), draw)
    (folder / "examples.csv").write_bytes(text)
    paths, labels = read_support(folder / "examples.csv")
    return RIGHT if len(paths) == len(labels) else Verdict("different", "rows without label")


def _results(world: World, draw: random.Random, folder: Path) -> Verdict:
    rows = _valid_results(world).splitlines()
    rows[draw.randrange(len(rows))] = damaged_json(rows[0], draw)
    (folder / "results.jsonl").write_bytes(b"\n".join(rows))
    read_results(folder / "results.jsonl")
    return RIGHT


def _weights(world: World, draw: random.Random, folder: Path) -> Verdict:
    file = draw.choice(sorted(world.pool.rglob("*.safetensors")))
    (folder / "w.safetensors").write_bytes(damaged(file.read_bytes(), draw))
    read_weights(folder / "w.safetensors")
    return RIGHT


def _checkpoint(world: World, draw: random.Random, folder: Path) -> Verdict:
    (folder / "checkpoint.pt").write_bytes(damaged(_valid_checkpoint(world), draw))
    read_checkpoint(folder / "checkpoint.pt", CPU)
    return RIGHT


def configs(world: World) -> Run:
    """Options, configs, class splits, tables of examples, results, weights and checkpoints."""
    plain = (_options, _options, _options, _config, _config, _split, _examples)
    kinds = (*plain, _results, _weights, _checkpoint)

    def run(draw: random.Random, folder: Path) -> Verdict:
        kind = draw.choice(kinds)
        return judged(folder, lambda: kind(world, draw, folder))

    return run


def _paths(plain: Any, start: str = "") -> list[str]:
    found = []
    for name, value in plain.items():
        found += _paths(value, f"{start}{name}.") if isinstance(value, dict) else [f"{start}{name}"]
    return found


def _valid_results(world: World) -> bytes:
    def make(place: Path) -> None:
        pack = Pack.open(world.packs / "flowers")
        append_results(place, evaluate(Pool.load(world.pool), pack, ["base"], SHAPE, 3, 0, "all"))

    return world.made("results.jsonl", make).read_bytes()


def _valid_checkpoint(world: World) -> bytes:
    def make(place: Path) -> None:
        state = {"step": 3, "weights": Pool.load(world.pool).base.state_dict(), "best": 0.5}
        write_checkpoint(place, state)

    return world.made("checkpoint.pt", make).read_bytes()
