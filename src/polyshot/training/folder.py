"""Entering a run folder: a new one is described, an old one must have the same config and packs."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyshot import __version__
from polyshot.config import Config, differences, from_dict, to_dict
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError, join_names
from polyshot.pool.files import check_domains
from polyshot.training import parallel
from polyshot.training.validation import source_sampler
from polyshot.util.files import read_json, write_json
from polyshot.util.hashing import digest, file_digest


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
    for pack in packs:
        if pack.size != config.size:
            raise PolyshotError(
                f"{pack.domain.name} has images of {pack.size} pixels, the training wants "
                f"{config.size}: import it with --size {config.size}, or set size={pack.size}."
            )
        source_sampler(pack, "train", config.modulator.shape, 0)
        source_sampler(pack, "train", config.shape, 0)
        source_sampler(pack, "val", config.shape, 0)


def enter(
    out: Path, packs: Sequence[Pack], config: Config, start: Path | None, device: torch.device
) -> None:
    """Describe a new run in its folder, or check that an old one is the same training."""
    if start is not None and not start.is_file():
        raise PolyshotError(f"There is no file {start} to start from.")
    data = {
        "packs": [identity(pack) for pack in packs],
        "start": None if start is None else file_digest(start),
    }
    if (out / "config.json").exists():
        _check_config(out, config)
        _check_data(out, data)
    elif out.exists() and not out.is_dir():
        raise PolyshotError(f"{out} is a file, a run needs a folder.")
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


def _check_data(out: Path, data: dict[str, Any]) -> None:
    before = read_json(out / "environment.json")
    old, new = ({pack["name"]: pack for pack in about["packs"]} for about in (before, data))
    found = [f"{name} is new" for name in new if name not in old]
    found += [f"{name} is missing" for name in old if name not in new]
    for name in old:
        for what in ("hash", "split"):
            if name in new and old[name][what] != new[name][what]:
                found.append(f"{name} has another {'content' if what == 'hash' else 'class split'}")
    if not found and list(old) != list(new):
        found.append(f"their order was {join_names(old, 20)}")
    if before["start"] != data["start"]:
        found.append("the weights to start from differ")
    if found:
        raise PolyshotError(
            f"The run {out} was started with other data ({join_names(found)}): take the same, or "
            "another "
            "folder."
        )


def identity(pack: Pack) -> dict[str, str]:
    """Return what tells a source from another: name, content and class split."""
    split = pack.domain.split
    parts = json.dumps([split.train, split.val, split.test])
    return {"name": pack.domain.name, "hash": pack.hash, "split": digest(parts)}


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
