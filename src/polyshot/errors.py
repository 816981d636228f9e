"""Errors that a user can cause and a user can mend."""

import difflib
from collections.abc import Iterable


class PolyshotError(Exception):
    """Bad input, in one clear line that says what to do; the program exits with 2."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for a misspelt name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def printable(text: str) -> str:
    """Return a text in one line, without what terminals take for commands: names hold anything."""
    line = " ".join(text.splitlines())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def join_names(names: Iterable[str], limit: int = 5) -> str:
    """Join the first few names for a one-line message: ``a, b, c and 12 more``."""
    listed = [str(name) for name in names]
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit} more"


def unknown(
    what: str, name: str, known: Iterable[str], limit: int = 5, where: str = ""
) -> PolyshotError:
    """Refuse a name: ``There is no rule 'sellect', only ... Did you mean 'select'?``."""
    names = list(known)
    return PolyshotError(
        f"There is no {what} '{name}'{where}, only {join_names(names, limit)}."
        + did_you_mean(name, names)
    )
