"""Where bytes are kept on their way between machines: Ray's object store, or a path that all reach.

A path may be a URL of any file system that fsspec knows (s3://, gs://, a shared disk): files lie
there by their content hash, so that what is the same is there once.
"""

from typing import Any, NamedTuple

from polyshot.errors import PolyshotError
from polyshot.util.files import digest


class Kept(NamedTuple):
    """What stands for bytes that a path keeps."""

    content: str
    """Hash, and name."""


class Store:
    """Keeps bytes until they are asked for; it travels with the jobs."""

    def __init__(self, url: str = ""):
        self.url = url.rstrip("/")
        if self.url:
            self._system()  # a scheme that nothing is installed for shows at once

    def put(self, data: bytes) -> Any:
        """Keep bytes for the jobs; returns what stands for them."""
        if not self.url:
            import ray  # noqa: PLC0415 (an extra)

            return ray.put(data)
        content = digest(data)
        system, root = self._system()
        place = f"{root}/{content}"
        try:
            if not system.exists(place):
                system.makedirs(root, exist_ok=True)
                system.pipe_file(f"{place}.partial", data)
                system.mv(f"{place}.partial", place)
        except OSError as error:
            raise PolyshotError(f"{self.url} cannot be written: {error}.") from None
        return Kept(content)

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
        system, root = self._system()
        try:
            data = bytes(system.cat_file(f"{root}/{kept.content}"))
        except OSError as error:
            raise PolyshotError(f"{self.url} cannot be read: {error}.") from None
        if digest(data) != kept.content:
            raise PolyshotError(f"{self.url}/{kept.content} is damaged: delete it.")
        return data

    def _system(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415 (torch brings it along)

            system, root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise PolyshotError(f"{self.url} cannot be reached: {error}.") from None
        return system, str(root).rstrip("/")
