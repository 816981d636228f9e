"""The numbers of a report: what is paired with what, which cell is marked, what words follow."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.evaluation.compare import may_pair
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import interval
from polyshot.experiments.report.paper import paper_comparisons, size_table
from polyshot.experiments.report.summary import (
    agreement_table,
    cost_tables,
    settings_table,
    summary,
    winner_table,
)
from polyshot.experiments.report.tables import accuracy_tables, method_order
from tests.experiments.fake_grid import fake_result


def exact(method: str, accuracies: list[float], **changes: Any) -> Result:
    """Make a result of given episodes."""
    mean, half_width = interval(accuracies)
    numbers = {"mean": mean, "half_width": half_width, "per_episode": accuracies}
    return fake_result(method, episodes=len(accuracies), **(changes | numbers))


# --- pairing


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "cars"}, {"way": 4}, {"shot": 1}, {"queries": 5}, {"part": "val"},
        {"group_disjoint": False}, {"draw": "other"}, {"draw": "", "fingerprint": "other"},
    ],
)  # fmt: skip
def test_only_the_same_episodes_are_paired(changes: dict[str, Any]) -> None:
    one = fake_result()
    assert not may_pair(one, replace(one, **changes))
    assert not may_pair(replace(one, **changes), one)


def test_a_draw_is_enough_and_without_it_the_fingerprint_counts() -> None:
    one = fake_result()
    assert may_pair(one, replace(one, fingerprint="of fewer episodes", episodes=20))
    assert may_pair(one, replace(one, draw=""))
    assert may_pair(replace(one, draw=""), replace(one, draw=""))


@pytest.mark.parametrize("changes", [{"draw": "other"}, {"way": 4}, {"queries": 5}])
def test_mixed_episodes_are_refused(changes: dict[str, Any]) -> None:
    results = [fake_result("base"), fake_result("select", **changes)]
    message = r"^gtsrb, seen, 5-shot: 'base' and 'select' .* needs the same seed and shape[^\n]*$"
    with pytest.raises(PolyshotError, match=message):
        accuracy_tables(results)


def test_other_tables_and_targets_have_episodes_of_their_own() -> None:
    results = [
        fake_result("base"),
        fake_result("base", "cars"),
        fake_result("base", draw="other", preset="paper"),
        fake_result("base", draw="other", protocol="unseen"),
        fake_result("base", shot=1),
    ]
    assert len(accuracy_tables(results)) == 4


def test_differences_are_over_the_first_episodes_that_both_have() -> None:
    base, slow = fake_result("base", episodes=60), fake_result("protomaml", episodes=20)
    (table,) = accuracy_tables([base, slow])
    cell = table.rows[0].cells["protomaml"]
    assert (cell.mean, cell.half_width) == pytest.approx((slow.mean, slow.half_width), abs=1e-4)
    assert cell.gap is not None
    assert cell.gap[:2] == pytest.approx(
        interval(np.subtract(slow.per_episode, base.per_episode[:20]))
    )
    assert table.episodes() == "20 to 60"


def test_seeds_are_averaged_and_paired_seed_by_seed() -> None:
    runs = [fake_result(m, train_seed=s) for m in ("base", "select") for s in (0, 1, 2)]
    (table,) = accuracy_tables([*runs, fake_result("average", train_seed=7)])
    base, select = runs[:3], runs[3:]
    cell = table.rows[0].cells["select"]
    # Seeds share their episodes: these are what was sampled, each averaged over the seeds.
    mine, its = (np.mean([r.per_episode for r in group], 0) for group in (select, base))
    assert (cell.mean, cell.half_width) == pytest.approx(interval(mine))
    assert cell.gap is not None
    assert cell.gap[:2] == pytest.approx(interval(np.subtract(mine, its)))
    assert table.rows[0].cells["average"].gap is None  # no seed in common with the base
    assert table.seeds() == [0, 1, 2, 7]
    for found, values in (
        (cell.accuracy, [np.mean(r.per_episode) for r in select]),
        (
            cell.gap,
            [
                np.mean(r.per_episode) - np.mean(b.per_episode)
                for r, b in zip(select, base, strict=True)
            ],
        ),
    ):
        assert found.trainings == pytest.approx(4.3027 * np.std(values, ddof=1) / math.sqrt(3))
    assert table.rows[0].cells["average"].accuracy.trainings is None
    assert "new trainings" in table.about
    assert "new trainings" not in accuracy_tables(base[:1])[0].about


# --- what stands where


def test_tables_and_columns_are_in_order() -> None:
    results = [
        fake_result(method, "cars", protocol, "strong", shot, adaptation)
        for protocol in ("mine", "sources-2", "unseen", "seen")
        for shot in (1, 5)
        for method, adaptation in (
            ("zeta", "none"), ("average", "none"), ("average", "head"), ("finetune", "none"),
            ("base", "head"), ("base", "none"), ("protomaml", "steps-100"), ("alpha", "none"),
        )
    ]  # fmt: skip
    tables = accuracy_tables(results)
    order = [(t.protocol, t.shot, t.adapted) for t in tables]
    assert order == [
        (protocol, shot, adapted)
        for protocol in ("seen", "unseen", "sources-2", "mine")
        for shot in (5, 1)
        for adapted in (False, True)
    ]
    assert tables[0].methods == ["base", "finetune", "average", "alpha", "zeta"]
    # The base is the reference of both; a method that always adapts stands in both.
    assert tables[1].methods == [
        "base", "base + head", "finetune", "protomaml + steps-100", "average + head",
    ]  # fmt: skip
    assert sorted(["zeta", "base + head", "base"], key=method_order)[0] == "base"


def test_only_a_clear_lead_is_marked() -> None:
    base = [0.5, 0.6, 0.7, 0.5, 0.6, 0.7]
    clear = [value + 0.1 for value in base]
    level = [0.61, 0.69, 0.81, 0.59, 0.71, 0.79]
    two = accuracy_tables([exact("base", base), exact("select", clear)])
    three = accuracy_tables([exact("base", base), exact("select", clear), exact("feat", level)])
    assert two[0].rows[0].best == "select"
    assert three[0].rows[0].best is None
    assert accuracy_tables([exact("base", base)])[0].rows[0].best is None


@given(st.lists(st.floats(0, 1), min_size=4, max_size=12), st.integers(0, 1000))
def test_the_mark_follows_the_paired_interval(first: list[float], shift: int) -> None:
    second = [(value + 0.01 * ((shift + i) % 7)) % 1 for i, value in enumerate(first)]
    (table,) = accuracy_tables([exact("base", first), exact("select", second)])
    row = table.rows[0]
    gap, half_width = interval(np.subtract(second, first))
    ahead = "select" if row.cells["select"].mean > row.cells["base"].mean else "base"
    assert row.best == (ahead if abs(gap) > half_width else None)


def test_averages_are_of_methods_measured_everywhere() -> None:
    results = [fake_result(m, t) for m in ("base", "select") for t in ("cars", "gtsrb")]
    (table,) = accuracy_tables([*results, fake_result("feat", "cars"), fake_result("base", "dtd")])
    assert list(table.averages) == [True]  # dtd, the one unseen target, is its own average
    assert set(table.averages[True].cells) == {"base", "select"}
    assert table.gap("feat", "base", ["cars", "gtsrb"]) is None
    assert table.gap("select", "base", []) is None
    one, other = table.rows[0].cells["select"], table.rows[2].cells["select"]
    assert [row.target for row in table.rows] == ["cars", "dtd", "gtsrb"]
    both = table.averages[True].cells["select"]
    assert both.mean == pytest.approx((one.mean + other.mean) / 2)
    assert both.half_width == pytest.approx(math.hypot(one.half_width, other.half_width) / 2)


# --- beside the paper


def test_the_papers_numbers_stand_beside_the_right_ones() -> None:
    targets = ("cifar100", "gtsrb", "dtd", "cars")
    methods = ("base", "select", "average", "tadam")
    tables = accuracy_tables([fake_result(m, t) for m in methods for t in targets])
    seen, unseen = paper_comparisons(tables)
    assert (seen.targets, unseen.targets) == (["cifar100", "gtsrb"], ["dtd"])
    assert seen.methods == ["select", "average"]  # the paper has no base, and no TADAM
    assert seen.paper("select", "gtsrb") == pytest.approx(0.9649)
    assert seen.paper_average("average") == pytest.approx((0.6296 + 0.8293) / 2)
    rows = {row[0]: row[1:] for row in seen.as_text().rows}
    assert rows["gtsrb"][0].endswith("\npaper 96.5")
    assert rows["average of these"][1].endswith("\npaper 72.9")
    assert unseen.as_text().rows[0][1].endswith("\npaper 54.1")
    assert "differ" in seen.as_text().note
    with pytest.raises(LookupError):
        seen.paper("tadam", "gtsrb")


def test_a_method_missing_on_one_target_keeps_its_column() -> None:
    results = [fake_result(m, t) for m in ("base", "select") for t in ("cifar100", "gtsrb")]
    (found,) = paper_comparisons(accuracy_tables([*results, fake_result("feat", "gtsrb")]))
    rows = {row[0]: row[1:] for row in found.as_text().rows}
    assert rows["cifar100"][0] == "not measured\npaper 53.8"
    assert rows["average of these"][0].startswith("not measured")


def test_fewer_sources_and_other_tables() -> None:
    few = [fake_result(m, "gtsrb", "sources-2") for m in ("select", "average")]
    (found,) = paper_comparisons(accuracy_tables(few))
    assert not found.seen and found.block.sources == ("cifar100", "imagenet")
    assert "paper's sources: cifar100, imagenet; ours: cifar100, imagenet" in found.as_text().note
    for changes in ({"shot": 1}, {"way": 4}, {"protocol": "mine"}, {"adaptation": "head"}):
        assert paper_comparisons(accuracy_tables([fake_result("select", **changes)])) == []


def test_agreement_counts_pairs() -> None:
    levels = {"protonet": 0.5, "select": 0.7, "average": 0.8}  # the paper: 86.2, 96.5, 82.9
    results = [exact(m, [v, v + 0.01, v + 0.02], target="gtsrb") for m, v in levels.items()]
    found = paper_comparisons(accuracy_tables(results))[0].agreement()
    assert (found.pairs, found.same, found.clear, found.clear_same) == (3, 1, 3, 1)
    table = agreement_table(paper_comparisons(accuracy_tables(results)))
    assert table.rows[0][-2:] == ("1 of 3", "1 of 3")


# --- words


def test_the_summary_says_who_is_best_and_what_holds() -> None:
    levels = {"base": 0.5, "simple-avg": 0.4, "protonet": 0.55, "select": 0.6, "average": 0.7}
    targets = ("cars", "gtsrb")
    results = [exact(m, [v, v, v + 0.02], target=t) for t in targets for m, v in levels.items()]
    lines = summary(accuracy_tables(results))
    assert len(lines) == 3
    assert lines[0].startswith(
        "Preset strong, seen domains, 5-way 5-shot: average is best on average, 70.7 ± "
    )
    assert "+10.0 ± 0.0 points to the next, select: more than chance" in lines[0]
    assert "against the best rival, protonet: +15.0 ± 0.0 points" in lines[0]
    assert "against the base alone: +20.0 ± 0.0 points" in lines[0]
    assert "selecting beats averaging on seen domains, 74.5 against 69.2 %" in lines[1]
    assert "the other way round, \u221210.0 ± 0.0 points" in lines[1]
    assert "trained apart" in lines[2] and "holds, +20.0" in lines[2]


def test_no_lead_is_claimed_where_it_may_be_chance() -> None:
    noisy = {"base": [0.4, 0.6, 0.5], "select": [0.6, 0.4, 0.6]}
    results = [exact(m, v, target=t) for t in ("cars", "gtsrb") for m, v in noisy.items()]
    tables = accuracy_tables(results)
    assert "which may be chance" in summary(tables)[0]
    assert "may be chance" in winner_table(tables).rows[0][2]


def test_little_gives_little_to_say() -> None:
    assert summary(accuracy_tables([fake_result("base")])) == []
    alone = accuracy_tables([fake_result("base", t) for t in ("cars", "gtsrb")])
    assert "no other" in summary(alone)[0]
    assert winner_table(alone).rows[0][2].startswith("base ")


# --- the simpler tables


def test_costs() -> None:
    results = [
        fake_result("base", seconds=0.002, parameters=None, multiply_adds=3_000_000_000),
        fake_result("base", "cars", seconds=0.004, parameters=None, multiply_adds=3_000_000_000),
        fake_result("select", seconds=None, parameters=10, multiply_adds=None, device=""),
        fake_result("select", "cars", seconds=None, parameters=2000, multiply_adds=None, device=""),
        fake_result("select", protocol="unseen", parameters=5),
    ]
    (table,) = cost_tables(results)
    assert table.rows == [
        ("base", "not measured", "3 G", "3 ms", "cuda NVIDIA H200"),
        ("select", "10 to 2,000", "not measured", "not measured", ""),
    ]
    assert "strong, seen, 5-way 5-shot" in table.title


def test_settings_are_listed_once() -> None:
    results = [
        fake_result("feat", settings={"b": 2, "a": 0.5}, note="from the base"),
        fake_result("feat", "cars", settings={"a": 0.5, "b": 2}, note="from the base"),
        fake_result("feat", "dtd", settings={"a": 0.1}, note=""),
        fake_result("base"),
    ]
    assert settings_table(results).rows == [
        ("strong", "feat", "a 0.5, b 2; a 0.1", "from the base")
    ]


def test_our_sizes_are_the_papers() -> None:
    rows = {row[0]: row[1:] for row in size_table().rows}
    both = [pair for pair in rows.values() if pair[1] != "not given"]
    assert len(both) == 6 and all(ours == paper for ours, paper in both)
