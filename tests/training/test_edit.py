"""Pools made from pools: less a domain, two as one."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.models.selector import Selector
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import SourceTasks, TaskSample
from polyshot.training.edit import listing, merge
from tests.helpers import SIZE, SMALL, random_base, random_modulator, random_pool

SETTINGS = {"config": {"selector": {"steps": 20, "hidden": 8, "batch": 16}}}


def kept(members: int, seed: int) -> SourceTasks:
    draw = torch.Generator().manual_seed(seed)

    def sample(count: int) -> TaskSample:
        tasks, *answers = (
            torch.rand(count, n, generator=draw) for n in (SMALL.dim, members, members)
        )
        return TaskSample(tasks.half(), *(each.half() for each in answers))

    return SourceTasks(sample(10), sample(6))


def pool_of(*names: str, seed: int = 0, selector: bool = True, **settings: object) -> Pool:
    """A pool over the usual base whose members depend on their names alone."""
    modulators = {
        name: random_modulator(SMALL, "conv1x1", sum(map(ord, name)) + seed) for name in names
    }
    count = 1 + len(names)
    steps = {f"modulator:{name}": {"validation": 0.5, "gain": 0.02} for name in names}
    labels = {"labels": list(range(count))}
    torch.manual_seed(0)
    fields = {
        "modulators": modulators,
        "strengths": dict.fromkeys(names, 0.5),
        "scales": [float(10 + sum(map(ord, name))) for name in ("base", *names)],
        "selector": Selector(SMALL.dim, count, hidden=8) if selector else None,
        "statistics": {name: kept(count, i) for i, name in enumerate(names)},
        "about": {
            **SETTINGS,
            "packs": {name: f"hash of {name}" for name in names},
            "steps": {"base": {"validation": 0.4}, "selector": labels, **steps},
            "added": {name: {} for name in names if name > "k"},
        },
    }
    return Pool(SMALL, SIZE, "conv1x1", "cosine", random_base(SMALL), **(fields | settings))


def images() -> Tensor:
    return torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


# --- remove


def test_what_remains_stays_to_the_bit() -> None:
    pool = pool_of("ant", "bee", "moth")
    less = pool.remove("bee")
    assert less.members == ("base", "ant", "moth") and len(pool.members) == 4
    assert [less.member_hash(i) for i in range(3)] == [pool.member_hash(i) for i in (0, 1, 3)]
    assert less.scales == [pool.scales[i] for i in (0, 1, 3)]
    assert torch.equal(less.embed(images()), pool.embed(images())[[0, 1, 3]])


def test_the_selector_only_loses_a_choice() -> None:
    pool, tasks = pool_of("ant", "bee", "moth"), torch.rand(20, SMALL.dim)
    before, now = (p.task_weights(tasks) for p in (pool, pool.remove("bee")))
    rest = before[:, [0, 1, 3]]
    torch.testing.assert_close(now, rest / rest.sum(1, keepdim=True))


def test_nothing_of_a_removed_domain_is_kept() -> None:
    less = pool_of("ant", "bee", "moth").remove("moth")
    assert list(less.statistics) == ["ant", "bee"]
    assert less.statistics["ant"].train.accuracy.shape[1] == 3
    assert list(less.about["packs"]) == ["ant", "bee"] and less.about["added"] == {}
    assert "modulator:moth" not in less.about["steps"]
    assert less.about["steps"]["selector"]["labels"] == [0, 1, 2]


def test_a_domain_that_the_base_was_trained_on_stays_a_seen_one() -> None:
    less = pool_of("ant", "bee", "moth").remove("ant")
    assert list(less.about["packs"]) == ["ant", "bee", "moth"]
    assert less.about["steps"]["selector"]["labels"] == [0, 2, 3]


def test_a_pool_without_selector_or_description_loses_members_too() -> None:
    pool = random_pool(selector=False)
    assert pool.remove("two").members == ("base", "one", "off")
    assert pool.remove("two").strengths == {"one": 1.0, "off": 0.0}


def test_what_cannot_be_removed() -> None:
    pool = pool_of("ant", "bee")
    with pytest.raises(PolyshotError, match=r"'be' is no domain.*ant, bee.*Did you mean 'bee'"):
        pool.remove("be")
    with pytest.raises(PolyshotError, match="'base' is the base itself"):
        pool.remove("base")
    with pytest.raises(PolyshotError, match="'bee' is the pool's last domain"):
        pool.remove("ant").remove("bee")


# --- merge


def test_members_of_both_pools_stay_to_the_bit() -> None:
    one, other = pool_of("ant", "bee"), pool_of("bee", "moth", "wasp")
    made = merge(one, other)
    assert made.members == ("base", "ant", "bee", "moth", "wasp")
    assert made.member_hashes() == [*one.member_hashes(), *other.member_hashes()[2:]]
    assert made.scales == [*one.scales, *other.scales[2:]]
    assert torch.equal(made.embed(images())[:3], one.embed(images()))
    assert torch.equal(made.embed(images())[[0, 2, 3, 4]], other.embed(images()))
    assert made.selector is not None and made.selector.output.out_features == 5
    assert set(made.about["packs"]) == {"ant", "bee", "moth", "wasp"}


def test_statistics_of_both_pools_are_joined() -> None:
    one, other = pool_of("ant", "bee"), pool_of("bee", "moth")
    made = merge(one, other).statistics
    nan = {source: tasks.val.accuracy.isnan().all(0).tolist() for source, tasks in made.items()}
    assert nan == {
        "ant": [False, False, False, True],
        "bee": [False, False, False, True],
        "moth": [False, True, False, False],
    }
    assert torch.equal(made["ant"].train.tasks, one.statistics["ant"].train.tasks)
    moth = other.statistics["moth"].train.likelihood
    assert torch.equal(made["moth"].train.likelihood[:, [0, 2, 3]], moth)


def test_merging_is_repeatable_and_leaves_both_alone() -> None:
    one, other = pool_of("ant"), pool_of("moth")
    before = one.hash, other.hash
    assert merge(one, other).hash == merge(one, other).hash
    assert (one.hash, other.hash) == before


def test_a_pool_merged_with_itself_is_itself() -> None:
    one = pool_of("ant", "bee")
    made = merge(one, one)
    assert made.members == one.members and made.member_hashes() == one.member_hashes()


def test_pools_over_different_bases_are_refused_with_both_hashes() -> None:
    one, other = pool_of("ant"), replace(pool_of("moth"), base=random_base(SMALL, seed=9))
    hashes = one.member_hash(0)[:12], other.member_hash(0)[:12]
    with pytest.raises(PolyshotError, match=f"different bases, {hashes[0]} and {hashes[1]}"):
        merge(one, other)


def test_pools_that_do_not_fit_are_refused() -> None:
    one = pool_of("ant")
    with pytest.raises(PolyshotError, match="Both pools have ant, trained differently"):
        merge(one, pool_of("ant", seed=1))
    with pytest.raises(PolyshotError, match="differ in 'metric', cosine and euclidean"):
        merge(one, replace(pool_of("moth"), metric="euclidean"))
    channel = replace(
        pool_of("moth"), kind="channel", modulators={"moth": random_modulator(SMALL, "channel")}
    )
    with pytest.raises(PolyshotError, match="differ in 'kind', conv1x1 and channel"):
        merge(one, channel)
    with pytest.raises(PolyshotError, match="differ only by case"):
        merge(one, pool_of("ANT"))


def test_selectors_are_joined_or_left_out() -> None:
    one, old = pool_of("ant"), replace(pool_of("moth"), statistics={})
    bare = pool_of("moth", selector=False)
    with pytest.raises(PolyshotError, match="The second pool keeps no statistics"):
        merge(one, old)
    with pytest.raises(PolyshotError, match="The first pool keeps no statistics"):
        merge(old, one)
    with pytest.raises(PolyshotError, match="Only one of the two pools has a selector"):
        merge(one, bare)
    for other in (old, bare):
        assert merge(one, other, selector=False).selector is None
    assert merge(bare, pool_of("ant", selector=False)).selector is None


def test_the_listing_says_how_members_came_in() -> None:
    rows = listing(pool_of("ant", "moth"))
    assert [row[0] for row in rows] == ["base", "ant", "moth"]
    assert [row[5] for row in rows] == ["trained", "trained", "added"]
    assert rows[1][1:5] == ("0.5", "333", "50.0", "+2.0")
    assert listing(random_pool())[0][3:6] == ("", "", "trained")
