"""Embeddings of packs, computed once per image and member and kept on disk by their content."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool, Report
from polyshot.util.hashing import digest


class EmbeddingCache:
    """A folder of ``<key>.npy`` files, each float32 ``[n, d]``; it may be deleted at any time."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> Tensor | None:
        """Return what is kept under a key, or None."""
        file = self._file(key)
        if not file.is_file():
            return None
        try:
            return torch.from_numpy(np.load(file))
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise PolyshotError(
                f"The cached embeddings {file} are damaged ({error}): delete this file."
            ) from None

    def put(self, key: str, embeddings: Tensor) -> None:
        """Keep embeddings under a key; a reader sees all of them or nothing."""
        file = self._file(key)
        partial = file.with_name(f".{file.name}.partial-{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as opened:
                np.save(opened, embeddings.numpy())
            partial.replace(file)
        except OSError as error:
            with suppress(OSError):  # there may be no folder to clean
                partial.unlink(missing_ok=True)
            raise PolyshotError(f"{file} cannot be written: {error.strerror}.") from None

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.npy"


def embed_pack(
    pool: Pool,
    pack: Pack,
    ids: NDArray[np.int64],
    cache: EmbeddingCache | None = None,
    report: Report | None = None,
    members: Sequence[int] | None = None,
) -> Tensor:
    """Embed images of a pack with some members (all by default): float32 [members, len(ids), d].

    `report` is called only for what the cache does not hold.
    """
    wanted = list(range(len(pool.members)) if members is None else members)
    if pack.size != pool.size:
        raise PolyshotError(
            f"The pack {pack.domain.name} has images of {pack.size} pixels, the pool wants "
            f"{pool.size}: import it again with --size {pool.size}."
        )
    hashes = pool.member_hashes()
    precision = "bfloat16" if pool.device.type == "cuda" else "float32"
    chosen = digest(ids.astype("<i8").tobytes())
    keys = [digest(pack.hash, hashes[member], chosen, precision) for member in wanted]
    found = {key: cache.get(key) if cache else None for key in keys}
    missing = {key: m for key, m in zip(keys, wanted, strict=True) if found[key] is None}
    for number, (key, member) in enumerate(missing.items()):  # equal members have equal keys

        def named(_: str, done: int, __: int, before: int = number * len(ids)) -> None:
            if report:
                report(f"embed {pack.domain.name}", before + done, len(missing) * len(ids))

        # One by one, so that an interrupted run finds in the cache what it had done.
        made = pool.embed(pack.images, [member], report=named, ids=ids)[0]
        found[key] = made
        if cache:
            cache.put(key, made)
    return torch.stack([embeddings for key in keys if (embeddings := found[key]) is not None])
