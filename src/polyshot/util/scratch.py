"""Temporary folders that are gone after a kill, too: at the latest when the next one is made.

Whoever uses one holds a lock in it, which the system drops with its process.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from polyshot.util.files import clear_errors, locked_if_free

PREFIX = "polyshot-"
LOCK, FILES = "lock", "files"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder in the system's temporary one, which goes with the context."""
    root = Path(tempfile.gettempdir())
    with ExitStack() as stack:
        with clear_errors(root):
            _clear(root)
            folder = _locked_folder(root, stack)
            (folder / FILES).mkdir()
        try:
            yield folder / FILES
        finally:
            stack.close()  # first: some systems do not delete what is open
            shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(root: Path, stack: ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        # Another process may take it for a leftover before it is locked: then there is none.
        mine = stack.enter_context(locked_if_free(folder / LOCK))
        if mine and (folder / LOCK).exists():
            return folder


def _clear(root: Path) -> None:
    """Remove what killed processes of this user left."""
    for folder in root.glob(f"{PREFIX}*"):
        if not (_is_own(folder) and (folder / LOCK).is_file()):
            continue
        with locked_if_free(folder / LOCK) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder, no link, and belongs to this user."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and mine
