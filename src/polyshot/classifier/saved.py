"""A classifier's file: a zip of JSON and safetensors, written whole or not at all, never pickle.

``classifier.json`` describes it and holds the sha256 of the others: ``networks.safetensors``, the
weights that answer; ``learned.safetensors``, what was learned from the examples (`packed`);
``examples.safetensors``, the examples themselves, where they are kept. docs/keep.md says what is
promised about it. A new field has a default; what else changes is a new `FORMAT`.
"""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from polyshot.classifier.answering import Answering, Kept, Say
from polyshot.classifier.estimate import Estimate, plain_estimate, read_estimate
from polyshot.classifier.examples import Examples, example_tensors, read_examples
from polyshot.classifier.packed import unpack
from polyshot.classifier.saved_pool import PoolAbout, about_pool, read_say, say_tensors
from polyshot.errors import PolyshotError
from polyshot.models.foreign import Foreign
from polyshot.models.loaders import can_rebuild
from polyshot.pool.precision import from_stored
from polyshot.predict.ensemble import FittedEnsemble
from polyshot.predict.none_of_these import Nearness, Threshold
from polyshot.predict.predict import FittedTasks
from polyshot.predict.rules import Mix
from polyshot.util import __version__, checks
from polyshot.util.checks import Count, Range, Sha256
from polyshot.util.files import new_file
from polyshot.util.tensors import tensor_bytes

FORMAT = 1
"""Version of the layout. A reader refuses a newer one and knows how to read every older one."""
ABOUT = "classifier.json"
NETWORKS, LEARNED, EXAMPLES = (
    f"{name}.safetensors" for name in ("networks", "learned", "examples")
)
SAME = "same"
"""In a file's own description: tensors that are equal to others of it, by name."""
WHAT = "classifier"
KINDS: dict[str, str] = {"U": "text", "i": "int", "f": "float", "b": "bool"}
"""Labels by the kind of their array."""
OPTIONS = ("rule", "adaptation", "batch", "none_rate", "precision")
"""Of a classifier, beside the pool."""


@dataclass(frozen=True)
class About:
    """What ``classifier.json`` holds."""

    classes: tuple[Any, ...]
    labels: Literal["text", "int", "float", "bool"]
    rule: str
    adaptation: str
    batch: Annotated[int, Range(1)] | None
    none_rate: float | None
    precision: Kept
    mixes: Mix
    pools: tuple[PoolAbout, ...]
    diverged: bool
    threshold: Threshold | None
    estimate: dict[str, Any] | None
    examples: tuple[str, ...] | None
    """Their names; None where they are not kept."""
    sizes: tuple[Count, ...]
    """Of the examples' images."""
    files: dict[str, Sha256]


@dataclass(eq=False)
class Saved:
    """What a file holds."""

    options: dict[str, Any]
    """How the classifier was made, by `OPTIONS`."""
    answering: Answering
    estimate: Estimate | None
    examples: Examples | None


def write(path: Path, saved: Saved) -> None:
    """Write a classifier; replaces a file of this name when all of it is written."""
    about, files = _laid_out(saved)
    with new_file(path) as file:
        _write_zip(file, about, files)


def as_bytes(saved: Saved) -> bytes:
    """Return the content of a classifier's file."""
    file = BytesIO()
    _write_zip(file, *_laid_out(saved))
    return file.getvalue()


def _write_zip(file: BinaryIO, about: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    described = checks.sealed({**about, "files": hashes})
    text = json.dumps(described, ensure_ascii=False, indent=1) + "\n"
    with zipfile.ZipFile(file, "w") as archive:  # stored: weights are packed already
        for name, data in {ABOUT: text.encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # without a date: the same bytes


def _laid_out(saved: Saved) -> tuple[dict[str, Any], dict[str, bytes]]:
    answering, examples, estimate = saved.answering, saved.examples, saved.estimate
    classes = answering.classes
    labels = KINDS.get(classes.dtype.kind)
    if labels is None:
        raise PolyshotError(
            f"Labels of the type {type(classes[0]).__name__} cannot be saved: take text or plain "
            "numbers."
        )
    networks: dict[str, Tensor] = {}
    pools = []
    for i, (say, one) in enumerate(zip(answering.says, answering.fitted.pools, strict=True)):
        pools.append(asdict(about_pool(say, one)))
        networks |= {f"{i}.{name}": tensor for name, tensor in say_tensors(say).items()}
    learned = dict(answering.stored)
    if answering.nearness is not None:
        learned["near.factors"] = torch.tensor(answering.nearness.factors, dtype=torch.float64)
        for i, centres in enumerate(answering.nearness.centres):
            learned[f"near.centres.{i}"] = centres
    about = {
        "format": FORMAT,
        "polyshot": __version__,
        "classes": classes.tolist(),
        "labels": labels,
        **saved.options,
        "mixes": answering.mixes,
        "pools": pools,
        "diverged": bool(answering.fitted.diverged.any()),
        "threshold": None if answering.threshold is None else asdict(answering.threshold),
        "estimate": None if estimate is None else plain_estimate(estimate),
        "examples": None if examples is None else examples.names,
        "sizes": [] if examples is None else list(examples.images),
    }
    files = {NETWORKS: _bytes(networks), LEARNED: _bytes(learned)}
    if examples is not None:
        files[EXAMPLES] = _bytes(example_tensors(examples))
    return about, files


def _bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Lay tensors out as a safetensors file, equal ones once: members may be one network."""
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, tensor in tensors.items():
        data = tensor.contiguous().numpy().tobytes()
        key = tensor.dtype, tensor.shape, hashlib.sha256(data).digest()
        if first.setdefault(key, name) != name:
            same[name] = first[key]
    kept = {name: t.clone() for name, t in tensors.items() if name not in same}
    return tensor_bytes(kept, {SAME: json.dumps(same)})  # of several, the order would vary


def _tensors(data: bytes) -> dict[str, Tensor]:
    """Read what `_bytes` laid out."""
    length = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    tensors = safetensors.load(data)
    tensors |= {name: tensors[one] for name, one in json.loads(about.get(SAME, "{}")).items()}
    return tensors


def networks_beside(saved: Saved) -> list[Any]:
    """List the networks that a file does not hold, in its order."""
    bases = [pool.base for pool in saved.answering.pools]
    return [b.network for b in bases if isinstance(b, Foreign) and not can_rebuild(b.config)]


# --- back again


def read(source: Path | bytes, device: torch.device | str, backbone: Any, download: bool) -> Saved:
    """Read a classifier from a file, or from its content; checks format, hashes and shapes.

    `backbone` is the network, where that is one that a user made, or the new name of one that lies
    elsewhere now; of several, a list.
    """
    path = source if isinstance(source, Path) else Path("pickle")
    contents = _read_zip(path, source)
    text = contents[ABOUT]
    about, _ = checks.parse_description(text, path, ABOUT, WHAT, FORMAT, About)

    def tensors(name: str) -> dict[str, Tensor]:
        data = contents.get(name)
        if data is None or hashlib.sha256(data).hexdigest() != about.files.get(name):
            raise _damaged(path, f"{name} is missing or does not match its hash")
        try:
            return _tensors(data)
        except (SafetensorError, KeyError, ValueError, AttributeError) as error:
            raise _damaged(path, f"{name}: {error}") from None

    networks, learned = from_stored(tensors(NETWORKS)), tensors(LEARNED)
    beside = iter(backbone if isinstance(backbone, list | tuple) else [backbone] * len(about.pools))
    try:
        says = [
            read_say(path, each, networks, i, beside, download)
            for i, each in enumerate(about.pools)
        ]
        for say in says:
            say.pool.to(device)
        answering = _read_answering(about, says, learned)
        examples = None
        if about.examples is not None:
            examples = read_examples(
                about.examples, about.sizes, len(about.pools), tensors(EXAMPLES)
            )
        estimate = None if about.estimate is None else read_estimate(about.estimate)
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise _damaged(path, f"{type(error).__name__} {error}") from None
    options = {name: getattr(about, name) for name in OPTIONS}
    return Saved(options, answering, estimate, examples)


def _read_zip(path: Path, source: Path | bytes) -> dict[str, bytes]:
    try:
        data = source.read_bytes() if isinstance(source, Path) else source
    except FileNotFoundError:
        raise PolyshotError(f"There is no file {path}.") from None
    except OSError as error:
        raise PolyshotError(f"{path} cannot be read: {error.strerror}.") from None
    other = f"{path} is no saved classifier of Polyshot"
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if ABOUT not in archive.namelist():
                raise PolyshotError(
                    f"{other}: it has no {ABOUT}. Name a file that 'polyshot fit' or save() wrote."
                )
            kept = [info for info in archive.infolist() if info.compress_type == 0]
            return {info.filename: archive.read(info) for info in kept}
    except zipfile.BadZipFile as error:
        if not data.startswith(b"PK"):
            raise PolyshotError(
                f"{other}: name a file that 'polyshot fit' or save() wrote."
            ) from None
        raise _damaged(path, str(error)) from None
    except (RuntimeError, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> PolyshotError:
    reason = reason.splitlines()[0] if reason else "unreadable"
    return PolyshotError(f"The {WHAT} {path} is damaged ({reason.rstrip('.')}): copy it again.")


def _read_answering(about: About, says: list[Say], learned: Mapping[str, Tensor]) -> Answering:
    plain = [
        FittedTasks(
            *(list(each.mixes), [], each.learned, 1, None, torch.tensor([each.share])),
            diverged=torch.tensor([[about.diverged]]),
        )
        for each in about.pools
    ]
    stored = {name: tensor for name, tensor in learned.items() if not name.startswith("near.")}
    pools = [say.pool for say in says]
    fitted = unpack(stored, pools, FittedEnsemble(plain, torch.zeros(0)))
    if any(one.mixes and len(one.weights) != len(one.mixes) for one in fitted.pools):
        raise ValueError("members are mixed in more or fewer ways than they are weighed")
    nearness = None
    if about.threshold is not None:
        factors = learned["near.factors"].tolist()
        centres = [learned[f"near.centres.{i}"] for i in range(len(factors))]
        nearness = Nearness(factors, centres, pools[0].metric)
    adaptations = [each.learned for each in about.pools]
    classes = _read_classes(about)
    made = Answering(
        *(classes, says, about.mixes, adaptations, fitted, stored, nearness, about.threshold)
    )
    _check_shapes(made)
    return made


def _check_shapes(answering: Answering) -> None:
    """Refuse what does not fit together: ValueError."""
    fitted, way = answering.fitted, len(answering.classes)
    fits = len(answering.says) > 0 and fitted.weights.shape == (len(answering.says), 1)
    for say, one in zip(answering.says, fitted.pools, strict=True):
        count, dim = len(say.pool.members), say.pool.config.dim
        fits &= one.weights[0].shape == say.share.shape == (1, count)
        networks = [*one.blends.values(), *(one.learned[0] if one.learned else [])]
        read_outs = [each.classifiers for each in one.members.values()]
        read_outs += [each.classifiers for each in networks]
        fits &= all(each.weight.shape == (1, way, dim) for each in read_outs)
        # Those that the rule asks, and something in any case.
        fits &= bool(one.mixes or networks) and max(one.members, default=(0, False))[0] < count
    if answering.nearness is not None:
        fits &= all(each.shape[:2] == (1, way) for each in answering.nearness.centres)
    if not fits:
        raise ValueError("its parts do not fit together")


def _read_classes(about: About) -> NDArray[Any]:
    wanted = {"text": str, "int": int, "float": float, "bool": bool}[about.labels]
    classes = np.asarray([checks.build(wanted, one, "classes") for one in about.classes])
    if len(classes) < 2:
        raise ValueError("there are fewer than two classes")
    return classes
