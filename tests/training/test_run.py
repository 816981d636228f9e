import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from polyshot.config import Config, ModulatorConfig, to_dict
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.models.resnet import ResNet
from polyshot.pool.pool import Pool
from polyshot.tasks.table import Table
from polyshot.training import run
from polyshot.training.run import MOST_KEPT, train
from polyshot.util.files import read_json
from tests.helpers import TINY, Interrupt, metrics_of, step_files, toy_packs, until_done, with_base


@pytest.mark.parametrize("every", [1, 4])
def test_a_run_interrupted_again_and_again_ends_with_the_same_bits(
    every: int, packs: list[Pack], config: Config, whole: Path, tmp_path: Path
) -> None:
    out, progress = tmp_path / "run", Interrupt(every)
    pool, times = until_done(lambda: train(packs, config, out, device="cpu", progress=progress))
    assert times > 3
    assert step_files(out) == step_files(whole)
    assert pool.hash == Pool.load(whole / "pool").hash
    assert not list((out / "checkpoints").rglob("*.pt"))


def test_metrics_tell_each_update_once_even_after_interruptions(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(packs, config, tmp_path, "base", "cpu", Interrupt(2))
    train(packs, config, tmp_path, "base", "cpu")
    lines = metrics_of(tmp_path)
    numbers = [line["number"] for line in lines if line["step"] == "base"]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == config.base.steps
    validated = [line for line in lines if "validation" in line]
    assert [line["number"] for line in validated] == [3, 6, 7]
    best = max(validated, key=lambda line: line["validation"])
    assert best["best"]
    for line in lines:
        assert {"step", "number", "loss", "learning_rate", "images_per_second"} <= set(line)


KILLED = """
import json, sys, torch
from pathlib import Path
from polyshot.config import from_dict
from polyshot.data.pack import Pack
from polyshot.training.run import train
torch.set_num_threads(1)
config = from_dict(json.loads(Path(sys.argv[1]).read_text()))
train([Pack.open(path) for path in sys.argv[3:]], config, Path(sys.argv[2]), "base", "cpu")
"""


def start_process(packs: list[Pack], config: Config, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "given.json").write_text(json.dumps(to_dict(config)))
    paths = [str(pack.path) for pack in packs]
    arguments = [sys.executable, "-c", KILLED, str(folder / "given.json"), str(folder / "run")]
    return subprocess.Popen([*arguments, *paths], stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def longer(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """A base that takes long enough to be killed on the way, trained without that."""
    config = with_base(TINY, steps=60, validate_every=4)
    out = tmp_path_factory.mktemp("longer") / "run"
    train(packs, config, out, "base", "cpu")
    return config, out


def test_a_killed_process_is_continued_to_the_same_bits(
    packs: list[Pack], longer: tuple[Config, Path], tmp_path: Path
) -> None:
    config, uninterrupted = longer
    process = start_process(packs, config, tmp_path)
    run, until = tmp_path / "run", time.monotonic() + 300
    while not list((run / "checkpoints").glob("base.pt")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL
    assert (run / "checkpoints" / "base.pt").exists()
    assert not (run / "steps" / "base.safetensors").exists()

    def terminate(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as end:  # saves what it has, and leaves
        train(packs, config, run, "base", "cpu", terminate)
    assert end.value.code == 143
    train(packs, config, run, "base", "cpu")
    assert step_files(run) == step_files(uninterrupted)


def test_two_do_not_train_in_one_folder(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    def second(*_: object) -> None:
        with pytest.raises(PolyshotError, match="Another process is training in") as error:
            train(packs, config, tmp_path, device="cpu")
        assert "\n" not in str(error.value)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(packs, config, tmp_path, device="cpu", progress=second)


def test_steps_that_are_done_are_skipped(packs: list[Pack], config: Config, whole: Path) -> None:
    files = [file for file in whole.rglob("*") if file.is_file()]
    before = {file: file.stat().st_mtime_ns for file in files}
    for step in ("all", "base", "modulators", "selector"):
        pool = train(packs, config, whole, step, "cpu")
        assert pool.members == ("base", "signs", "textures")
        assert pool.selector is not None
    assert {file: file.stat().st_mtime_ns for file in files} == before


def test_steps_one_by_one_give_the_same_pool(
    packs: list[Pack], config: Config, whole: Path, tmp_path: Path
) -> None:
    for step, members in (("base", 1), ("modulators", 3), ("selector", 3)):
        pool = train(packs, config, tmp_path, step, "cpu")
        assert len(pool.members) == members
        assert (pool.selector is None) == (step != "selector")
        assert Pool.load(tmp_path / "pool").hash == pool.hash
    assert step_files(tmp_path) == step_files(whole)
    assert len(pool.scales) == 3
    assert min(pool.scales) > 0


def test_the_last_step_embeds_an_image_once_with_each_network(
    packs: list[Pack], config: Config, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Table, Any]] = []
    embed = Table._embed

    def counted(self: Table, network: Any) -> torch.Tensor:
        made.append((self, network))  # held, so that no other gets its place in memory
        return embed(self, network)

    monkeypatch.setattr(Table, "_embed", counted)
    found = {}
    for most in (MOST_KEPT, 0):
        out = tmp_path / str(most)
        shutil.copytree(whole, out)
        shutil.rmtree(out / "pool")
        for file in (out / "steps").iterdir():
            if file.is_file() and file.name != "base.safetensors":
                file.unlink()
        made.clear()
        monkeypatch.setattr(run, "MOST_KEPT", most)
        pool = train(packs, config, out, "selector", device="cpu")
        networks = 1 + sum(strength != 0 for strength in pool.strengths.values())
        parts = 2 * len(packs)
        pairs = {(id(table), id(network)) for table, network in made}
        assert (len(made) == len(pairs) == parts * networks) == (most > 0)
        found[most] = pool
    once, often = found.values()
    assert once.scales == pytest.approx(often.scales, rel=1e-3)
    assert once.selector is not None and often.selector is not None
    for a, b in zip(once.selector.parameters(), often.selector.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_a_step_before_its_time_is_refused(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    for step in ("modulators", "selector"):
        with pytest.raises(PolyshotError, match=r"not done the step 'base' yet.*--step base"):
            train(packs, config, tmp_path, step, "cpu")


def test_unknown_steps_are_refused(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match=r"no step 'bas', only base.*Did you mean 'base'"):
        train(packs, config, tmp_path, "bas", "cpu")


def test_another_config_is_refused(packs: list[Pack], config: Config, whole: Path) -> None:
    with pytest.raises(PolyshotError, match=r"base\.steps: 7 and 9"):
        train(packs, with_base(config, steps=9), whole, device="cpu")


def test_other_packs_are_refused(packs: list[Pack], config: Config, whole: Path) -> None:
    with pytest.raises(PolyshotError, match="textures is missing"):
        train(packs[:1], config, whole, device="cpu")
    with pytest.raises(PolyshotError, match="order was signs, textures"):
        train(packs[::-1], config, whole, device="cpu")
    split = packs[1].domain.split
    other = replace(split, train=split.train[1:], test=(*split.test, split.train[0]))
    changed = replace(packs[1], domain=packs[1].domain.with_split(other))
    with pytest.raises(PolyshotError, match="textures has another class split"):
        train([packs[0], changed], config, whole, device="cpu")
    turned = [replace(each, domain=replace(each.domain, mirror=False)) for each in packs]
    assert turned[1].hash == packs[1].hash  # of content alone
    with pytest.raises(PolyshotError, match="textures was imported without --no-mirror"):
        train([packs[0], turned[1]], config, whole, device="cpu")


def test_a_run_of_before_that_does_not_say_what_is_mirrored_goes_on(
    packs: list[Pack], config: Config, whole: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    about = json.loads((run / "environment.json").read_text())
    about.pop("checksum", None)
    for each in about["packs"]:
        del each["mirror"]
    (run / "environment.json").write_text(json.dumps(about))
    turned = [replace(each, domain=replace(each.domain, mirror=False)) for each in packs]
    assert train(turned, config, run, device="cpu").hash == Pool.load(whole / "pool").hash


def test_a_source_with_too_few_classes_is_refused_before_anything_is_trained(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    split = packs[1].domain.split
    few = replace(split, train=split.train[:3])
    small = replace(packs[1], domain=packs[1].domain.with_split(few))
    with pytest.raises(PolyshotError, match=r"textures cannot be a source.*training classes"):
        train([packs[0], small], config, tmp_path / "run", device="cpu")
    many = replace(config, shape=EpisodeShape(5, 4, 3))  # the packs have 6 images a class
    with pytest.raises(PolyshotError, match=r"signs cannot be a source.*4 shots and 3 queries"):
        train(packs, many, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_bad_sources_are_refused(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    with pytest.raises(PolyshotError, match="at least one source"):
        train([], config, tmp_path, device="cpu")
    with pytest.raises(PolyshotError, match="twice: signs"):
        train([packs[0], packs[0]], config, tmp_path, device="cpu")
    with pytest.raises(PolyshotError, match=r"signs has images of 16 pixels.*size=16"):
        train(packs, replace(config, size=24), tmp_path, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    with pytest.raises(PolyshotError, match="no device 'cuda'"):
        train(packs, config, tmp_path, device="cuda")


def test_a_base_from_a_file_is_used_as_it_is_with_no_steps(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    given = ResNet(config.model)
    state = given.state_dict() | {"fc.weight": torch.zeros(3, 32), "fc.bias": torch.zeros(3)}
    save_file(state, tmp_path / "start.safetensors")
    config = with_base(config, steps=0)
    start = tmp_path / "start.safetensors"
    pool = train(packs, config, tmp_path / "run", "base", "cpu", start=start)
    for name, tensor in pool.base.state_dict().items():
        assert torch.equal(tensor, given.state_dict()[name])
    with pytest.raises(PolyshotError, match="weights to start from differ"):
        train(packs, config, tmp_path / "run", "base", "cpu")
    with pytest.raises(PolyshotError, match="There is no file"):
        train(packs, config, tmp_path / "run", "base", "cpu", start=tmp_path / "none")


def test_channel_modulators_and_euclidean_distance_go_all_the_way(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    channel = replace(config.modulator, kind="channel", strengths=(1.0,), weight_decay=0.1)
    config = replace(config, modulator=channel, metric="euclidean")
    assert isinstance(channel, ModulatorConfig)
    pool = train(packs, config, tmp_path, device="cpu")
    assert pool.kind == "channel"
    assert pool.strengths == {"signs": 1.0, "textures": 1.0}
    assert pool.metric == "euclidean"


def test_the_run_folder_says_what_was_done(packs: list[Pack], config: Config, whole: Path) -> None:
    assert read_json(whole / "config.json") == to_dict(config)
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert [pack["hash"] for pack in environment["packs"]] == [pack.hash for pack in packs]
    about = Pool.load(whole / "pool").about
    steps = {"base", "modulator:signs", "modulator:textures", "selector", "urt"}
    assert set(about["steps"]) == steps


def test_training_learns(tmp_path: Path, config: Config) -> None:
    packs = toy_packs(tmp_path / "packs", "signs", each=12)
    config = replace(
        with_base(config, steps=150, batch=64, learning_rate=0.1, warm_up=20, validate_every=150),
        validation_episodes=60,
    )
    before = train(packs, with_base(config, steps=0), tmp_path / "none", "base", "cpu")
    after = train(packs, config, tmp_path / "run", "base", "cpu")
    untrained, trained = (p.about["steps"]["base"]["validation"] for p in (before, after))
    assert trained > untrained + 0.05
    assert trained > 0.5
