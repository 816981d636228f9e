"""What was learned from one task's examples, as named tensors, and back.

Names tell what there is: ``0.members.2.weight`` is the linear classifier of the third member of the
first pool, ``0.learned.0.weights.layer1.0.conv1`` a map of the first network that `tsa` has learned
there. Maps that were learned may be rounded; those of embeddings by their difference to the
identity, which is small. All else is as it was learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from polyshot.models.backbone import sites_of
from polyshot.models.modulators import TaskModulators
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision, from_stored, to_stored
from polyshot.predict.ensemble import FittedEnsemble
from polyshot.predict.own_networks import OwnNetworks, blended
from polyshot.predict.predict import Consulted, FittedTasks
from polyshot.predict.readout import TaskClassifiers

OPTIONAL = ("bias", "origin", "centre")
"""Tensors of a read-out that may be missing."""


def pack(fitted: FittedEnsemble, precision: Precision) -> dict[str, Tensor]:
    """Lay out what pools have learned from one task; maps are stored in this precision."""
    packed: dict[str, Tensor] = {"shares": fitted.weights}
    for i, one in enumerate(fitted.pools):
        own = {"shares": one.weights[0]}
        if one.factor is not None:
            own["tempering"] = one.factor
        for (member, _), consulted in one.members.items():  # one rule: each once
            own |= _under(f"members.{member}", _pack_read_out(consulted.classifiers, precision))
        for blend in one.blends.values():  # mixed anew from the modulators that are kept
            own |= _under("blend", _pack_read_out(blend.classifiers, precision))
        for number, network in enumerate(one.learned[0] if one.learned else []):
            own |= _under(f"learned.{number}", _pack_network(network, precision))
        packed |= _under(str(i), own)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in packed.items()}


def unpack(
    packed: Mapping[str, Tensor], pools: Sequence[Pool], about: FittedEnsemble
) -> FittedEnsemble:
    """Make from `pack`'s tensors what answers; inverse of it up to its rounding.

    `about` has what is no tensor: how each pool mixes, adapts and shares. Where a tensor is missing
    it is a KeyError, where it does not fit a ValueError.
    """
    tensors = from_stored(packed)
    fitted = [
        _unpack_pool(inside(tensors, str(i)), pool, one)
        for i, (pool, one) in enumerate(zip(pools, about.pools, strict=True))
    ]
    return FittedEnsemble(fitted, tensors["shares"])


def _unpack_pool(tensors: Mapping[str, Tensor], pool: Pool, about: FittedTasks) -> FittedTasks:
    device = pool.device
    weights = tensors["shares"]
    members = {
        (number, False): Consulted(pool.network(number), None, _unpack_read_out(own, device))
        for number, own in _numbered(tensors, "members")
    }
    learned = [_unpack_network(own, pool) for _, own in _numbered(tensors, "learned")]
    blends = {}
    if blend := inside(tensors, "blend"):
        rows, ones = torch.zeros(1, dtype=torch.int64), torch.ones(1)
        blends[0] = OwnNetworks(
            pool.base,
            blended(pool, weights),
            rows.to(device),
            _unpack_read_out(blend, device),
            ones.to(device),
        )
    return replace(
        about,
        weights=[weights],
        factor=tensors.get("tempering"),
        members=members,
        centred=[False] * len(about.mixes),  # read-outs know their centres
        blends=blends,
        learned=[learned] if about.adaptation == "tsa" else [],
    )


def _pack_read_out(read_out: TaskClassifiers, precision: Precision) -> dict[str, Tensor]:
    packed = {"weight": read_out.weight, "scale": read_out.scale.clone()}
    packed["unit"] = torch.tensor([read_out.unit])
    packed["power"] = torch.tensor([read_out.power], dtype=torch.float64)
    for name in OPTIONAL:
        if (tensor := getattr(read_out, name)) is not None:
            packed[name] = tensor
    if read_out.maps is not None:
        (own,) = read_out.maps
        packed |= to_stored({"maps": own - _identity(own)}, precision)
    if read_out.also is not None:
        packed |= _under("also", _pack_read_out(read_out.also[1], precision))
    return packed


def _unpack_read_out(tensors: Mapping[str, Tensor], device: torch.device) -> TaskClassifiers:
    own = {name: tensors[name].to(device) for name in ("weight", "scale")}
    own |= {name: tensors[name].to(device) for name in OPTIONAL if name in tensors}
    if (apart := tensors.get("maps")) is not None:
        own["maps"] = (_identity(apart) + apart).unsqueeze(0).to(device)
    also = None
    if other := inside(tensors, "also"):
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        also = rows, _unpack_read_out(other, device)
    plain = {"unit": bool(tensors["unit"]), "power": float(tensors["power"])}
    return TaskClassifiers(**{"bias": None, **own, **plain}, also=also)  # type: ignore[arg-type]


def _pack_network(network: OwnNetworks, precision: Precision) -> dict[str, Tensor]:
    modulators = network.modulators
    maps = {f"weights.{layer}": own[0] for layer, own in modulators.weights.items()}
    return {
        **to_stored(maps, precision),
        **_under("slopes", modulators.slopes),
        **_under("shifts", modulators.shifts),
        **_under("read_out", _pack_read_out(network.classifiers, precision)),
        "inverse_temperature": network.inverse_temperature,
    }


def _unpack_network(tensors: Mapping[str, Tensor], pool: Pool) -> OwnNetworks:
    device = pool.device

    def part(name: str) -> dict[str, Tensor]:
        return {layer: tensor.to(device) for layer, tensor in inside(tensors, name).items()}

    slopes, shifts = part("slopes"), part("shifts")
    weights = {layer: own.unsqueeze(0) for layer, own in part("weights").items()}
    sites = [site for site in sites_of(pool.base) if site.layer in slopes]
    if len(sites) != len(slopes) or slopes.keys() != shifts.keys() or weights.keys() - slopes:
        raise ValueError("it acts at other layers than the network has")
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    read_out = _unpack_read_out(inside(tensors, "read_out"), device)
    factor = tensors["inverse_temperature"].to(device)
    modulators = TaskModulators(sites, weights, slopes, shifts)
    return OwnNetworks(pool.base, modulators, rows, read_out, factor)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{inner}": tensor for inner, tensor in tensors.items()}


def inside(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with this one and a dot, without that."""
    start = f"{name}."
    return {n.removeprefix(start): tensor for n, tensor in tensors.items() if n.startswith(start)}


def _numbered(tensors: Mapping[str, Tensor], name: str) -> list[tuple[int, dict[str, Tensor]]]:
    """Take a numbered list apart, in its order."""
    own = inside(tensors, name)
    numbers = sorted({int(inner.partition(".")[0]) for inner in own})
    return [(number, inside(own, str(number))) for number in numbers]
