"""Frozen dataclasses from plain data, and single values of them from the command line."""

import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from polyshot.errors import PolyshotError, did_you_mean


def replaced(node: Any, names: Sequence[str], text: str, option: str) -> Any:
    """Return a dataclass with one value, perhaps deep inside, read from text.

    Args:
        node: the dataclass.
        names: of the fields that lead to the value.
        text: the value.
        option: what the user wrote, for messages.

    """
    fields = {f.name: f for f in dataclasses.fields(node)}
    if names[0] not in fields:
        known = ", ".join(fields)
        raise PolyshotError(
            f"The option '{option}' names no field '{names[0]}', only {known}."
            + did_you_mean(names[0], fields)
        )
    value = getattr(node, names[0])
    if dataclasses.is_dataclass(value) != (len(names) > 1):
        raise PolyshotError(f"The option '{option}' must name one value, like base.steps=100.")
    if len(names) > 1:
        new = replaced(value, names[1:], text, option)
    else:
        new = _parsed(typing.get_type_hints(type(node))[names[0]], text, option)
    return dataclasses.replace(node, **{names[0]: new})


def _parsed(kind: Any, text: str, option: str) -> Any:
    """Read a value of a field's type from the command line."""
    try:
        value = text if kind is str or typing.get_origin(kind) is Literal else json.loads(text)
        return build(kind, value)
    except (ValueError, TypeError):
        raise PolyshotError(f"The option '{option}' has a value of the wrong kind.") from None


def build(kind: Any, value: Any) -> Any:
    """Make a value of a type from plain data; ValueError or TypeError where it does not fit."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: build(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(value)
        return value
    if origin is tuple:
        return tuple(build(arguments[0], item) for item in value)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else build(arguments[0], value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError(value)
    return value


def read_description(path: Path, file: str, what: str, newest: int) -> dict[str, Any]:
    """Read the JSON file that makes a folder a pack or a pool, of a format not newer than ours."""
    try:
        about = json.loads((path / file).read_text(encoding="utf-8"))
        version = about["format"]
    except (FileNotFoundError, NotADirectoryError):
        raise PolyshotError(f"{path} is no {what}: it has no {file}.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolyshotError(f"The {what} {path} has a damaged {file}: {error}.") from None
    if not isinstance(version, int) or version > newest:
        raise PolyshotError(
            f"The {what} {path} has format {version}, this Polyshot reads up to {newest}: "
            "upgrade it."
        )
    return dict(about)
