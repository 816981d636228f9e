"""Episodes a second against easyfsl's task sampler; images a second against a plain Pillow loop.

    make bench        (or: .venv/bin/python benchmarks/episodes.py)

Both sides run in turns in one process on the same labels and files; the ratio is the median of the
turns' ratios, because this measures code and not the machine's mood.
"""

import io
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from peers import make_easyfsl_importable
from PIL import Image, ImageOps

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.importer import ImportOptions, import_source
from polyshot.data.pack import Domain
from polyshot.data.splits import ClassSplit
from polyshot.util.device import cores

make_easyfsl_importable()
from easyfsl.datasets import FewShotDataset  # noqa: E402
from easyfsl.samplers import TaskSampler  # noqa: E402

torch.set_num_threads(1)  # the peer uses one core as well
EPISODES = 600
TURNS = 25
LAYOUTS = {
    "100 classes x 40 images (cars)": (100, 40),
    "1,623 x 20 (omniglot)": (1623, 20),
    "1,000 x 1,300 (ImageNet)": (1000, 1300),
}


class Labels(FewShotDataset):
    """A data set of labels alone: what a sampler looks at."""

    def __init__(self, labels: list[int]):
        self.labels = labels

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(1), self.labels[item]

    def __len__(self) -> int:
        return len(self.labels)

    def get_labels(self) -> list[int]:
        """Return every image's label: the peer's protocol."""
        return self.labels


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Median wall-clock seconds of one call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def compare(
    ours: Callable[[], object], theirs: Callable[[], object], turns: int, times: int = 1
) -> tuple[float, float, float]:
    """Return our seconds, their seconds and the ratio, medians over turns."""
    ours(), theirs()  # warm up
    pairs = [(seconds(ours, times), seconds(theirs)) for _ in range(turns)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def sampling() -> None:
    print(f"{EPISODES} episodes, 5-way 5-shot, 10 queries")
    for name, (classes, images) in LAYOUTS.items():
        labels = np.repeat(np.arange(classes), images)
        split = ClassSplit((), (), tuple(range(classes)), rule="file")
        ours = EpisodeSampler(
            Domain("labels", tuple(map(str, range(classes))), labels, split=split)
        )
        theirs = TaskSampler(
            Labels(labels.tolist()), n_way=5, n_shot=5, n_query=10, n_tasks=EPISODES
        )
        numbers = iter(range(10**9))

        def sample(ours: EpisodeSampler = ours, numbers: object = numbers) -> None:
            start = next(numbers) * EPISODES  # type: ignore[call-overload]  # other episodes each time
            ours(start, start + EPISODES)

        us, them, ratio = compare(sample, lambda theirs=theirs: list(theirs), TURNS, times=10)
        print(
            f"  {name:32} polyshot {us * 1e3:6.2f} ms  easyfsl {them * 1e3:7.1f} ms  {ratio:5.0f}x"
        )


def importing(count: int = 1500, size: int = 72) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        rng = np.random.default_rng(0)
        for i in range(count):
            folder = root / "photos" / f"class {i % 10}"
            folder.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            photo = small.resize((500, 375), Image.Resampling.BICUBIC)
            photo.save(folder / f"{i}.jpg", quality=90)
        files = sorted((root / "photos").rglob("*.jpg"))

        def plain() -> None:
            images = np.empty((count, 3, size, size), np.uint8)
            for i, file in enumerate(files):
                with Image.open(io.BytesIO(file.read_bytes())) as image:
                    square = ImageOps.fit(
                        image.convert("RGB"), (size, size), Image.Resampling.BICUBIC
                    )
                images[i] = np.asarray(square).transpose(2, 0, 1)
            np.save(root / "plain.npy", images)

        options = ImportOptions(size=size, overwrite=True)
        us, them, ratio = compare(
            lambda: import_source(root / "photos", root / "packs", options), plain, turns=3
        )
    print(f"import of {count} JPEG photos of 500 x 375 at {size} px, {cores()} cores")
    speeds = f"polyshot {count / us:,.0f} images/s  plain Pillow loop {count / them:,.0f} images/s"
    print(f"  {speeds}  {ratio:.1f}x")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {cores()} cores")
    sampling()
    importing()
