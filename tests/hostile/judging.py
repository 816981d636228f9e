"""Tells whether what is called here was done, or refused as it should be."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from polyshot.errors import PolyshotError

from .trials import REFUSED, Verdict


def judged(folder: Path, work: Callable[[], Verdict], out: str = "out") -> Verdict:
    """Run what must be done or refused in one line; what is refused leaves nothing."""
    tempfile.tempdir = str(folder / "tmp")
    Path(tempfile.tempdir).mkdir()
    try:
        verdict = work()
    except (PolyshotError, OSError, MemoryError) as error:
        # The last two are one line by what the program does with them (`polyshot.cli.main`).
        text = str(error) if isinstance(error, PolyshotError) else "one line"
        if not text.strip() or "\n" in text or "\r" in text or len(text) > 2500:
            return Verdict("traceback", f"not one line: {text[:200]!r}")
        left = list((folder / out).rglob("*")) if (folder / out).exists() else []
        verdict = Verdict("left", f"{left[:3]}") if left else REFUSED
    finally:
        tempfile.tempdir = None
    if stray := list((folder / "tmp").iterdir()):
        return Verdict("left", f"{stray[:3]}")
    return verdict
