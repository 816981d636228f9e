"""One content hash for arrays and names, fast enough to be checked each time a pack is opened."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK = 8 * 1024 * 1024


def digest(*parts: bytes | str) -> str:
    """SHA-256 over length-prefixed parts, so that no two lists of parts collide by joining."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
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
