"""The result page: whole, self-contained, true to its numbers, readable by everybody."""

import base64
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import Cell, Row, average
from polyshot.evaluation.stats import Estimate
from polyshot.experiments.report.figures import heat_colours
from polyshot.experiments.report.pages import HeatMap, ResultsPage
from tests.experiments.fake_grid import NASTY, Checked
from tests.helpers import picture


def rows() -> list[Row]:
    def row(target: str, seen: bool, base: float, gain: float) -> Row:
        cells = {
            "base": Cell(Estimate(base, 0.01)),
            "select": Cell(Estimate(base + gain, 0.01), Estimate(gain, 0.005)),
        }
        return Row(target, seen, cells)

    return [
        row("birds", True, 0.80, 0.02),
        row("cars", True, 0.70, 0.004),
        row(NASTY, False, 0.60, -0.01),
    ]


def page(tmp_path: Path, **changes: object) -> tuple[str, Checked]:
    options: dict[str, object] = {
        "title": "A title",
        "rows": rows(),
        "sheets": {"birds": picture(1, (1500, 600)), "cars": picture(2).convert("P")},
        "heat_map": HeatMap(["base", "birds", "cars"], {"birds": [0.25, 0.75, 0]}),
        "remarks": ["One remark."],
        "chance": 0.2,
    } | changes
    path = tmp_path / "new" / "page.html"
    ResultsPage(**options).write(path)  # type: ignore[arg-type]
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    text = path.read_text(encoding="utf-8")
    return text, Checked(text)


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    text, checked = page(tmp_path)
    tags = {tag for tag, _ in checked.elements}
    assert not tags & {"script", "link", "iframe", "object", "a", "form"}
    for _, attributes in checked.elements:
        for name in ("src", "href", "srcset", "poster", "action"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"https?://|url\(|@import", text)
    policy = [m["content"] for m in checked.all("meta") if "http-equiv" in m]
    assert policy and "default-src 'none'" in str(policy[0])


def test_numbers_and_marks(tmp_path: Path) -> None:
    _, checked = page(tmp_path)
    table = {line[0]: line[1:] for line in checked.cells if len(line) == 3}
    assert table["Domain"] == ["base", "select"]
    assert table["birds"] == ["80.0 ± 1.0reference", "82.0 ± 1.0▲better, +2.0 ± 0.5"]
    assert table["cars"] == ["70.0 ± 1.0reference", "70.4 ± 1.0+0.4 ± 0.5"]
    assert table[NASTY] == ["60.0 ± 1.0reference", "59.0 ± 1.0▼worse, \u22121.0 ± 0.5"]
    # sqrt(1 + 1) / 2 and sqrt(0.25 + 0.25) / 2
    assert table["average"] == ["75.0 ± 0.7reference", "76.2 ± 0.7▲better, +1.2 ± 0.4"]
    assert sum(line[0] == "average" for line in checked.cells) == 1  # one unseen target needs none
    heat = [line for line in checked.cells if len(line) == 4]
    assert heat == [["Target", "base", "birds", "cars"], ["birds", "25", "75", "0"]]
    fills = [e for e in checked.all("i") if e["class"] == "fill"]
    assert [fill["style"] for fill in fills] == [
        "width:75.00%",
        "width:76.20%",
        "width:60.00%",
        "width:59.00%",
    ]


@given(st.floats(-0.2, 0.2), st.floats(0, 0.1))
def test_only_intervals_without_zero_are_marked(difference: float, half_width: float) -> None:
    verdict = Cell(Estimate(0.5, 0.01), Estimate(difference, half_width)).verdict
    holds_zero = difference - half_width <= 0 <= difference + half_width
    assert (verdict == 0) == holds_zero
    assert holds_zero or (verdict > 0) == (difference > 0)


def test_a_method_that_was_not_measured_everywhere(tmp_path: Path) -> None:
    some_rows = [*rows()]
    some_rows[0] = Row("birds", True, {"base": Cell(Estimate(0.8, 0.01))})
    _, checked = page(tmp_path, rows=some_rows)
    table = {line[0]: line[1:] for line in checked.cells if len(line) == 3}
    assert table["birds"][1] == table["average"][1] == "not measured"


def test_average_of_the_baseline_has_no_difference() -> None:
    assert average([Cell(Estimate(0.5, 0.1)), Cell(Estimate(0.7, 0.1))]).gap is None


def test_no_loss_of_minus_nothing(tmp_path: Path) -> None:
    cells = {
        "base": Cell(Estimate(0.5, 0.01)),
        "select": Cell(Estimate(0.5, 0.01), Estimate(-0.0001, 0.001)),
    }
    _, checked = page(tmp_path, rows=[Row("one", True, cells)])
    assert ["one", "50.0 ± 1.0reference", "50.0 ± 1.00.0 ± 0.1"] in checked.cells


def test_text_is_escaped_everywhere(tmp_path: Path) -> None:
    _, checked = page(
        tmp_path,
        title=NASTY,
        sheets={NASTY: picture(1)},
        heat_map=HeatMap([NASTY], {NASTY: [1.0]}),
        remarks=[NASTY],
        facts={NASTY: NASTY},
        legend={NASTY: NASTY},
    )
    assert not checked.all("script")
    assert checked.text.count(NASTY) >= 11
    assert checked.all("img")[0]["alt"] == f"Examples of the classes of {NASTY}"


def test_everybody_can_read_it(tmp_path: Path) -> None:
    text, checked = page(tmp_path)
    assert checked.all("html")[0]["lang"] == "en"
    assert any(m.get("name") == "viewport" for m in checked.all("meta"))
    assert all(image["alt"] for image in checked.all("img"))
    assert all(head.get("scope") in ("col", "row", "rowgroup") for head in checked.all("th"))
    assert len(checked.all("caption")) == len(checked.all("table")) == 2
    boxes = [e for e in checked.all("div") if e.get("class") == "box"]
    assert len(boxes) == 2 and all(e["tabindex"] == "0" and e["aria-label"] for e in boxes)
    assert "@media print" in text
    # Without it, the hidden text in far columns makes the whole page scroll sideways on a phone.
    assert ".box { position: relative; overflow-x: auto;" in text


@given(st.floats(0, 1))
def test_numbers_stand_out_on_their_colour(share: float) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    back, ink = (luminance(colour) for colour in heat_colours(share))
    contrast = (max(back, ink) + 0.05) / (min(back, ink) + 0.05)
    assert contrast >= 4.5  # WCAG AA


def test_pictures_are_small(tmp_path: Path) -> None:
    _, checked = page(tmp_path)
    wide, small = checked.all("img")
    data = base64.b64decode(str(wide["src"]).partition(",")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "JPEG" and image.size == (1000, 400)
    assert (wide["width"], wide["height"]) == ("1000", "400")
    assert (small["width"], small["height"]) == ("40", "30")


def test_parts_without_content_are_left_out(tmp_path: Path) -> None:
    _, checked = page(tmp_path, rows=[], sheets={}, heat_map=None, remarks=[])
    assert not checked.all("h2") and "A title" in checked.text


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PolyshotError, match="cannot be written"):
        ResultsPage("t", []).write(tmp_path / "file" / "page.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PolyshotError, match="cannot be written"):
        ResultsPage("t", []).write(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
