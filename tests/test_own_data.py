"""Evaluation on a user's own labelled images."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import read_results
from polyshot.experiments.own_data import ShapeRequest, choose_shape, holds_packs, open_targets
from polyshot.pool.pool import Pool
from tests.commands import done, refused
from tests.helpers import SIZE, make_domain, picture, random_pool


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small pool; pages without a name of their own go into a folder of the test's."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    random_pool().save(tmp_path / "pool")
    return tmp_path / "pool"


# --- which tasks


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ([40] * 9, (5, 5, 10)),
        ([15] * 5, (5, 5, 10)),
        ([14] * 5, (5, 5, 9)),
        ([9] * 4, (4, 5, 4)),
        ([6] * 4, (4, 4, 2)),
        ([3] * 4, (4, 2, 1)),
        ([2, 2], (2, 1, 1)),
        ([2, 40], (2, 1, 1)),
        ([1, 40, 40], (2, 5, 10)),  # a class of one image cannot be learned and asked for
        ([1, 1, 1, 1, 20, 20], (2, 5, 10)),
        ([4] + [40] * 9, (5, 5, 10)),  # one small class of ten does not make all tasks small
        ([4] * 5 + [40] * 5, (5, 3, 1)),
        ([3] + [40] * 4, (5, 2, 1)),  # five ways need all five
    ],
)
def test_the_largest_tasks_that_the_images_allow(
    sizes: list[int], shape: tuple[int, int, int]
) -> None:
    assert choose_shape(make_domain(sizes)) == EpisodeShape(*shape)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=12),
    st.integers(0, 4),
    st.booleans(),
)
def test_chosen_tasks_can_be_drawn(sizes: list[int], group_size: int, apart: bool) -> None:
    domain = make_domain(sizes, group_size)
    try:
        shape = choose_shape(domain, group_disjoint=apart)
    except PolyshotError as error:
        assert "at least two classes must" in str(error)
        return
    sampler = EpisodeSampler(domain, shape, part="all", group_disjoint=apart, drop_small=True)
    assert len(sampler(0, 3)) == 3
    assert shape.way == 5 or shape.way <= len(sizes)
    assert len(sampler.class_ids) >= shape.way


def test_numbers_that_are_asked_for_are_kept() -> None:
    domain = make_domain([12] * 6)
    assert choose_shape(domain, ShapeRequest(way=3)) == EpisodeShape(3, 5, 7)
    assert choose_shape(domain, ShapeRequest(shot=1)) == EpisodeShape(5, 1, 10)
    assert choose_shape(domain, ShapeRequest(queries=3)) == EpisodeShape(5, 5, 3)
    assert choose_shape(domain, ShapeRequest(6, 6, 6)) == EpisodeShape(6, 6, 6)
    impossible = choose_shape(domain, ShapeRequest(shot=40))
    with pytest.raises(PolyshotError, match="classes are too small"):
        EpisodeSampler(domain, impossible, part="all", drop_small=True)


def test_what_is_no_task() -> None:
    with pytest.raises(PolyshotError, match="d has one class, 'class 0'"):
        choose_shape(make_domain([20]))
    with pytest.raises(PolyshotError, match="1 of 3 classes have two images"):
        choose_shape(make_domain([20, 1, 1]))
    with pytest.raises(PolyshotError, match="0 of 2 classes have two images"):
        choose_shape(make_domain([6, 6], group_size=6))  # all of a class are near-duplicates


# --- images as targets


def test_images_live_as_long_as_the_context(image_folder: Callable[..., Path]) -> None:
    root = image_folder(**{f"class {i:02}": 4 for i in range(40)})
    assert not holds_packs(root)
    with open_targets(root, SIZE) as (target,):
        folder = target.pack.path
        assert folder.is_dir() and target.pack.size == SIZE
        assert (target.part, target.shape) == ("all", EpisodeShape(5, 3, 1))
        # forty classes would be split at an import: here nothing is trained on
        assert target.pack.domain.split.sizes == (0, 0, 40)
        assert "allow tasks of 5 ways, 3 shots and 1 queries" in target.remarks[-1]
    assert not folder.exists()


def test_what_is_left_out_is_said(image_folder: Callable[..., Path]) -> None:
    root = image_folder(a=16, b=16, c=16, d=16, e=16, f=16, g=3, h=16)
    (root / "a" / "bad.png").write_bytes(b"no image")
    (root / "b" / "cut.jpg").write_bytes(b"")
    (root / "nothing").mkdir()
    with open_targets(root, SIZE) as (target,):
        assert target.shape == EpisodeShape()
        bad, small = target.remarks
        assert "2 files are left out: a/bad.png (not an image), b/cut.jpg" in bad
        assert "1 of 8 classes have fewer than 15 images and are left out: g" in small


# --- the command


def test_one_command_for_ones_own_images(
    pool: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = image_folder("my photos", cat=9, dog=9, owl=10)
    out = tmp_path / "results.jsonl"
    said = done("evaluate", root, "--pool", pool, "--episodes", 5, "--out", out)
    assert "28 images of 3 classes allow tasks of 3 ways, 5 shots and 4 queries" in said
    for word in ("my photos", "base", "auto + ridge", "select", "average + ridge", "unseen"):
        assert word in said
    assert said.splitlines()[-1] == "Look at polyshot-my photos.html"
    page = Path("polyshot-my photos.html").read_text(encoding="utf-8")
    assert "Polyshot on my photos" in page and "<img" in page
    assert "calibration error, unseen domains" in said
    assert "How far to trust the probabilities" in page
    base = next(r for r in read_results(out) if r.method == "base" and r.adaptation == "none")
    assert base.calibration_error is not None
    points = f"{100 * base.calibration_error:.1f}"
    assert re.search(rf"base\W+{points}\b", said)
    assert f'<th scope="row">base</th><td>{points}</td>' in page
    assert not re.search(r"https?://|<script|<link", page)
    results = read_results(out)
    assert {(r.part, r.seen, r.way, r.shot, r.queries) for r in results} == {
        ("all", False, 3, 5, 4)
    }
    assert {"base", "select", "average"} <= {r.method for r in results}
    assert {"none", "ridge"} <= {r.adaptation for r in results}
    assert {r.pool for r in results} == {Pool.load(pool).hash}
    rest = ("--episodes", 5, "--methods", "base", "--adapt", "none", "--page", tmp_path / "p.html")
    again = done("evaluate", root, "--pool", pool, *rest)
    assert "+ ridge" not in again and "select" not in again
    assert (tmp_path / "p.html").is_file() and len(list(Path.cwd().iterdir())) == 1


def test_an_archive_of_images(
    pool: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = image_folder("birds")
    with zipfile.ZipFile(tmp_path / "birds.zip", "w") as archive:
        for file in root.rglob("*.png"):
            archive.write(file, file.relative_to(root))
    (tmp_path / "birds.csv").write_text(
        "filename,class\n" + "\n".join(f"{file},{file.parent.name}" for file in root.rglob("*.png"))
    )
    by_table = done("evaluate", tmp_path / "birds.csv", "--pool", pool, "--episodes", 3)
    said = done("evaluate", tmp_path / "birds.zip", "--pool", pool, "--episodes", 3)
    assert by_table == said
    assert "birds" in said and Path("polyshot-birds.html").is_file()


def test_packs_get_a_page_where_it_is_asked_for(
    pool: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    done("data", "import", image_folder(), "--out", tmp_path / "packs", "--size", SIZE)
    shape = ("--way", 2, "--shot", 2, "--queries", 2, "--episodes", 3)
    command = ("evaluate", tmp_path / "packs", "--pool", pool, *shape)
    done(*command)
    assert not list(Path.cwd().iterdir())
    assert "Look at " in done(*command, "--page", "p.html")
    assert Path("p.html").is_file()


def test_images_that_cannot_be_measured_on(
    pool: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    one, few = image_folder("one", cat=20), image_folder("few", cat=1, dog=1)
    empty, flat, bad = (tmp_path / name for name in ("empty", "flat", "bad"))
    for folder in (empty, flat, bad / "cat", bad / "dog"):
        folder.mkdir(parents=True)
    picture(1).save(flat / "a.png")
    for name in ("cat", "dog"):
        (bad / name / "a.png").write_bytes(b"no image")
    for folder, said in {
        one: "one has one class, 'cat': there is nothing to tell apart",
        few: "0 of 2 classes have two images",
        empty: "has no images",
        flat: "no class folders",
        bad: "has no readable image among 2 files",
        tmp_path / "nowhere": "There is no file or folder",
        pool: "is a pool: name it with --pool",
    }.items():
        assert said in refused("evaluate", folder, "--pool", pool)
    assert not list(Path.cwd().iterdir())


def test_wishes_that_the_images_cannot_fulfil(
    pool: Path, image_folder: Callable[..., Path]
) -> None:
    root = image_folder()
    for wish, said in {
        ("--way", "9"): "9 ways",
        ("--shot", "30"): "30 +",
        ("--queries", "0"): "at least 1",
        ("--way", "1"): "of one class every answer is right",
        ("--part", "nosuch"): "There is no part 'nosuch', only train, val, test, all",
    }.items():
        assert said in refused("evaluate", root, "--pool", pool, *wish)


def test_what_the_cache_keeps_serves_the_next_time(
    pool: Path, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = image_folder()
    command = ("evaluate", root, "--pool", pool, "--episodes", 3, "--cache", tmp_path / "cache")
    first = done(*command)
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").iterdir()}
    assert done(*command) == first
    assert kept == {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").iterdir()}
    assert np.load(next(iter(kept))).dtype == np.float32
