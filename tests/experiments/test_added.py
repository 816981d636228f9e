"""Pools that grow as an experiment: what is trained, what is measured, what the report says."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polyshot.data.pack import Pack
from polyshot.data.toy import draw_packs
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result, append_results
from polyshot.experiments.grid import read_grid
from polyshot.experiments.protocols import PROTOCOLS
from polyshot.experiments.report import write_report
from polyshot.experiments.report.growth import HEAD, growth_tables
from polyshot.experiments.report.pages import UNKNOWN
from polyshot.experiments.report.paper import paper_comparisons
from polyshot.experiments.report.tables import accuracy_tables, on_added_domains
from polyshot.experiments.run import BAR, Summary
from tests.helpers import files_of, pack_of

from .fake_grid import fake_result
from .small_worlds import run_grid

pytestmark = pytest.mark.usefixtures("one_thread", "small_shape")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    folder = tmp_path_factory.mktemp("packs")
    return draw_packs(folder, ["signs", "textures", "glyphs"], size=16, per_class=6, workers=1)


def run(packs: list[Pack], out: Path, *names: str, **changes: Any) -> Summary:
    options: dict[str, Any] = {
        "methods": ["base", "protonet", "select", "auto"],
        "protocols": names or ["added"],
        "adapt": False,
    }
    return run_grid(packs, out, **(options | changes))


@pytest.fixture(scope="module")
def grid(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Left out and measured, then signs added to the pool of the others."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("grid")
    run(packs, out, "unseen", targets=["signs"], methods=["base", "select", "auto"])
    trained: set[str] = set()
    done = run(packs, out, targets=["signs"], report=lambda name, *_: trained.add(name))
    # base, select and auto before on four domains, of which one is known; select, auto after.
    assert (done.cells, done.measured, done.before, done.failed) == (20, 17, 3, [])
    assert "base" not in trained and "modulator:signs" in trained
    return out


# --- trials


def test_each_source_is_added_to_the_pool_of_the_others() -> None:
    sources = [pack_of([9], name) for name in "abc"]
    others = [pack_of([9], "never")]
    found = [
        (
            "".join(pack.domain.name for pack in trial.sources),
            trial.left_out and trial.left_out.domain.name,
            trial.added and trial.added.domain.name,
            sorted(pack.domain.name for pack in trial.targets),
        )
        for trial in PROTOCOLS["added"].trials(sources, others)
    ]
    everything = ["a", "b", "c", "never"]
    assert found == [
        (rest, new, added, everything)
        for rest, new in (("bc", "a"), ("ac", "b"), ("ab", "c"))
        for added in (None, new)
    ]
    with pytest.raises(PolyshotError, match="at least two sources"):
        PROTOCOLS["added"].trials(sources[:1], others)


# --- the grid


def test_the_worlds_of_unseen_are_shared(packs: list[Pack], grid: Path) -> None:
    (world,) = (grid / "worlds").iterdir()
    assert json.loads((world / "world.json").read_text())["sources"] == ["textures", "glyphs"]
    assert [folder.name.split("-")[1] for folder in world.glob("added-*-conv1x1")] == ["signs"]
    results = sorted(folder.name for folder in (grid / "results").iterdir())
    assert results[0] == world.name and results[1].startswith(f"{world.name}-added-signs-")


def test_results_before_and_after(packs: list[Pack], grid: Path) -> None:
    found = [result for result in read_grid(grid).results if result.protocol == "added"]
    everywhere = {"signs", "textures", "glyphs", "other"}
    for method, additions in (("base", {""}), ("select", {"", "signs"}), ("auto", {"", "signs"})):
        own = [result for result in found if result.method == method]
        assert {result.added for result in own} == additions
        for added in additions:
            assert {r.target for r in own if r.added == added} == everywhere
    assert "protonet" not in {result.method for result in found}
    for result in found:
        assert result.sources == ["textures", "glyphs", *filter(None, [result.added])]
        assert result.seen == (result.target in result.sources)
        if result.added:
            assert result.added_seconds is not None and result.added_seconds > 0
            assert result.added_on.startswith("cpu")
        else:
            assert (result.added_seconds, result.added_on) == (None, "")
    unseen = {r.method: r for r in read_grid(grid).results if r.protocol == "unseen"}
    for result in found:
        if result.target == "signs" and not result.added:
            assert replace(result, protocol="unseen") == unseen[result.method]


def test_shares_are_of_the_added_domain_alone(grid: Path) -> None:
    (shares,) = [found for found in read_grid(grid).shares if found.protocol == "added"]
    assert shares.members == ["base", "textures", "glyphs", "signs"]
    assert list(shares.targets) == ["signs"]


def test_the_same_command_does_nothing_twice(packs: list[Pack], grid: Path) -> None:
    before = files_of(grid)
    done = run(packs, grid, targets=["signs"])
    assert (done.measured, done.before) == (0, 20)
    assert files_of(grid) == before


def test_finished_additions_need_no_world(packs: list[Pack], grid: Path, tmp_path: Path) -> None:
    shutil.copytree(grid, tmp_path / "grid")
    shutil.rmtree(tmp_path / "grid" / "worlds")
    assert run(packs, tmp_path / "grid", targets=["signs"]).measured == 0
    assert not (tmp_path / "grid" / "worlds").exists()


@pytest.mark.parametrize(("name", "number"), [(BAR, 15), ("modulator:signs", 1), ("selector", 4)])
def test_an_interrupted_addition_goes_on_to_the_same_numbers(
    packs: list[Pack], grid: Path, tmp_path: Path, name: str, number: int
) -> None:
    out = tmp_path / "grid"
    shutil.copytree(grid, out)
    for lost in (*out.glob("results/*-added-*"), *out.glob("worlds/*/added-*")):
        shutil.rmtree(lost)

    def stop(named: str, done: int, _: int) -> None:
        if named == name and done >= number:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(packs, out, targets=["signs"], report=stop)
    trained: list[str] = []
    run(packs, out, targets=["signs"], report=lambda named, *_: trained.append(named))
    assert "base" not in trained
    mine, whole = (
        {(r.method, r.target, r.added): r.per_episode for r in read_grid(folder).results}
        for folder in (out, grid)
    )
    assert mine == whole
    seconds = {r.added_seconds for r in read_grid(out).results if r.added}
    assert (None in seconds) == (name != BAR)  # an addition in several parts has no time


def test_on_validation_classes(packs: list[Pack], grid: Path, tmp_path: Path) -> None:
    shutil.copytree(grid, tmp_path / "grid")
    trained: set[str] = set()
    options: dict[str, Any] = {"part": "val", "report": lambda name, *_: trained.add(name)}
    done = run(packs, tmp_path / "grid", targets=["signs"], **options)
    assert (done.measured, done.failed, trained) == (15, [], {BAR})  # 'other' has no such classes


def test_methods_without_a_pool_are_refused_alone(packs: list[Pack], tmp_path: Path) -> None:
    message = "'added' measures the base and methods over the pool, not protonet: take some of base"
    with pytest.raises(PolyshotError, match=message):
        run(packs, tmp_path / "grid", methods=["protonet"])
    with pytest.raises(PolyshotError, match="nothing to measure in added"):
        run(packs, tmp_path / "grid", targets=["other"])
    with pytest.raises(PolyshotError, match="at least two sources"):
        run(packs[:1], tmp_path / "grid")
    assert not (tmp_path / "grid" / "worlds").exists()


# --- the report


def level(method: str, target: str, accuracy: float, **changes: Any) -> Result:
    """A result of 60 episodes around an accuracy, alike for all methods of a target."""
    values = [round(accuracy + 0.02 * (-1) ** i, 4) for i in range(60)]
    numbers = {"mean": accuracy, "half_width": 0.005, "per_episode": values}
    return fake_result(method, target, **({"draw": target} | numbers | changes))


OLD = ["cars", "omniglot"]


def story(preset: str = "strong", **changes: Any) -> list[Result]:
    """Gtsrb added: 60 % before, 72 % after, 80 % from the start; cars lose a point."""
    before = {"protocol": "added", "sources": OLD, "preset": preset} | changes
    after = before | {"sources": [*OLD, "gtsrb"], "added": "gtsrb"}
    after |= {"added_seconds": 9.13, "added_on": "cuda NVIDIA H200"}
    found = [
        level("base", "gtsrb", 0.58, **before, seen=False),
        level("auto", "gtsrb", 0.60, **before | {"protocol": "unseen"}, seen=False),
        level("auto", "gtsrb", 0.72, **after, seen=True),
        level("auto", "gtsrb", 0.80, **before | {"protocol": "seen", "sources": ["gtsrb", *OLD]}),
    ]
    for target, old, new in (("cars", 0.7, 0.69), ("omniglot", 0.9, 0.9), ("dtd", 0.5, 0.53)):
        seen = target in OLD
        found.append(level("base", target, old, **before, seen=seen))
        found.append(level("auto", target, old, **before, seen=seen))
        found.append(level("auto", target, new, **after, seen=seen))
    return found


def test_the_summary_of_an_addition() -> None:
    summary, changes = growth_tables(story())
    assert summary.title == "A domain added later: strong, 5-way 5-shot"
    (row,) = summary.rows
    assert dict(zip(HEAD, row, strict=True)) == {
        "added": "gtsrb",
        "method": "auto",
        "base without it": "58.0 ± 0.5",
        "before": "60.0 ± 0.5",
        "after": "72.0 ± 0.5\n+12.0 ± 0.0",
        "with it from the start": "80.0 ± 0.5",
        "gap closed": "60 %",
        "old domains": "\u22120.5 ± 0.0",
        "other unseen domains": "+3.0 ± 0.0",
        "time": "9.1 s\ncuda NVIDIA H200",
    }
    assert changes.head == ("added", "cars", "dtd", "gtsrb", "omniglot")
    assert changes.rows == [
        ["gtsrb", "\u22121.0 ± 0.0", "+3.0 ± 0.0", "+12.0 ± 0.0", "0.0 ± 0.0"],
    ]


def test_what_is_missing_is_said() -> None:
    def without(*protocols: str) -> dict[str, str]:
        results = [r for r in story() if r.protocol not in protocols]
        return dict(zip(HEAD, growth_tables(results)[0].rows[0], strict=True))

    assert without("seen")["gap closed"] == without("unseen")["gap closed"] == UNKNOWN
    assert without("seen")["before"] == "60.0 ± 0.5"
    assert without("unseen")["after"] == "72.0 ± 0.5"
    interrupted = [replace(r, added_seconds=None) for r in story()]
    assert growth_tables(interrupted)[0].rows[0][-1] == "not known, interrupted"
    assert growth_tables([r for r in story() if not r.added]) == []
    assert growth_tables([fake_result("base")]) == []


def test_trainings_that_nothing_was_added_to_do_not_count() -> None:
    others = [
        replace(r, train_seed=1, mean=r.mean - 0.1, per_episode=[v - 0.1 for v in r.per_episode])
        for r in story()
        if not r.added
    ]
    first, both = (growth_tables(results)[0].rows for results in (story(), [*story(), *others]))
    assert first == both


def test_a_gap_that_may_be_chance_is_not_closed() -> None:
    flat = [
        replace(r, mean=0.6, per_episode=[0.5, 0.7] * 30) if r.protocol == "seen" else r
        for r in story()
    ]
    assert growth_tables(flat)[0].rows[0][6] == "no clear gap"


def test_results_on_other_images_are_not_paired() -> None:
    other = [replace(r, draw="drawn anew") if r.added else r for r in story()]
    (row,) = growth_tables(other)[0].rows
    assert row[4] == "72.0 ± 0.5" and row[6] == UNKNOWN


def test_additions_are_averaged_and_seeds_and_places_kept_apart() -> None:
    def renamed(r: Result) -> Result:
        """The same story with cars and gtsrb exchanged."""
        other = {"gtsrb": "cars", "cars": "gtsrb"}

        def name(old: str) -> str:
            return other.get(old, old)

        sources = [name(source) for source in r.sources]
        target = name(r.target)
        return replace(r, target=target, draw=target, sources=sources, added=name(r.added))

    both = [*story(), *(renamed(r) for r in story() if r.protocol != "seen")]
    seeds = [replace(r, train_seed=seed) for r in both for seed in (0, 1)]
    summary, _ = growth_tables(seeds)
    assert [row[:2] for row in summary.rows] == [
        *(["cars", "auto"], ["gtsrb", "auto"], ["average", "auto"]),
    ]
    assert summary.rows[-1][4] == "72.0 ± 0.4, seeds ± 0.0\n+12.0 ± 0.0, seeds ± 0.0"
    validation = [replace(r, part="val") for r in story()]
    titles = [table.title for table in growth_tables([*validation, *story(), *story("paper")])]
    assert titles[::2] == [
        f"A domain added later: {place}, 5-way 5-shot"
        for place in ("paper", "strong", "strong, validation classes")
    ]


def test_tables_of_accuracies_are_of_added_domains() -> None:
    tables = accuracy_tables(on_added_domains(story()))
    (table,) = [table for table in tables if table.protocol == "added"]
    (row,) = table.rows
    assert (row.target, row.seen) == ("gtsrb", True)
    assert {name: round(cell.mean, 2) for name, cell in row.cells.items()} == {
        "base": 0.58,
        "auto": 0.72,
    }
    assert row.cells["auto"].gap.value == pytest.approx(0.14)
    assert not [each for each in paper_comparisons(tables) if each.table.protocol == "added"]


def test_a_report_of_a_real_grid(grid: Path, tmp_path: Path) -> None:
    page, text, tex = (path.read_text("utf-8") for path in write_report(grid, tmp_path))
    for written in (page, text, tex):
        assert "A domain added later: tiny, 5-way 2-shot" in written
        assert "auto, change on every domain" in written
        assert "each source in turn added to the pool of the others" in written


def test_a_damaged_time_is_refused(tmp_path: Path) -> None:
    append_results(tmp_path / "results" / "a.jsonl", story())
    file = tmp_path / "results" / "a.jsonl"
    file.write_text(file.read_text().replace("9.13", "NaN", 1))
    with pytest.raises(PolyshotError, match="a value is not a number"):
        read_grid(tmp_path)
