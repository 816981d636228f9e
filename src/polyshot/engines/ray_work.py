"""What a machine of a Ray cluster does: a job, in a folder of its own, whose files come and go.

On their way between machines bytes are kept by Ray's object store, or by a path that all reach,
also a URL of any file system that fsspec knows (s3://, gs://, a shared disk): files lie there by
their content hash, so that what is the same is there once.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from getpass import getuser
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyshot.engines.job import Failed, Place
from polyshot.errors import PolyshotError
from polyshot.util import __version__
from polyshot.util.files import digest, file_system, new_folder, read_json, write_bytes, write_url

STAYS = ("*.pt", "*.lock", ".*")
"""Files of a job that do not travel: checkpoints, locks, what is half-written."""


def import_ray() -> Any:
    """Import Ray, without its reports home; a missing extra is one line."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of GPUs hidden
    try:
        import ray  # noqa: PLC0415 (an extra)
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError:
        raise PolyshotError(
            "The engine 'ray' needs an extra: pip install 'polyshot[ray]', on every machine."
        ) from None
    return ray


STORE = 256 * 2**20
"""Bytes of the object store of a cluster that is started here; what is more goes to disk."""


def connect(ray: Any, address: str) -> bool:
    """Join a cluster, or start one here; returns whether it was started, and is ours to stop."""
    if ray.is_initialized():
        return False
    quiet = {"include_dashboard": False, "object_store_memory": STORE} if not address else {}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="error",
            **quiet,
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        where = f"at {address}" if address else "here"
        raise PolyshotError(f"There is no Ray cluster {where}: {reason}") from None
    return True


class Kept(NamedTuple):
    """What stands for bytes that a path keeps."""

    content: str
    """Hash, and name."""


class Store:
    """Keeps bytes until they are asked for; it travels with the jobs."""

    def __init__(self, url: str = ""):
        self.url = url.rstrip("/")
        if self.url:
            file_system(self.url)  # a scheme that nothing is installed for shows at once

    def put(self, data: bytes) -> Any:
        """Keep bytes for the jobs; returns what stands for them."""
        if not self.url:
            import ray  # noqa: PLC0415 (an extra)

            return ray.put(data)
        kept = Kept(digest(data))
        system, root = file_system(self.url)
        try:
            there = system.exists(f"{root}/{kept.content}")
        except OSError as error:
            raise PolyshotError(f"{self.url} cannot be reached: {error}.") from None
        if not there:
            write_url(f"{self.url}/{kept.content}", data)
        return kept

    def hand_over(self, data: bytes) -> Any:
        """Keep bytes for the driver: with the object store they travel in the answer itself."""
        return self.put(data) if self.url else data

    def get(self, kept: Any) -> bytes:
        """Fetch bytes."""
        if isinstance(kept, bytes):
            return kept
        if not isinstance(kept, Kept):
            import ray  # noqa: PLC0415 (an extra)

            return bytes(ray.get(kept))
        system, root = file_system(self.url)
        try:
            data = bytes(system.cat_file(f"{root}/{kept.content}"))
        except OSError as error:
            raise PolyshotError(f"{self.url} cannot be read: {error}.") from None
        if digest(data) != kept.content:
            raise PolyshotError(f"{self.url}/{kept.content} is damaged: delete it.")
        return data


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
    files = {path for path in found if path.is_file() and not any(map(path.match, STAYS))}
    return sorted(str(path.relative_to(folder)) for path in files)
