"""Make the files of before: ``python -m tests.golden.make_before``.

Never again, once the code has changed: that it reads what its older self wrote is the point.
"""

import json
import tarfile
from pathlib import Path

import torch

from .scenes import (
    NAMES,
    SMALLEST,
    Pack,
    describe_grid,
    describe_pack,
    describe_pool,
    run_grid,
    temporary,
    train,
    write_pack,
)

FOLDER = Path(__file__).parent / "before"
LEFT_OUT = (".lock", ".safetensors", ".pt")
"""Of the grid's worlds: what a reader of its results does not need."""


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    with temporary() as folder:
        packs = folder / "packs"
        sources = [
            write_pack(packs, name, 301 + i, (5, 5, 5), 5, 0) for i, name in enumerate(NAMES)
        ]
        others, sources = sources[2:], sources[:2]
        pool = train(sources, SMALLEST, folder / "run", device="cpu")
        pool.save(folder / "pools" / "eight", "eight")
        pool.save(folder / "pools" / "six", "six")
        run_grid(folder / "grid", sources, others, SMALLEST)
        for left in (folder / "grid" / "worlds").rglob("*"):
            if left.suffix in LEFT_OUT:
                left.unlink()
        known = {
            "packs": {name: describe_pack(Pack.open(packs / name)) for name in NAMES},
            "pools": {
                path.name: describe_pool(type(pool).load(path))
                for path in sorted((folder / "pools").iterdir())
            },
            "run": describe_pool(pool),
            "grid": describe_grid(folder / "grid"),
        }
        for name in ("packs", "pools", "run", "grid"):
            pack_up(folder / name, FOLDER / f"{name}.tar.xz")
    (FOLDER / "known.json").write_text(json.dumps(known), encoding="utf-8")


def pack_up(folder: Path, file: Path) -> None:
    """Put the files of a folder into one; names and bytes alone, so that it is the same again."""
    with tarfile.open(file, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".lock":
                entry = tarfile.TarInfo(str(path.relative_to(folder)))
                entry.size = path.stat().st_size
                with path.open("rb") as opened:
                    packed.addfile(entry, opened)


if __name__ == "__main__":
    main()
