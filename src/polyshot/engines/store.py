"""Where bytes are kept on their way between machines: Ray's object store, or a path that all reach.

A path may be a URL of any file system that fsspec knows (s3://, gs://, a shared disk): files lie
there by their content hash, so that what is the same is there once.
"""

from typing import Any, NamedTuple

from polyshot.errors import PolyshotError
from polyshot.util.files import digest
from polyshot.util.urls import file_system, write_url


class Kept(NamedTuple):
    """What stands for bytes that a path keeps."""

    content: str
    """Hash, and name."""


class Store:
    """Keeps bytes until they are asked for; it travels with the jobs."""

    def __init__(self, url: str = ""):
        self.url = url.rstrip("/")
        if self.url:
            file_system(self.url)  # a scheme that nothing is installed for shows at once

    def put(self, data: bytes) -> Any:
        """Keep bytes for the jobs; returns what stands for them."""
        if not self.url:
            import ray  # noqa: PLC0415 (an extra)

            return ray.put(data)
        kept = Kept(digest(data))
        system, root = file_system(self.url)
        try:
            there = system.exists(f"{root}/{kept.content}")
        except OSError as error:
            raise PolyshotError(f"{self.url} cannot be reached: {error}.") from None
        if not there:
            write_url(f"{self.url}/{kept.content}", data)
        return kept

    def hand_over(self, data: bytes) -> Any:
        """Keep bytes for the driver: with the object store they travel in the answer itself."""
        return self.put(data) if self.url else data

    def get(self, kept: Any) -> bytes:
        """Fetch bytes."""
        if isinstance(kept, bytes):
            return kept
        if not isinstance(kept, Kept):
            import ray  # noqa: PLC0415 (an extra)

            return bytes(ray.get(kept))
        system, root = file_system(self.url)
        try:
            data = bytes(system.cat_file(f"{root}/{kept.content}"))
        except OSError as error:
            raise PolyshotError(f"{self.url} cannot be read: {error}.") from None
        if digest(data) != kept.content:
            raise PolyshotError(f"{self.url}/{kept.content} is damaged: delete it.")
        return data
