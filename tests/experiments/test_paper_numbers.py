"""The paper's numbers: complete, and consistent with the averages that it prints."""

import pytest

from polyshot.experiments.report.paper import (
    PaperTable,
    data_differs,
    numbers,
    paper_table,
    paper_tables,
)

MISPRINTS = {("unseen", 2, "protomaml"): 0.06}
"""Printed average less the true one, in points: of ProtoMAML 66.63 is printed, 66.57 is right."""


def _count(block: PaperTable) -> int | None:
    return None if block.sources is None else len(block.sources)


@pytest.mark.parametrize("block", paper_tables(), ids=lambda b: f"{b.table}-{_count(b)}")
def test_printed_averages(block: PaperTable) -> None:
    for method, printed in block.average.items():
        accuracies = [cells[method] for cells in block.targets.values()]
        off = 100 * (printed - sum(accuracies) / len(accuracies))
        expected = MISPRINTS.get((block.table, _count(block) or 0, method))
        if expected is None:
            assert abs(off) <= 0.02, method
        else:
            assert off == pytest.approx(expected, abs=0.001)


def test_all_tables_are_there() -> None:
    shapes = {
        (block.table, _count(block)): (len(block.targets), len(block.average))
        for block in paper_tables()
    }
    assert shapes == {
        ("seen", None): (8, 9), ("unseen", None): (8, 9),
        ("seen", 2): (2, 8), ("seen", 4): (4, 8), ("seen", 6): (6, 8),
        ("unseen", 2): (6, 8), ("unseen", 4): (4, 8), ("unseen", 6): (2, 8),
    }  # fmt: skip
    for block in paper_tables():
        if block.sources is not None:  # seen targets are sources, unseen ones are not
            assert all((name in block.sources) == (block.table == "seen") for name in block.targets)
        assert all(set(cells) == set(block.average) for cells in block.targets.values())


@pytest.mark.parametrize(
    ("table", "method", "domain", "sources", "accuracy"),
    [
        ("seen", "select", "aircraft", None, 0.6286),
        ("seen", "average-channel", "flowers", None, 0.8328),
        ("unseen", "simple-avg", "imagenet", None, 0.3779),
        ("unseen", "finetune", "gtsrb", 2, 0.7001),
        ("seen", "protomaml", "omniglot", 4, 0.9952),
        ("unseen", "feat", "dtd", 6, 0.5186),
        ("unseen", "feat", "gtsrb", 6, None),
        ("seen", "simple-avg", "cifar100", 2, None),
        ("seen", "tadam", "cifar100", None, None),
        ("seen", "select", "plankton", None, None),
        ("seen", "select", "cifar100", 3, None),
        ("elsewhere", "select", "cifar100", None, None),
    ],
)
def test_lookup(
    table: str, method: str, domain: str, sources: int | None, accuracy: float | None
) -> None:
    block = paper_table(table, sources)
    found = block and block.targets.get(domain, {}).get(method)
    assert found == pytest.approx(accuracy)


def test_datasets_and_parameters() -> None:
    datasets = numbers()["datasets"]
    assert len(datasets) == 8 and datasets["imagenet"]["test"] == 130
    assert all(d["train"] + d["val"] + d["test"] == d["classes"] for d in datasets.values())
    assert set(data_differs()) < set(datasets)
    sizes = numbers()["parameters"]
    for kind in ("conv1x1", "channel"):
        parts = sizes["base"] + sizes[f"eight {kind} modulators"] + sizes["selector"]
        assert parts == sizes[f"sum with {kind} modulators"]


def test_a_table_that_the_paper_does_not_have() -> None:
    assert paper_table("seen", 5) is None
