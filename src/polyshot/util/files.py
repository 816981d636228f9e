"""Files and folders that appear whole or not at all, what is read back from them, hashes and locks.

Everything is written under a temporary name beside its own and then renamed. Whoever writes holds a
lock, which the system drops with its process: what lies under the temporary name when the lock is
free was left by a process that is gone. Other writers of the same name wait. Whatever goes wrong,
a full disk or a folder that is read-only, is one line that names the path, and nothing stays.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from polyshot.errors import ESCAPED, PolyshotError
from polyshot.util.checks import sealed, unsealed

CHUNK = 8 * 1024 * 1024
"""Bytes of a file that are hashed at once."""

LONGEST = 240
"""Bytes of a name; file systems end at 255, and temporary names are longer."""
SYNCED = 1 << 20
"""Bytes of a file up to which it is on the disk itself before it gets its name; larger ones would
hold a training up at every checkpoint."""


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name, and replaces what has it, when all of it is written."""
    with clear_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:  # a pipe or a device cannot be replaced
                yield file
            return
        with _alone(path) as (place, partial):
            with partial.open("wb") as file:
                yield file
                file.flush()
                if file.tell() <= SYNCED:
                    os.fsync(file.fileno())
            partial.replace(place)


@contextmanager
def new_folder(path: Path, check: Callable[[Path], None] = lambda _: None) -> Iterator[Path]:
    """Yield an empty folder that gets its name, and replaces what has it, when all is written.

    `check` refuses to replace what has this name; it is called before anything is written.
    """
    with clear_errors(path), _alone(path) as (place, partial):
        old = place.with_name(f".{place.name}.old")
        if old.exists() and not place.exists():  # killed between the two renames below
            old.rename(place)
        _remove(old)
        check(path)
        partial.mkdir()
        yield partial
        with undisturbed():
            if place.exists():
                place.rename(old)
            try:
                partial.rename(place)
            except OSError:
                if old.exists():
                    old.rename(place)
                raise
            _remove(old)


@contextmanager
def clear_errors(path: Path, left: str = "Nothing of it was left behind") -> Iterator[None]:
    """Turn the system's error on writing into one line that names the path, and what is `left`."""
    try:
        yield
    except OSError as error:
        shown = _final(path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise no_room(shown, left=left) from None
        raise PolyshotError(f"{shown} cannot be written: {error.strerror or error}.") from None


def _final(path: Path) -> Path:
    """Return the name that a path inside of a temporary folder will have."""
    named = (re.fullmatch(r"\.(.+)\.partial", part) for part in path.parts)
    return Path(*(n[1] if n else part for n, part in zip(named, path.parts, strict=True)))


def check_writable(path: Path | None) -> None:
    """Refuse, before any work, a file that cannot be written later; None is no file."""
    if path is None:
        return
    place = Path(os.path.realpath(path))
    above = next(each for each in (place.parent, *place.parents) if os.path.lexists(each))
    reason = ""
    if place.is_dir():
        reason = "it is a folder, name a file"
    elif not above.is_dir():
        reason = f"{above} is no folder"
    elif not os.access(above, os.W_OK | os.X_OK):
        reason = f"{above} is read-only"
    elif any(len(os.fsencode(part)) > LONGEST for part in place.parts):
        reason = "its name is too long"
    if reason:
        raise PolyshotError(f"{path} cannot be written: {reason}.")


def no_room(
    path: Path, needed: int = 0, free: int = 0, left: str = "Nothing of it was left behind"
) -> PolyshotError:
    """Say that a disk is full; `needed` and `free` are bytes, where they are known."""
    detail = f" {needed / 1e6:,.0f} MB are needed, {free / 1e6:,.0f} MB are free." if needed else ""
    return PolyshotError(
        f"There is no room to write {path}: the disk is full.{detail} "
        f"{left}; free some space or choose another --out."
    )


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file."""
    with new_file(path) as file:
        file.write(data)


def read_bytes(path: Path) -> bytes:
    """Read a file; where it cannot be read, one line says why."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolyshotError(f"{path} cannot be read: {error.strerror}.") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whatever names of files are in it."""
    write_bytes(path, text.encode(errors=ESCAPED))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain data as JSON, with its checksum."""
    write_bytes(path, json_bytes(sealed(value)))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Lay plain data out as JSON for people, of which the same is read back."""
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    # What UTF-8 has not, bytes in names of files, are JSON's own escapes: \\udcff.
    return text.encode(errors="backslashreplace")


def append_text(path: Path, text: str) -> None:
    """Add text to a file's end, all of it or nothing; a file that was not there is not left."""
    place = Path(os.path.realpath(path))
    with clear_errors(path):
        before = place.stat().st_size if place.is_file() else 0
    left = "What was in it before is whole" if before else "Nothing of it was left behind"
    with clear_errors(path, left):
        place.parent.mkdir(parents=True, exist_ok=True)
        is_new = not place.exists()
        with place.open("ab", buffering=0) as file:
            rest = memoryview(text.encode())
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                    if is_new:
                        place.unlink()
                raise


def read_json(path: Path, mend: str = "start a new run") -> dict[str, Any]:
    """Read what :func:`write_json` wrote; `mend` is what to do where that is damaged."""
    try:
        return unsealed(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise PolyshotError(f"{path} cannot be read ({error}): {mend}.") from None


def digest(*parts: bytes | str) -> str:
    """SHA-256 over length-prefixed parts, so that no two lists of parts collide by joining."""
    whole = hashlib.sha256()
    for part in parts:
        # Names of files may hold bytes that are no UTF-8.
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


def file_digest(path: Path, start: int = 0) -> str:
    """Hash a file from byte ``start`` in fixed chunks, on all cores (hashlib releases the GIL)."""
    size = max(path.stat().st_size - start, 0)

    def chunk(offset: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start + offset)
            return hashlib.sha256(file.read(min(CHUNK, size - offset))).digest()

    with ThreadPoolExecutor() as pool:
        parts = pool.map(chunk, range(0, size, CHUNK))
        return hashlib.sha256(b"".join(parts)).hexdigest()


@contextmanager
def locked(path: Path, of: Path | None = None) -> Iterator[None]:
    """Hold a lock; waits for a process that has it. `of` is what it guards, for messages.

    The lock's file stays afterwards: a new one would be another lock.
    """
    with _held(path, of or path, wait=True):
        yield


@contextmanager
def locked_if_free(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold a lock, or yield False at once where another process has it and nobody is to wait."""
    with _held(path, path, wait) as mine:
        yield mine


@contextmanager
def _held(path: Path, what: Path, wait: bool) -> Iterator[bool]:
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise PolyshotError(f"{what} cannot be written: {error.strerror or error}.") from None
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def _alone(path: Path) -> Iterator[tuple[Path, Path]]:
    """Be the only writer of a name; yields where it leads and a free temporary name beside it."""
    place = Path(os.path.realpath(path))
    if not place.name:
        raise PolyshotError(f"{path} cannot be written: it names no file or folder in another.")
    place.parent.mkdir(parents=True, exist_ok=True)
    partial, lock = (place.with_name(f".{place.name}.{end}") for end in ("partial", "lock"))
    with locked(lock, of=path):
        try:
            _remove(partial)
            yield place, partial
        finally:
            with undisturbed():
                with suppress(OSError):
                    _remove(partial)
                with suppress(OSError):
                    lock.unlink()  # inside: nobody else has it


def clear_leftovers(folder: Path) -> None:
    """Remove the locks that killed writers left beside what they had just written whole.

    A writer that comes after one that was killed earlier clears away the rest itself.
    """
    for lock in folder.rglob(".*.lock"):
        if lock.with_name(lock.name.removeprefix(".").removesuffix(".lock")).exists():
            with locked_if_free(lock) as free, suppress(OSError):
                if free:
                    lock.unlink()  # inside: nobody else has it


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back until afterwards: what is begun here is done to its end.

    Half of a clearing away would leave the other half behind, and Python loses a Ctrl-C that
    arrives in the middle of a fork.
    """
    if threading.current_thread() is not threading.main_thread():  # it does not get signals
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        signal.raise_signal(signal.SIGINT)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- URLs of file systems that fsspec knows: s3://, gs://, file://, ...


def is_url(name: str) -> bool:
    """Tell a URL from a path."""
    return "://" in name


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, or of a path, and the path in it."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 (torch brings it along)

        system, path = url_to_fs(url)
        return system, str(path).rstrip("/")
    except (ImportError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise PolyshotError(f"{url} cannot be reached: {reason}.") from None


def write_url(url: str, data: bytes) -> None:
    """Write a file that appears whole or not at all: under a name beside its own, then renamed."""
    system, path = file_system(url)
    try:
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(f"{path}.partial", data)
        system.mv(f"{path}.partial", path)
    except OSError as error:
        raise PolyshotError(f"{url} cannot be written: {error.strerror or error}.") from None
