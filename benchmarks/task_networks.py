"""ProtoMAML with 100 steps: many tasks side by side against one at a time, and against vmap.

    python benchmarks/task_networks.py [episodes]
    python benchmarks/task_networks.py patches

In one run, the same network and images. With `patches`, only the two ways of `embed_tasks` to
convolve, as products over patches or task by task, in turns: on a CPU in seconds of the processor
on one thread, which other programs do not disturb.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from polyshot.methods.protomaml import ProtoMamlLearner
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.task_networks import embed_tasks, task_kernels
from polyshot.predict import own_networks
from polyshot.tasks import Table, Tasks
from polyshot.util.device import best_device

STEPS, RATE, ALONE, TURNS = 100, 0.001, 4, 7


def main() -> None:
    device = best_device()
    on_gpu = device.type == "cuda"
    if sys.argv[1:] == ["patches"]:
        for config, side in ((ResNetConfig(16, "small/2"), 40), (ResNetConfig(), 72)):
            patches_or_not(config, side, device)
        return
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else (600 if on_gpu else 4)
    config, side = (ResNetConfig(), 72) if on_gpu else (ResNetConfig(16, "small/2"), 40)
    torch.manual_seed(0)
    base = ResNet(config).to(device).eval()
    print(f"torch {torch.__version__}, {device}, width {config.width}, {side} px")
    table = torch.randint(0, 256, (2000, 3, side, side), device=device, dtype=torch.uint8)
    places = torch.randint(0, 2000, (episodes, 5, 15), device=device)
    tasks = Tasks(Table.of(table, device), places[..., 5:].flatten(1), places[..., :5])
    learner = ProtoMamlLearner(base, STEPS, RATE)
    learner.adapted(tasks.part(slice(0, 100)), 2)  # warm up
    together = timed(lambda: learner.adapted(tasks, STEPS), device)
    few = tasks.part(slice(0, ALONE))
    own_networks.AT_ONCE[device.type] = 1
    learner.adapted(few, 2)
    alone = timed(lambda: learner.adapted(few, STEPS), device) / ALONE * episodes
    plain = timed(lambda: [plain_loop(base, learner, t) for t in few.chunks(1)], device)
    plain *= episodes / ALONE
    print(f"{episodes} episodes, {STEPS} steps, 5-way 5-shot: {together:.1f} s side by side")
    print(f"one at a time: {alone:.1f} s by the same code, {alone / together:.1f}x as long")
    print(f"one at a time: {plain:.1f} s by a plain loop, {plain / together:.1f}x as long")
    against_vmap(base, tasks.part(slice(0, 100 if on_gpu else 4)), device)


def plain_loop(base: ResNet, learner: ProtoMamlLearner, task: Tasks) -> Tensor:
    """What one would write for a single task: functional_call, autograd, SGD."""
    images = task.support_images()
    weight, bias = (t[0].detach() for t in learner.head(images))
    flat = images[0].flatten(0, 1).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(5, device=flat.device).repeat_interleave(5)
    values = {n: p.detach() for n, p in base.named_parameters() if p.ndim == 4}
    values |= {"weight": weight, "bias": bias}
    for _ in range(STEPS):
        leaves = {name: value.requires_grad_() for name, value in values.items()}
        kernels = {name: leaf for name, leaf in leaves.items() if name not in ("weight", "bias")}
        with torch.autocast("cuda", torch.bfloat16, enabled=flat.is_cuda):
            embeddings = functional_call(base, kernels, (flat,))
        logits = embeddings.float() @ leaves["weight"].T + leaves["bias"]
        gradients = torch.autograd.grad(F.cross_entropy(logits, labels), list(leaves.values()))
        values = {
            name: (leaf - RATE * gradient).detach()
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
        }
    return values["weight"]


def against_vmap(base: ResNet, tasks: Tasks, device: torch.device) -> None:
    images = tasks.support_images().flatten(1, 2)
    kernels = {n: k.detach().contiguous() for n, k in task_kernels(base, len(tasks)).items()}
    usual = {f"{n}.weight": k.permute(0, 1, 4, 2, 3).contiguous() for n, k in kernels.items()}
    leaves = {name: kernel.requires_grad_() for name, kernel in kernels.items()}

    def ours() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
            embeddings = embed_tasks(base, leaves, images)
        torch.autograd.grad(embeddings.square().sum(), list(leaves.values()))

    def loss(own: dict[str, Tensor], batch: Tensor) -> Tensor:
        embeddings: Tensor = functional_call(base, own, (batch,))
        return embeddings.float().square().sum()

    def grouped() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
            vmap(grad(loss))(usual, images)

    for step in (ours, grouped):
        step()
    one, other = (min(timed(step, device) for _ in range(3)) for step in (ours, grouped))
    rate = len(tasks) * images.shape[1] / one
    print(f"one step: {rate:,.0f} images/s; torch.func.vmap takes {other / one:.1f}x as long")


def patches_or_not(config: ResNetConfig, side: int, device: torch.device) -> None:
    """Take one step of four tasks of 25 images, by patches and without."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    base = ResNet(config).to(device).eval()
    images = torch.randn(4, 25, 3, side, side, device=device)
    kernels = {n: k.detach().contiguous() for n, k in task_kernels(base, len(images)).items()}
    leaves = {name: kernel.requires_grad_() for name, kernel in kernels.items()}

    def embed(patches: bool) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
            return embed_tasks(base, leaves, images, patches)

    def learn(patches: bool) -> object:
        return torch.autograd.grad(embed(patches).square().sum(), list(leaves.values()))

    def classify(patches: bool) -> object:
        with torch.no_grad():
            return embed(patches)

    print(f"torch {torch.__version__}, {device}, width {config.width}, {side} px, 4 x 25 images")
    for name, step in (("learning step", learn), ("forward pass", classify)):
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(TURNS + 1):  # the first one warms up
            for patches, taken in seconds.items():
                taken.append(timed(lambda: step(patches), device, clock))  # noqa: B023 (run at once)
        one, other = (statistics.median(taken[1:]) for taken in seconds.values())
        print(f"{name}: {one:.3f} s by patches, {other:.3f} s without, {one / other:.2f}x as long")


def timed(
    work: Callable[[], object],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Run once; seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


if __name__ == "__main__":
    main()
