"""The folder of a training: how it is entered, and what the steps left in it.

A new one is described, an old one must have the same config and packs.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyshot.config import Config, differences, from_dict, to_dict
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError, join_names
from polyshot.models.foreign import Backbone
from polyshot.models.modulators import Modulator, fold
from polyshot.models.resnet import ResNet, load_base
from polyshot.models.selector import MemberAttention, Selector
from polyshot.pool.files import STATISTICS_FILE, check_domains, modulator_file
from polyshot.pool.statistics import SourceTasks, from_tensors
from polyshot.training import parallel
from polyshot.training.base import named_base
from polyshot.training.modulators import read_modulator
from polyshot.training.validation import source_sampler
from polyshot.util import __version__
from polyshot.util.checks import BadValueError, build
from polyshot.util.device import AnyModule, on_device
from polyshot.util.files import clear_leftovers, digest, file_digest, read_json, write_json
from polyshot.util.tensors import read_weights


def check_sources(packs: Sequence[Pack], config: Config) -> None:
    """Refuse sources that no training can use, before anything is spent on them."""
    names = [pack.domain.name for pack in packs]
    if not packs:
        raise PolyshotError("A training needs at least one source.")
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise PolyshotError(
            f"Sources must have different names, these are twice: {join_names(doubles)}."
        )
    check_domains(names)
    if "base" in names:
        raise PolyshotError("A source cannot be called 'base', the name of member 0: rename it.")
    size = packs[0].size if config.foreign else config.size
    for pack in packs:
        if pack.size != size:
            mend = "" if config.foreign else f", or set size={pack.size}"
            raise PolyshotError(
                f"{pack.domain.name} has images of {pack.size} pixels, the training wants "
                f"{size}: import it with --size {size}{mend}."
            )
        source_sampler(pack, "train", config.modulator.shape, 0)
        source_sampler(pack, "train", config.shape, 0)
        source_sampler(pack, "val", config.shape, 0)


def check_place(out: Path, start: Path | None) -> None:
    """Refuse what cannot be a run's folder, and weights to start from that are not there."""
    if start is not None and not start.is_file():
        raise PolyshotError(f"There is no file {start} to start from.")
    if out.exists() and not out.is_dir():
        raise PolyshotError(f"{out} is a file, a run needs a folder.")


def enter(
    out: Path, packs: Sequence[Pack], config: Config, start: Path | None, device: torch.device
) -> None:
    """Describe a new run in its folder, or check that an old one is the same training."""
    check_place(out, start)
    data = {
        "packs": [training_data(pack) for pack in packs],
        "start": None if start is None else file_digest(start),
    }
    if (out / "config.json").exists():
        _check_config(out, config)
        _check_data(out, data)
        if parallel.rank() == 0:
            clear_leftovers(out)
    parallel.wait()  # nobody looks for a config while the first process writes it
    if parallel.rank() == 0 and not (out / "config.json").exists():
        write_json(out / "environment.json", {**environment(device), **data})
        write_json(out / "config.json", to_dict(config))  # last: with it, the run exists
    parallel.wait()


def _check_config(out: Path, config: Config) -> None:
    try:
        before = from_dict(read_json(out / "config.json"))
    except (PolyshotError, ValueError) as error:
        raise PolyshotError(
            f"The run {out} has a config of another version of Polyshot, or a damaged one "
            f"({str(error).rstrip('.')}): start a new run."
        ) from None
    if found := differences(before, config):
        raise PolyshotError(
            f"The run {out} was started with another config ({join_names(found)}): "
            "take the same one, or another folder."
        )


@dataclass(frozen=True)
class _Source:
    name: str
    hash: str
    split: str
    mirror: bool | None = None
    """Whether its images may be mirrored; runs of before do not say."""


@dataclass(frozen=True)
class _Data:
    """What a run is started with, as `environment.json` holds it."""

    packs: tuple[_Source, ...]
    start: str | None


def _check_data(out: Path, data: dict[str, Any]) -> None:
    file = out / "environment.json"
    plain = {name: value for name, value in read_json(file).items() if name in data}
    try:
        before = asdict(build(_Data, plain))
    except BadValueError as error:
        raise PolyshotError(f"{file} is damaged ({error}): start a new run.") from None
    old, new = ({pack["name"]: pack for pack in about["packs"]} for about in (before, data))
    found = [f"{name} is new" for name in new if name not in old]
    found += [f"{name} is missing" for name in old if name not in new]
    for name in old:
        for what in ("hash", "split"):
            if name in new and old[name][what] != new[name][what]:
                found.append(f"{name} has another {'content' if what == 'hash' else 'class split'}")
        if name in new and old[name]["mirror"] not in (None, new[name]["mirror"]):
            found.append(
                f"{name} was imported {'without' if old[name]['mirror'] else 'with'} --no-mirror"
            )
    if not found and list(old) != list(new):
        found.append(f"their order was {join_names(old, 20)}")
    if before["start"] != data["start"]:
        found.append("the weights to start from differ")
    if found:
        raise PolyshotError(
            f"The run {out} was started with other data ({join_names(found)}): take the same, or "
            "another folder."
        )


def identity(pack: Pack) -> dict[str, str]:
    """Return what tells a source from another: name, content and class split."""
    split = pack.domain.split
    parts = json.dumps([split.train, split.val, split.test])
    return {"name": pack.domain.name, "hash": pack.hash, "split": digest(parts)}


def training_data(pack: Pack) -> dict[str, Any]:
    """Return all of a source that decides what is learned from it.

    Runs of before are named by `identity`, so they keep their names.
    """
    return {**identity(pack), "mirror": pack.domain.mirror}


def environment(device: torch.device) -> dict[str, Any]:
    """Describe what a training runs on."""
    return {
        "polyshot": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "processes": parallel.world_size(),
    }


def device_name(device: torch.device) -> str:
    """Name a device: ``cuda NVIDIA H200``."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return f"{device.type} {name}".strip()


class Artifacts:
    """What the steps of a training left in its folder; a file there is a step that is done."""

    def __init__(self, out: Path, names: Sequence[str], config: Config, device: torch.device):
        self.out, self.names, self.config, self.device = out, list(names), config, device
        self.base_file = out / "steps" / "base.safetensors"
        self.modulator_files = {name: out / "steps" / modulator_file(name) for name in names}
        self.selector_file = out / "steps" / "selector.safetensors"
        self.urt_file = out / "steps" / "urt.safetensors"
        self.scales_file = out / "steps" / "scales.json"
        self.statistics_file = out / "steps" / STATISTICS_FILE

    def about(self) -> dict[str, Any]:
        """Return what is known about each step that is done."""
        files = {"base": self.base_file, "selector": self.selector_file, "urt": self.urt_file}
        files |= {f"modulator:{name}": file for name, file in self.modulator_files.items()}
        return {name: read_weights(file)[1] for name, file in files.items() if file.exists()}

    def trained(self) -> list[str]:
        """List the domains of the modulators, once all of them are there."""
        return self.names if all(file.exists() for file in self.modulator_files.values()) else []

    @cached_property
    def base(self) -> Backbone:
        """The base, in evaluation mode; of one from elsewhere the file only tells the hash."""
        weights, about = read_weights(self.base_file)
        base: Backbone
        if self.config.foreign:
            base = named_base(self.config)
            if base.config.sha256 != about["sha256"]:
                raise PolyshotError(
                    f"'{self.config.backbone}' has other weights than when the run {self.out} was "
                    "started: bring back the same ones, or start a new run."
                )
        else:
            base = ResNet(self.config.model)
            load_base(base, weights)
        return on_device(base, self.device).eval().requires_grad_(False)

    def modulator(self, name: str) -> tuple[Modulator, dict[str, Any]]:
        """Read a modulator and what is known about it, its strength above all."""
        file, kind = self.modulator_files[name], self.config.modulator.kind
        return read_modulator(file, self.base, kind, self.device)

    def selector(self) -> Selector | None:
        """Read the selector, if it is trained."""
        own = self.config.selector
        dim, members = self.base.config.dim, 1 + len(self.names)
        selector = Selector(dim, members, own.hidden, own.dropout)
        return _read(selector, self.selector_file)

    def urt(self) -> MemberAttention | None:
        """Read the attention over members, if it is trained."""
        return _read(MemberAttention(self.base.config.dim), self.urt_file)

    def statistics(self) -> dict[str, SourceTasks]:
        """Read what is kept of the selector's tasks, if that step is done."""
        if not self.statistics_file.exists():
            return {}
        tensors, about = read_weights(self.statistics_file)
        return from_tensors(about["sources"], tensors)

    def networks(self) -> list[Backbone]:
        """Return the trained members as plain networks; those of strength 0 are the base itself."""
        base, members = self.base, []
        for modulator, about in map(self.modulator, self.trained()):
            strength = about["strength"]
            members.append(fold(base, modulator, strength) if strength else base)
        return [base, *members]

    def need(self, file: Path, step: str) -> None:
        """Refuse to go on without the result of a step."""
        if not file.exists():
            raise PolyshotError(
                f"The run {self.out} has not done the step '{step}' yet: run it first, with "
                f"--step {step} or --step all."
            )


def _read(module: AnyModule, file: Path) -> AnyModule | None:
    if not file.exists():
        return None
    module.load_state_dict(read_weights(file)[0])
    return module
