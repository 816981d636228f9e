"""Folders that appear whole or not at all: written under a temporary name, then renamed."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from polyshot.errors import PolyshotError


def temporary_name(path: Path) -> Path:
    """Return the name, beside the folder's own, under which this process writes it."""
    path = path.absolute()
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


def put_in_place(written: Path, path: Path) -> None:
    """Give a written folder its name; a folder that has it is replaced."""
    if not path.exists():
        written.rename(path)
        return
    old = written.with_name(f"{written.name}.old")
    path.rename(old)
    written.rename(path)
    shutil.rmtree(old)


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


def clean_up(path: Path) -> None:
    """Remove what a process that was killed left of a folder, or bring the folder back.

    Between the two renames of a replacement the old folder has no name but a temporary one.
    """
    path = path.absolute()
    pattern = re.compile(rf"\.{re.escape(path.name)}\.partial-(\d+)(\.old)?")
    for left in path.parent.glob(".*"):
        match = pattern.fullmatch(left.name)
        if match is None or _is_running(int(match[1])):
            continue
        if match[2] and not path.exists():
            left.rename(path)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
