"""What a task costs as a pool grows from 8 to 32 and 100 domains, in seconds and in memory.

    python benchmarks/many_domains.py [--rules base,select,blend] [--domains 8,100] [--turns 5]

A base and random modulators over it: costs do not depend on what weights were learned. A task is
what a user does without learning on the examples, `Pool.classifier(rule, "none")`, then `fit` on 5
classes x 5 images and `predict` of 50 images. All rules and pools take turns in one run; times are
medians over the turns. On a GPU it is a ResNet-18 at 72 px and times are the clock's; on a CPU the
network of the preset `tiny` (`--full` takes the ResNet-18) and times are the processor's, which
other programs do not disturb.

Memory is what a task needs at most beyond the loaded pool: of the GPU, or of a process of its own.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from polyshot.models.backbone import sites_of
from polyshot.models.modulators import Modulator
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.selector import Selector
from polyshot.pool.pool import Pool
from polyshot.pool.precision import Precision
from polyshot.util.device import best_device

WAY, SHOT, QUERIES = 5, 5, 50
MIB = 2**20


@dataclass
class Cost:
    """What one rule took with one pool, a number a turn."""

    fit: list[float] = field(default_factory=list)
    predict: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Bytes at the peak, beyond what was there before."""

    @property
    def task(self) -> float:
        """Median seconds of fit and predict together."""
        return statistics.median(map(sum, zip(self.fit, self.predict, strict=True)))


def main() -> None:
    asked = arguments()
    device = best_device()
    full = asked.full or device.type == "cuda"
    config, side = (ResNetConfig(), 72) if full else (ResNetConfig(16, "small/2"), 40)
    if asked.peak:  # a process of its own
        pool = random_pool(config, side, asked.domains[0])
        print(measure(pool, asked.rules[0], pictures(side), Cost()))
        return
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} CPU threads")
    print(f"width {config.width}, {side} px, {WAY} x {SHOT} examples, {QUERIES} queries")
    pools = {count: random_pool(config, side, count).to(device) for count in asked.domains}
    for count, pool in pools.items():
        print(f"{count:4} domains: {sizes(pool)}")
    images = pictures(side)
    costs = {(rule, count): Cost() for rule in asked.rules for count in pools}
    for turn in range(asked.turns + 1):  # the first one warms up
        for (rule, count), cost in costs.items():
            measure(pools[count], rule, images, cost if turn else Cost())
    if device.type == "cpu":
        for (rule, count), cost in costs.items():
            cost.memory = [peak_alone(rule, count, asked.full)]
    show(costs, asked.rules, list(pools), asked.turns)


def arguments() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", type=names, default=names("base,select,blend,average,auto"))
    parser.add_argument("--domains", type=numbers, default=numbers("8,32,100"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="a ResNet-18 at 72 px, also on a CPU")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def pictures(side: int) -> NDArray[np.uint8]:
    shape = WAY * SHOT + QUERIES, side, side, 3
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def random_pool(config: ResNetConfig, side: int, domains: int) -> Pool:
    """Make a pool of strangers, each with modulators of its own."""
    torch.manual_seed(0)
    base = ResNet(config)
    modulators = {f"domain {i}": Modulator(sites_of(base)) for i in range(domains)}
    with torch.no_grad():
        for modulator in modulators.values():
            for parameter in modulator.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    selector = Selector(config.dim, 1 + domains)
    with torch.no_grad():
        selector.output.bias[0] = -20  # it chooses a domain, which costs a pass more than the base
    return Pool(config, side, "conv1x1", "cosine", base, modulators, selector=selector)


def sizes(pool: Pool) -> str:
    """Say how large a pool is, in memory and on disk."""
    parts = (pool.base, *pool.modulators.values(), pool.selector)
    tensors = [t for part in parts if part is not None for t in part.state_dict().values()]
    stored = []
    for precision in get_args(Precision):
        with tempfile.TemporaryDirectory() as folder:
            pool.save(Path(folder) / "pool", precision)
            stored.append(f"{precision} {folder_bytes(Path(folder)) / MIB:.1f}")
    loaded = sum(tensor.nbytes for tensor in tensors) / MIB
    return f"{loaded:.1f} MiB loaded; MiB on disk: {', '.join(stored)}"


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(pool: Pool, rule: str, images: NDArray[np.uint8], cost: Cost) -> int:
    """Solve one task by one rule; the bytes that it needed at most."""
    labels = [f"class {i // SHOT}" for i in range(WAY * SHOT)]
    classifier = pool.classifier(rule, "none")
    before = memory_now(pool.device)
    cost.fit.append(
        timed(lambda: classifier.fit(images[: len(labels)], labels), pool.device),
    )
    cost.predict.append(
        timed(lambda: classifier.predict(images[len(labels) :]), pool.device),
    )
    cost.memory.append(memory_peak(pool.device) - before)
    return cost.memory[-1]


def memory_now(device: torch.device) -> int:
    """Count the bytes in use, and forget the peak so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # as Linux has it
    return of_process("VmRSS")


def memory_peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else of_process("VmHWM")


def of_process(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(kilobytes)


def peak_alone(rule: str, count: int, full: bool) -> int:
    """Let a process of its own solve one task; by how many bytes it grew."""
    command = [sys.executable, __file__, "--peak", "--rules", rule, "--domains", str(count)]
    command += ["--full"] if full else []
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Run once; seconds, of the clock on a GPU and of the processor on a CPU."""
    if device.type == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def show(
    costs: dict[tuple[str, int], Cost], rules: list[str], counts: list[int], turns: int
) -> None:
    print(f"milliseconds a task (fit + predict), medians of {turns} turns, and MiB at the peak")
    fewest = counts[0]
    for rule in rules:
        line = []
        for count in counts:
            cost = costs[rule, count]
            fit, predict = (1e3 * statistics.median(part) for part in (cost.fit, cost.predict))
            ratio = cost.task / costs[rule, fewest].task
            line.append(
                f"{count:4}: {1e3 * cost.task:8.1f} ({fit:.0f} + {predict:.0f}, {ratio:.2f}x, "
                f"{max(cost.memory) / MIB:.0f} MiB)"
            )
        print(f"{rule:8}", "  ".join(line))


if __name__ == "__main__":
    main()
