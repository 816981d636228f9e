"""A pool's folder: ``pool.json`` and safetensors files, each checked against its sha256."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from polyshot import __version__
from polyshot.config import from_dict
from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import sites_of
from polyshot.models.modulators import Modulator
from polyshot.models.resnet import ResNet, load_base
from polyshot.models.selector import MemberAttention, Selector
from polyshot.models.views import MEAN, STD
from polyshot.pool.precision import (
    Precision,
    check_precision,
    from_stored,
    to_stored,
)
from polyshot.pool.statistics import from_tensors, to_tensors
from polyshot.util.checks import read_description
from polyshot.util.files import new_folder, tensor_bytes, write_bytes, write_json

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool

FORMAT = 4
"""Version of the layout. A reader refuses a newer one and knows how to read every older one.

2: weights may be 8-bit, a modulator of strength 0 may have no file, and there may be statistics of
the selector's tasks. 3: an image may be looked at more than once. 4: weights may be 6-bit.
"""

LONGEST_NAME = 200
"""Letters of a file name, escapes included; most file systems end at 255 bytes."""

STATISTICS_FILE = "task_statistics.safetensors"

BESIDE: dict[str, Precision] = {"selector": "half", "urt": "six", "statistics": "eight"}
"""Of what stands beside the networks in a pool of six bits; in the others it is as it was made."""

Tensors = Mapping[str, Tensor]


def write_pool(pool: "Pool", path: Path, precision: Precision) -> None:
    """Write a pool as a folder; replaces a pool and nothing else."""
    check_precision(precision)
    as_made: dict[str, Precision] = dict.fromkeys(BESIDE, "full")
    beside = BESIDE if precision == "six" else as_made
    files = {"base.safetensors": to_stored(pool.base.state_dict(), precision)}
    for name, modulator in pool.modulators.items():
        # At strength 0 the member is the base: what is made small goes without its weights.
        if precision == "full" or pool.strengths[name]:
            files[modulator_file(name)] = to_stored(modulator.state_dict(), precision)
    selector = None
    if pool.selector is not None:
        files["selector.safetensors"] = to_stored(pool.selector.state_dict(), beside["selector"])
        selector = {
            "inputs": pool.selector.hidden.in_features,
            "hidden": pool.selector.hidden.out_features,
            "outputs": pool.selector.output.out_features,
            "unit_input": pool.unit_input,
        }
    urt = None
    if pool.urt is not None:
        files["urt.safetensors"] = to_stored(pool.urt.state_dict(), beside["urt"])
        heads, outputs = pool.urt.heads, pool.urt.ask.out_features
        urt = {"inputs": pool.urt.ask.in_features, "heads": heads, "hidden": outputs // heads}
    if pool.statistics:
        files[STATISTICS_FILE] = to_stored(to_tensors(pool.statistics), beside["statistics"])
    description = {
        "architecture": {"name": "resnet18", **asdict(pool.config)},
        "size": pool.size,
        "normalisation": {"mean": list(MEAN), "std": list(STD)},
        "metric": pool.metric,
        "kind": pool.kind,
        "precision": precision,
        "domains": list(pool.modulators),
        "strengths": list(pool.strengths.values()),
        "scales": pool.scales,
        "selector": selector,
        "task_statistics": list(pool.statistics),
        "urt": urt,
        "adaptation": asdict(pool.adaptation),
        "views": pool.views,
        "about": pool.about,
    }
    _write_folder(path, description, files)


def read_pool(path: Path) -> dict[str, Any]:
    """Read a pool's folder: the arguments of `Pool`, checked."""
    about, files = _read_folder(path)
    try:
        return _arguments(about, files, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PolyshotError(f"The pool {path} has a damaged pool.json: {error!r}.") from None


def _arguments(
    about: Mapping[str, Any], files: Callable[[str], Tensors], path: Path
) -> dict[str, Any]:
    architecture = dict(about["architecture"])
    normalisation = about["normalisation"]
    if architecture.pop("name") != "resnet18":
        raise PolyshotError(f"The pool {path} is of an unknown architecture: upgrade Polyshot.")
    if (tuple(normalisation["mean"]), tuple(normalisation["std"])) != (MEAN, STD):
        raise PolyshotError(f"The pool {path} normalises images in another way: train it anew.")
    settings = from_dict(
        {
            "size": about["size"],
            "model": architecture,
            "metric": about["metric"],
            "modulator": {"kind": about["kind"]},
            "adaptation": about["adaptation"],
            "views": about.get("views", "one"),  # not in pools before format 3
        }
    )
    base, kind = ResNet(settings.model), settings.modulator.kind
    load_base(base, files("base.safetensors"))
    sites = sites_of(base)
    modulators = {name: Modulator(sites, kind) for name in about["domains"]}
    strengths = dict(zip(modulators, map(float, about["strengths"]), strict=True))
    for name, modulator in modulators.items():
        if not strengths[name] and modulator_file(name) not in about["files"]:
            continue  # it stays the identity
        load_state(modulator, files(modulator_file(name)), f"The modulator '{name}' of {path}")
    selector, unit_input = None, True
    if shape := about["selector"]:
        selector = Selector(shape["inputs"], shape["outputs"], shape["hidden"])
        unit_input = shape["unit_input"]
        load_state(selector, files("selector.safetensors"), f"The selector of {path}")
    urt = None
    if shape := about.get("urt"):  # not in older pools
        urt = MemberAttention(shape["inputs"], shape["heads"], shape["hidden"])
        load_state(urt, files("urt.safetensors"), f"The attention of {path}")
    remembered = about.get("task_statistics")  # not in pools of format 1
    statistics = from_tensors(remembered, files(STATISTICS_FILE)) if remembered else {}
    return {
        "config": settings.model,
        "size": settings.size,
        "kind": kind,
        "metric": settings.metric,
        "base": base,
        "modulators": modulators,
        "strengths": strengths,
        "selector": selector,
        "unit_input": unit_input,
        "statistics": statistics,
        "scales": [float(scale) for scale in about["scales"]],
        "adaptation": settings.adaptation,
        "about": dict(about["about"]),
        "urt": urt,
        "views": settings.views,
    }


def modulator_file(domain: str) -> str:
    """Name the file of a domain's modulator: whatever the domain is called, inside the folder."""
    name = quote(domain, safe=" ")
    if name.startswith("."):  # neither hidden nor the folder above
        name = f"%2E{name[1:]}"
    if not name or len(name) > LONGEST_NAME:
        raise PolyshotError(f"'{domain[:40]}' is no name for a domain: it is empty or too long.")
    return f"modulators/{name}.safetensors"


def check_domains(domains: Sequence[str]) -> None:
    """Refuse domains whose files would be one on a disk that ignores case."""
    files: dict[str, str] = {}
    for name in domains:
        other = files.setdefault(modulator_file(name).lower(), name)
        if other != name:
            raise PolyshotError(
                f"The domains '{other}' and '{name}' differ only by case, and so would their "
                "files: rename one."
            )


def check_destination(path: Path) -> None:
    """Refuse to write a pool over anything but a pool or an empty folder."""
    if path.exists() and not (path / "pool.json").is_file() and not _is_empty_folder(path):
        raise PolyshotError(f"{path} exists and is no pool: it is not overwritten.")


def _write_folder(path: Path, description: Mapping[str, Any], files: Mapping[str, Tensors]) -> None:
    """Write everything under a temporary name, then rename; replaces a pool and nothing else."""
    with new_folder(path, check_destination) as partial:
        hashes = {}
        for name, tensors in files.items():
            data = tensor_bytes(tensors, {"format": "pt"})
            hashes[name] = hashlib.sha256(data).hexdigest()
            write_bytes(partial / name, data)
        about = {"format": FORMAT, "polyshot": __version__, **description, "files": hashes}
        write_json(partial / "pool.json", about)


def _read_folder(path: Path) -> tuple[dict[str, Any], Callable[[str], dict[str, Tensor]]]:
    """Read ``pool.json``; returns it and a function that reads one of the other files, checked."""
    about = read_description(path, "pool.json", "pool", FORMAT)
    hashes = about.get("files")
    if not isinstance(hashes, dict):
        raise PolyshotError(f"The pool {path} has a damaged pool.json: it lists no files.")

    def read(name: str) -> dict[str, Tensor]:
        file = path / name
        if not file.is_file():
            raise PolyshotError(f"The pool {path} lacks its file {name}: copy it again.")
        if _sha256(file) != hashes.get(name):
            raise PolyshotError(
                f"{file} does not match its hash in pool.json: it was changed or damaged. "
                "Copy the pool again."
            )
        try:
            return from_stored(load_file(file))
        except SafetensorError as error:
            raise PolyshotError(f"{file} is no safetensors file: {error}.") from None

    return about, read


def load_state(module: nn.Module, tensors: Tensors, what: str) -> None:
    """Copy tensors into a module whose keys and shapes they must have exactly."""
    wanted = {key: list(tensor.shape) for key, tensor in module.state_dict().items()}
    given = {key: list(tensor.shape) for key, tensor in tensors.items()}
    if wrong := [key for key in wanted | given if wanted.get(key) != given.get(key)]:
        shapes = f"{wrong[0]} is {given.get(wrong[0])}, should be {wanted.get(wrong[0])}"
        raise PolyshotError(
            f"{what} does not fit its description: wrong shapes of {join_names(wrong, 3)} "
            f"({shapes})."
        )
    module.load_state_dict(dict(tensors))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
