"""Hugging Face image datasets as Parquet files: an image struct with embedded bytes, a ClassLabel.

One file is one domain, named by its stem. In a folder, shards (``name-00000-of-00004.parquet``) are
put together, and ``train``, ``validation`` and ``test`` files are pooled under the folder's name.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyshot.data.images import MAX_BYTES, BadImage
from polyshot.data.readers import Item, Listing, ReadOptions, check_class_names, check_one_name
from polyshot.data.readers.folder import PART_NAMES
from polyshot.errors import PolyshotError, join_names, unknown

SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def accepts(path: Path) -> bool:
    """A Parquet file, or a folder with Parquet files in it or in its ``data`` folder."""
    return path.suffix.lower() == ".parquet" or (path.is_dir() and bool(_files(path)))


@contextmanager
def listings(path: Path, options: ReadOptions) -> Iterator[list[Listing]]:
    """List every domain of a file or folder."""
    domains: dict[str, list[Path]] = defaultdict(list)
    for file in _files(path):
        stem = SHARD.sub("", file.stem)
        part = stem.lower() in PART_NAMES
        domains[path.resolve().stem if part else stem].append(file)
    if not domains:
        raise PolyshotError(f"There is no Parquet file {path}.")
    check_one_name(path, list(domains), options)
    yield [_listing(options.name or name, files, options) for name, files in domains.items()]
    _row_group.cache_clear()


@contextmanager
def reading(file: Path | str) -> Iterator[Any]:
    """Yield `pyarrow.parquet`; where it is missing, or cannot read a file, one line says so."""
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 (an extra)
    except ImportError:
        raise PolyshotError(
            "Reading Parquet files needs pyarrow: pip install 'polyshot[parquet]'."
        ) from None
    try:
        yield parquet
    except (ArrowException, OSError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise PolyshotError(f"{file} cannot be read as a Parquet file: {line}") from None


@dataclass(frozen=True)
class RowItem:
    """One row of a Parquet file."""

    file: Path
    column: str
    group: int
    row: int

    @property
    def where(self) -> str:
        """File and row, counted in its row group."""
        return f"{self.file.name}, row group {self.group}, row {self.row}"

    def read(self) -> bytes | BadImage:
        """Take the row's bytes from its row group, which a worker keeps while it is in it."""
        from pyarrow import ArrowException  # noqa: PLC0415

        try:
            value = _row_group(self.file, self.column, self.group)[self.row].as_py()
        except (ArrowException, OSError, ValueError):
            return BadImage("corrupt row group")
        return embedded(value)


def embedded(value: Any) -> bytes | BadImage:
    """Take the encoded image out of a cell."""
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        return BadImage("no embedded bytes")
    if len(data) > MAX_BYTES:
        return BadImage(f"too large ({len(data) / 2**20:,.0f} MiB)")
    return data


@lru_cache(maxsize=1)
def _row_group(file: Path, column: str, group: int) -> Any:  # a pyarrow array, untyped
    from pyarrow import parquet  # noqa: PLC0415, an extra

    return parquet.ParquetFile(file).read_row_group(group, columns=[column])[column]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))


def _listing(name: str, files: Sequence[Path], options: ReadOptions) -> Listing:
    items: list[Item] = []
    labels: list[Any] = []
    groups: list[Any] = []
    names: list[str] | None = None
    for file in files:
        with reading(file) as parquet:
            table = parquet.ParquetFile(file)
            features = _features(table.schema_arrow)
            image, label = _columns(table.schema_arrow, features, options.label_column, file)
            wanted = [label, *(["group"] if "group" in table.schema_arrow.names else [])]
            for index in range(table.num_row_groups):
                columns = table.read_row_group(index, columns=wanted).to_pydict()
                labels += columns[label]
                groups += map(str, columns.get("group", []))
                items += [RowItem(file, image, index, row) for row in range(len(columns[label]))]
        these = features.get(label, {}).get("names")
        if names is not None and these != names:
            raise PolyshotError(f"{file} and {files[0]} name different classes: import them apart.")
        names = these
    if not isinstance(names, list | None) or not all(isinstance(each, str) for each in names or ()):
        raise PolyshotError(f"{files[0]} has class names that are no texts.")
    class_names, ids = _class_ids(labels, names, name)
    check_class_names(class_names, name, options.keep_case)
    return Listing(
        name=name,
        class_names=tuple(class_names),
        items=items,
        labels=ids,
        groups=groups or None,
        reader="parquet",
        origin=files[0].name,
    )


def _features(schema: Any) -> Mapping[str, Mapping[str, Any]]:
    """Read the column types that Hugging Face keeps in the schema's metadata."""
    stored = (schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return {}
    try:
        features = json.loads(stored)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    named = features.items() if isinstance(features, dict) else ()
    return {name: kind for name, kind in named if isinstance(kind, dict)}


def image_column(schema: Any, file: Path | str) -> str:
    """Find the image column, by declared type, then by name."""
    features = _features(schema)
    images = [name for name, kind in features.items() if kind.get("_type") == "Image"]
    image = next((name for name in [*images, "image", "img"] if name in schema.names), None)
    if image is None:
        raise PolyshotError(f"{file} has no image column among {join_names(schema.names)}.")
    return image


def _columns(
    schema: Any, features: Mapping[str, Mapping[str, Any]], wanted: str | None, file: Path
) -> tuple[str, str]:
    """Find the image column and the label column, by declared type, then by name."""
    labels = [name for name, kind in features.items() if kind.get("_type") == "ClassLabel"]
    image = image_column(schema, file)
    if wanted is not None and wanted not in schema.names:
        raise unknown("column", wanted, schema.names, where=f" in {file}")
    if wanted is None and len(labels) > 1:
        raise PolyshotError(
            f"{file} has several label columns: choose one with --label-column {labels[0]}."
        )
    usual = (name for name in [*labels, "label", "labels"] if name in schema.names)
    label = wanted or next(usual, None)
    if label is None:
        raise PolyshotError(
            f"{file} has no label column among {join_names(schema.names)}: name it with "
            "--label-column."
        )
    return image, label


def _class_ids(
    labels: Sequence[Any], names: Sequence[str] | None, where: str
) -> tuple[list[str], list[int]]:
    """Map labels (ids of a ClassLabel, plain integers or strings) to class ids from 0."""
    if not labels:
        raise PolyshotError(f"{where} has no images.")
    if any(label is None or label == -1 for label in labels):
        raise PolyshotError(f"{where} has images without a label: import only the labelled parts.")
    kinds = {type(label) for label in labels}
    if len(kinds) > 1 or not kinds <= ({int, str, float, bool, bytes} if names is None else {int}):
        raise PolyshotError(f"{where} has labels that are no single names or numbers.")
    if names is None:
        distinct = sorted(set(labels))
        position = {label: i for i, label in enumerate(distinct)}
        return [str(label) for label in distinct], [position[label] for label in labels]
    if min(labels) < 0 or max(labels) >= len(names):
        raise PolyshotError(f"{where} has labels outside its {len(names)} class names.")
    return list(names), list(labels)
