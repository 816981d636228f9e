"""How much the embedded domains tell: raw pixels against a small network trained in minutes.

    .venv/bin/python benchmarks/toy.py

Both classify the same 5-way 5-shot episodes of test classes by nearest prototypes. The network
(ResNet-18 of width 16) is trained as a classifier on the training classes of all domains, at 40 px.
"""

import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.data.augment import WEAK, augment
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.toy import draw_packs
from polyshot.models.heads import prototype_logits, prototypes
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.util.counter_rng import key, uniform

STEPS, BATCH, EPISODES = 800, 96, 600


def accuracy(embeddings: Tensor, pack: Pack) -> float:
    """Nearest-prototype accuracy, in percent, of embeddings ``[n, d]`` on test episodes."""
    episodes = EpisodeSampler(pack.domain)(0, EPISODES)
    logits = prototype_logits(
        embeddings[episodes.query].flatten(1, 2), prototypes(embeddings[episodes.support])
    )
    labels = torch.arange(episodes.query.shape[1]).repeat_interleave(episodes.query.shape[2])
    return 100 * (logits.argmax(2) == labels).float().mean().item()


def train(packs: list[Pack]) -> ResNet:
    """Classify all training classes of all domains."""
    images, labels, mirror = [], [], []
    for pack in packs:
        train_classes = torch.tensor(pack.domain.split.train)
        known = torch.isin(torch.from_numpy(pack.domain.labels), train_classes)
        images.append(torch.from_numpy(pack.images.copy())[known])
        offset = sum(len(p.domain.split.train) for p in packs[: packs.index(pack)])
        labels.append(
            offset + torch.searchsorted(train_classes, torch.from_numpy(pack.domain.labels)[known])
        )
        mirror.append(torch.full((int(known.sum()),), pack.domain.mirror))
    pixels, targets, allowed = torch.cat(images), torch.cat(labels), torch.cat(mirror)
    torch.manual_seed(0)
    net = ResNet(ResNetConfig(width=16, stem="small/2")).to(memory_format=torch.channels_last)
    head = nn.Linear(net.config.dim, int(targets.max()) + 1)
    optimiser = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    start = time.perf_counter()
    for step in range(STEPS):
        drawn = (uniform(key("toy", step), torch.arange(BATCH), 1)[0] * len(pixels)).long()
        batch = augment(pixels[drawn], WEAK, 0, step, allowed[drawn]) * 4 - 2
        loss = F.cross_entropy(head(net(batch)), targets[drawn])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    taken = time.perf_counter() - start
    print(f"trained {STEPS} steps of {BATCH} images in {taken:.0f} s, loss {loss:.2f}")
    return net.eval()


@torch.inference_mode()
def embed(net: ResNet, pack: Pack) -> Tensor:
    pixels = torch.from_numpy(pack.images.copy()).float() / 255 * 4 - 2
    return torch.cat([net(batch) for batch in pixels.split(512)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        large = draw_packs(Path(scratch) / "72", size=72)
        raw = {
            p.domain.name: accuracy(torch.from_numpy(p.images.copy()).flatten(1).float() / 255, p)
            for p in large
        }
        packs = draw_packs(Path(scratch) / "40", size=40)
        net = train(packs)
        learned = {pack.domain.name: accuracy(embed(net, pack), pack) for pack in packs}
    print(f"5-way 5-shot accuracy on test classes, {EPISODES} episodes")
    for name, value in raw.items():
        print(f"  {name:10} raw pixels (72 px) {value:5.1f}   network (40 px) {learned[name]:5.1f}")
    print(f"  {'mean':10} raw pixels (72 px) {sum(raw.values()) / len(raw):5.1f}   "
          f"network (40 px) {sum(learned.values()) / len(learned):5.1f}")  # fmt: skip
