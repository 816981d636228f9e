"""URLs of file systems that fsspec knows: s3://, gs://, file://, ..."""

from typing import Any

from polyshot.errors import PolyshotError


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
