"""A page of labelled images: thumbnails by label, the least certain first, in one file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from polyshot.classifier.label import LabelledFile, LabelledFiles
from polyshot.data.images import load_images
from polyshot.experiments.report.pages import as_link, render, write_file
from polyshot.predict.none_of_these import NONE

SIDE = 112
"""Side length of a thumbnail in pixels."""
AT_ONCE = 500
"""Images that are decoded at once."""
FIRST = 12
"""How many of the least certain of all are shown on top."""


@dataclass(frozen=True)
class Thumbnail:
    """An image on the page."""

    row: LabelledFile
    source: str
    """Its picture as a link."""

    @property
    def sure(self) -> float:
        """How certain the answer is: how far it lies above the next."""
        chance, other = self.row.probability, self.row.runner_up_probability or 0.0
        return 1 - other if chance is None else chance - other


def write_labels_page(path: Path, answer: LabelledFiles) -> None:
    """Write the page; what classifies sees the same square of each image."""
    rows = [row for row in answer.rows if not row.reason]
    pictures = _pictures([Path(row.path) for row in rows])
    shown = [Thumbnail(row, source) for row, source in zip(rows, pictures, strict=True)]
    shown.sort(key=lambda one: one.sure)
    labels = sorted({one.row.label for one in shown}, key=lambda label: (label == NONE, label))
    groups = {label: [one for one in shown if one.row.label == label] for label in labels}
    page = render(
        "labels.html",
        title="Labelled images",
        facts={
            "Images": f"{len(shown):,}",
            "Labels found": f"{len(groups):,}",
            "Learned on the examples": answer.adaptation,
        },
        summary=answer.summary,
        none_summary=answer.none_summary,
        first=shown[:FIRST] if len(shown) > FIRST and len(groups) > 1 else [],
        groups=groups,
        unread=answer.unread,
        side=SIDE,
    )
    write_file(path, page)


def _pictures(paths: Sequence[Path]) -> list[str]:
    """Make links of small pictures."""
    made: list[str] = []
    for start in range(0, len(paths), AT_ONCE):
        pixels = load_images(list(paths[start : start + AT_ONCE]), SIDE)
        pictures = (Image.fromarray(each.transpose(1, 2, 0)) for each in pixels)
        made += [as_link(each, quality=78) for each in pictures]
    return made
