"""The commands that change pools, as users run them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyshot.data.toy import draw_packs
from polyshot.pool import default
from polyshot.pool.pool import Pool
from polyshot.training.edit import grow
from polyshot.util.files import locked
from tests.commands import SMALL, as_shells_have_it, done, polyshot, refused, training
from tests.helpers import files_of, run_script

QUICK = ("--set", "modulator.steps=3", "--device", "cpu")
EXAMPLE = [f"{name}={value}" for name, value in SMALL.items()]


@pytest.fixture(autouse=True, scope="module")
def one_thread_and_a_wide_terminal() -> None:
    from polyshot.cli import display

    torch.set_num_threads(1)
    display.out.width = 200


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "packs"
    names = ["glyphs", "signs", "plankton", "flowers"]
    draw_packs(folder, names, size=24, per_class=16, workers=1)
    return folder


@pytest.fixture(scope="module")
def pool(packs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    done(*training(packs, out))
    return out / "pool"


@pytest.fixture(scope="module")
def grown(pool: Path, packs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grown") / "pool"
    before = files_of(pool)
    said = done("pool", "add", pool, packs / "plankton", "--out", out, *QUICK)
    assert f"wrote {out}: 4 members" in said and "plankton has strength" in said
    assert files_of(pool) == before
    assert [path.name for path in out.parent.iterdir()] == ["pool"]
    return out


@pytest.fixture
def own(pool: Path, tmp_path: Path) -> Path:
    """A copy of the pool to be changed."""
    Pool.load(pool).save(tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize("command", ["add", "remove", "list", "merge"])
def test_every_command_has_help(command: str) -> None:
    assert "Usage" in done("pool", command, "--help")


def test_members_are_listed(grown: Path, pool: Path, tmp_path: Path) -> None:
    said = done("pool", "list", grown)
    for word in ("base", "glyphs", "signs", "plankton", "added", "trained"):
        assert word in said
    assert Pool.load(grown).member_hash(0)[:12] in said
    loaded = Pool.load(pool)
    loaded.statistics = {}
    loaded.save(tmp_path / "old")
    assert "keeps no statistics" in done("pool", "list", tmp_path / "old")
    loaded.selector = None
    loaded.save(tmp_path / "old")
    assert "has no selector" in done("pool", "list", tmp_path / "old")


def test_a_domain_is_added_and_removed_in_place(own: Path, packs: Path) -> None:
    before = Pool.load(own)
    done("pool", "add", own, packs / "flowers", *QUICK)
    assert Pool.load(own).members == ("base", "glyphs", "signs", "flowers")
    assert "wrote" in done("pool", "remove", own, "flowers")
    after = Pool.load(own)
    assert after.member_hashes() == before.member_hashes() and after.scales == before.scales
    assert [path.name for path in own.parent.iterdir()] == ["own"]


def test_pools_are_merged(grown: Path, own: Path, packs: Path, tmp_path: Path) -> None:
    done("pool", "add", own, packs / "flowers", *QUICK)
    said = done("pool", "merge", grown, own, "--out", tmp_path / "both")
    assert "5 members" in said
    joint = Pool.load(tmp_path / "both")
    assert joint.members == ("base", "glyphs", "signs", "plankton", "flowers")
    assert joint.task_weights(torch.rand(3, joint.config.dim)).shape == (3, 5)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    assert "is no pool" in refused("pool", "merge", grown, own, "--out", tmp_path / "mine")


def test_the_pool_that_ships_grows_elsewhere(
    own: Path, packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(default.VARIABLE, raising=False)
    monkeypatch.setattr(default, "PACKAGED", own)
    before = files_of(own)
    more, less, both = (tmp_path / name for name in ("more", "less", "both"))
    assert done("pool", "list") == done("pool", "list", "default")
    done("pool", "add", "default", packs / "flowers", "--out", more, *QUICK)
    done("pool", "remove", "default", "signs", "--out", less)
    assert "4 members" in done("pool", "merge", "default", more, "--out", both)
    assert Pool.load(less).members == ("base", "glyphs")
    for place in (("default",), (own,), ("default", "--out", own), (more, "--out", own / "../own")):
        name, *into = place
        assert "--out" in refused("pool", "remove", name, "signs", *into)
        assert "--out" in refused("pool", "add", name, packs / "plankton", *into, *QUICK)
    assert "--out" in refused("pool", "merge", "default", more, "--out", own)
    assert files_of(own) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "less", "more", "own"]


def test_bad_input_is_refused_and_changes_nothing(
    own: Path, packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(own)
    other = draw_packs(tmp_path / "other", ["aerial"], size=16, per_class=2, workers=1)[0]
    assert "already" in refused("pool", "add", own, packs / "signs", *QUICK)
    assert "import it again with --size 24" in refused("pool", "add", own, other.path, *QUICK)
    assert "is no pack" in refused("pool", "add", own, tmp_path / "nowhere")
    assert "is no pool" in refused("pool", "add", tmp_path / "nowhere", packs / "flowers")
    bad = ("--set", "modulator.stepz=3")
    assert "Did you mean 'steps'" in refused("pool", "add", own, packs / "flowers", *bad)
    into = ("--out", packs)
    assert "is no pool" in refused("pool", "add", own, packs / "flowers", *into, *QUICK)
    assert "Did you mean 'signs'" in refused("pool", "remove", own, "sign")
    monkeypatch.setenv("POLYSHOT_POOL", str(own))
    assert "with --out" in refused("pool", "add", "default", packs / "flowers", *QUICK)
    assert "with --out" in refused("pool", "remove", "default", "signs")
    assert "kind of device" in refused("pool", "add", own, packs / "flowers", "--device", "x")
    assert files_of(own) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "own"]


def test_two_additions_at_once_are_refused(own: Path, packs: Path) -> None:
    with locked(own.with_name(".own.adding") / "lock"):
        said = refused("pool", "add", own, packs / "flowers", *QUICK)
    assert "Another process is adding a domain" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused_at_once(own: Path, packs: Path) -> None:
    own.parent.chmod(0o555)
    try:
        assert "cannot be written" in refused("pool", "add", own, packs / "flowers", *QUICK)
        assert "cannot be written" in refused("pool", "remove", own, "signs")
    finally:
        own.parent.chmod(0o755)


def test_a_place_that_cannot_be_a_folder_is_refused_at_once(
    own: Path, packs: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    out = ("--out", tmp_path / "file" / "pool")
    assert "cannot be written" in refused("pool", "add", own, packs / "flowers", *out, *QUICK)
    assert "cannot be written" in refused("pool", "remove", own, "signs", *out)


def test_ctrl_c_leaves_the_pool_and_the_same_command_goes_on(own: Path, packs: Path) -> None:
    from polyshot.data.pack import Pack

    before = Pool.load(own).hash
    options = ["modulator.steps=400", "modulator.validate_every=2", "validation_episodes=2"]
    command = [sys.executable, "-m", "polyshot", "pool", "add", str(own), str(packs / "flowers")]
    sets = [word for option in options for word in ("--set", option)]
    child = subprocess.Popen(
        [*command, *sets, "--device", "cpu"],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    work, until = own.with_name(".own.adding"), time.monotonic() + 60
    while not list(work.glob("*/modulator.pt")) and time.monotonic() < until:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert as_shells_have_it(child.wait(30)) == 130
    assert Pool.load(own).hash == before
    kept = next(work.glob("*/modulator.pt"))
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):  # it goes on after what was done
        grow(
            own,
            Pack.open(packs / "flowers"),
            options=options,
            device="cpu",
            report=lambda name, number, _: seen.append(number) or _stop(),
        )
    first = torch.load(kept, weights_only=True)["number"]
    assert first > 1 and seen[0] == first * 75
    assert polyshot("pool", "list", own).code == 0


def _stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("given", [False, True])
def test_the_example_adds_a_domain(
    given: bool,
    pool: Path,
    image_folder: Callable[..., Path],
    few_are_drawn: None,
    tmp_path: Path,
) -> None:
    arguments = [word for option in EXAMPLE for word in ("--set", option)]
    name = "signs"
    if given:
        birds = image_folder("birds", **{f"class {i}": 15 for i in range(34)})
        name, arguments = "birds", [str(birds), "--pool", str(pool)]
    script = Path(__file__).parents[1] / "examples" / "add_a_domain.py"
    said = run_script(script, tmp_path, *arguments)
    assert f"{name} has strength" in said and f"{name}, member:{name}: " in said
    assert Pool.load(tmp_path / "grown" / "pool").members[-1] == name


def test_a_training_with_clusters_or_joint(packs: Path, tmp_path: Path) -> None:
    few = ("--members-per-source", 2)
    said = done(*training(packs, tmp_path / "run", *few, sources="glyphs"))
    assert "3 members" in said
    assert "glyphs/2" in done("pool", "list", tmp_path / "run" / "pool")
    done(*training(packs, tmp_path / "auto", "--members-per-source", "auto", sources="glyphs"))
    done(*training(packs, tmp_path / "joint", "--joint", sources="glyphs"))
    for value, words in (("two", "wrong kind"), ("40", "not for 40"), ("-1", "too small")):
        assert words in refused(
            *training(packs, tmp_path / "x", "--members-per-source", value, sources="glyphs")
        )
    assert "take joint or" in refused(*training(packs, tmp_path / "x", "--joint", *few))
    assert not (tmp_path / "x").exists()
