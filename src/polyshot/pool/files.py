"""A pool's folder: ``pool.json`` and safetensors files, each checked against its sha256."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from polyshot.errors import PolyshotError, join_names, unknown
from polyshot.models.backbone import sites_of, state_hash
from polyshot.models.foreign import (
    EMBEDDINGS,
    OWN,
    Backbone,
    Foreign,
    ForeignConfig,
    Given,
    as_module,
)
from polyshot.models.loaders import load_backbone
from polyshot.models.modulators import read_tensors
from polyshot.models.resnet import OURS, ResNet, ResNetConfig, load_base
from polyshot.models.selector import MemberAttention, Selector
from polyshot.models.views import MEAN, STD
from polyshot.pool.description import FORMAT, Description, SelectorShape
from polyshot.pool.precision import Precision, from_stored, to_stored
from polyshot.pool.statistics import from_tensors, to_tensors
from polyshot.util import __version__, checks
from polyshot.util.files import new_folder, write_bytes, write_json, write_text
from polyshot.util.tensors import tensor_bytes

if TYPE_CHECKING:
    from polyshot.pool.pool import Pool

STATISTICS_FILE = "task_statistics.safetensors"

BESIDE: dict[str, Precision] = {"selector": "half", "urt": "six", "statistics": "eight"}
"""Of what stands beside the networks in a pool of six bits; in the others it is as it was made."""

DEVICES = {
    *("con", "prn", "aux", "nul"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)),
}
"""Names that no file may have on Windows, whatever its ending."""


def write_pool(
    pool: "Pool", path: Path, precision: Precision, texts: Mapping[str, str] | None = None
) -> None:
    """Write a pool as a folder, with some texts by name; replaces a pool and nothing else."""
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    as_made: dict[str, Precision] = dict.fromkeys(BESIDE, "full")
    beside = BESIDE if precision == "six" else as_made
    foreign = isinstance(pool.config, ForeignConfig)
    files = {} if foreign else {"base.safetensors": to_stored(pool.base.state_dict(), precision)}
    for name, modulator in pool.modulators.items():
        # At strength 0 the member is the base: what is made small goes without its weights.
        if precision == "full" or pool.strengths[name]:
            files[modulator_file(name)] = to_stored(modulator.state_dict(), precision)
    selector = None
    if pool.selector is not None:
        files["selector.safetensors"] = to_stored(pool.selector.state_dict(), beside["selector"])
        hidden, output = pool.selector.hidden, pool.selector.output
        shape = SelectorShape(
            hidden.in_features, hidden.out_features, output.out_features, pool.unit_input
        )
        selector = asdict(shape)
    urt = None
    if pool.urt is not None:
        files["urt.safetensors"] = to_stored(pool.urt.state_dict(), beside["urt"])
        ask, heads = pool.urt.ask, pool.urt.heads
        urt = {"inputs": ask.in_features, "heads": heads, "hidden": ask.out_features // heads}
    if pool.statistics:
        files[STATISTICS_FILE] = to_stored(to_tensors(pool.statistics), beside["statistics"])
    about = {
        "format": FORMAT,
        "polyshot": __version__,
        "architecture": asdict(pool.config) if foreign else {"name": OURS, **asdict(pool.config)},
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
        "query_views": pool.query_views,
        "one_network": pool.one_network,
        "about": pool.about,
    }
    with new_folder(path, check_destination) as partial:
        hashes = {}
        for name, tensors in files.items():
            data = tensor_bytes(tensors, {"format": "pt"})
            hashes[name] = hashlib.sha256(data).hexdigest()
            write_bytes(partial / name, data)
        for name, text in (texts or {}).items():
            write_text(partial / name, text)
        write_json(partial / "pool.json", about | {"files": hashes})


def read_pool(path: Path, network: Any = None, download: bool = False) -> dict[str, Any]:
    """Read a pool's folder: the arguments of `Pool`, checked before anything is built.

    `network` is the base where the pool's is one that a user made, or the new name of one that lies
    elsewhere now; `download` allows to fetch a base.
    """
    about, _ = checks.read_description(path, "pool.json", "pool", FORMAT, Description)
    if (about.normalisation.mean, about.normalisation.std) != (MEAN, STD):
        raise PolyshotError(f"The pool {path} normalises images in another way: train it anew.")

    def read(name: str) -> dict[str, Tensor]:
        return _read_tensors(path, name, about.files.get(name))

    named = about.architecture.get("name")
    if named != OURS and "sha256" not in about.architecture:
        raise PolyshotError(f"The pool {path} is of an unknown architecture: upgrade Polyshot.")
    kind = ResNetConfig if named == OURS else ForeignConfig
    shape = {n: value for n, value in about.architecture.items() if n != "name" or named != OURS}
    try:
        config: ResNetConfig | ForeignConfig = checks.build(kind, shape, "architecture")
    except PolyshotError as error:
        raise PolyshotError(f"The pool {path} has a damaged pool.json: {error}.") from None
    base: Backbone
    if isinstance(config, ForeignConfig):
        base = foreign_base(path, config, network, download)
    else:
        base = own_base(path, config, read("base.safetensors"))
    strengths = dict(zip(about.domains, about.strengths, strict=True))
    modulators = {}
    for name, strength in strengths.items():
        there = strength or modulator_file(name) in about.files  # else it stays the identity
        tensors = read(modulator_file(name)) if there else {}
        modulators[name] = read_tensors(sites_of(base), about.kind, tensors)
        if there:
            load_state(modulators[name], tensors, f"The modulator '{name}' of {path}")
    selector, urt = None, None
    if (wanted := about.selector) is not None:
        selector = Selector(wanted.inputs, wanted.outputs, wanted.hidden)
        load_state(selector, read("selector.safetensors"), f"The selector of {path}")
    if (asked := about.urt) is not None:
        urt = MemberAttention(asked.inputs, asked.heads, asked.hidden)
        load_state(urt, read("urt.safetensors"), f"The attention of {path}")
    statistics = {}
    if about.task_statistics:
        try:
            statistics = from_tensors(about.task_statistics, read(STATISTICS_FILE))
        except KeyError as error:
            damaged = f"The pool {path} has a damaged {STATISTICS_FILE}: {error}."
            raise PolyshotError(damaged) from None
    same = ("size", "kind", "metric", "views", "query_views", "one_network", "about", "adaptation")
    return {
        **{name: getattr(about, name) for name in same},
        "config": base.config,
        "base": base,
        "modulators": modulators,
        "strengths": strengths,
        "selector": selector,
        "unit_input": True if wanted is None else wanted.unit_input,
        "statistics": statistics,
        "scales": list(about.scales),
        "urt": urt,
    }


def own_base(path: Path, config: ResNetConfig, weights: Mapping[str, Tensor]) -> ResNet:
    """Make a base of ours with weights from the file or folder `path`."""
    first = weights.get("conv1.weight")
    if first is None or len(first) != config.width:  # before memory for any width is taken
        raise PolyshotError(f"The base of {path} has wrong shapes: its width is {config.width}.")
    base = ResNet(config)
    load_base(base, weights)
    return base


def foreign_base(
    path: Path,
    config: ForeignConfig,
    network: Any,
    download: bool = False,
    give: str = "Pool.load(path, network={})",
) -> Foreign:
    """Load a base from elsewhere by its name, or take the user's own; it must be as it was.

    `path` is where its description was, and `give` how one gives the network, for messages.
    """
    base: Foreign
    if config.name == EMBEDDINGS:
        base = Given(config.dim)
    elif network is None and config.name == OWN:
        raise PolyshotError(
            f"The base of {path} is a network of the user's own: give it, as {give.format('...')}."
        )
    elif isinstance(network, str):
        base = load_backbone(network, config.size, config.sites, download)
    elif network is None:
        base = _named_base(path, config, download, give)
    else:
        module = as_module(network)
        _check_weights(path, config, config.name, state_hash(module))
        base = Foreign(
            module,
            config.size,
            config.mean,
            config.std,
            config.name,
            config.pooling,
            config.sites,
        )
    name = base.config.name
    _check_weights(path, config, name, base.config.sha256)
    if differences := base.config.differences(replace(config, name=name)):
        raise PolyshotError(
            f"The base of {path}, {name}, is another network than it was made with: "
            f"{join_names(differences)}."
        )
    if not base.config.makes_the_same(config):
        raise PolyshotError(
            f"The base of {path} is another function than it was made with: it makes other "
            "embeddings of the same image. Bring back the same one, or make it anew."
        )
    return base


def _check_weights(path: Path, config: ForeignConfig, name: str, sha256: str) -> None:
    if sha256 != config.sha256:
        version = ", and its library of the same version" if ":" in name else ""
        raise PolyshotError(
            f"The base of {path}, {name}, has other weights than those that it was made with: "
            f"bring back the same ones{version}, or make it anew."
        )


def _named_base(path: Path, config: ForeignConfig, download: bool, give: str) -> Foreign:
    """Load a base by its name; if its files are not there, say how to name their new place."""
    try:
        return load_backbone(config.name, config.size, config.sites, download)
    except PolyshotError as error:
        library, _, inside = config.name.partition(":")
        if not inside:
            raise
        raise PolyshotError(
            f"The base of {path} is '{config.name}'. {error} If it is the same network in another "
            f"place, name that: {give.format(repr(f'{library}:...'))}."
        ) from None


def modulator_file(domain: str) -> str:
    """Name the file of a domain's modulator: whatever the domain is called, inside the folder."""
    name = quote(domain, safe=" ")
    if name.startswith(".") or name.partition(".")[0].strip().lower() in DEVICES:
        name = (
            f"%{ord(name[0]):02X}{name[1:]}"  # neither hidden, nor the folder above, nor a device
        )
    if not name or len(name) > checks.LONGEST_NAME:  # escapes included
        raise PolyshotError(f"'{domain[:40]}' is no name for a domain: it is empty or too long.")
    return f"modulators/{name}.safetensors"


def check_domains(domains: Sequence[str]) -> None:
    """Refuse names that are paths, and domains whose files would be one where case is ignored."""
    files: dict[str, str] = {}
    for name in domains:
        checks.build(checks.Name, name, "The name of a domain")
        other = files.setdefault(modulator_file(name).lower(), name)
        if other != name:
            raise PolyshotError(
                f"The domains '{other}' and '{name}' differ only by case, and so would their "
                "files: rename one."
            )


def check_destination(path: Path) -> None:
    """Refuse to write a pool over anything but a pool or an empty folder."""
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not (path / "pool.json").is_file() and not empty:
        raise PolyshotError(f"{path} exists and is no pool: it is not overwritten.")


def _read_tensors(path: Path, name: str, sha256: str | None) -> dict[str, Tensor]:
    """Read one of a pool's files, checked against its hash."""
    file = path / name
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise PolyshotError(f"The pool {path} lacks its file {name}: copy it again.") from None
    except OSError as error:
        raise PolyshotError(f"{file} cannot be read: {error.strerror}.") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PolyshotError(
            f"{file} does not match its hash in pool.json: it was changed or damaged. "
            "Copy the pool again."
        )
    try:
        return from_stored(safetensors.load(data))
    except SafetensorError as error:
        raise PolyshotError(f"{file} is no safetensors file: {error}.") from None


def load_state(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
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
