"""A pool from one source: a protocol with an option of its own, which a user may override."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polyshot.config import override, preset
from polyshot.data.pack import Pack
from polyshot.data.toy import draw_packs
from polyshot.errors import PolyshotError
from polyshot.experiments.grid import read_grid
from polyshot.experiments.protocols import PROTOCOLS
from polyshot.experiments.report import write_report
from polyshot.experiments.run import Summary
from polyshot.pool.pool import Pool
from polyshot.training.training_run import TrainingRun
from tests.helpers import pack_of

from .small_worlds import OTHER, SMALL, run_grid

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    """Textures have the most images."""
    folder = tmp_path_factory.mktemp("packs")
    small = draw_packs(folder / "small", ["signs"], size=16, per_class=6, workers=1)
    return small + draw_packs(folder / "large", ["textures"], size=16, per_class=8, workers=1)


def run(packs: list[Pack], out: Path, *options: str, **changes: Any) -> Summary:
    given: dict[str, Any] = {
        "protocols": ["one-source"],
        "methods": ["base", "average"],
        "adapt": False,
        "config": override(SMALL, options),
        "options": options,
    }
    return run_grid(packs, out, **(given | changes))


def world_configs(out: Path) -> list[dict[str, Any]]:
    files = sorted(out.glob("worlds/*/pool-conv1x1/config.json"))
    return [json.loads(file.read_text()) for file in files]


def test_the_largest_source_alone_is_tested_on_all_others() -> None:
    sources = [pack_of([count], name) for name, count in (("a", 5), ("b", 9), ("c", 9), ("d", 1))]
    (trial,) = PROTOCOLS["one-source"].trials(sources, [OTHER])
    assert [pack.domain.name for pack in trial.sources] == ["b"]  # the first of the largest
    assert [pack.domain.name for pack in trial.targets] == ["a", "c", "d", "other"]


def test_a_protocols_options_give_way_to_the_users() -> None:
    protocol, config = PROTOCOLS["one-source"], preset("strong")
    assert protocol.config(config).modulator.members == 0
    assert replace(protocol.config(config), modulator=config.modulator) == config
    for text in ("modulator.members=4", "modulator.members = 1", " modulator.members=1"):
        chosen = override(config, [text])
        assert protocol.config(chosen, [text]) == chosen
    assert protocol.config(config, ["modulator.steps=9"]).modulator.members == 0
    for other in PROTOCOLS.values():
        if not other.options:
            assert other.config(config) is config


def test_a_pool_of_one_source_has_as_many_members_as_clusters(
    packs: list[Pack], tmp_path: Path
) -> None:
    done = run(packs, tmp_path)
    assert (done.cells, done.measured, done.failed) == (4, 4, [])
    (config,) = world_configs(tmp_path)
    assert config["modulator"]["members"] == 0
    (clusters,) = tmp_path.glob("worlds/*/pool-conv1x1/steps/clusters.json")
    count = len(json.loads(clusters.read_text())["textures"])
    found = read_grid(tmp_path).results
    assert {result.target for result in found} == {"signs", "other"}
    for result in found:
        assert (result.sources, result.seen) == (["textures"], False)
        expected = f"modulators for 1 source: {count}" if result.method == "average" else ""
        assert result.note == expected
    assert run(packs, tmp_path).measured == 0
    page = write_report(tmp_path)[0].read_text("utf-8")
    assert "one-source (a pool from the largest source alone" in page


def test_a_user_asks_for_another_number(packs: list[Pack], tmp_path: Path) -> None:
    done = run(packs, tmp_path, "modulator.members=2")
    assert done.failed == []
    (pool,) = [Pool.load(folder) for folder in tmp_path.glob("worlds/*/pool-conv1x1/pool")]
    assert pool.members == ("base", "textures/1", "textures/2")
    notes = {r.method: r.note for r in read_grid(tmp_path).results}
    assert notes == {"base": "", "average": "modulators for 1 source: 2"}


def test_other_protocols_keep_the_usual_config(packs: list[Pack], tmp_path: Path) -> None:
    run(packs, tmp_path, protocols=["seen", "one-source"], methods=["base"])
    usual = TrainingRun(packs, SMALL, tmp_path, torch.device("cpu")).name
    names = {folder.name for folder in (tmp_path / "worlds").iterdir()}
    assert usual in names and len(names) == 2
    assert sorted(c["modulator"]["members"] for c in world_configs(tmp_path)) == [0, 1]


def test_networks_from_scratch_are_shared_with_pools_of_clusters(
    packs: list[Pack], tmp_path: Path
) -> None:
    clustered = PROTOCOLS["one-source"].config(SMALL)
    worlds = [
        TrainingRun(packs, each, tmp_path, torch.device("cpu")) for each in (SMALL, clustered)
    ]
    assert worlds[0].name != worlds[1].name
    assert worlds[0].single(0).name == worlds[1].single(0).name


def test_too_many_members_are_refused_before_any_work(packs: list[Pack], tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match="training classes: enough for 6 members") as refused:
        run(packs, tmp_path / "grid", "modulator.members=50")
    assert "\n" not in str(refused.value)
    with pytest.raises(PolyshotError, match="Clusters need a trained base"):
        run(packs, tmp_path / "grid", config=replace(SMALL, joint=True))
    with pytest.raises(PolyshotError, match="nothing to measure in one-source"):
        run(packs[:1], tmp_path / "grid", others=[])
    assert not (tmp_path / "grid" / "worlds").exists()
