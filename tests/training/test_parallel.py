import json
import subprocess
import sys
from pathlib import Path

from polyshot.config import Config, to_dict
from polyshot.data.pack import Pack
from polyshot.pool.pool import Pool
from polyshot.training.run import train
from tests.helpers import metrics_of, with_base

SCRIPT = """
import json, os, sys, torch
import torch.distributed as dist
from pathlib import Path
from polyshot.config import from_dict
from polyshot.data.pack import Pack
from polyshot.training import loop, parallel
from polyshot.training.run import train

torch.set_num_threads(1)
out = Path(sys.argv[1])
config = from_dict(json.loads((out.parent / "given.json").read_text()))
seen = []
update = loop._Loop._update

def watched(self, asked):
    stop = update(self, asked)
    flat = torch.cat([p.detach().flatten() for p in self.parameters])
    every = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(every, flat)
    seen.append(torch.equal(*every))
    return stop

loop._Loop._update = watched
pool = train([Pack.open(path) for path in sys.argv[2:]], config, out, "base", "cpu")
assert seen == [True] * config.base.steps, seen
(out.parent / f"hash{os.environ['RANK']}").write_text(pool.hash)
"""


def test_two_processes_train_one_base(packs: list[Pack], config: Config, tmp_path: Path) -> None:
    config = with_base(config, steps=40, batch=32, validate_every=10, mix=0.0, learning_rate=0.1)
    (tmp_path / "given.json").write_text(json.dumps(to_dict(config)))
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", str(tmp_path / "script.py"), str(tmp_path / "run")]
    done = subprocess.run(
        [*command, *(str(pack.path) for pack in packs)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    hashes = [(tmp_path / f"hash{rank}").read_text() for rank in range(2)]
    assert hashes[0] == hashes[1] == Pool.load(tmp_path / "run" / "pool").hash
    losses = [line["loss"] for line in metrics_of(tmp_path / "run")]
    assert len(losses) == 4  # one process writes
    assert losses[-1] < losses[0] - 0.1
    train(packs, config, tmp_path / "one", "base", "cpu")
    alone = metrics_of(tmp_path / "one")
    # Batch norm and augmentation differ between the processes, the images do not.
    for one, both in zip(alone, losses, strict=True):
        assert abs(one["loss"] - both) < 0.25


def test_torchrun_trains_a_whole_pool_by_the_command(packs: list[Pack], tmp_path: Path) -> None:
    """Steps 2 and 3 are the first process's alone: nobody may be waited for in them."""
    settings = [
        "size=16",
        "model.width=4",
        "base.steps=4",
        "base.batch=16",
        "base.warm_up=1",
        "base.validate_every=2",
        "modulator.steps=2",
        "modulator.episodes=1",
        "modulator.shape.shot=2",
        "modulator.shape.queries=3",
        "shape.shot=2",
        "shape.queries=3",
        "selector.steps=4",
        "selector.tasks=8",
        "validation_episodes=4",
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--preset", "tiny", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "polyshot", "train", str(packs[0].path.parent)]
        + options
        + [word for setting in settings for word in ("--set", setting)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pool = Pool.load(tmp_path / "run" / "pool")
    assert pool.members == ("base", "signs", "textures") and pool.selector is not None
