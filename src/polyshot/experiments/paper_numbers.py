"""The numbers that the paper prints, in our names (``paper.json``), to stand beside ours.

*Domain-Agnostic Few-Shot Classification by Learning Disparate Modulators* (Choi et al., 2019). Its
results with further adaptation and with one shot are bar charts without numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

PERCENT = 100

DATA_DIFFERS: Mapping[str, str] = {
    "cifar100": "5,000 of its 50,000 images",
    "dtd": "10 of its 47 classes, all of them test classes: never a source with us",
    "flowers": "4,080 images, the paper had 2,040",
    "gtsrb": "4,300 of 39,209 images, and no film track on both sides of an episode",
    "imagenet": "401 of 1,000 classes and 16 thousand of 1.3 million images",
    "omniglot": "all 32,460 images, the paper had 25,968",
}
"""Our domains that are also the paper's, and how the project's shared images differ from its."""

NOT_COMPARED = (
    "Not compared: actions (web stills of people) stands for UCF101, whose images are made of "
    "films; cars stands for aircraft; plankton has no counterpart."
)


@dataclass(frozen=True)
class PaperTable:
    """One block of a table of accuracies, as printed, with its average; shares, 0.5 is 50 %."""

    table: str
    """``seen`` or ``unseen``."""
    sources: tuple[str, ...] | None
    """Domains trained on; None: all eight for seen targets, the seven others for unseen ones."""
    targets: Mapping[str, Mapping[str, float]]
    """Target -> method -> accuracy."""
    average: Mapping[str, float]
    """The printed one."""


@dataclass(frozen=True)
class PaperDataset:
    """One line of the paper's table of datasets."""

    images: int
    classes: int
    train: int
    """Classes; so are val and test."""
    val: int
    test: int


@cache
def _numbers() -> dict[str, Any]:
    text = resources.files("polyshot.experiments").joinpath("paper.json").read_text("utf-8")
    return dict(json.loads(text))


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """Return all tables of accuracies."""

    def line(methods: list[str], percents: list[float]) -> dict[str, float]:
        return {m: p / PERCENT for m, p in zip(methods, percents, strict=True)}

    return tuple(
        PaperTable(
            table=block["table"],
            sources=None if block["sources"] is None else tuple(block["sources"]),
            targets={name: line(block["methods"], p) for name, p in block["targets"].items()},
            average=line(block["methods"], block["average"]),
        )
        for block in _numbers()["accuracies"]
    )


def paper_table(table: str, sources: int | None = None) -> PaperTable | None:
    """Find a table: ``seen`` or ``unseen``, of the experiment with so many sources (2, 4, 6)."""
    for block in paper_tables():
        count = None if block.sources is None else len(block.sources)
        if (block.table, count) == (table, sources):
            return block
    return None


def paper_accuracy(
    table: str, method: str, domain: str, sources: int | None = None
) -> float | None:
    """Look up one accuracy, as a share; None where the paper prints none.

    Args:
        table: ``seen`` or ``unseen``.
        method: our name, such as ``select`` for DoS.
        domain: our name of the target.
        sources: 2, 4 or 6 for the experiments with so many sources; None for the main ones.
    """
    block = paper_table(table, sources)
    return None if block is None else block.targets.get(domain, {}).get(method)


def paper_datasets() -> dict[str, PaperDataset]:
    """Return the table of datasets, by our names of the domains."""
    return {name: PaperDataset(**about) for name, about in _numbers()["datasets"].items()}


def paper_parameters() -> dict[str, int]:
    """Return the table of parameter counts, for eight sources."""
    return dict(_numbers()["parameters"])
