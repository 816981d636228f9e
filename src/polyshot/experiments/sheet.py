"""Contact sheets: pictures on which a person can check labels, splits and episodes."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import font_manager
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from polyshot.data.episodes import Episodes
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.util.counter_rng import key
from polyshot.util.files import write_bytes

GAP = 3
MARGIN = 8
INK, PAPER = (32, 32, 32), (255, 255, 255)
PART_COLOURS = {"train": (31, 119, 180), "val": (255, 140, 0), "test": (44, 140, 44)}


def contact_sheet(pack: Pack, classes: int = 48, examples: int = 8, seed: int = 0) -> Image.Image:
    """Draw some examples of a domain's classes, a row a class, its part of the split in colour.

    Of more than so many classes some are taken, spread evenly; `seed` chooses among their images.
    """
    domain = pack.domain
    count = min(classes, len(domain.class_names))
    chosen = np.linspace(0, len(domain.class_names) - 1, count).round().astype(int)
    part_of = {i: part for part in PART_COLOURS for i in domain.split.part(part)}
    rng = np.random.default_rng(key("sheet", seed))
    rows = []
    for class_id in chosen:
        members = np.flatnonzero(domain.labels == class_id)
        picked = np.sort(rng.permutation(members)[:examples])
        part = part_of.get(int(class_id), "")
        name = f"{domain.class_names[class_id]} ({len(members)})"
        rows.append((name, part, _tiles(pack.images[picked])))
    title = (
        f"{domain.name}: {len(domain.class_names):,} classes, {len(domain.labels):,} images, "
        f"{count} classes shown"
    )
    return _columns(title, rows, examples, pack.size)


def episode_sheet(pack: Pack, episodes: Episodes) -> Image.Image:
    """Draw the first episode: a row a class, its support set left, its queries right of a gap."""
    rows = []
    domain = pack.domain
    for way, class_id in enumerate(episodes.classes[0].tolist()):
        if class_id < 0:  # padding of a variable episode
            continue
        support, query = (
            _tiles(pack.images[np.sort(ids[ids >= 0].numpy())])
            for ids in (episodes.support[0, way].cpu(), episodes.query[0, way].cpu())
        )
        blank = Image.new("RGB", (pack.size, pack.size), PAPER)
        rows.append((domain.class_names[class_id], "", [*support, blank, *query]))
    widest = max(len(tiles) for _, _, tiles in rows)
    return _columns(f"{domain.name}: support, queries", rows, widest, pack.size, columns=1)


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture in the format of its suffix."""
    kind = Image.registered_extensions().get(path.suffix.lower())
    if kind is None:
        raise PolyshotError(f"{path} cannot be written: unknown file extension: {path.suffix}.")
    whole = io.BytesIO()
    picture.save(whole, kind)
    write_bytes(path, whole.getvalue())


def _tiles(images: NDArray[np.uint8]) -> list[Image.Image]:
    """Turn uint8 ``[k, 3, size, size]`` into pictures."""
    return [Image.fromarray(image.transpose(1, 2, 0)) for image in np.asarray(images)]


def _columns(
    title: str,
    rows: Sequence[tuple[str, str, list[Image.Image]]],
    width: int,
    size: int,
    columns: int = 2,
) -> Image.Image:
    """Lay rows of (name, part, tiles) out in columns, with names that fit."""
    font, heading = _font(13), _font(17)
    columns = min(columns, len(rows))
    per_column = -(-len(rows) // columns)
    label_height, top = 18, 34
    column_width = width * (size + GAP) + 2 * MARGIN
    row_height = size + label_height + GAP
    whole = max(columns * column_width, 420), top + per_column * row_height + MARGIN
    sheet = Image.new("RGB", whole, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 8), title, font=heading, fill=INK)
    for i, (name, part, tiles) in enumerate(rows):
        x = (i // per_column) * column_width + MARGIN
        y = top + (i % per_column) * row_height
        colour = PART_COLOURS.get(part, INK)
        room = column_width - 2 * MARGIN - 52
        draw.text((x, y), _shortened(name, font, room), font=font, fill=colour)
        if part:
            draw.text((x + column_width - 2 * MARGIN - 46, y), part, font=font, fill=colour)
        for j, tile in enumerate(tiles):
            sheet.paste(tile, (x + j * (size + GAP), y + label_height))
    return sheet


def _shortened(name: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    if font.getlength(name) <= room:
        return name
    while name and font.getlength(name + "…") > room:
        name = name[:-1]
    return name + "…"


def _font(points: int) -> ImageFont.FreeTypeFont:
    """Return the font that matplotlib brings along: the same on every machine."""
    path = font_manager.findfont("DejaVu Sans", fallback_to_default=True)
    return ImageFont.truetype(path, points)
