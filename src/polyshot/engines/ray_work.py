"""What a machine of a Ray cluster does: a job, in a folder of its own, whose files come and go."""

import fnmatch
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from getpass import getuser
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyshot.engines.job import Failed, Place
from polyshot.engines.ray_cluster import import_ray
from polyshot.engines.store import Store
from polyshot.errors import PolyshotError
from polyshot.util import __version__
from polyshot.util.files import digest, new_folder, read_json, write_bytes

STAYS = ("*.pt", "*.lock", ".*")
"""Files of a job that do not travel: checkpoints, locks, what is half-written."""


class Order(NamedTuple):
    """What a machine is asked to do."""

    grid: str
    version: str
    call: Callable[..., Iterator[Any]]
    arguments: Any
    """A reference to them, pickled once for all jobs that share them."""
    inputs: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Content hash -> path on the driver, and the files, as they are kept."""
    files: Mapping[str, tuple[str, Any]]
    """Path in the folder -> content hash, and where the file is kept."""
    outputs: tuple[str, ...]
    threads: int
    device: str
    store: Store


class Sent(NamedTuple):
    """What comes back, as often as a job has something to tell."""

    value: Any
    files: Mapping[str, Any]
    """Path in the folder -> where the store keeps what was written."""
    failed: Failed | None = None
    ended: bool = False


class Reference(NamedTuple):
    """An argument that the object store keeps."""

    ref: Any


def scratch(grid: str, node: str = "") -> Path:
    """Return the folder that a machine, this one by default, has for a grid."""
    node = node or import_ray().get_runtime_context().get_node_id()
    return Path(tempfile.gettempdir()) / f"polyshot-{getuser()}" / f"{grid}-{node[:12]}"


def remove(grid: str) -> None:
    """Remove what this machine holds of a grid."""
    shutil.rmtree(scratch(grid), ignore_errors=True)


def work(order: Order) -> Iterator[Sent]:
    """Do a job; its files travel with what it tells."""
    if order.version != __version__:
        message = f"A machine has Polyshot {__version__}, the driver {order.version}: install one."
        yield Sent(None, {}, Failed(message), ended=True)
        return
    torch.set_num_threads(order.threads)
    ray = import_ray()
    folder, store = scratch(order.grid), order.store
    try:
        inputs = {key: _fetched(folder, key, *how, store) for key, how in order.inputs.items()}
        for name, (content, kept) in order.files.items():
            _place(folder / name, content, kept, store)
        seen = _written(folder, order.outputs)
        arguments = [
            ray.get(each.ref) if isinstance(each, Reference) else each for each in order.arguments
        ]
        place = Place(folder, torch.device(order.device), inputs)
        for value in order.call(place, *arguments):
            changed, seen = _changed(folder, order.outputs, seen, store)
            yield Sent(value, changed)
        changed, _ = _changed(folder, order.outputs, seen, store)
        yield Sent(None, changed, ended=True)
    except Exception as error:  # whatever it is: the driver notes it
        yield Sent(None, {}, Failed.of(error), ended=True)


def _fetched(folder: Path, key: str, there: str, files: Mapping[str, Any], store: Store) -> Path:
    """Find an input by its content: where the driver has it, or here, or fetch it."""
    if _has(Path(there), key):
        return Path(there)
    own = folder / "inputs" / key
    if not own.exists():
        if not files:
            raise PolyshotError(f"{there} is not on this machine, or another one: share the disk.")
        with new_folder(own) as partial:
            for name, kept in files.items():
                write_bytes(partial / name, store.get(kept))
    name = Path(there).name  # a single file has its own name
    return own / name if (own / name).is_file() else own


def _has(path: Path, key: str) -> bool:
    """Tell whether a pack is this one."""
    return (path / "domain.json").is_file() and read_json(path / "domain.json")["hash"] == key


_PLACED: dict[Path, str] = {}
"""What this process has put where: path -> content hash."""


def _place(path: Path, content: str, kept: Any, store: Store) -> None:
    """Put a file of the folder where a job looks for it, unless it is there."""
    if _PLACED.get(path) != content or not path.exists():
        if not path.exists() or digest(path.read_bytes()) != content:
            write_bytes(path, store.get(kept))
        _PLACED[path] = content


Seen = dict[str, tuple[int, int]]


def _written(folder: Path, patterns: Sequence[str]) -> Seen:
    """Note which outputs there are: path -> time and size."""
    found = {name: (folder / name).stat() for name in matching(folder, patterns)}
    return {name: (status.st_mtime_ns, status.st_size) for name, status in found.items()}


def _changed(
    folder: Path, patterns: Sequence[str], before: Seen, store: Store
) -> tuple[dict[str, Any], Seen]:
    now = _written(folder, patterns)
    news = [name for name, seen in now.items() if before.get(name) != seen]
    return {name: store.hand_over((folder / name).read_bytes()) for name in news}, now


def matching(folder: Path, patterns: Sequence[str]) -> list[str]:
    """List the files of a folder that travel, by patterns; ``**`` is everything below."""
    found = itertools.chain.from_iterable(
        folder.glob(f"{pattern}/*" if pattern.endswith("**") else pattern) for pattern in patterns
    )
    files = {path for path in found if path.is_file() and not _stays(path.name)}
    return sorted(str(path.relative_to(folder)) for path in files)


def _stays(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in STAYS)
