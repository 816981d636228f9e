"""Episodes: disjoint, reproducible slice by slice, uniform, and refused with a reason."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyshot.data.episodes import Episodes, EpisodeSampler
from polyshot.data.shapes import EpisodeShape, VariableShape, allows, most_shots
from polyshot.errors import PolyshotError
from tests.helpers import DEVICES, make_domain

shapes = st.builds(EpisodeShape, st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))


def check_valid(sampler: EpisodeSampler, episodes: Episodes) -> None:
    """Labels are right, no image is drawn twice in an episode, no group is on both sides."""
    domain = sampler.domain
    for support, query, classes in zip(
        episodes.support, episodes.query, episodes.classes, strict=True
    ):
        present = classes >= 0
        assert len(classes[present].unique()) == present.sum()
        images = torch.cat([support[present].flatten(), query[present].flatten()])
        images = images[images >= 0]
        assert len(images.unique()) == len(images)
        for ids in (support, query):
            rows, columns = torch.nonzero(ids >= 0, as_tuple=True)
            assert (torch.from_numpy(domain.labels)[ids[rows, columns]] == classes[rows]).all()
            assert set(rows.tolist()) == set(torch.nonzero(present).flatten().tolist())
        if sampler.group_disjoint:
            groups = torch.from_numpy(domain.groups)
            left, right = (set(groups[ids[ids >= 0]].tolist()) for ids in (support, query))
            assert not left & right


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(18, 60), min_size=6, max_size=12),
    shape=shapes,
    seed=st.integers(0, 2**40),
    start=st.integers(0, 10**6),
)
def test_fixed_episodes_are_valid(
    sizes: list[int], shape: EpisodeShape, seed: int, start: int
) -> None:
    sampler = EpisodeSampler(make_domain(sizes), shape, seed=seed)
    episodes = sampler(start, start + 20)
    assert episodes.support.shape == (20, shape.way, shape.shot)
    assert episodes.query.shape == (20, shape.way, shape.queries)
    check_valid(sampler, episodes)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 60), min_size=5, max_size=12),
    group_size=st.integers(0, 4),
    shape=st.one_of(shapes, st.just(VariableShape(max_way=8, max_support=60))),
    seed=st.integers(0, 100),
)
def test_episodes_of_any_domain_are_valid_or_refused(
    sizes: list[int], group_size: int, shape: EpisodeShape | VariableShape, seed: int
) -> None:
    domain = make_domain(sizes, group_size)
    try:
        sampler = EpisodeSampler(domain, shape, seed=seed, drop_small=True)
    except PolyshotError:
        return
    check_valid(sampler, sampler(0, 15))


@settings(max_examples=40, deadline=None)
@given(
    group_size=st.sampled_from([0, 3]),
    variable=st.booleans(),
    start=st.integers(0, 5000),
    lengths=st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_any_slice_is_the_same_alone(
    group_size: int, variable: bool, start: int, lengths: tuple[int, int]
) -> None:
    shape = VariableShape(max_way=9) if variable else EpisodeShape()
    sampler = EpisodeSampler(make_domain([20, 31, 44, 25, 60, 37, 22, 90], group_size), shape)
    middle, stop = start + lengths[0], start + sum(lengths)
    whole, first, second = sampler(start, stop), sampler(start, middle), sampler(middle, stop)
    for field in ("support", "query", "classes"):
        parts = [getattr(first, field), getattr(second, field)]
        for part, expected in zip(parts, getattr(whole, field).split(lengths), strict=True):
            width = part.shape[-1]
            assert torch.equal(part, expected[..., :width])
            assert (expected[..., width:] == -1).all()  # padding to the widest episode of the slice


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in (EpisodeShape(), VariableShape()):
        for group_size in (0, 2):
            sampler = EpisodeSampler(make_domain([30] * 9, group_size), shape)
            whole = sampler(0, 40)
            monkeypatch.setattr("polyshot.data.episodes.CHUNK", 1)  # an episode a chunk
            assert sampler(0, 40).fingerprint() == whole.fingerprint()
            monkeypatch.undo()


def test_episodes_are_pinned() -> None:
    """The same on every machine and in every release: a change here changes everyone's results."""
    plain = EpisodeSampler(make_domain([20] * 8))(0, 50)
    grouped = EpisodeSampler(make_domain([40] * 8, group_size=4))(0, 50)
    variable = EpisodeSampler(make_domain([20, 40, 60] * 4), VariableShape())(0, 50)
    prints = [episodes.fingerprint()[:12] for episodes in (plain, grouped, variable)]
    assert prints == ["4a167e48a892", "cb98c9a0fbdb", "c23cf23e6bac"]


@pytest.mark.parametrize("shape", [EpisodeShape(), VariableShape()], ids=["fixed", "variable"])
@pytest.mark.parametrize("group_size", [0, 3])
def test_device_does_not_matter(shape: EpisodeShape | VariableShape, group_size: int) -> None:
    domain = make_domain([25, 40, 60] * 4, group_size)
    prints = {
        EpisodeSampler(domain, shape, device=device)(0, 300).fingerprint() for device in DEVICES
    }
    assert len(prints) == 1


def test_seed_part_shape_and_domain_change_episodes() -> None:
    domain = make_domain([30] * 10)
    prints = {
        EpisodeSampler(domain)(0, 10).fingerprint(),
        EpisodeSampler(domain, seed=1)(0, 10).fingerprint(),
        EpisodeSampler(domain, EpisodeShape(5, 5, 11))(0, 10).fingerprint(),
        EpisodeSampler(make_domain([30] * 11))(0, 10).fingerprint(),
        EpisodeSampler(domain)(10, 20).fingerprint(),
    }
    assert len(prints) == 5


def test_the_domains_name_changes_nothing() -> None:
    """No code path may read a target's name."""
    a, b = (EpisodeSampler(make_domain([30] * 10, name=name))(0, 50) for name in ("a", "b"))
    assert a.fingerprint() == b.fingerprint()


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Standard score of the chi-square statistic by Wilson and Hilferty's cube root."""
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


@pytest.mark.parametrize("group_size", [0, 1])
def test_classes_and_images_are_uniform(group_size: int) -> None:
    """Single images drawn into support and query, classes, and the order within an episode.

    Groups of one image go through the other algorithm, with the same law.
    """
    sizes = [16, 20, 33, 40, 27, 64, 18]
    sampler = EpisodeSampler(make_domain(sizes, group_size), EpisodeShape(3, 5, 10), seed=3)
    episodes = sampler(0, 20_000)
    labels = sampler.domain.labels
    per_class = np.full(len(sizes), 20_000 * 3 / len(sizes))
    assert abs(chi_square(np.bincount(episodes.classes.flatten(), minlength=7), per_class)) < 4
    first = np.bincount(episodes.classes[:, 0], minlength=7)
    assert abs(chi_square(first, np.full(7, 20_000 / 7))) < 4
    # Given how often its class was drawn, each image of a class is equally likely.
    for ids, drawn in ((episodes.support, 5), (episodes.query, 10), (episodes.support[:, :, 0], 1)):
        counts = np.bincount(ids.flatten(), minlength=len(labels))
        times = np.bincount(episodes.classes.flatten(), minlength=7)
        expected = times[labels] * drawn / np.array(sizes)[labels]
        assert chi_square(counts, expected) < 4


def test_pairs_of_images_are_uniform() -> None:
    """Neighbours in a class must not be drawn together more often than others."""
    sampler = EpisodeSampler(make_domain([8, 8]), EpisodeShape(1, 2, 1))
    episodes = sampler(0, 60_000)
    pairs = episodes.support[:, 0] % 8  # [E, 2]
    counts = np.bincount(pairs[:, 0] * 8 + pairs[:, 1], minlength=64).reshape(8, 8)
    assert not counts.diagonal().any()
    ordered = counts[~np.eye(8, dtype=bool)]
    assert abs(chi_square(ordered, np.full(56, 60_000 / 56))) < 4


def test_the_chi_square_test_can_fail() -> None:
    biased = np.random.default_rng(0).choice(
        7, 60_000, p=[0.16, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14]
    )
    assert chi_square(np.bincount(biased), np.full(7, 60_000 / 7)) > 4


def test_groups_can_be_switched_off() -> None:
    domain = make_domain([30] * 6, group_size=10)
    together = EpisodeSampler(domain, group_disjoint=False)
    assert not together.group_disjoint
    groups = torch.from_numpy(domain.groups)
    episodes = together(0, 50)
    shared = [set(groups[s].flatten().tolist()) & set(groups[q].flatten().tolist())
              for s, q in zip(episodes.support, episodes.query, strict=True)]  # fmt: skip
    assert any(shared)


def test_grouped_support_is_spread_over_groups() -> None:
    """Five shots of one film would be five near-duplicates: support is drawn over all images."""
    domain = make_domain([100] * 6, group_size=10)
    episodes = EpisodeSampler(domain)(0, 200)
    groups = torch.from_numpy(domain.groups)[episodes.support]  # [E, way, shot]
    distinct = [len(row.unique()) for row in groups.flatten(0, 1)]
    assert np.mean(distinct) > 3.5


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 8), st.integers(1, 20))
def test_allows_says_what_most_shots_counts(sizes: list[int], shots: int, queries: int) -> None:
    groups = np.array(sizes)
    assert allows(groups, shots, queries) == (shots <= most_shots(groups, queries))
    single = np.ones(sum(sizes), dtype=int)
    assert allows(single, shots, queries) == (sum(sizes) >= shots + queries)


def test_variable_episodes_follow_meta_dataset() -> None:
    domain = make_domain([20, 200, 50, 8, 120] * 14)
    shape = VariableShape()
    episodes = EpisodeSampler(domain, shape)(0, 400)
    ways = (episodes.classes >= 0).sum(1)
    assert ways.min() >= 5 and ways.max() <= 50 and len(ways.unique()) > 30
    shots = (episodes.support >= 0).sum(2)  # [E, way]
    queries = (episodes.query >= 0).sum(2)
    assert (shots.sum(1) <= shape.max_support + ways).all()
    sizes = torch.from_numpy(domain.class_sizes)
    for e in range(0, 400, 20):
        present = episodes.classes[e] >= 0
        smallest = int(sizes[episodes.classes[e][present]].min())
        assert queries[e][present].unique().tolist() == [min(10, smallest // 2)]
    uneven = [len(shots[e][episodes.classes[e] >= 0].unique()) for e in range(400)]
    assert np.mean(uneven) > 3
    large, small = (
        shots[sizes[episodes.classes.clamp(min=0)] == 200],
        shots[sizes[episodes.classes.clamp(min=0)] == 20],
    )
    assert large[large > 0].float().mean() > 2 * small[small > 0].float().mean()


@pytest.mark.parametrize(
    ("sizes", "group_size", "shape", "says"),
    [
        ([30] * 4, 0, EpisodeShape(), "4 classes in the part 'test', 5 ways are asked for"),
        ([30] * 5 + [12], 0, EpisodeShape(), "'class 5' has 12 images"),
        ([30] * 5 + [12], 0, EpisodeShape(), "5 + 10 images are needed"),
        ([30] * 6, 15, EpisodeShape(5, 5, 20), "in 2 groups"),
        ([30] * 5 + [1], 0, VariableShape(), "'class 5' has 1 images"),
    ],
)
def test_refusals_name_what_is_there_and_what_is_needed(
    sizes: list[int], group_size: int, shape: EpisodeShape, says: str
) -> None:
    with pytest.raises(PolyshotError) as error:
        EpisodeSampler(make_domain(sizes, group_size), shape)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_small_classes_can_be_dropped() -> None:
    sampler = EpisodeSampler(make_domain([30, 30, 3, 30, 30, 30]), drop_small=True)
    assert sampler.class_ids == (0, 1, 3, 4, 5)
    with pytest.raises(PolyshotError, match="4 classes are left for 5 ways"):
        EpisodeSampler(make_domain([30, 30, 3, 30, 30]), drop_small=True)


@pytest.mark.parametrize("numbers", [(0, 5, 5), (5, 0, 5), (5, 5, -1)])
def test_impossible_shapes_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(PolyshotError, match="at least 1"):
        EpisodeShape(*numbers)


def test_impossible_slices_and_parts_are_refused() -> None:
    sampler = EpisodeSampler(make_domain([30] * 6))
    with pytest.raises(PolyshotError, match="no episodes"):
        sampler(5, 5)
    with pytest.raises(PolyshotError, match="Did you mean 'train'"):
        EpisodeSampler(make_domain([30] * 6), part="trian")
    with pytest.raises(PolyshotError):
        VariableShape(min_way=9, max_way=5)
