"""Carry images to a machine without pyarrow, as few files that a clean checkout ignores.

    python tools/carry_images.py wrap shared/data carried --only cars,dtd,gtsrb,plankton
    python tools/carry_images.py pack carried packs --only gtsrb,omniglot --no-mirror
    python tools/carry_images.py pack carried packs

`wrap` writes the encoded images of each Parquet file one behind the other, and beside them what is
known of them; `pack` imports these as `polyshot data import` imports the Parquet files: the packs
have the same hashes, which it prints. Packs that exist are left as they are.
"""

import argparse
import json
from pathlib import Path

from polyshot.data.images import BadImage
from polyshot.data.importer import ImportOptions, import_listing
from polyshot.data.pack import Pack
from polyshot.data.readers import FileItem, Listing, ReadOptions, parquet


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("wrap", "pack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names of domains")
    parser.add_argument("--no-mirror", action="store_true", help="pack: mirrored, no class is kept")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    ending = ".parquet" if given.what == "wrap" else ".json"
    chosen = (
        given.only.split(",")
        if given.only
        else sorted(path.stem for path in given.source.glob(f"*{ending}"))
    )
    for name in chosen:
        if given.what == "wrap":
            wrap(given.source / f"{name}.parquet", given.out)
        else:
            mirror = False if given.no_mirror else None
            print(name, pack(given.source / f"{name}.json", given.out / name, mirror), flush=True)


def wrap(file: Path, out: Path) -> None:
    """Write the images of a Parquet file to ``name.bin``, the rest to ``name.json``."""
    with parquet.listings(file, ReadOptions()) as (listing,):
        lengths = []
        with (out / f"{listing.name}.bin").open("wb") as blob:
            for item in listing.items:
                data = item.read()
                if isinstance(data, BadImage):
                    raise SystemExit(f"error: {item.where}: {data.kind}.")
                lengths.append(blob.write(data))
        about = {
            "name": listing.name,
            "class_names": listing.class_names,
            "labels": listing.labels,
            "groups": listing.groups,
            "reader": listing.reader,
            "origin": listing.origin,
            "lengths": lengths,
        }
    (out / f"{listing.name}.json").write_text(json.dumps(about, separators=(",", ":")))


def pack(about: Path, target: Path, mirror: bool | None) -> str:
    """Import what `wrap` wrote; returns the hash of the pack."""
    if target.exists():
        return Pack.open(target).hash
    known = json.loads(about.read_text())
    blob, offset, items = about.with_suffix(".bin"), 0, []
    for i, length in enumerate(known.pop("lengths")):
        items.append(FileItem(blob, f"{blob.name}, image {i}", offset, length))
        offset += length
    listing = Listing(items=items, **known | {"class_names": tuple(known["class_names"])})
    return import_listing(listing, target, ImportOptions(mirror=mirror)).pack.hash


if __name__ == "__main__":
    main()
