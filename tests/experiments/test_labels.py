"""The page of labelled images: one file, by label, the least certain first, whatever names say."""

import base64
import io
import re
from pathlib import Path

from PIL import Image

from polyshot.classifier.label import LabelledFile, LabelledFiles
from polyshot.experiments.labels import FIRST, SIDE, write_labels_page
from polyshot.predict.none_of_these import NONE, Threshold
from tests.helpers import picture

from .test_page import NASTY, Checked


def answers(folder: Path, *rows: tuple[str, float | None, str, float]) -> LabelledFiles:
    made = []
    for i, row in enumerate(rows):
        path = folder / f"<b>{i}.png"
        picture(i).save(path)
        made.append(LabelledFile(path, *row))
    return LabelledFiles(made, [], None, f"Expected {NASTY}", "ridge", Threshold(0.5, 2, 20))


def written(folder: Path, answer: LabelledFiles) -> tuple[str, Checked]:
    write_labels_page(folder / "new" / "labels.html", answer)
    text = (folder / "new" / "labels.html").read_text(encoding="utf-8")
    return text, Checked(text)


def test_by_label_and_the_least_certain_first(tmp_path: Path) -> None:
    rows = [
        ("dog", 0.9, "cat", 0.1),
        ("cat", 0.5, "dog", 0.45),
        (NASTY, 0.8, "cat", 0.1),
        ("cat", 0.45, "dog", 0.44),
        ("cat", 0.99, "dog", 0.001),
        (NONE, None, "dog", 0.7),
    ]
    text, page = written(tmp_path, answers(tmp_path, *rows))
    headings = re.findall(r"<h2[^>]*>(.*?) <span", text)
    assert headings[1:] == ["cat", "dog", NONE] and "script" in headings[0]
    names = [image["alt"] for image in page.all("img")]
    cats = [name for name in names if str(name).endswith("labelled cat")]
    assert cats == [f"<b>{i}.png, labelled cat" for i in (3, 1, 4)]
    assert "99\xa0%<" in text.replace("&nbsp;", "\xa0") and "perhaps dog" in text
    assert "Look at these first" not in text  # a few are seen at a glance
    assert "None of these: 1 of 6" in page.text
    assert {link["href"] for link in page.all("a")} == {f"#label-{i}" for i in range(1, 5)}


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    text, page = written(tmp_path, answers(tmp_path, (NASTY, 0.9, NASTY, 0.1)))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "form", "b"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text and page.text.count(NASTY) >= 3
    (image,) = page.all("img")
    data = base64.b64decode(str(image["src"]).partition(",")[2])
    with Image.open(io.BytesIO(data)) as picture_:
        assert picture_.size == (SIDE, SIDE) and len(data) < 8000


def test_of_many_the_least_certain_stand_on_top(tmp_path: Path) -> None:
    rows = [("ab"[i % 2], 0.6 + 0.02 * i, "c", 0.1) for i in range(FIRST + 2)]
    text, page = written(tmp_path, answers(tmp_path, *rows))
    assert "Look at these first" in text
    names = [str(image["alt"]).partition(".")[0] for image in page.all("img")]
    assert names[:FIRST] == [f"<b>{i}" for i in range(FIRST)]
    assert len(names) == FIRST + len(rows)
