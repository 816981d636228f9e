"""Errors that a user can cause and a user can mend."""

import codecs
import difflib
import errno
from collections.abc import Iterable

LONGEST = 1500
"""Letters of a message; what a user gave may be a book."""


class PolyshotError(Exception):
    """Bad input, in one clear line that says what to do; the program exits with 2."""

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """Write a text as one line (`printable`); of a very long one the middle goes."""
    line = printable(text)
    if len(line) <= LONGEST:
        return line
    return f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def printable(text: str) -> str:
    """Escape what terminals take for commands, and what UTF-8 has not: names hold anything."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(letter: str) -> str:
    # Python reads a byte of a name that is no UTF-8 as a letter of this range.
    is_byte = "\udc80" <= letter <= "\udcff"
    return f"\\x{ord(letter) - 0xDC00:02x}" if is_byte else ascii(letter)[1:-1]


def _escape_error(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_escaped, error.object[error.start : error.end])), error.end


ESCAPED = "polyshot.escaped"
"""How to encode (``errors=``) what an encoding has not: as `printable` escapes it."""
codecs.register_error(ESCAPED, _escape_error)


def as_utf8(text: str) -> str:
    r"""Write bytes of names that are no UTF-8 as ``\xff``, the same in tables and on pages."""
    return text.encode(errors=ESCAPED).decode()


MEMORY = ("allocate memory", "not enough memory", "could not create a primitive", "new thread")
"""What torch, its libraries and Python say in other errors where memory is short."""


def is_short_of_memory(error: Exception) -> bool:
    """Tell whether an error of Python, the system or torch means that memory was short."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY)
    return isinstance(error, MemoryError) or said


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for a misspelt name, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def join_names(names: Iterable[str], limit: int = 5) -> str:
    """Join the first few names for a one-line message: ``a, b, c and 12 more``."""
    listed = [str(name) for name in names]
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit} more"


def counted(count: int, one: str, more: str) -> str:
    """Say how many there are: ``1 class``, ``2 classes``."""
    return f"{count:,} {one if count == 1 else more}"


def unknown(
    what: str, name: str, known: Iterable[str], limit: int = 5, where: str = ""
) -> PolyshotError:
    """Refuse a name: ``There is no rule 'sellect', only ... Did you mean 'select'?``."""
    names = list(known)
    return PolyshotError(
        f"There is no {what} '{name}'{where}, only {join_names(names, limit)}."
        + did_you_mean(name, names)
    )
