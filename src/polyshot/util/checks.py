"""One checker of descriptions: plain data from a file or an option becomes a frozen dataclass.

What a field may hold is declared by its type, with limits as `Annotated[int, Range(8, 4096)]`, so
that ``pool.json``, ``domain.json`` and ``config.json`` are checked before anything is built.
Numbers are always finite. A dataclass may have `OLD_NAMES`, names that fields had before. What is
written has a checksum of itself (`sealed`), so that no changed digit goes unnoticed.
"""

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from polyshot.errors import PolyshotError, did_you_mean, join_names

Made = TypeVar("Made")

WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    tuple: "a list",
    dict: "an object",
}


class BadValueError(PolyshotError, ValueError):
    """A value does not fit its field: `base.steps is 'many', not a whole number`."""


class OutOfRangeError(BadValueError):
    """A value is of the right kind, but outside of what its field allows."""


@dataclass(frozen=True)
class Range:
    """Limits of a number, both allowed."""

    low: float = -math.inf
    high: float = math.inf

    def check(self, value: Any, where: str) -> None:
        """Refuse what lies outside."""
        if value < self.low:
            raise OutOfRangeError(f"{where}={value} is too small: {self.low} is the least.")
        if value > self.high:
            raise OutOfRangeError(f"{where}={_short(value)} is too large: {self.high} is the most.")


@dataclass(frozen=True)
class Matches:
    """A pattern that a text must have as a whole."""

    pattern: str
    what: str

    def check(self, value: Any, where: str) -> None:
        """Refuse a text that does not match."""
        if not re.fullmatch(self.pattern, value):
            raise OutOfRangeError(f"{where} is {_short(value)}, which is no {self.what}.")


@dataclass(frozen=True)
class _NoPath:
    """A name that a file can be called by, and that leads nowhere else: `imagenet/1` is one."""

    def check(self, value: Any, where: str) -> None:
        """Refuse steps up or down, control characters and names that are empty or too long."""
        if not 0 < len(value) <= LONGEST_NAME:
            raise OutOfRangeError(f"{where} is {_short(value)}, which is empty or too long.")
        steps = re.split(r"[/\\]", value)
        if {"", ".", ".."} & set(steps) or not value.isprintable():
            raise OutOfRangeError(f"{where} is {_short(value)}, a name that is no path is wanted.")


LONGEST_NAME = 200
"""Letters of a name; most file systems end at 255 bytes."""

Name = Annotated[str, _NoPath()]
Sha256 = Annotated[str, Matches("[0-9a-f]{64}", "sha256")]
Count = Annotated[int, Range(0, 2**31)]
Share = Annotated[float, Range(0, 1)]


CHECKSUM = "checksum"
"""Field of a description that holds its own sha256; files of before have none."""


def sealed(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data for JSON with its checksum."""
    plain = {name: value for name, value in about.items() if name != CHECKSUM}
    return {**plain, CHECKSUM: _checksum(json.loads(json.dumps(plain)))}


def unsealed(about: Any) -> dict[str, Any]:
    """Return plain data from JSON without its checksum, which must be right where there is one."""
    plain = _of_kind(dict, about, "")
    given = plain.get(CHECKSUM)
    made = {name: value for name, value in plain.items() if name != CHECKSUM}
    if CHECKSUM in plain and given != _checksum(made):
        raise BadValueError("it does not match its checksum, so that something in it was changed")
    return made


def _checksum(plain: Mapping[str, Any]) -> str:
    """Hash JSON's content: neither its layout nor the order of fields matters."""
    try:
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        raise BadValueError("it is nested too deep") from None


def check_fields(made: Any, where: str = "") -> None:
    """Refuse values outside of what their fields declare, in dataclasses inside it, too."""
    for name, kind in _hints(type(made)).items():
        value, path = getattr(made, name), f"{where}{name}"
        if dataclasses.is_dataclass(value):
            check_fields(value, f"{path}.")
        elif typing.get_origin(kind) is Annotated:
            build(kind, value, path)


def read_description(
    path: Path, file: str, what: str, newest: int, kind: type[Made]
) -> tuple[Made, dict[str, Any]]:
    """Read the JSON `file` that makes the folder `path` a pack or a pool (`what`, for messages).

    `newest` is the format that this Polyshot reads, `kind` a dataclass of the fields; what it does
    not name is left alone. Returns it, checked, and the plain data that it came from.
    """
    try:
        text = (path / file).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise PolyshotError(f"{path} is no {what}: it has no {file}.") from None
    except OSError as error:
        raise PolyshotError(f"The {what} {path} has a damaged {file}: {error}.") from None
    return parse_description(text, path, file, what, newest, kind)


def parse_description(
    text: bytes, path: Path, file: str, what: str, newest: int, kind: type[Made]
) -> tuple[Made, dict[str, Any]]:
    """Check the content of such a file, wherever inside of `path` it was (`read_description`)."""
    try:
        about = json.loads(text.decode("utf-8"))
        version = about["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PolyshotError(f"The {what} {path} has a damaged {file}: {error}.") from None
    if type(version) is not int or not 1 <= version <= newest:
        raise PolyshotError(
            f"The {what} {path} has format {_short(version)[:20]}, this Polyshot reads up to "
            f"{newest}: upgrade it."
        )
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        made = build(kind, {name: value for name, value in about.items() if name in known})
        unsealed(about)
    except PolyshotError as error:
        reason = str(error).rstrip(".")
        raise PolyshotError(f"The {what} {path} has a damaged {file}: {reason}.") from None
    assert isinstance(made, kind)
    return made, dict(about)


def replaced(node: Any, names: Sequence[str], text: str, option: str) -> Any:
    """Return a dataclass with one value, to which the names of fields lead, read from text.

    `option` is what the user wrote, for messages.
    """
    fields = _hints(type(node))
    name = _old_names(node).get(names[0], names[0])
    if name not in fields:
        raise PolyshotError(
            f"The option '{option}' names no field '{name}', only {', '.join(fields)}."
            + did_you_mean(name, fields)
        )
    value = getattr(node, name)
    if dataclasses.is_dataclass(value) != (len(names) > 1):
        raise PolyshotError(f"The option '{option}' must name one value, like base.steps=100.")
    if len(names) > 1:
        return dataclasses.replace(node, **{name: replaced(value, names[1:], text, option)})
    return dataclasses.replace(node, **{name: _parsed(fields[name], text, option)})


def _parsed(kind: Any, text: str, option: str) -> Any:
    """Read a value of a field's type from the command line."""
    try:
        value = text if kind is str or typing.get_origin(kind) is Literal else json.loads(text)
        return build(kind, value, option.partition("=")[0].strip())
    except OutOfRangeError:
        raise
    except (ValueError, RecursionError):
        raise PolyshotError(f"The option '{option}' has a value of the wrong kind.") from None


def build(kind: Any, value: Any, where: str = "") -> Any:
    """Make a value of a type from plain data; BadValueError, which says where, if it does not fit.

    `kind` is a dataclass, a plain type, or a Literal, union, list or Annotated of such; `where`
    are the names of the fields that lead to the value.
    """
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, _of_kind(dict, value, where), where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        made = build(arguments[0], value, where)
        for limit in arguments[1:]:
            limit.check(made, where)
        return made
    if origin is Literal:
        if value not in arguments:
            raise BadValueError(f"{where} is {_short(value)}, not {join_names(arguments, 20)}")
        return value
    if origin is tuple:
        items = value if isinstance(value, tuple) else _of_kind(list, value, where)
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise BadValueError(f"{where} has {len(items)} values, not {len(arguments)}")
        return tuple(build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else build(arguments[0], value, where)
    if origin is dict:
        items = _of_kind(dict, value, where)
        return {name: build(arguments[1], item, f"{where}.{name}") for name, item in items.items()}
    if kind is float and type(value) is int and abs(value) < 1 << 1000:
        return float(value)
    return _of_kind(kind, value, where)


def _build_dataclass(kind: Any, plain: Mapping[str, Any], where: str) -> Any:
    hints, made = _hints(kind), {}
    for old, item in plain.items():
        name = _old_names(kind).get(old, old)
        path = f"{where}.{name}" if where else name
        if name not in hints or name in made:
            raise BadValueError(f"{path} is unknown or there twice")
        made[name] = build(hints[name], item, path)
    for field in dataclasses.fields(kind):
        optional = {field.default, field.default_factory} - {dataclasses.MISSING}
        if field.name not in made and not optional:
            raise BadValueError(f"{where}.{field.name} is missing".lstrip("."))
    return kind(**made)


def _of_kind(kind: Any, value: Any, where: str) -> Any:
    fits = type(value) is kind
    if fits and kind is float:
        fits = math.isfinite(value)
    if fits and kind is str:
        fits = not re.search("[\ud800-\udfff]", value)  # halves of letters, which UTF-8 has not
    if not fits:
        wanted = WORDS[tuple if kind is list else kind]
        raise BadValueError(f"{where or 'it'} is {_short(value)}, not {wanted}")
    return value


def _hints(kind: type) -> dict[str, Any]:
    fields = {field.name for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if name in fields}


def _old_names(kind: Any) -> Mapping[str, str]:
    return getattr(kind, "OLD_NAMES", {})


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of a million digits, lists in lists in lists
        return "something huge"
    return text if len(text) <= 40 else f"{text[:40]}..."
