"""Comparisons: rows with paired differences, confusion pictures, sizes, shares of members."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.data.shapes import EpisodeShape
from polyshot.data.splits import ClassSplit
from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import Cell, Row, as_text, averages, label, rows
from polyshot.evaluation.evaluate import member_shares
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import Estimate, interval
from polyshot.experiments.card import pool_sizes
from polyshot.experiments.report import figures
from polyshot.experiments.report.figures import confusion_picture
from polyshot.experiments.report.paper import paper_sizes
from tests.helpers import SIZE, random_pool


def result(
    method: str,
    target: str,
    accuracies: list[float],
    adaptation: str = "none",
    seen: bool | None = True,
    fingerprint: str = "episodes",
) -> Result:
    mean, half_width = interval(accuracies)
    return Result(
        method=method,
        target=target,
        seen=seen,
        way=5,
        shot=5,
        queries=10,
        part="test",
        adaptation=adaptation,
        seed=0,
        episodes=len(accuracies),
        group_disjoint=False,
        fingerprint=fingerprint,
        mean=mean,
        half_width=half_width,
        per_episode=accuracies,
        pool="pool",
        pack="pack",
        version="0",
    )


def small_pack(folder: Path, names: tuple[str, ...], per_class: int = 4) -> Pack:
    """A pack of random pixels whose classes are all test classes."""
    labels = np.repeat(np.arange(len(names)), per_class)
    split = ClassSplit((), (), tuple(range(len(names))), rule="file")
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 3, SIZE, SIZE), dtype=np.uint8)
    with PackWriter(folder / "noise", SIZE, False) as writer:
        writer.append(pixels)
        return writer.finish(Domain("noise", names, labels, split=split), {"reader": "test"})


# --- rows


def test_differences_are_paired() -> None:
    base = result("base", "birds", [0.2, 0.8, 0.4])
    better = result("select", "birds", [0.3, 0.9, 0.5], "head")
    (row,) = rows([better, base])
    assert (row.target, row.seen, list(row.cells)) == ("birds", True, ["select + head", "base"])
    assert row.cells["base"].gap is None
    cell = row.cells["select + head"]
    assert cell.mean == pytest.approx(0.5667, abs=1e-4)
    assert cell.half_width > 0.3  # episodes differ much, the methods on them do not
    assert cell.gap is not None
    assert cell.gap[:2] == pytest.approx((0.1, 0))


def test_rows_without_a_baseline_or_a_word_on_seen() -> None:
    (row,) = rows([result("select", "birds", [0.2, 0.4], seen=None)])
    assert not row.seen and row.cells["select"].gap is None
    assert rows([]) == [] and averages([]) == {}


def test_other_episodes_are_not_compared() -> None:
    other = result("select", "birds", [0.2, 0.4], fingerprint="others")
    with pytest.raises(
        PolyshotError, match=r"birds, 5-shot: 'select' and 'base'.*different episodes"
    ):
        rows([result("base", "birds", [0.2, 0.4]), other])


def test_a_method_is_named_with_its_adaptation() -> None:
    assert label(result("average", "t", [0.0, 1.0])) == "average"
    assert label(result("average", "t", [0.0, 1.0], "head")) == "average + head"


def test_averages_of_groups_of_two_or_more() -> None:
    found = rows(
        [
            result("base", "a", [0.2, 0.2]),
            result("base", "b", [0.4, 0.4]),
            result("select", "b", [0.4, 0.4]),
            result("base", "c", [0.9, 0.9], seen=False),
        ]
    )
    assert [row.target for row in found] == ["a", "b", "c"]
    (seen,) = averages(found).values()
    assert seen.target == "average, seen" and seen.seen
    assert list(seen.cells) == ["base"]  # select was not measured on a
    assert seen.cells["base"].mean == pytest.approx(0.3)
    assert list(averages(found, least=1)) == [True, False]


def test_text_for_the_terminal() -> None:
    cells = {
        "base": Cell(Estimate(0.812, 0.004)),
        "up": Cell(Estimate(0.9, 0.01), Estimate(0.088, 0.002)),
        "same": Cell(Estimate(0.812, 0.004), Estimate(-0.0001, 0.0003)),
    }
    texts = as_text(Row("t", True, cells), ["base", "up", "same", "missing"])
    assert texts == ["81.2 ±0.4", "90.0 ±1.0\n+8.8 ±0.2", "81.2 ±0.4\n+0.0 ±0.0", ""]
    several = Cell(Estimate(0.5, 0.01, ((0, 0.49), (1, 0.51))))
    assert as_text(Row("t", True, {"base": several}), ["base"]) == ["50.0 ±1.0, seeds ±12.7"]


# --- the picture


@pytest.mark.parametrize(
    "names",
    [
        ("cat", "dog", "owl"),
        ("$5", "$x$ and $y$", r"$\bad$"),  # no formulas
        ("中文", "日本", "한국"),  # not in the font
        ("a very long name " * 20, "b", "c"),
    ],
)
def test_any_names_can_be_drawn(names: tuple[str, ...], tmp_path: Path) -> None:
    counts = torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])  # nothing was asked of the third
    picture = confusion_picture(counts, small_pack(tmp_path, names), r"a $\bad$ title")
    assert picture.mode == "RGB" and min(picture.size) > 400
    pixels = np.asarray(picture).astype(int)
    blue = (pixels[..., 2] - pixels[..., 0] > 60).mean()
    assert blue > 0.02  # the names leave room for the cells


def test_of_many_classes_the_worst_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MOST_CLASSES", 2)
    pack = small_pack(tmp_path, ("a", "b", "c"))
    counts = torch.tensor([[4, 0, 0], [0, 2, 2], [3, 0, 1]])
    few = confusion_picture(counts, pack, "t")
    monkeypatch.undo()
    assert few.tobytes() != confusion_picture(counts, pack, "t").tobytes()
    worst = torch.tensor([[0, 0, 0], [0, 2, 2], [0, 3, 1]])
    assert few.size == confusion_picture(worst, pack, "t").size


# --- sizes


def test_the_papers_sizes() -> None:
    assert [size for _, size in paper_sizes()] == [
        11_176_512, 1_224_448, 9_795_584, 7_680, 61_440, 66_696, 66_825,
    ]  # fmt: skip


def test_the_sizes_of_a_pool() -> None:
    pool = random_pool(selector=False)
    pool.about["steps"] = {"base": {"validation": 0.5}, "modulator:two": {"validation": 0.25}}
    found = pool_sizes(pool)
    assert [row[0] for row in found] == ["base", "one", "two", "off"]
    assert [row[2] for row in found] == ["", "1", "0.5", "0"]
    assert [row[3] for row in found] == ["10", "8", "12", "10"]
    assert [row[4] for row in found] == ["50.0", "", "25.0", ""]
    assert found[1][1] == sum(p.numel() for p in pool.modulators["one"].parameters())
    assert pool_sizes(random_pool())[-1][0] == "(selector)"


# --- shares of members


def test_shares_of_members(tmp_path: Path) -> None:
    pool, pack = random_pool(), small_pack(tmp_path, tuple("abcdef"))
    shape = EpisodeShape(3, 2, 2)
    shares = member_shares(pool, pack, shape, 20)
    assert len(shares) == 4 and sum(shares) == pytest.approx(1)
    assert all(20 * share == pytest.approx(round(20 * share), abs=1e-4) for share in shares)
    assert member_shares(pool, pack, shape, 20) == shares
    assert member_shares(pool, pack, shape, 5, "average") == pytest.approx([0.25] * 4)
    assert member_shares(pool, pack, shape, 5, "member:two") == [0, 0, 1, 0]
