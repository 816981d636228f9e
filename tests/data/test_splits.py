"""Class splits: the paper's table comes out, parts are disjoint, bad files are named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyshot.data.readers.decathlon import SPLIT_SIZES
from polyshot.data.splits import ClassSplit, read_split_file, split_classes, split_in_two
from polyshot.errors import PolyshotError

WNIDS = (Path(__file__).parent / "imagenet_wnids.txt").read_text().split()
TABLE = {
    "aircraft": (100, (70, 15, 15)),
    "cifar100": (100, (70, 15, 15)),
    "dtd": (47, (32, 7, 8)),
    "gtsrb": (43, (30, 6, 7)),
    "omniglot": (1623, (1136, 243, 244)),
    "ucf101": (101, (70, 15, 16)),
    "vgg-flowers": (102, (70, 16, 16)),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_papers_table_comes_out(name: str) -> None:
    classes, sizes = TABLE[name]
    names = [f"{name} {i}" for i in range(classes)]
    split = split_classes(names, sizes=SPLIT_SIZES.get(name))
    assert split.sizes == sizes
    assert split.rule == "random"


def test_imagenet_is_split_by_wordnet() -> None:
    split = split_classes(WNIDS)
    assert split.sizes == (712, 158, 130)
    assert (split.rule, split.seed) == ("wordnet", None)
    assert split == split_classes(WNIDS, seed=5)
    named = dict(zip(WNIDS, range(1000), strict=True))
    assert named["n02099601"] in split.val  # golden retriever
    assert named["n02123045"] in split.val  # tabby
    assert named["n04254777"] not in split.test  # a sock is no device
    assert named["n03793489"] in split.test  # a computer mouse is
    assert named["n07753592"] in split.train  # banana


def test_words_after_the_wnid_do_not_matter() -> None:
    assert split_classes([f"{wnid} some words" for wnid in WNIDS]) == split_classes(WNIDS)


def test_one_name_that_is_no_wnid_makes_it_an_ordinary_domain() -> None:
    assert split_classes([*WNIDS[1:], "cat"]).rule == "random"


@given(
    names=st.lists(st.text(min_size=1), unique=True, max_size=200),
    seed=st.integers(0, 2**32),
)
def test_parts_are_disjoint_and_complete(names: list[str], seed: int) -> None:
    split = split_classes(names, seed)
    together = split.train + split.val + split.test
    assert sorted(together) == list(range(len(names)))
    assert split.part("all") == tuple(range(len(names)))
    assert all(list(part) == sorted(part) for part in (split.train, split.val, split.test))
    if split.rule == "target-only":
        assert not split.train and not split.val
    else:
        count = len(names)
        usual = (count * 7 // 10, count * 15 // 100, len(split.test))
        assert split.sizes == (usual if count >= 34 else (count - 10, 5, 5))
        assert min(split.sizes) >= 5
    assert split == split_classes(names, seed)


def test_seed_changes_the_split_and_order_of_classes_does_not() -> None:
    names = [f"class {i}" for i in range(100)]
    one, other = split_classes(names, 0), split_classes(names, 1)
    assert one.test != other.test
    backwards = split_classes(names[::-1], 0)
    assert {names[i] for i in one.val} == {names[::-1][i] for i in backwards.val}


def test_the_split_is_pinned() -> None:
    """The same on every machine and in every release."""
    split = split_classes([f"class {i}" for i in range(40)])
    assert split.val == (8, 13, 18, 20, 28, 39)
    assert split.test == (1, 10, 15, 24, 26, 35)


@pytest.mark.parametrize("count", [0, 1, 2, 10, 14])
def test_small_domains_are_targets_only(count: int) -> None:
    split = split_classes([str(i) for i in range(count)])
    assert split == ClassSplit((), (), tuple(range(count)), rule="target-only")


@pytest.mark.parametrize(
    ("count", "sizes"), [(15, (5, 5, 5)), (24, (14, 5, 5)), (33, (23, 5, 5)), (34, (23, 5, 6))]
)
def test_small_domains_are_split_so_that_each_part_makes_episodes(
    count: int, sizes: tuple[int, int, int]
) -> None:
    split = split_classes([str(i) for i in range(count)])
    assert split.sizes == sizes and split.rule == "random"


@pytest.mark.parametrize(("count", "sizes"), [(4, (2, 2, 0)), (9, (5, 4, 0)), (40, (32, 8, 0))])
def test_all_classes_in_two_parts(count: int, sizes: tuple[int, int, int]) -> None:
    split = split_in_two([str(i) for i in range(count)])
    assert split.sizes == sizes and split.part("all") == tuple(range(count))


def test_five_classes_of_a_part_are_enough() -> None:
    split = split_classes([str(i) for i in range(34)])
    assert split.rule == "random" and split.sizes == (23, 5, 6)


NAMES = ["ant", "bee", "cat", "dog"]


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "split.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_users_split_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, {"train": ["dog", "ant"], "val": ["bee"], "test": ["cat"]})
    assert read_split_file(path, NAMES) == ClassSplit((0, 3), (1,), (2,), rule="file")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"train": ["ant", "bee"], "val": ["bee"], "test": ["cat", "dog"]},
            "must not overlap: bee",
        ),
        (
            {"train": ["ant", "ant"], "val": ["bee"], "test": ["cat", "dog"]},
            "must not overlap: ant",
        ),
        (
            {"train": ["ant"], "val": ["bee"], "test": ["cat"]},
            "leaves classes out of every part: dog",
        ),
        ({"train": ["ant", "dgo"], "val": ["bee"], "test": ["cat"]}, "Did you mean 'dog'"),
        ({"training": NAMES}, 'the keys "train", "val" and "test"'),
        ({"train": "ant"}, "must be a list"),
        ({"train": [1]}, "must be a list of class names"),
        (["ant"], "must be an object"),
        ("{not json", "cannot be read as JSON"),
    ],
)
def test_a_bad_split_file_is_named(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(PolyshotError) as error:
        read_split_file(write(tmp_path, content), NAMES)
    assert says in str(error.value)


def test_a_missing_split_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match=r"There is no split file .*none\.json"):
        read_split_file(tmp_path / "none.json", NAMES)
