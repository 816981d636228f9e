import subprocess
import sys
from pathlib import Path

from polyshot.config import override, preset
from polyshot.data.pack import Pack
from polyshot.pool.pool import Pool
from polyshot.training.run import train
from tests.helpers import metrics_of

SCRIPT = """
import os, sys, torch
import torch.distributed as dist
from pathlib import Path
from polyshot.cli import main
from polyshot.training import loop

torch.set_num_threads(1)
seen = []
update = loop._Loop._update

def watched(self, asked):
    stop = update(self, asked)
    if len(seen) < 40:  # of the base; the next steps are the first process's alone
        flat = torch.cat([p.detach().flatten() for p in self.parameters])
        every = [torch.empty_like(flat) for _ in range(2)]
        dist.all_gather(every, flat)
        seen.append(torch.equal(*every))
    return stop

loop._Loop._update = watched
try:
    main(sys.argv[1:])
finally:
    assert seen == [True] * 40, seen
"""
SETTINGS = [
    *("size=16", "model.width=4", "base.steps=40", "base.batch=32", "base.warm_up=2"),
    *("base.learning_rate=0.1", "base.mix=0.0", "base.validate_every=10", "modulator.steps=2"),
    *("modulator.episodes=1", "modulator.shape.shot=2", "modulator.shape.queries=3"),
    *("shape.shot=2", "shape.queries=3", "selector.steps=4", "selector.tasks=8"),
    "validation_episodes=4",
]


def test_two_processes_train_one_base_and_the_rest_is_the_firsts(
    packs: list[Pack], tmp_path: Path
) -> None:
    """Started by torchrun: nobody may be waited for in steps 2 and 3."""
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--preset", "tiny", "--device", "cpu", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(tmp_path / "script.py")]
        + ["train", str(packs[0].path.parent), *options]
        + [word for setting in SETTINGS for word in ("--set", setting)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pool = Pool.load(tmp_path / "run" / "pool")
    assert pool.members == ("base", "signs", "textures") and pool.selector is not None
    assert done.stdout.count(f"3 members, hash {pool.hash[:12]}") == 2
    losses = [line["loss"] for line in metrics_of(tmp_path / "run") if line["step"] == "base"]
    assert len(losses) == 4  # one process writes
    assert losses[-1] < losses[0] - 0.1
    train(packs, override(preset("tiny"), SETTINGS), tmp_path / "one", "base", "cpu")
    alone = metrics_of(tmp_path / "one")
    # Batch norm and augmentation differ between the processes, the images do not.
    for one, both in zip(alone, losses, strict=True):
        assert abs(one["loss"] - both) < 0.25
