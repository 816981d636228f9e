"""TSA on many tasks side by side against one at a time, and what choosing the rate costs.

    python benchmarks/tsa.py [episodes]
    python benchmarks/tsa.py own

In one run, the same pool and images: 5-way 5-shot, 10 queries a class. The plain loop is what one
would write for a single task: the modulator in the kernel's centre tap, autograd, torch's Adadelta.
With `own`, what a user waits for instead: `fit` on 5 classes x 5 images with each adaptation, by a
ResNet-18 of nine members at 72 px. On a CPU in seconds of the processor on one thread, which other
programs do not disturb.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from polyshot.config import AdaptationConfig
from polyshot.models.backbone import sites_of
from polyshot.models.modulators import Modulator
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.pool.pool import Pool
from polyshot.predict import own_networks
from polyshot.predict.predict import Adaptation, predict_tasks
from polyshot.predict.rules import rule
from polyshot.tasks import Table, Tasks
from polyshot.util.device import best_device

UPDATES, ALONE, IMAGES = 40, 4, 2000
ONE_RATE = AdaptationConfig(updates=UPDATES, rates=(0.05,), tsa_share=1.0)


def main() -> None:
    device = best_device()
    on_gpu = device.type == "cuda"
    if sys.argv[1:] == ["own"]:
        own_images(device)
        return
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else (600 if on_gpu else 4)
    config, side = (ResNetConfig(), 72) if on_gpu else (ResNetConfig(16, "small/2"), 40)
    torch.manual_seed(0)
    pool = Pool(config, side, "conv1x1", "cosine", ResNet(config), adaptation=ONE_RATE).to(device)
    print(f"torch {torch.__version__}, {device}, width {config.width}, {side} px")
    table = torch.randint(0, 256, (IMAGES, 3, side, side), device=device, dtype=torch.uint8)
    places = torch.randint(0, IMAGES, (episodes, 5, 15), device=device)
    tasks = Tasks(Table.of(table, device), places[..., 5:].flatten(1), places[..., :5])
    tasks.table.embed(pool.network(0))  # once, for all

    def solve(some: Tasks, rates: tuple[float, ...] = (0.05,)) -> Tensor:
        own = replace(pool.adaptation, rates=rates)
        adapting = replace(pool, adaptation=own)
        return predict_tasks(adapting, some, [rule("base", pool)], "tsa").probabilities[0]

    few = tasks.part(slice(0, ALONE))
    solve(tasks.part(slice(0, 100)))  # warm up
    together = timed(lambda: solve(tasks), device)
    choosing = timed(lambda: solve(tasks, (0.05, 0.5)), device)
    plain_loop(pool.base, few, 0)
    plain = timed(lambda: [plain_loop(pool.base, few, e) for e in range(len(few))], device)
    plain *= episodes / len(few)
    own_networks.AT_ONCE[device.type] = 1
    solve(few)
    alone = timed(lambda: solve(few), device) * episodes / len(few)
    print(f"{episodes} tasks, {UPDATES} updates, one rate: {episodes / together:.1f} tasks/s")
    print(f"one at a time by the same code: {alone / together:.1f}x as long")
    print(f"one at a time by a plain loop: {plain / together:.1f}x as long")
    print(f"with the rate chosen from two: {choosing / together:.1f}x as long")
    if on_gpu:
        print(f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of memory")


def own_images(device: torch.device) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = ResNetConfig()
    base = ResNet(config)
    modulators = {f"domain {i}": Modulator(sites_of(base)) for i in range(8)}
    pool = Pool(config, 72, "conv1x1", "cosine", base, modulators).to(device)
    print(f"torch {torch.__version__}, {device}, width {config.width}, {pool.size} px")
    images = np.random.default_rng(0).integers(0, 256, (25, 72, 72, 3), dtype=np.uint8)
    labels = [i // 5 for i in range(25)]
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    seconds: dict[str, list[float]] = {name: [] for name in get_args(Adaptation)}
    for _ in range(4):  # the first one warms up
        for name, taken in seconds.items():
            classifier = pool.classifier("auto", name)
            start = clock()
            classifier.fit(images, labels)
            taken.append(clock() - start)
    for name, taken in seconds.items():
        print(f"fit with {name}: {statistics.median(taken[1:]):.2f} s")


def plain_loop(base: ResNet, tasks: Tasks, episode: int) -> Tensor:
    """Adapt the base to one task and classify its queries: cosines [Q, W]."""
    images = tasks.table.images(tasks.support[episode].flatten())
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(5, device=images.device).repeat_interleave(5)
    layers = [site.layer for site in sites_of(base)]
    kernels = {conv: base.get_parameter(f"{conv}.weight") for conv in layers}
    leaves = [
        torch.zeros_like(kernels[conv][:, :, 1:2, 1:2], requires_grad=True) for conv in layers
    ]
    matrix = torch.eye(base.config.dim, device=images.device, requires_grad=True)
    groups = [{"params": leaves, "lr": 0.05}, {"params": [matrix], "lr": 0.1}]
    optimiser = torch.optim.Adadelta(groups, foreach=True)

    def embed(pixels: Tensor) -> Tensor:
        own = {
            f"{conv}.weight": kernels[conv] + F.pad(leaf, (1, 1, 1, 1))
            for conv, leaf in zip(layers, leaves, strict=True)
        }
        with torch.autocast("cuda", torch.bfloat16, enabled=pixels.is_cuda):
            embeddings = functional_call(base, own, (pixels,))
        return F.normalize(embeddings.float() @ matrix.T, dim=-1)

    for _ in range(UPDATES):
        unit = embed(images)
        centres = F.normalize(unit.view(5, 5, -1).mean(1), dim=-1)
        optimiser.zero_grad()
        F.cross_entropy(10 * unit @ centres.T, labels).backward()
        optimiser.step()
    with torch.no_grad():
        centres = F.normalize(embed(images).view(5, 5, -1).mean(1), dim=-1)
        return embed(tasks.table.images(tasks.query[episode])) @ centres.T


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Run once; seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
