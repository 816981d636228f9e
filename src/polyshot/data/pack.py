"""A pack: one domain decoded once, as a memory-mapped uint8 array with its labels.

On disk it is a folder: ``images.npy`` (uint8 ``[n, 3, size, size]``), ``labels.npy``, optional
``groups.npy`` and ``domain.json``.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from polyshot.data.splits import ClassSplit, split_classes
from polyshot.errors import PolyshotError, is_short_of_memory, unknown
from polyshot.util.checks import Count, Name, Range, Sha256, read_description
from polyshot.util.files import digest, file_digest, new_folder, write_json
from polyshot.util.tensors import write_array

FORMAT = 1
"""Version of the layout. A reader refuses a newer one and knows how to read every older one."""


@dataclass(frozen=True, eq=False)
class Domain:
    """Labels, groups and the class split of one domain; the pixels live in its pack."""

    name: str
    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    """``[n]`` class id of each image."""
    groups: NDArray[np.int64] | None = None
    """``[n]`` or None. Images of one group are near-duplicates (frames of one film, shots of one
    object); support and query must not share one. A group lies within one class."""
    mirror: bool = True
    """Whether a mirrored image still shows its class (not so for letters and traffic signs)."""
    split: ClassSplit = field(default=ClassSplit((), (), (), rule=""))

    def __post_init__(self) -> None:
        if not self.split.rule:
            object.__setattr__(self, "split", split_classes(self.class_names))

    def with_split(self, split: ClassSplit) -> "Domain":
        """Return the same domain under another class split."""
        return replace(self, split=split)

    @cached_property
    def class_sizes(self) -> NDArray[np.int64]:
        """``[classes]`` number of images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names)).astype(np.int64)

    @cached_property
    def group_count(self) -> int:
        """Number of different groups; 0 where the domain has none."""
        return 0 if self.groups is None else len(np.unique(self.groups))

    @cached_property
    def layout_hash(self) -> str:
        """Hash of class names, labels and groups.

        Episodes are keyed by it. It leaves pixels out on purpose: the same images packed at another
        size, or decoded by another version of a JPEG library, give the same episodes.
        """
        groups = b"" if self.groups is None else self.groups.astype("<i8").tobytes()
        return digest(*self.class_names, self.labels.astype("<i8").tobytes(), groups)


@dataclass(frozen=True)
class Description:
    """What ``domain.json`` holds."""

    name: Name
    images: Count
    size: Annotated[int, Range(1, 4096)]
    groups: Count
    mirror: bool
    hash: Sha256
    source: dict[str, Any]
    split: ClassSplit
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        ids = self.split.part("all")
        if len(set(ids)) != len(ids) or not set(ids) <= set(range(len(self.classes))):
            raise PolyshotError(f"its split is none of {len(self.classes)} classes")


@dataclass(frozen=True, eq=False)
class Pack:
    """An opened pack."""

    path: Path
    domain: Domain
    images: NDArray[np.uint8]
    """``[n, 3, size, size]``, memory-mapped: nothing is read until it is used."""
    hash: str
    """Hash of the whole content: pixels, labels, groups and class names."""
    source: Mapping[str, Any]
    """Where it came from: reader, file name, images left out and why."""

    @property
    def size(self) -> int:
        """Side length of the images in pixels."""
        return int(self.images.shape[-1])

    @classmethod
    def open(cls, path: Path | str, verify: bool = True) -> "Pack":
        """Open a pack, and check its bytes against its hash unless ``verify`` is off."""
        path = Path(path)
        about, _ = read_description(path, "domain.json", "pack", FORMAT, Description)
        images = _read_array(path, "images.npy", "r")
        labels = _read_array(path, "labels.npy")
        groups = _read_array(path, "groups.npy") if about.groups else None
        numbers = [array for array in (labels, groups) if array is not None]
        if (
            images.shape != (about.images, 3, about.size, about.size)
            or images.dtype != np.uint8
            or any(a.shape != (about.images,) or a.dtype != np.int64 for a in numbers)
        ):
            raise PolyshotError(f"The pack {path} is damaged (its counts differ): import it again.")
        domain = Domain(about.name, about.classes, labels, groups, about.mirror, about.split)
        if verify and content_hash(path, domain) != about.hash:
            raise PolyshotError(
                f"The pack {path} does not match its hash: its files were changed or damaged after "
                "the import. Import it again."
            )
        if labels.size and not 0 <= labels.min() <= labels.max() < len(about.classes):
            raise PolyshotError(f"The pack {path} is damaged (its labels are no classes).")
        return cls(path, domain, images, about.hash, about.source)

    def record_split(self, split: ClassSplit) -> None:
        """Write another class split into the pack's description (pixels and hash stay)."""
        _, about = read_description(self.path, "domain.json", "pack", FORMAT, Description)
        write_json(self.path / "domain.json", about | {"split": asdict(split)})


class PackWriter:
    """Writes a pack batch by batch; leaves nothing behind unless :meth:`finish` is reached.

    Pixels are appended with plain writes: a full disk is then an error here, where a memory map
    would kill the process.
    """

    def __init__(self, path: Path, size: int, overwrite: bool = False):
        self.path, self.size, self.overwrite = path, size, overwrite
        self.count = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            check = partial(check_destination, overwrite=self.overwrite)
            self._folder = stack.enter_context(new_folder(self.path, check))
            self._file = stack.enter_context((self._folder / "images.npy").open("wb"))
            self._write_header()
            self._stack = stack.pop_all()
        return self

    def append(self, images: NDArray[np.uint8]) -> None:
        """Add images, uint8 ``[k, 3, size, size]``."""
        self._file.write(np.ascontiguousarray(images).data)
        self.count += len(images)

    def finish(self, domain: Domain, source: Mapping[str, Any]) -> Pack:
        """Write labels and description, and give the pack its name."""
        self._write_header()
        self._file.close()
        for name, numbers in (("labels.npy", domain.labels), ("groups.npy", domain.groups)):
            if numbers is not None:
                with (self._folder / name).open("wb") as file:
                    write_array(file, numbers.astype("<i8"))
        about = {
            "format": FORMAT,
            "name": domain.name,
            "images": self.count,
            "size": self.size,
            "groups": domain.group_count,
            "mirror": domain.mirror,
            "hash": content_hash(self._folder, domain),
            "source": dict(source),
            "split": asdict(domain.split),
            "classes": domain.class_names,
        }
        write_json(self._folder / "domain.json", about)
        self._stack.close()
        return Pack.open(self.path, verify=False)

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        # Nothing is left to undo after `finish`.
        unfinished = error or RuntimeError("The pack was left before it was finished.")
        self._stack.__exit__(type(unfinished), unfinished, trace)

    def _write_header(self) -> None:
        """Write the ``.npy`` header at the file's start; its length is the same for any count."""
        shape = (self.count, 3, self.size, self.size)
        self._file.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)


def check_destination(path: Path, overwrite: bool) -> None:
    """Refuse to write a pack over another, unless that is wanted, or over anything else."""
    if path.exists() and not overwrite:
        raise PolyshotError(f"{path} exists: --overwrite replaces it, --keep leaves it as it is.")
    if path.exists() and not (path / "domain.json").is_file():
        raise PolyshotError(f"{path} exists and is no pack: it is not overwritten.")


def find_packs(folder: Path | str) -> list[Path]:
    """List the packs in a folder by name (or the folder itself, if it is one)."""
    folder = Path(folder)
    if (folder / "domain.json").is_file():
        return [folder]
    if not folder.is_dir():
        raise PolyshotError(f"There is no folder {folder}.")
    found = sorted(file.parent for file in folder.glob("[!.]*/domain.json"))
    if not found:
        raise PolyshotError(
            f"There are no packs in {folder}: make some with 'polyshot data import' "
            "or 'polyshot data toy'."
        )
    return found


def open_packs(folder: Path | str, names: Sequence[str] = ()) -> list[Pack]:
    """Open the named packs of a folder, in that order; all of them if none is named."""
    found = {path.name: path for path in find_packs(folder)}
    for name in names:
        if name not in found:
            raise unknown("pack", name, found, where=f" in {folder}")
    return [Pack.open(found[name]) for name in names or found]


def content_hash(folder: Path, domain: Domain) -> str:
    """Hash pixels, labels, groups and class names; the domain's name and split are not content."""
    images = folder / "images.npy"
    with images.open("rb") as file:
        npy.read_magic(file)
        shape, _, dtype = npy.read_array_header_1_0(file)
        body = file.tell()
    return digest(f"{dtype}{shape}", domain.layout_hash, file_digest(images, start=body))


def _read_array(path: Path, name: str, mode: Literal["r"] | None = None) -> NDArray[Any]:
    try:
        array = np.load(path / name, mmap_mode=mode)
    except Exception as error:  # numpy raises many kinds for a damaged header
        if is_short_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolyshotError(f"The pack {path} is damaged ({reason}): import it again.") from None
    if not isinstance(array, np.ndarray):
        raise PolyshotError(f"The pack {path} is damaged ({name} is no array): import it again.")
    return array
