"""Results: one row a cell. Tables and reports read these rows and nothing else.

While a grid runs a row is a JSON line; what is kept is Parquet, one file a table (results/). Both
have the fields of :class:`Result`. In Parquet the accuracies of episodes are whole numbers of
ten-thousandths (list<uint16>; they are kept to four digits, so nothing is lost), settings are JSON.
"""

import json
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from polyshot.errors import PolyshotError
from polyshot.util.checks import unsealed
from polyshot.util.files import append_text, check_writable, new_file, read_bytes, write_bytes


@dataclass(frozen=True)
class Result:
    """Accuracy of one method on one target."""

    method: str
    """A rule's or a rival's name."""
    target: str
    """The domain's name."""
    seen: bool | None
    """Whether the target was a source; None where nobody said."""
    way: int
    shot: int
    queries: int
    """Of each class."""
    part: str
    """Part of the class split: ``test``, ``val``, ``train`` or ``all``."""
    adaptation: str
    """How it learned on the support sets: ``none``, ``head``, ``tsa`` and so on."""
    seed: int
    episodes: int
    group_disjoint: bool
    """Whether support and query were kept from sharing a group (no domain without groups is)."""
    fingerprint: str
    """Hash of the episodes: results with the same one may be paired."""
    mean: float
    half_width: float
    """Of the 95 % interval."""
    per_episode: list[float]
    """Accuracy of each episode, rounded to four digits."""
    pool: str
    """Hash of the pool."""
    pack: str
    """Hash of the target's pack."""
    version: str
    """Of Polyshot."""
    draw: str = ""
    """Identity of the row of episodes: results with the same one share their first episodes."""
    protocol: str = ""
    """The experiment it belongs to: ``seen``, ``unseen``, ``sources-2``."""
    preset: str = ""
    sources: list[str] = field(default_factory=list)
    """Domains that the method was trained on."""
    added: str = ""
    """The last of them, where it was added to a pool that was trained on the others."""
    added_seconds: float | None = None
    """To add it; None where the addition was interrupted."""
    added_on: str = ""
    """The device on which it was added."""
    train_seed: int | None = None
    settings: dict[str, float] = field(default_factory=dict)
    """The method's own settings, where it has any."""
    note: str = ""
    """What a reader should know: from which weights it started, whether it converged."""
    parameters: int | None = None
    """Numbers that the trained method holds."""
    training_episodes: int | None = None
    """That it was trained with after the base, of all sources together; None where nobody noted
    it."""
    multiply_adds: int | None = None
    """To solve one task."""
    seconds: float | None = None
    """To solve one task, in batches, on `device`."""
    device: str = ""
    shape: str = ""
    """``meta-dataset`` where ways and shots vary (then way, shot and queries are 0)."""
    calibration_error: float | None = None
    """How far probabilities are from shares of right answers (`evaluation.stats`), over all
    queries; None in results that were written before it was measured."""
    run: str = ""
    """Where it was measured: a key of `runs.json` beside the tables; none while a grid runs."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What was measured, and on what: results with the same one are the same measurement."""
        return (
            *(self.method, self.adaptation, self.pool, repr(sorted(self.settings.items()))),
            *(self.target, self.pack, self.part, self.draw, self.group_disjoint, self.seed),
            *(self.shape, self.way, self.shot, self.queries, self.episodes),
            *(self.protocol, self.preset, tuple(self.sources), self.added, self.train_seed),
        )

    def to_json(self) -> str:
        """Write the result as one line."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Run:
    """Where rows come from: a line of `runs.json`."""

    commit: str
    """Of the code; empty where nobody noted it."""
    clean: bool | None
    """Whether the checkout was that commit; None where nobody noted it."""
    commands: list[str] = field(default_factory=list)
    packs: dict[str, str] = field(default_factory=dict)
    """Domain -> hash of its pack."""
    not_mirrored: list[str] | None = None
    """Domains whose images training must not mirror, which the hash does not tell; None where
    nobody noted it."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Device, versions, threads."""
    note: str = ""


STEPS = 10_000
"""Accuracies of episodes are kept in Parquet as multiples of one part in so many."""


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Append results to a file of JSON lines, in one write."""
    append_text(path, "".join(f"{result.to_json()}\n" for result in results))


class ResultsFile:
    """A file of lines that results are appended to; with no path they are only handed on."""

    def __init__(self, path: Path | None):
        self.path, self.known = path, _to_go_on_from(path) if path else []
        """What it had before: that need not be measured again."""
        self._there = {result.key for result in self.known}
        self.added = self.before = 0

    def add(self, results: Sequence[Result]) -> Sequence[Result]:
        """Append those that it does not have; returns all."""
        new = [result for result in results if result.key not in self._there]
        if self.path:
            append_results(self.path, new)
        self.added, self.before = self.added + len(new), self.before + len(results) - len(new)
        return results

    def __str__(self) -> str:
        before = f"; {self.before} were there already" if self.before else ""
        return f"wrote {self.added} results to {self.path}{before}"


def _to_go_on_from(path: Path) -> list[Result]:
    """Read the results that a file has already, to append what is missing.

    A last line that a killed process left half written is taken away; a file of something else is
    refused.
    """
    if path.suffix == ".parquet" or path.is_dir():
        raise PolyshotError(f"{path} cannot be written: results are appended to a file of lines.")
    if not path.is_file():
        check_writable(path)
        return []
    data = read_bytes(path)
    whole = data[: data.rfind(b"\n") + 1]
    found = read_results(path) if whole == data else _from_text(path, whole)
    if whole != data:
        write_bytes(path, whole)
    return found


def read_results(path: Path) -> list[Result]:
    """Read all results of a file of JSON lines, of a table (.parquet), or of a folder of these.

    A folder is read with all folders in it; tables of other things than results are passed over.
    """
    if path.is_dir():
        return [result for file in _files(path) for result in read_results(file)]
    return _from_parquet(path) if path.suffix == ".parquet" else _from_text(path, read_bytes(path))


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write results as a Parquet table, whole or not at all."""
    pa = _pyarrow()
    columns = {name: [getattr(r, name) for r in results] for name in _HINTS}
    columns["per_episode"] = [_counts(r) for r in results]
    columns["settings"] = [json.dumps(r.settings) for r in results]
    kinds = {name: _arrow_type(pa, hint) for name, hint in _HINTS.items()}
    kinds["per_episode"] = pa.list_(pa.uint16())
    _write(path, pa.table(columns, schema=pa.schema(list(kinds.items()))))


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet table of any columns, a dictionary a row."""
    rows: list[dict[str, Any]] = _read(path).to_pylist()
    return rows


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of any columns as a Parquet table, whole or not at all."""
    _write(path, _pyarrow().Table.from_pylist([dict(row) for row in rows]))


def read_runs(path: Path) -> dict[str, Run]:
    """Read `runs.json`: where the rows of the tables beside it come from."""
    data = read_bytes(path)
    try:
        known = unsealed(json.loads(data.decode()))
        return {name: Run(**about) for name, about in known.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PolyshotError(f"{path} is damaged: {error}.") from None


_HINTS: Mapping[str, Any] = get_type_hints(Result)


def _files(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".parquet":
            if {"method", "per_episode"} <= set(_read(path, schema=True).names):
                yield path
        elif path.suffix == ".jsonl":
            yield path


def _from_text(path: Path, text: bytes) -> list[Result]:
    results = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            results.append(Result(**json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise PolyshotError(f"{path}, line {number}, is no result: {error}.") from None
    return results


def _from_parquet(path: Path) -> list[Result]:
    table = _read(path)
    names = [name for name in table.column_names if name != "per_episode"]
    try:
        columns = {name: table[name].to_pylist() for name in names}
        columns["settings"] = [json.loads(text) for text in columns["settings"]]
        counts = (row.values.to_numpy() for row in table["per_episode"])
        columns["per_episode"] = [(own / STEPS).tolist() for own in counts]
        rows = zip(*columns.values(), strict=True)
        return [Result(**dict(zip(columns, row, strict=True))) for row in rows]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PolyshotError(f"{path} is no table of results: {error}.") from None


def _counts(result: Result) -> list[int]:
    """Return accuracies as multiples of 1 / STEPS; refuses what would lose digits."""
    counts = [round(STEPS * value) if 0 <= value <= 1 else -1 for value in result.per_episode]
    if [count / STEPS for count in counts] != result.per_episode:
        raise PolyshotError(
            f"'{result.method}' on {result.target} cannot be kept: its accuracies are not "
            "between 0 and 1, in four digits."
        )
    return counts


def _arrow_type(pa: Any, hint: Any) -> Any:
    """Return the type of a column for the type of a field."""
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    kinds[list[str]] = pa.list_(pa.string())
    plain, *_ = get_args(hint) if isinstance(hint, types.UnionType) else [hint]  # less None
    return kinds.get(plain, pa.string())


def _read(path: Path, schema: bool = False) -> Any:
    """Read a Parquet file, or its schema alone."""
    pa = _pyarrow()
    try:
        return pa.parquet.read_schema(path) if schema else pa.parquet.read_table(path)
    except FileNotFoundError:
        raise PolyshotError(f"{path} cannot be read: No such file or directory.") from None
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise PolyshotError(f"{path} is no Parquet file that can be read: {reason}.") from None


def _write(path: Path, table: Any) -> None:
    with new_file(path) as file:
        _pyarrow().parquet.write_table(
            table, file, compression="zstd", compression_level=19, write_statistics=False
        )


def _pyarrow() -> Any:
    """Return pyarrow with its `parquet`, an extra."""
    try:
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise PolyshotError(
            "Tables of results (.parquet) need pyarrow: pip install 'polyshot[parquet]'."
        ) from None
    return pyarrow
