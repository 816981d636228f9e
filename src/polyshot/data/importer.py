"""Import: listings become packs, decoded on all cores, written by one process."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyshot.data.images import BadImage, decode
from polyshot.data.pack import Domain, Pack, PackWriter, check_destination
from polyshot.data.readers import (
    Item,
    Listing,
    Reader,
    ReadOptions,
    decathlon,
    folder,
    parquet,
    spreadsheet,
)
from polyshot.data.splits import SMALLEST_PART, read_split_file, split_classes
from polyshot.errors import PolyshotError, counted, join_names, unknown
from polyshot.util.checks import Name, build
from polyshot.util.device import cores
from polyshot.util.files import no_room, undisturbed
from polyshot.util.progress import Progress

CHUNK = 32
"""Images a worker decodes before it reports: progress stays lively, messages stay few."""
READERS: tuple[Reader, ...] = (decathlon, parquet, spreadsheet, folder)
"""In order of precedence: a plain folder is what is left."""

WHOLE = 34
"""Classes from which the usual split has parts of five."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class ImportOptions:
    """What a user can ask of an import beyond the format."""

    size: int = 72
    """Side length of the packed images in pixels; the paper's is 72."""
    seed: int = 0
    """Seed of the random class split."""
    split_file: Path | None = None
    """A JSON file with the user's own class split."""
    mirror: bool | None = None
    """Whether mirrored images keep their class; None takes what the reader knows."""
    skip_bad: bool = False
    """Go on without unreadable images and empty class folders instead of refusing."""
    overwrite: bool = False
    """Replace packs that exist."""
    keep: bool = False
    """Leave packs that exist as they are and import the rest."""
    only: tuple[str, ...] = ()
    """Import only these domains of a source that has several."""
    workers: int | None = None
    """Decoding processes; None takes every core this process may use."""


@dataclass(frozen=True)
class Imported:
    """One domain's outcome."""

    pack: Pack
    skipped: tuple[BadImage, ...] = ()
    """Images left out: those beside the class folders, and all bad ones under ``skip_bad``."""
    kept: bool = False
    """The pack was there before and was left as it is."""
    remark: str = ""
    """What a user should know about its classes, in one line."""


def import_source(
    path: Path,
    out: Path,
    options: ImportOptions | None = None,
    read_options: ReadOptions | None = None,
    progress: Progress | None = None,
) -> list[Imported]:
    """Import every domain found at ``path`` into a pack ``out/<name>``."""
    options, read_options = options or ImportOptions(), read_options or ReadOptions()
    if not 8 <= options.size <= 1024:
        raise PolyshotError(f"A size of {options.size} pixels makes no sense: choose 8 to 1024.")
    if not path.exists():
        raise PolyshotError(f"There is no file or folder {path}.")
    reader = next((each for each in READERS if each.accepts(path)), None)
    if reader is None:
        raise PolyshotError(
            f"{path} is in no format Polyshot reads: give a folder with a folder for each class, a "
            "zip or tar file of one, a CSV file of paths and labels, Parquet files, or the Visual "
            "Decathlon's root."
        )
    with reader.listings(path, read_options) as listings:
        chosen = _choose(listings, options, path)
        if options.split_file and len(chosen) > 1:
            raise PolyshotError("--split describes one domain: name it with --only.")
        kept = {each.name for each in chosen if options.keep and (out / each.name).exists()}
        for listing in chosen:  # complain before the first image is decoded
            if listing.name not in kept:
                _check(listing, out, options)
        return [
            Imported(Pack.open(out / listing.name), kept=True)
            if listing.name in kept
            else import_listing(listing, out / listing.name, options, progress)
            for listing in chosen
        ]


def _choose(listings: Sequence[Listing], options: ImportOptions, path: Path) -> list[Listing]:
    names = [listing.name for listing in listings]
    for name in options.only:
        if name not in names:
            raise unknown("domain", name, names, where=f" in {path}")
    for name in names:
        if not name or name.startswith(".") or "/" in name or "\\" in name:
            raise PolyshotError(f"'{name}' cannot be a domain's name: choose one with --name.")
        build(Name, name, "The domain's name")
    return [listing for listing in listings if not options.only or listing.name in options.only]


def _check(listing: Listing, out: Path, options: ImportOptions) -> None:
    """Refuse what can be known before decoding."""
    target = out / listing.name
    check_destination(target, options.overwrite)
    if listing.empty_classes and not options.skip_bad:
        raise PolyshotError(
            f"{listing.name}: {len(listing.empty_classes)} class folders without images: "
            f"{join_names(listing.empty_classes)}. Fill or remove them, or pass --skip-bad to go "
            "on without them."
        )
    if listing.dropped and not options.skip_bad:
        raise PolyshotError(
            f"{listing.name}: {len(listing.dropped):,} entries of {listing.origin} are no files in "
            f"it: {join_names(map(str, listing.dropped))}. Pack it anew, or pass --skip-bad to go "
            "on without them."
        )
    folder = next(parent for parent in (out, *out.resolve().parents) if parent.exists())
    needed, free = len(listing.items) * 3 * options.size**2, shutil.disk_usage(folder).free
    if needed > free:
        raise no_room(target, needed, free)


def import_listing(
    listing: Listing, target: Path, options: ImportOptions, progress: Progress | None = None
) -> Imported:
    """Decode a domain that a reader found, and write it to the pack ``target``."""
    total, done = len(listing.items), 0
    good = np.ones(total, dtype=bool)
    bad = list(listing.dropped)
    starts = range(0, total, CHUNK)
    chunks = [(listing.items[start : start + CHUNK], options.size) for start in starts]
    with PackWriter(target, options.size, options.overwrite) as writer:
        for images, faults in map_in_order(_decode_chunk, chunks, options.workers):
            writer.append(images)
            good[[done + i for i in faults]] = False
            bad += faults.values()
            done += len(images) + len(faults)
            if progress:
                progress(listing.name, done, total)
        if bad and not options.skip_bad:
            raise PolyshotError(_complaint(listing.name, bad, total))
        if not good.any():
            raise PolyshotError(f"{listing.name} has no readable image among {total:,} files.")
        bad += listing.beside
        skipped = dict(Counter(fault.kind for fault in bad))
        source = {"reader": listing.reader, "origin": listing.origin, "skipped": skipped}
        pack = writer.finish(_domain(listing, good, options), source)
        return Imported(pack, tuple(bad), remark=_remark(listing, pack))


def _remark(listing: Listing, pack: Pack) -> str:
    """Say where classes could not be split as the paper does."""
    split, count = pack.domain.split, len(pack.domain.class_names)
    if split.rule == "target-only":
        return (
            f"{counted(count, 'class is', 'classes are')} too few for a class split: all are for "
            "tests; 'polyshot pool add' trains on all of them, a split of your own comes by "
            "--split."
        )
    if split.rule == "random" and min(split.sizes) == SMALLEST_PART and count < WHOLE:
        return (
            f"{count} classes are few: {split.sizes[0]} are for training, {split.sizes[1]} to "
            f"choose by, {split.sizes[2]} for tests; a split of your own comes by --split."
        )
    if not listing.by_wordnet or split.rule != "random":
        return ""
    return (
        f"its class names are no WordNet ids (n02099601 ...), so that {pack.domain.name} is not "
        "split by the WordNet tree as in the paper, but at random: give a split with --split, or "
        "name its categories by their ids."
    )


def _decode_chunk(
    items: Sequence[Item], size: int
) -> tuple[NDArray[np.uint8], dict[int, BadImage]]:
    """Return the good images, uint8 ``[k, 3, size, size]``, and the bad ones by their position."""
    images: list[NDArray[np.uint8]] = []
    faults: dict[int, BadImage] = {}
    for i, item in enumerate(items):
        data = item.read()
        image = data if isinstance(data, BadImage) else decode(data, size)
        if isinstance(image, BadImage):
            faults[i] = replace(image, where=item.where)
        else:
            images.append(image)
    return np.array(images, dtype=np.uint8).reshape(-1, 3, size, size), faults


def _domain(listing: Listing, good: NDArray[np.bool_], options: ImportOptions) -> Domain:
    """Keep the good images, drop classes without any, number groups within classes."""
    old = np.asarray(listing.labels)[good]
    used, labels = np.unique(old, return_inverse=True)
    class_names = tuple(listing.class_names[i] for i in used)
    if options.split_file:
        split = read_split_file(options.split_file, class_names)
    else:
        whole = len(class_names) == len(listing.class_names)
        sizes = listing.split_sizes if whole else None
        split = split_classes(class_names, options.seed, sizes)
    groups = _numbered(listing, good)
    mirror = listing.mirror if options.mirror is None else options.mirror
    return Domain(listing.name, class_names, labels.astype(np.int64), groups, mirror, split)


def _numbered(listing: Listing, good: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Number groups from 0 in order of appearance; the same group in two classes is two groups."""
    if listing.groups is None:
        return None
    numbers: dict[object, int] = {}
    keys = zip(listing.labels, listing.groups, strict=True)
    kept = [key for key, keep in zip(keys, good, strict=True) if keep]
    return np.array([numbers.setdefault(key, len(numbers)) for key in kept], dtype=np.int64)


def _complaint(name: str, bad: Sequence[BadImage], total: int) -> str:
    kinds = Counter(fault.kind for fault in bad)
    counts = join_names((f"{count} {kind}" for kind, count in kinds.most_common()), limit=8)
    examples = join_names((f"{fault.where} ({fault.kind})" for fault in bad), limit=3)
    return (
        f"{name}: {len(bad):,} of {total:,} files cannot be read ({counts}): {examples}. "
        "Repair or remove them, or pass --skip-bad to go on without them."
    )


def map_in_order(
    function: Callable[..., Result],
    chunks: Sequence[tuple[object, ...]],
    workers: int | None = None,
) -> Iterator[Result]:
    """Call ``function(*chunk)`` for each chunk in worker processes; yield the results in order."""
    workers = workers or cores()
    if workers == 1 or len(chunks) <= 2:  # processes would take longer to start than to work
        for chunk in chunks:
            yield function(*chunk)
        return
    # On Linux fork starts at once and asks no __main__ guard of a user's script; the children only
    # run Pillow and numpy. Elsewhere fork is unsafe.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_serve, initargs=(os.getpid(),)
    )
    waiting: deque[Future[Result]] = deque()
    try:
        with undisturbed():  # the first task starts all workers
            waiting.append(pool.submit(function, *chunks[0]))
        for chunk in chunks[1:]:
            waiting.append(pool.submit(function, *chunk))
            if len(waiting) > 4 * workers:  # bounds the memory, keeps every worker busy
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except RuntimeError as error:
        # A pool that could not start its threads would wait for its workers when the program ends.
        for worker in (getattr(pool, "_processes", None) or {}).values():
            worker.kill()
        if not isinstance(error, BrokenProcessPool):
            raise
        raise PolyshotError(
            "A worker process was killed, most likely for want of memory: try --workers 1."
        ) from None
    finally:
        with suppress(RuntimeError):  # of a thread that was never started
            pool.shutdown(wait=True, cancel_futures=True)


def _serve(parent: int) -> None:
    """Leave Ctrl-C, which goes to the whole process group, to the parent; end where it was killed.

    A worker that outlived it would keep the locks that the parent held when it was forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
