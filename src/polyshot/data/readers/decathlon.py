"""The Visual Decathlon: COCO-style annotations and one image folder a domain.

    decathlon-1.0/annotations/aircraft_train.json  aircraft_val.json ...
    decathlon-1.0/data/aircraft/train/...

``train`` and ``val`` are pooled (the test labels are not public); classes keep the order of their
ids. Any subset of the ten domains may be present.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyshot.data.readers import FileItem, Listing, ReadOptions, check_one_name
from polyshot.errors import PolyshotError, join_names

NAMES = (
    "aircraft", "cifar100", "daimlerpedcls", "dtd", "gtsrb",
    "imagenet12", "omniglot", "svhn", "ucf101", "vgg-flowers",
)  # fmt: skip
NOT_MIRRORED = frozenset({"gtsrb", "omniglot", "svhn"})
BY_WORDNET = "imagenet12"
"""What the paper splits by the WordNet tree."""
SPLIT_SIZES = {"vgg-flowers": (70, 16, 16)}
"""The paper's table where it departs from its own rule."""


def accepts(path: Path) -> bool:
    """Whether a folder looks like the Decathlon's root: annotations of a name we know."""
    return any((path / "annotations" / f"{name}_train.json").is_file() for name in NAMES)


@contextmanager
def listings(path: Path, options: ReadOptions) -> Iterator[list[Listing]]:
    """List every domain whose annotations and images are there."""
    annotated = [name for name in NAMES if (path / "annotations" / f"{name}_train.json").is_file()]
    present = [name for name in annotated if (path / "data" / name).is_dir()]
    if not present:
        raise PolyshotError(
            f"{path} has annotations ({join_names(annotated)}) but no images of them in "
            f"{path / 'data'}."
        )
    check_one_name(path, present, options)
    yield [_listing(path, name, options.name or name) for name in present]


def _listing(root: Path, domain: str, name: str) -> Listing:
    categories: dict[int, str] = {}
    labelled: list[tuple[str, int]] = []
    for part in ("train", "val"):
        file = root / "annotations" / f"{domain}_{part}.json"
        if part == "train" or file.is_file():
            categories |= _read(file, labelled)
    order = sorted(categories)
    if missing := [file for file, _ in labelled if not (root / file).is_file()]:
        raise PolyshotError(
            f"{domain}: {len(missing):,} of {len(labelled):,} annotated images are not there, "
            f"for example {missing[0]}. Unpack the data archive again."
        )
    position = {category: i for i, category in enumerate(order)}
    sizes = SPLIT_SIZES.get(domain)
    return Listing(
        name=name,
        class_names=tuple(categories[category] for category in order),
        items=[FileItem(root / file, where=file) for file, _ in labelled],
        labels=[position[category] for _, category in labelled],
        mirror=domain not in NOT_MIRRORED,
        split_sizes=sizes if len(order) == sum(sizes or ()) else None,
        by_wordnet=domain == BY_WORDNET,
        reader="decathlon",
        origin=domain,
    )


def _read(file: Path, labelled: list[tuple[str, int]]) -> dict[int, str]:
    """Add one annotation file's ``(image, category)`` pairs; return its categories by id."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        images = {image["id"]: str(image["file_name"]) for image in content["images"]}
        categories = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        pairs = sorted((images[e["image_id"]], e["category_id"]) for e in content["annotations"])
    except OSError as error:
        raise PolyshotError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise PolyshotError(f"{file} is no valid JSON: {error}.") from None
    except (KeyError, TypeError) as error:
        reason = f"{file} is not in the Decathlon's format: {error} is missing."
        raise PolyshotError(reason) from None
    if unknown := {str(category) for _, category in pairs if category not in categories}:
        raise PolyshotError(
            f"{file} uses categories that it does not name: {join_names(sorted(unknown))}."
        )
    labelled += pairs
    return categories
