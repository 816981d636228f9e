"""Images a second of each phase of a training, and its share of what was measured as the ceiling.

    python benchmarks/gpu.py [strong]

Random images stand for the sources: the time does not depend on what is on them. The ceilings are
those of an H200 with ResNet-18 at 72 px in bf16, channels last: 134,000 images a second trained by
a compiled network with nothing else to do, 340,000 embedded in batches of 1,200 and more.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from polyshot.config import Config, preset
from polyshot.data.augment import augment
from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.methods.finetune import TaskNetworks, learn_networks
from polyshot.models.resnet import ResNet
from polyshot.models.views import normalise
from polyshot.training.run import train
from polyshot.util.device import best_device

TRAINING, EMBEDDING = 134_000, 340_000
SOURCES, CLASSES, EACH = 8, 40, 30


def main() -> None:
    device = best_device()
    config = preset(
        sys.argv[1] if len(sys.argv) > 1 else "strong" if device.type == "cuda" else "tiny"
    )
    short = device.type == "cpu"
    config = replace(
        config,
        base=replace(config.base, steps=6 if short else 2000, validate_every=10_000),
        modulator=replace(config.modulator, steps=4 if short else 200, validate_every=10_000),
        selector=replace(config.selector, steps=10, tasks=10),
        validation_episodes=10,
    )
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {name}, preset {config.preset}, {config.size} px")
    with tempfile.TemporaryDirectory() as folder:
        packs = [random_pack(Path(folder), i, config.size) for i in range(SOURCES)]
        trained(packs, config, Path(folder) / "run", device)
    augmented(config, device)
    embedded(config, device)
    adapted(config, device)


def trained(packs: list[Pack], config: Config, out: Path, device: torch.device) -> None:
    """Read the rates that the training itself writes down; the first lines warm up."""
    start = time.perf_counter()
    train(packs, config, out, device=device)
    seconds = time.perf_counter() - start
    rates: dict[str, list[float]] = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        about = json.loads(line)
        if "images_per_second" in about:
            rates.setdefault(about["step"].partition(":")[0], []).append(about["images_per_second"])
    for step in ("base", "modulator"):
        say(f"training: {step}", statistics.median(rates[step]), TRAINING)
    print(f"all three steps, short, with everything around them: {seconds:.1f} s")


def augmented(config: Config, device: torch.device) -> None:
    size, batch = config.size, config.base.batch
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=device)
    seconds = timed(
        lambda number: normalise(augment(images, config.base.augment, 0, number)), device
    )
    say("augmentation alone", batch / seconds, None)


def embedded(config: Config, device: torch.device) -> None:
    batch = 2048 if device.type == "cuda" else 64
    network = ResNet(config.model).to(device).eval().to(memory_format=torch.channels_last)
    images = torch.rand(batch, 3, config.size, config.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)

    def step(_: int) -> torch.Tensor:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
            result: torch.Tensor = network(images)
            return result

    say("embedding", batch / timed(step, device), EMBEDDING)


def adapted(config: Config, device: torch.device) -> None:
    """Whole networks learned on support sets, many tasks at once."""
    tasks = 100 if device.type == "cuda" else 2
    base = ResNet(config.model).to(device).eval()
    support = torch.rand(tasks, 5, 5, 3, config.size, config.size, device=device)
    head = torch.randn(tasks, 5, config.model.dim, device=device)
    start = head, head.new_zeros(tasks, 5)
    present = torch.ones(support.shape[:3], dtype=torch.bool, device=device)
    steps = 5

    def learn(_: int) -> TaskNetworks:
        return learn_networks(base, start, support, present, steps, 1e-3)

    seconds = timed(learn, device) / steps
    say("networks of their own for 100 tasks", tasks * 25 / seconds, TRAINING)


def random_pack(folder: Path, number: int, size: int) -> Pack:
    generator = np.random.default_rng(number)
    labels = np.repeat(np.arange(CLASSES), EACH)
    names = tuple(f"class {i}" for i in range(CLASSES))
    with PackWriter(folder / f"source{number}", size) as writer:
        for _ in range(CLASSES):
            writer.append(generator.integers(0, 256, (EACH, 3, size, size), dtype=np.uint8))
        return writer.finish(Domain(f"source{number}", names, labels), {"reader": "random"})


def timed(step, device: torch.device, count: int = 20) -> float:  # type: ignore[no-untyped-def]
    """Seconds of one call, after some to warm up."""
    count = count if device.type == "cuda" else 2
    for number in range(3):
        step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(count):
        step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def say(what: str, rate: float, ceiling: int | None) -> None:
    on_gpu = torch.cuda.is_available()  # of a CPU no ceiling is known
    share = f", {100 * rate / ceiling:.0f} % of the ceiling" if ceiling and on_gpu else ""
    print(f"{what}: {rate:,.0f} images/s{share}")


if __name__ == "__main__":
    main()
