"""A grid folder with made-up numbers of a realistic shape, as ``polyshot reproduce`` leaves it."""

import json
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from polyshot.evaluation.results import Result, append_results
from polyshot.evaluation.stats import interval

DOMAINS = {
    "actions": 0.68,
    "cars": 0.62,
    "cifar100": 0.74,
    "dtd": 0.50,
    "flowers": 0.88,
    "gtsrb": 0.93,
    "imagenet": 0.55,
    "omniglot": 0.985,
    "plankton": 0.86,
}
GAINS = {
    "base": 0.0,
    "finetune": -0.05,
    "finetune-all": -0.02,
    "protonet": -0.03,
    "simple-avg": -0.12,
    "feat": -0.04,
    "protomaml": -0.02,
    "tadam": -0.30,
    "select": 0.012,
    "average": 0.008,
    "select-channel": 0.006,
    "average-channel": 0.005,
}
SOURCES = {
    "seen": [name for name in DOMAINS if name != "dtd"],
    "sources-2": ["imagenet", "cifar100"],
    "sources-4": ["imagenet", "cifar100", "omniglot", "gtsrb"],
    "sources-6": ["imagenet", "cifar100", "omniglot", "gtsrb", "cars", "actions"],
}


def fake_result(
    method: str = "base",
    target: str = "gtsrb",
    protocol: str = "seen",
    preset: str = "strong",
    shot: int = 5,
    adaptation: str = "none",
    train_seed: int = 0,
    episodes: int = 60,
    **changes: Any,
) -> Result:
    """Make a result whose episodes are as hard for every method of the same target and shot."""
    place = zlib.crc32(f"{target} {shot}".encode())
    hard = np.random.default_rng(place).normal(0, 0.08, 1000)[:episodes]
    own = zlib.crc32(f"{method} {target} {protocol} {preset} {shot} {adaptation}".encode())
    noise = np.random.default_rng([own, train_seed]).normal(0, 0.03, 1000)[:episodes]
    sources = SOURCES.get(protocol, [name for name in SOURCES["seen"] if name != target])
    level = DOMAINS.get(target, 0.6) + GAINS.get(method, 0.0) - (0.15 if shot == 1 else 0)
    level += 0.01 * (adaptation != "none") - 0.08 * (preset == "paper")
    level -= 0.07 * (target not in sources)
    right = np.clip(np.round(50 * (level + hard + noise)), 0, 50) / 50
    accuracies = [round(float(value), 4) for value in right]
    mean, half_width = interval(accuracies)
    options: dict[str, Any] = {
        "method": method,
        "target": target,
        "seen": target in sources,
        "way": 5,
        "shot": shot,
        "queries": 10,
        "part": "test",
        "adaptation": adaptation,
        "seed": 0,
        "episodes": episodes,
        "group_disjoint": target == "gtsrb",
        "fingerprint": f"{target}-{shot}-{episodes}",
        "mean": mean,
        "half_width": half_width,
        "per_episode": accuracies,
        "pool": "pool",
        "pack": zlib.crc32(target.encode()).to_bytes(4, "big").hex() * 8,
        "version": "0.2.0",
        "draw": f"{target}-{shot}-0",
        "protocol": protocol,
        "preset": preset,
        "sources": sources,
        "train_seed": train_seed,
        "settings": {"learning_rate": 0.01, "steps": 100} if adaptation != "none" else {},
        "note": "did not converge" if method == "tadam" else "",
        "parameters": 11_176_512 + (1_224_448 * len(sources) if method == "select" else 0),
        "multiply_adds": int(5.9e10 * (len(sources) + 1 if method in ("average",) else 1)),
        "seconds": 0.004 + own % 1000 / 1e5,
        "device": "cuda NVIDIA H200",
        "calibration_error": round(0.02 + own % 100 / 2000, 4),
    }
    return Result(**(options | changes))


def write_grid(
    folder: Path,
    presets: Sequence[str] = ("strong",),
    protocols: Sequence[str] = ("seen", "unseen"),
    targets: Sequence[str] = tuple(DOMAINS),
    methods: Sequence[str] = tuple(GAINS),
    seeds: Sequence[int] = (0,),
    episodes: int = 60,
) -> Path:
    """Write a whole folder."""
    for preset in presets:
        for protocol in protocols:
            for seed in seeds:
                _results(folder, preset, protocol, targets, methods, seed, episodes)
            _shares(folder, preset, protocol, targets)
            _world(folder, preset, protocol)
    _contributions(folder, presets[0])
    _write(
        folder / "failures" / "tadam-dtd.json",
        {"what": "tadam on dtd", "error": "loss is not a number\nat update 40", "when": "noon"},
    )
    about = {
        "polyshot": "0.2.0", "torch": "2.11.0", "python": "3.11.7", "platform": "Linux",
        "device": "cuda NVIDIA H200", "code": "1ee3633", "packs": {"gtsrb": "ab" * 32},
        "commands": ["polyshot data import shared/data --out packs", "polyshot reproduce packs"],
    }  # fmt: skip
    _write(folder / "environment.json", about)
    return folder


def _results(
    folder: Path,
    preset: str,
    protocol: str,
    targets: Sequence[str],
    methods: Sequence[str],
    seed: int,
    episodes: int,
) -> None:
    for target in targets:
        results = []
        for method in methods:
            slow = method in ("protomaml", "finetune-all")
            forms = ["none"]
            if method not in ("finetune", "finetune-all"):
                forms.append("steps-100" if method == "protomaml" else "head")
            results += [
                fake_result(
                    *(method, target, protocol, preset, shot, form, seed),
                    episodes=episodes // 3 if slow else episodes,
                )
                for shot in (5, 1)
                for form in forms
                if (method, target) != ("tadam", "dtd")
            ]
        append_results(folder / "results" / preset / protocol / f"{target}-{seed}.jsonl", results)


def _shares(folder: Path, preset: str, protocol: str, targets: Sequence[str]) -> None:
    generator = np.random.default_rng(1)
    groups = [[target] for target in targets] if protocol == "unseen" else [list(targets)]
    for group in groups:
        sources = SOURCES.get(protocol, [s for s in SOURCES["seen"] if s != group[0]])
        rows = generator.dirichlet(np.full(len(sources) + 1, 0.3), len(group)).tolist()
        about = {
            "protocol": protocol, "preset": preset, "sources": sources, "method": "select",
            "members": ["base", *sources], "targets": group, "shares": rows,
        }  # fmt: skip
        _write(folder / "shares" / f"{preset}-{protocol}-{group[0]}.json", about)


def _contributions(folder: Path, preset: str) -> None:
    generator = np.random.default_rng(2)
    members = SOURCES["seen"]

    def correct(spread: Sequence[float]) -> list[list[int]]:
        return [[int(generator.binomial(50, p)) for p in spread] for _ in range(40)]

    apart = np.linspace(0.35, 0.6, len(members)).tolist()
    together = np.linspace(0.60, 0.64, len(members) + 1).tolist()
    about = {
        "protocol": "contributions", "preset": preset, "target": "dtd", "sources": members,
        "train_seed": 0, "queries": 50,
        "methods": {
            "simple-avg": {"members": members, "correct": correct(apart)},
            "average": {"members": ["base", *members], "correct": correct(together)},
        },
    }  # fmt: skip
    _write(folder / "contributions" / "dtd.json", about)


def _world(folder: Path, preset: str, protocol: str) -> None:
    world = folder / "worlds" / f"{preset}-{protocol}-0"
    sources = SOURCES.get(protocol, SOURCES["seen"])
    _write(world / "world.json", {"preset": preset, "seed": 0, "sources": sources})
    lines: list[dict[str, Any]] = []
    for step, updates in (("base", 80), *((f"modulator:{s}", 8) for s in sources)):
        for i in range(updates):
            line = {"step": step, "number": 50 * (i + 1), "loss": 7 / (1 + i / 10)}
            if i % 10 == 9 or step != "base":
                line |= {"validation": 0.8 - 0.5 / (1 + i / 10), "best": 0.8}
            lines.append(line)
    lines.append({"step": "modulator:cars:strength", "number": 0, "strength": 0.5})
    (world / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"s')
    rival = world / "rivals" / "tadam-metrics.jsonl"
    rival.parent.mkdir()
    bad = [{"step": "tadam", "number": i, "loss": 3.0 if i < 4 else float("nan")} for i in range(8)]
    rival.write_text("".join(json.dumps(line) + "\n" for line in bad))


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


# --- pages

VOID = {"meta", "img", "br"}
NASTY = "<script>alert('x')</script> & \"quotes\" [red]"


class Checked(HTMLParser):
    """Collects elements and fails on tags that do not match."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
