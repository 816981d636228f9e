"""Settings of methods: their own, then what tuning chose, then what the command line says."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from polyshot.config import Config
from polyshot.errors import PolyshotError, did_you_mean, join_names
from polyshot.methods.method import Method, find_methods

Overrides = Mapping[str, Mapping[str, float]]
"""Method -> setting -> value."""


@cache
def tuned() -> Mapping[str, Any]:
    """Read the outcome of tuning that Polyshot brings along: preset -> method -> entry."""
    text = resources.files("polyshot.experiments").joinpath("tuned.json").read_text("utf-8")
    return dict(json.loads(text))


def settings_of(method: Method, preset: str, overrides: Overrides) -> dict[str, float]:
    """Return a method's settings under a preset."""
    chosen = tuned().get(preset, {}).get(method.name, {}).get("settings", {})
    return {**method.settings, **chosen, **overrides.get(method.name, {})}


def split_options(options: Sequence[str]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Part options into settings of methods (``protonet.learning_rate=0.01``) and the config's."""
    methods = {method.name: method for method in find_methods()}
    sections = {section.name for section in dataclasses.fields(Config)}
    own: dict[str, dict[str, float]] = {}
    others = []
    for option in options:
        name, dot, rest = option.partition(".")
        # A method may be called as a section of the config is: 'base', whose settings stay.
        if not dot or name in sections or name not in methods:
            others.append(option)
            continue
        setting, value = _parsed(methods[name], rest, option)
        own.setdefault(name, {})[setting] = value
    return own, others


def _parsed(method: Method, text: str, option: str) -> tuple[str, float]:
    setting, _, value = (part.strip() for part in text.partition("="))
    known = method.settings
    if setting not in known:
        raise PolyshotError(
            f"The option '{option}' names no setting of {method.name}, "
            f"only {join_names(known, 20) or 'none are there'}.{did_you_mean(setting, known)}"
        )
    try:
        number = float(value)
    except ValueError:
        raise PolyshotError(f"The option '{option}' needs a number after '='.") from None
    # Names of files are made of settings: 100 and 100.0 must not be two.
    whole = isinstance(known[setting], int) and number.is_integer()
    return setting, int(number) if whole else number
