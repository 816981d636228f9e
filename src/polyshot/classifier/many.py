"""Labelling more images than a memory holds, by a classifier that is kept, on any engine.

What is asked for is cut into shards (`data.readers.queries`). Each becomes one table in the folder
of labels, ``labels-<number>-<hash of what it labels>.csv``, written whole: what is there is not
labelled again, and nothing else counts. ``labels.json`` says by which classifier, and whether all
shards are there.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyshot.classifier.classifier import FewShotClassifier
from polyshot.classifier.label import as_csv, label_read
from polyshot.data.readers.queries import SHARD, Found, Shard, shards
from polyshot.engines.job import Engine, Resources
from polyshot.errors import PolyshotError
from polyshot.util.files import (
    clear_leftovers,
    digest,
    file_system,
    is_url,
    json_bytes,
    locked_if_free,
    read_bytes,
    read_json,
    write_bytes,
    write_json,
    write_url,
)
from polyshot.util.progress import Progress

BATCH = 128
"""Images that are decoded and classified together."""
ABOUT = "labels.json"
FORMAT = 1


@dataclass
class Counts:
    """What a run did."""

    shards: int = 0
    before: int = 0
    """Shards that were there already."""
    images: int = 0
    """Labelled now."""
    unread: int = 0
    """Of these, could not be read."""

    def __str__(self) -> str:
        text = f"{self.images:,} images labelled in {self.shards - self.before:,} shards"
        if self.before:
            text += f", {self.before:,} shards were there"
        if self.unread:
            text += f"; {self.unread:,} images cannot be read, their rows say why"
        return f"{text}."


class Numbered(NamedTuple):
    """A shard, and where it stands."""

    number: int
    shard: Shard

    @property
    def file(self) -> str:
        """Name of its table."""
        return f"labels-{self.number:06}-{self.shard.key[:12]}.csv"


class Labelled(NamedTuple):
    """A shard's table."""

    file: str
    table: bytes
    images: int
    unread: int
    first_unread: str


def label_many(
    engine: Engine,
    resources: Resources,
    model: Path,
    queries: Sequence[str],
    out: str,
    size: int = SHARD,
    strict: bool = False,
    report: Progress | None = None,
) -> Counts:
    """Label what `queries` name, paths or URLs, into the folder or URL `out`; goes on where it was.

    `size` is the number of files of a shard. With `strict` an image that cannot be read is an
    error; the shards that are done stay.
    """
    if size < 1:
        raise PolyshotError(f"Shards of {size} files hold nothing: 1 is the least.")
    kept = read_bytes(model)
    FewShotClassifier.load(model)  # a file that is none shows before any work
    for query in queries:
        next(shards([query], size))  # so does a wrong name
    counts = Counts()
    about = {"format": FORMAT, "model": digest(kept), "queries": list(queries), "shard": size}
    with _folder(out) as folder:
        there = folder.enter(about)
        missing = _missing(shards(queries, size), there, counts)
        for done in engine.stream(worker, (kept,), missing, resources):
            if strict and done.unread:
                raise PolyshotError(
                    f"{done.unread} of {done.images} images of a shard cannot be read: "
                    f"{done.first_unread}, ..."
                )
            folder.write(done.file, done.table)
            counts.images += done.images
            counts.unread += done.unread
            if report:
                report("images", counts.images, counts.images)
        folder.note({**about, "complete": True, "shards": counts.shards})
    return counts


def _missing(every: Iterable[Shard], there: dict[int, str], counts: Counts) -> Iterator[Numbered]:
    """List the shards without a table; refuses where another one's is in the place."""
    for number, shard in enumerate(every):
        one = Numbered(number, shard)
        counts.shards += 1
        known = there.get(number)
        if known is None:
            yield one
        elif known == one.file:
            counts.before += 1
        else:
            raise PolyshotError(
                f"{known} is of other images than are there now: files were added or removed. "
                "Take another --out."
            )


# --- who labels


def worker(device: torch.device, model: bytes) -> Callable[[Numbered], Labelled]:
    """Load a classifier, once a process; returns what labels a shard."""
    with tempfile.TemporaryDirectory(prefix="polyshot-") as folder:
        file = Path(folder) / "model.polyshot"
        write_bytes(file, model)
        classifier = FewShotClassifier.load(file, device)

    def label(one: Numbered) -> Labelled:
        rows = []
        with ThreadPoolExecutor(1) as ahead:
            found = one.shard.images()

            def read() -> tuple[list[str], Any]:
                batch: list[Found] = list(islice(found, BATCH))
                names = [name for name, _ in batch]
                return names, classifier.read([image for _, image in batch]) if batch else None

            coming = ahead.submit(read)  # the next images are decoded while these are classified
            while (batch := coming.result())[0]:
                coming = ahead.submit(read)
                rows += label_read(classifier, *batch)
        bad = [f"{row.path} ({row.reason})" for row in rows if row.reason]
        table = as_csv(rows).encode()
        return Labelled(one.file, table, len(rows), len(bad), bad[0] if bad else "")

    return label


# --- the folder of labels


class _Folder:
    """Labels in a folder of this machine."""

    def __init__(self, path: str):
        self.path = Path(path)

    def enter(self, about: dict[str, Any]) -> dict[int, str]:
        """Describe it, or check that it is the same work; returns the tables by number."""
        before = self.read()
        for what, words in (("model", "another classifier"), ("shard", "shards of another size")):
            if before and before.get(what) != about[what]:
                raise PolyshotError(f"{self.path} has labels by {words}: take another --out.")
        if not before:
            if any(self.names()):
                raise PolyshotError(f"{self.path} is not empty and has no {ABOUT}: take another.")
            self.note(about)
        tables = [name for name in self.names() if name.startswith("labels-")]
        return {int(name.split("-")[1]): name for name in tables}

    def names(self) -> list[str]:
        """List what is in it."""
        return [file.name for file in self.path.iterdir() if not file.name.startswith(".")]

    def read(self) -> dict[str, Any]:
        """Read its description, if there is one."""
        file = self.path / ABOUT
        return read_json(file) if file.exists() else {}

    def note(self, about: dict[str, Any]) -> None:
        """Write its description."""
        write_json(self.path / ABOUT, about)

    def write(self, name: str, data: bytes) -> None:
        """Write a table."""
        write_bytes(self.path / name, data)


class _UrlFolder(_Folder):
    """Labels under a URL."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.path = Path(url)  # for messages
        self.system, self.root = file_system(self.url)

    def names(self) -> list[str]:
        """List what is in it."""
        if not self.system.exists(self.root):
            return []
        names = [str(path).rpartition("/")[2] for path in self.system.ls(self.root, detail=False)]
        return [name for name in names if not name.endswith(".partial")]

    def read(self) -> dict[str, Any]:
        """Read its description, if there is one."""
        if not self.system.exists(f"{self.root}/{ABOUT}"):
            return {}
        return dict(json.loads(self.system.cat_file(f"{self.root}/{ABOUT}")))

    def note(self, about: dict[str, Any]) -> None:
        """Write its description."""
        self.write(ABOUT, json_bytes(about))

    def write(self, name: str, data: bytes) -> None:
        """Write a table."""
        write_url(f"{self.url}/{name}", data)


@contextmanager
def _folder(out: str) -> Iterator[_Folder]:
    """Have a folder of labels to oneself, as far as its file system has locks."""
    if is_url(out):
        yield _UrlFolder(out)
        return
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise PolyshotError(f"{path} is a file, labels of many images need a folder.")
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PolyshotError(f"{path} cannot be made: {error.strerror}.") from None
        if not stack.enter_context(locked_if_free(path / ".labels.lock")):
            raise PolyshotError(f"Another process labels into {path}: wait for it.")
        clear_leftovers(path)  # tables that are whole are not written again
        yield _Folder(out)
