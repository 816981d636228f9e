"""Evaluation and adaptation against easyfsl 1.5.0, and what a folded member costs.

    make bench        (or: .venv/bin/python benchmarks/evaluate.py)

Both sides use one network, one set of images and the same episodes, in turns in one process. Ratios
are medians over turns. `benchmarks/before_after.py evaluate` measures our side alone, without
easyfsl.
"""

import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from episodes import seconds
from torch import Tensor, nn
from torch.utils.data import DataLoader

from polyshot.config import AdaptationConfig
from polyshot.data.pack import Domain, PackWriter
from polyshot.data.shapes import EpisodeShape
from polyshot.data.splits import ClassSplit
from polyshot.evaluation.evaluate import measure
from polyshot.evaluation.targets import Target
from polyshot.models.backbone import sites_of
from polyshot.models.modulators import Modulator, fold
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.views import normalise
from polyshot.pool.pool import Pool
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import rule

from easyfsl.datasets import FeaturesDataset, WrapFewShotDataset  # isort: skip
from easyfsl.methods import Finetune, PrototypicalNetworks  # isort: skip
from easyfsl.samplers import TaskSampler  # isort: skip
from easyfsl.utils import evaluate as easyfsl_evaluate  # isort: skip

CLASSES, IMAGES, SIZE, EPISODES = 20, 30, 72, 600
TURNS = 5


class Pictures(torch.utils.data.Dataset):
    """Normalised images with labels, as easyfsl wants them."""

    def __init__(self, images: Tensor, labels: list[int]):
        self.images, self.labels = images, labels

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        return self.images[item], self.labels[item]

    def __len__(self) -> int:
        return len(self.labels)


def network() -> ResNet:
    """A ResNet-18 with random weights, in evaluation mode."""
    torch.manual_seed(0)
    return ResNet(ResNetConfig()).eval()


def loader(dataset: object, ids: list[list[int]]) -> DataLoader:
    """Serve easyfsl our episodes: it only has to collate them."""
    collate = TaskSampler.episodic_collate_fn
    sampler = TaskSampler(dataset, n_way=5, n_shot=5, n_query=10, n_tasks=len(ids))
    return DataLoader(dataset, batch_sampler=ids, collate_fn=lambda items: collate(sampler, items))


def ratio(
    ours: Callable[[], object], theirs: Callable[[], object], turns: int = TURNS
) -> tuple[float, float, float]:
    """Seconds of ours, seconds of theirs, and how many times longer theirs takes."""
    ours()
    pairs = [(seconds(ours, 3), seconds(theirs)) for _ in range(turns)]
    middle = statistics.median
    return middle(a for a, _ in pairs), middle(b for _, b in pairs), middle(b / a for a, b in pairs)


@torch.no_grad()
def main(scratch: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (CLASSES, 1, 3, 9, 9))
    noise = rng.integers(-90, 90, (CLASSES, IMAGES, 3, 9, 9))
    small = np.clip(centres + noise, 0, 255).astype(np.uint8).reshape(-1, 3, 9, 9)
    images = small.repeat(8, axis=2).repeat(8, axis=3)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    split = ClassSplit((), (), tuple(range(CLASSES)), rule="file")
    domain = Domain("pictures", tuple(map(str, range(CLASSES))), labels, split=split)
    with PackWriter(scratch / "pictures", SIZE) as writer:
        writer.append(images)
        pack = writer.finish(domain, {})
    base = network()
    pool = Pool(ResNetConfig(), SIZE, "conv1x1", "euclidean", base)
    rules = [rule("base", pool)]
    shape = EpisodeShape()
    target = Target(pack, pool.device, [shape], EPISODES)
    episodes = target.sampler(shape)(0, EPISODES)
    drawn = torch.cat([episodes.support, episodes.query], 2).flatten(1).tolist()
    groups, dim = target.groups(shape), pool.config.dim

    def ours(adaptation: str = "none", with_pool: Pool = pool) -> float:
        found = measure(
            lambda tasks: predict_tasks(with_pool, tasks, rules, adaptation),
            groups,
            dim,
            adaptation,
        )
        return found.right.float().mean().item()

    embeddings = pool.embed(images, [0])[0]
    features = FeaturesDataset(labels.tolist(), embeddings, list(domain.class_names))
    protonet = PrototypicalNetworks(nn.Identity())

    def cached() -> float:
        return easyfsl_evaluate(protonet, loader(features, drawn), "cpu", use_tqdm=False)

    us, them, times = ratio(ours, cached)
    speed = EPISODES / us
    rates = f"polyshot {speed:,.0f} episodes/s, easyfsl {EPISODES / them:,.0f}"
    print(f"cached embeddings: {rates}, {times:.0f}x")
    print(
        f"  accuracy on the same {EPISODES} episodes: polyshot {ours():.4f}, easyfsl {cached():.4f}"
    )

    pictures = WrapFewShotDataset(Pictures(normalise(torch.from_numpy(images)), labels.tolist()))
    on_images = PrototypicalNetworks(base)
    some = 12
    from_images = seconds(
        lambda: easyfsl_evaluate(on_images, loader(pictures, drawn[:some]), "cpu", use_tqdm=False)
    )
    slow = some / from_images
    print(f"images: easyfsl {slow:.1f} episodes/s; polyshot, embedded once, {speed / slow:,.0f}x")

    head = AdaptationConfig(steps=100)
    cosine = replace(pool, metric="cosine", adaptation=head)
    tuned = Finetune(nn.Identity(), fine_tuning_steps=100, fine_tuning_lr=1e-2, temperature=10.0)
    few = 40
    us, them, times = ratio(
        lambda: ours("head", cosine),
        lambda: easyfsl_evaluate(tuned, loader(features, drawn[:few]), "cpu", use_tqdm=False),
        turns=3,
    )
    rates = f"polyshot {EPISODES / us:,.0f} episodes/s, easyfsl's Finetune {few / them:,.1f}"
    print(f"adaptation, 100 steps: {rates}, {times * EPISODES / few:.0f}x")

    modulator = Modulator(sites_of(base))
    for parameter in modulator.parameters():
        parameter.normal_(0, 0.01)
    member = fold(base, modulator)
    batch = normalise(torch.from_numpy(images[:64]))
    us, them, times = ratio(lambda: member(batch), lambda: base(batch), turns=15)
    print(f"a folded member's forward takes {1 / times:.3f} of a plain ResNet-18's")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
