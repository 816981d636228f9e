import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from polyshot.config import override, preset
from polyshot.data.pack import Pack, open_packs
from polyshot.pool.pool import Pool
from polyshot.training import loop
from polyshot.training.run import train
from tests.helpers import in_double, metrics_of

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
    if len(seen) < 20:  # of the base; the next steps are the first process's alone
        flat = torch.cat([p.detach().flatten() for p in self.parameters])
        every = [torch.empty_like(flat) for _ in range(2)]
        dist.all_gather(every, flat)
        seen.append(torch.equal(*every))
    return stop

loop._Loop._update = watched
try:
    main(sys.argv[1:])
finally:
    assert seen == [True] * 20, seen
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
SETTINGS = [
    *("size=16", "model.width=4", "base.steps=20", "base.batch=32", "base.warm_up=2"),
    *("base.learning_rate=0.1", "base.mix=0.0", "base.validate_every=5", "modulator.steps=2"),
    *("modulator.episodes=1", "modulator.shape.shot=2", "modulator.shape.queries=3"),
    *("shape.shot=2", "shape.queries=3", "selector.steps=4", "selector.tasks=8"),
    "validation_episodes=4",
]


@pytest.mark.slow
def test_two_processes_train_one_base_and_the_rest_is_the_firsts(
    packs: list[Pack], tmp_path: Path
) -> None:
    """Started by torchrun: nobody may be waited for in steps 2 and 3."""
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["--preset", "tiny", "--device", "cpu", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node=2", str(tmp_path / "script.py")]
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


FOLLOWED = """
import json, os, sys, torch
from pathlib import Path
from tests.training.test_parallel import followed

torch.set_num_threads(1)
found = followed(Path(sys.argv[1]), Path(sys.argv[2]))
if os.environ["RANK"] == "0":
    (Path(sys.argv[2]) / "followed.json").write_text(json.dumps(found))
"""


def followed(packs: Path, out: Path) -> dict[str, Any]:
    """Train a base in double precision: its losses, and the sums of its tensors."""
    losses = []
    count = loop._Loop._count

    def watched(self: Any, loss: torch.Tensor, fine: Any) -> None:
        losses.append(float(loss))
        count(self, loss, fine)

    settings = [*SETTINGS, "base.steps=12", "base.batch=31", "base.mix=0.8"]
    config = override(preset("tiny"), settings)
    with pytest.MonkeyPatch.context() as patch, in_double():
        patch.setattr(loop._Loop, "_count", watched)
        pool = train(open_packs(packs), config, out, "base", "cpu")
    values = pool.base.state_dict()
    return {"losses": losses, "sums": {name: float(values[name].sum()) for name in values}}


def test_two_processes_follow_the_loss_of_one_with_the_joint_batch(
    packs: list[Pack], tmp_path: Path, one_thread: None
) -> None:
    """Augmented, mixed, normalised by joint statistics, in parts of different size: all the same.

    In double precision, so that what is left of a difference is not the rounding of sums.
    """
    folder = packs[0].path.parent
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # What torchrun, which the slow test above starts, would set.
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", FOLLOWED, folder, tmp_path / "two"],
            env={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank},
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    one = followed(folder, tmp_path / "one")
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors[-3000:]
    two = json.loads((tmp_path / "two" / "followed.json").read_text())
    assert len(one["losses"]) == 12 and len({round(loss, 3) for loss in one["losses"]}) > 6
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-6)
    assert two["sums"] == pytest.approx(one["sums"], rel=1e-5, abs=1e-5)
