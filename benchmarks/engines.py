"""What an engine costs a job, and how many images it labels a second: local against Ray.

    python benchmarks/engines.py [--jobs 200] [--images 4000]

Jobs that do nothing but write a file, small or of the size of a pool's base, in turns by both
engines; then drawn images labelled into a folder by a classifier of untrained members, in turns.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.classifier.many import label_many
from polyshot.engines import Engine, Job, Place, Resources
from polyshot.engines.local import Local
from polyshot.engines.ray import Ray
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.pool.pool import Pool

TURNS = 3
SIDE = 64


def write(place: Place, name: str, size: int) -> Iterator[str]:
    """Write a file of so many bytes."""
    file = place.folder / "made" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(np.random.default_rng(0).bytes(size))
    yield name


def jobs_a_second(engine: Engine, count: int, size: int) -> float:
    """Run jobs that do nothing but write a file."""
    jobs = [
        Job(f"{i}", write, (f"{i}", size), reads=(f"made/{i}",), outputs=(f"made/{i}",))
        for i in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        ended = sum(event.ended for event in engine.run(jobs, Path(folder)))
        assert ended == count
        return count / (time.perf_counter() - start)


def draw(folder: Path, count: int) -> Path:
    """Draw noisy colours as JPEG files."""
    random = np.random.default_rng(0)
    for i in range(count):
        noise = random.normal(0, 40, (96, 96, 3)) + random.uniform(40, 215, 3)
        file = folder / f"{i // 1000:03}" / f"{i:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(file)
    return folder


def untrained(file: Path, images: Path) -> Path:
    """Keep a classifier on an untrained ResNet-18 of the paper's width."""
    torch.manual_seed(0)
    config = ResNetConfig()
    base = ResNet(config).eval()
    pool = Pool(config, SIDE, "conv1x1", "cosine", base, scales=[10.0])
    few = sorted(images.rglob("*.jpg"))[:10]
    FewShotClassifier(pool, "base", "none").fit(few, [i % 2 for i in range(10)]).save(file)
    return file


def images_a_second(engine: Engine, model: Path, images: Path, count: int) -> float:
    """Label images into a folder that is new."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        made = label_many(engine, Resources(), model, [str(images)], folder + "/labels", 250)
        assert made.images == count
        return count / (time.perf_counter() - start)


def show(what: str, unit: str, local: list[float], ray: list[float]) -> None:
    print(f"{what}: local {np.median(local):,.1f}, ray {np.median(ray):,.1f} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--images", type=int, default=4000)
    options = parser.parse_args()
    local = Local()
    start = time.perf_counter()
    with Ray() as ray:
        print(f"start of a cluster on this machine: {time.perf_counter() - start:.1f} s")
        jobs_a_second(ray, 4, 1)  # its processes have imported torch by then
        for size, name in ((1000, "jobs of 1 kB"), (45_000_000, "jobs of 45 MB")):
            count = options.jobs if size < 10**6 else max(2, options.jobs // 10)
            pairs = [
                (jobs_a_second(local, count, size), jobs_a_second(ray, count, size))
                for _ in range(TURNS)
            ]
            one, other = map(list, zip(*pairs, strict=True))
            show(name, "jobs/s", one, other)
            cost = 1000 * (1 / np.median(other) - 1 / np.median(one))
            print(f"  a job by Ray takes {cost:.1f} ms longer")
        with tempfile.TemporaryDirectory() as folder:
            images = draw(Path(folder) / "images", options.images)
            model = untrained(Path(folder) / "model.polyshot", images)
            found = [
                (
                    images_a_second(local, model, images, options.images),
                    images_a_second(ray, model, images, options.images),
                )
                for _ in range(TURNS)
            ]
            one, other = map(list, zip(*found, strict=True))
            show(f"labelling at {SIDE} px by a ResNet-18", "images/s", one, other)


if __name__ == "__main__":
    main()
