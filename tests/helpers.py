"""What tests build on; no test file imports from another."""

import copy
import io
import json
import resource
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from polyshot.cli import main
from polyshot.config import AdaptationConfig, BaseConfig, Config, ModulatorConfig, SelectorConfig
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Domain, Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.splits import ClassSplit
from polyshot.data.table import Images
from polyshot.data.toy import draw_packs
from polyshot.models import towers
from polyshot.models.backbone import sites_of
from polyshot.models.efficientnet import EfficientNetLite
from polyshot.models.heads import Metric
from polyshot.models.modulators import RANK, Kind, Modulator
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.selector import MemberAttention, Selector, task_embedding
from polyshot.models.views import Views, normalise
from polyshot.pool.pool import Pool
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import rule
from polyshot.tasks import Table, Tasks, draw_tasks
from polyshot.training.step import Metrics, Record
from polyshot.training.training_run import TrainingRun
from polyshot.util.progress import Progress

# --- networks, pools and tasks

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SMALL = ResNetConfig(width=4, stem="small/2")
SIZE = 16
NAMES = ("one", "two", "off")
MEMBERS = 1 + len(NAMES)


def random_base(config: ResNetConfig = SMALL, seed: int = 0) -> ResNet:
    """A base in evaluation mode with random weights, affine maps and statistics."""
    torch.manual_seed(seed)
    return randomised(ResNet(config))


def randomised(network: nn.Module) -> nn.Module:
    """Give a network's norms random affine maps and statistics; it is in evaluation mode then."""
    for name, tensor in network.eval().state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.2, 3.0)
        elif name.endswith("running_mean") or (tensor.ndim == 1 and name.endswith("bias")):
            tensor.normal_(0, 0.5)
        elif tensor.ndim == 1:
            tensor.normal_(1, 0.3)
    return network


def thin_lite0(seed: int = 0) -> nn.Module:
    """EfficientNet-Lite0 with few and narrow layers, and random weights; 24 entries come out."""
    torch.manual_seed(seed)
    return randomised(EfficientNetLite(((1, 3, 1, 1, 8), (2, 3, 2, 4, 12)), stem=8, head=24))


def saved_vit(folder: Path, seed: int = 0) -> str:
    """Save a tiny ViT of transformers with random weights; returns its name as a backbone."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(seed)
    with towers.quiet_transformers():
        config = transformers.ViTConfig(
            **shape, intermediate_size=48, image_size=24, patch_size=8, initializer_range=0.3
        )
        transformers.ViTModel(config).save_pretrained(folder)
        size = {"height": 24, "width": 24}
        transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)
    return f"transformers:{folder}"


@cache
def _sites(config: ResNetConfig) -> tuple[object, ...]:
    return tuple(sites_of(ResNet(config)))


def fresh_modulator(
    of: ResNetConfig | nn.Module, kind: Kind = "conv1x1", rank: int = RANK
) -> Modulator:
    """A modulator that changes nothing yet, for a network or for any ResNet of a config."""
    return Modulator(sites_of(of) if isinstance(of, nn.Module) else _sites(of), kind, rank)  # type: ignore[arg-type]


def random_modulator(
    of: ResNetConfig | nn.Module, kind: Kind, seed: int = 1, rank: int = RANK
) -> Modulator:
    """A modulator far from the identity."""
    modulator = fresh_modulator(of, kind, rank)
    torch.manual_seed(seed)
    for parameter in modulator.parameters():
        parameter.data += torch.rand_like(parameter) - 0.5  # scales stay away from 0
    return modulator


def gentle_modulator(
    of: ResNetConfig | nn.Module, kind: Kind, seed: int = 1, kept: float = 0.4, rank: int = RANK
) -> Modulator:
    """A modulator that is not so far from the base that embeddings explode."""
    modulator = random_modulator(of, kind, seed, rank)
    with torch.no_grad():
        for name, parameter in modulator.named_parameters():
            parameter.lerp_(torch.full_like(parameter, float(name.endswith("scale"))), 1 - kept)
    return modulator


def mixed_modulator(modulators: Sequence[Modulator], shares: Sequence[float] | Tensor) -> Modulator:
    """The weighted sum of modulators, in full maps; the rest is the identity."""
    first = modulators[0]
    result = Modulator(first.sites, first.kind, rank=0).to(next(first.parameters()))
    every = [with_full_maps(each) for each in modulators]
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            identity = torch.full_like(parameter, float(name.endswith("scale")))
            moves = [
                float(share) * (values[name] - identity)
                for values, share in zip(every, shares, strict=True)
            ]
            parameter.copy_(identity + sum(moves))
    return result


def with_full_maps(modulator: Modulator) -> dict[str, Tensor]:
    """A modulator's parameters with products of thin matrices written out."""
    own = dict(modulator.named_parameters())
    maps = {}
    for site in modulator.sites if modulator.kind == "conv1x1" else ():
        if f"{site.layer}.up" in own:
            product = own.pop(f"{site.layer}.up") @ own.pop(f"{site.layer}.down")
            maps[f"{site.layer}.weight"] = product.view(*product.shape, *[1] * (1 + site.axis))
    return own | maps


def explicit(base: ResNet, modulator: Modulator, images: Tensor, strength: float) -> Tensor:
    """The reference: the member with its modulator as extra operations, nothing folded."""
    own = dict(modulator.named_parameters())

    def conv_bn(at: str, i: int, x: Tensor) -> Tensor:
        conv, bn = base.get_submodule(f"{at}.conv{i}"), base.get_submodule(f"{at}.bn{i}")
        key = f"{at}.conv{i}"
        if modulator.kind == "conv1x1":
            extra = F.conv2d(x, own[f"{key}.weight"], own[f"{key}.bias"], stride=conv.stride)
            return bn(conv(x) + strength * extra)
        scale = 1 + strength * (own[f"{key}.scale"] - 1)
        return scale[:, None, None] * bn(conv(x)) + strength * own[f"{key}.bias"][:, None, None]

    x = base.maxpool(torch.relu(base.bn1(base.conv1(images))))
    for stage in (1, 2, 3, 4):
        for i in (0, 1):
            at = f"layer{stage}.{i}"
            y = torch.relu(conv_bn(at, 1, x))
            x = torch.relu(conv_bn(at, 2, y) + base.get_submodule(at).downsample(x))
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def random_pool(
    kind: Kind = "conv1x1",
    metric: Metric = "cosine",
    adaptation: AdaptationConfig | None = None,
    selector: bool = True,
) -> Pool:
    """A pool of the members base, one, two (of strength 0.5) and off (of strength 0)."""
    modulators = {name: gentle_modulator(SMALL, kind, i, 0.3) for i, name in enumerate(NAMES)}
    torch.manual_seed(5)
    chooser = Selector(SMALL.dim, MEMBERS, hidden=16)
    typical = task_embedding(random_embeddings(7, episodes=50)[0][0])
    chooser.standardise(F.normalize(typical, dim=-1))  # now it is undecided
    attention = MemberAttention(SMALL.dim, hidden=8)
    with torch.no_grad():  # far from treating all members alike
        for layer in (attention.ask, attention.key):
            layer.weight.mul_(8)
    return Pool(
        config=SMALL,
        size=SIZE,
        kind=kind,
        metric=metric,
        base=random_base(SMALL),
        modulators=modulators,
        strengths={"one": 1.0, "two": 0.5, "off": 0.0},
        selector=chooser if selector else None,
        unit_input=True,
        scales=[10.0, 8.0, 12.0, 10.0] if metric == "cosine" else [0.2, 0.1, 0.3, 0.2],
        adaptation=adaptation or AdaptationConfig(steps=15),
        about={"measured": {"one": 0.5}, "note": "Übung"},
        urt=attention,
    )


@cache
def shared_pool(
    kind: Kind = "conv1x1", metric: Metric = "cosine", adaptation: AdaptationConfig | None = None
) -> Pool:
    """The same as `random_pool`, made once: for tests that leave it as it is."""
    return random_pool(kind, metric, adaptation)


def random_embeddings(
    seed: int = 0, way: int = 4, shot: int = 3, queries: int = 6, episodes: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    """Overlapping classes as each member of `random_pool` might see them, with uneven shots.

    Support [M, E, W, S, d], queries [M, E, Q, d], mask [E, W, S].
    """
    draw = torch.Generator().manual_seed(seed)
    dim = SMALL.dim
    centres = torch.randn(MEMBERS, episodes, way, 1, dim, generator=draw).abs()
    noise = torch.randn(MEMBERS, episodes, way, shot, dim, generator=draw)
    query = torch.randn(MEMBERS, episodes, queries, dim, generator=draw).abs()
    mask = torch.rand(episodes, way, shot, generator=draw) < 0.7
    mask[..., 0] = True
    support = (centres + 0.8 * noise).relu()
    support[3], query[3] = support[0], query[0]  # of strength 0: the base
    return support, query, mask


def embedded_tasks(pool: Pool, seed: int = 0, **shape: int) -> Tasks:
    """Tasks of `random_embeddings` without images, for the members of a pool."""
    return keep_embeddings(pool, *random_embeddings(seed, **shape))


def keep_embeddings(
    pool: Pool, support: Tensor, query: Tensor, mask: Tensor | None = None
) -> Tasks:
    """Make tasks of embeddings [M, E, W, S, d] and [M, E, Q, d]; what is masked lies nowhere."""
    members, episodes, way, shot = support.shape[:4]
    count = episodes * way * shot
    places = torch.arange(count).view(episodes, way, shot)
    questions = count + torch.arange(episodes * query.shape[2]).view(episodes, -1)
    table = Table(None, count + questions.numel(), CPU)
    for member in range(members):
        flat = torch.cat([support[member].flatten(0, 2), query[member].flatten(0, 1)])
        table.keep(pool.network(member), flat)
    return Tasks(table, questions, places if mask is None else places.where(mask, -1), mask)


def random_tasks(
    seed: int = 0,
    way: int = 4,
    shot: int = 3,
    queries: int = 5,
    episodes: int = 3,
    mask: Tensor | None = None,
    views: Views = "one",
    size: int = SIZE,
) -> Tasks:
    """Tasks of noisy colours on a table of images; `queries` of each class, class by class."""
    draw = torch.Generator().manual_seed(seed)
    each = shot + queries
    colours = 255 * torch.rand(episodes, way, 1, 3, 1, 1, generator=draw)
    noise = 60 * torch.randn(episodes, way, each, 3, size, size, generator=draw)
    images = (colours + noise).clamp(0, 255).byte().flatten(0, 2)
    places = torch.arange(len(images)).view(episodes, way, each)
    support, query = places[:, :, :shot], places[:, :, shot:].flatten(1)
    if mask is not None:
        support = support.where(mask, -1)
    return Tasks(Table.of(images, CPU, views), query, support, mask)


def uneven(episodes: int = 3, way: int = 4, shot: int = 3) -> Tensor:
    """A mask [E, W, S]: a class of one image in the first task, fewer of each in the second."""
    mask = torch.ones(episodes, way, shot, dtype=torch.bool)
    mask[0, 1, 1:] = False
    mask[1, :, 2:] = False
    return mask


def answers(pool: Pool, tasks: Tasks, name: str, adaptation: str = "none") -> Tensor:
    """Probabilities [E, Q, W] of one rule."""
    return predict_tasks(pool, tasks, [rule(name, pool)], adaptation).probabilities[0]


@contextmanager
def in_double() -> Iterator[None]:
    """Compute in float64, images included."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def double_pool(pool: Pool) -> Pool:
    """A copy of a pool in float64."""
    result = copy.deepcopy(pool)
    for module in (result.base, result.selector, result.urt, *result.modulators.values()):
        if module is not None:
            module.double()
    return result


def assert_near(a: Tensor, b: Tensor, relative: float = 1e-4) -> None:
    """Compare up to a share of the largest entry."""
    assert a.shape == b.shape
    # 0.1: an embedding may be all but zero, its activations inside are not
    assert (a - b).abs().max() <= relative * (b.abs().max() + 0.1)


def same_states(a: nn.Module, b: dict[str, Tensor]) -> bool:
    """Tell whether a module's tensors are those, to the bit."""
    return all(torch.equal(tensor, b[name]) for name, tensor in a.state_dict().items())


def copied(module: nn.Module) -> dict[str, Tensor]:
    """A module's tensors as they are now."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


# --- pictures and a pool that tells their colours apart

COLOURS = {"red": (220, 40, 40), "green": (30, 180, 60), "blue": (30, 60, 210)}
COLOUR_CONFIG = ResNetConfig(width=8, stem="small/2")
COLOUR_RULES = ["auto", "select", "average", "sum", "blend", "soup", "base", "member:cars"]


@cache
def colour_pool(metric: Metric = "cosine", choice: int = 1, start: str = "prototypes") -> Pool:
    """A pool with random weights whose selector always chooses one member: leave it as it is."""
    torch.manual_seed(0)
    selector = Selector(COLOUR_CONFIG.dim, 3, hidden=8)
    nn.init.zeros_(selector.output.weight)
    selector.output.bias.data = 5.0 * F.one_hot(torch.tensor(choice), 3)
    base = ResNet(COLOUR_CONFIG)
    # Batch norm's statistics from images like those of the tests: features then differ by colour.
    noise = torch.rand(64, 3, 1, 1).expand(-1, -1, SIZE, SIZE) + 0.1 * torch.randn(
        64, 3, SIZE, SIZE
    )
    with torch.no_grad():
        for _ in range(15):
            base.train()(normalise(noise.clamp(0, 1)))
    modulators = {
        name: random_modulator(COLOUR_CONFIG, "channel", i)
        for i, name in ((1, "birds"), (2, "cars"))
    }
    return Pool(
        COLOUR_CONFIG,
        SIZE,
        "channel",
        metric,
        base,
        modulators,
        {"birds": 0.5, "cars": 0.75},
        selector,
        True,
        [10.0, 11.0, 12.0] if metric == "cosine" else [0.1, 0.11, 0.12],
        adaptation=AdaptationConfig(start=start, steps=20, updates=3),  # type: ignore[arg-type]
    )


def coloured(label: str, seed: int, size: tuple[int, int] = (23, 19)) -> Image.Image:
    """A picture of a colour with noise on it: even a random network tells the colours apart."""
    noise = np.random.default_rng(seed).normal(0, 10, (size[1], size[0], 3))
    return Image.fromarray(np.clip(noise + COLOURS[label], 0, 255).astype(np.uint8))


def examples(*shots: int, first: int = 0) -> tuple[list[Image.Image], list[str]]:
    """So many pictures of each colour, and their names."""
    labels = [label for label, count in zip(COLOURS, shots, strict=False) for _ in range(count)]
    return [coloured(label, first + i) for i, label in enumerate(labels)], labels


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth random picture: noise would compress badly and resize to grey."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BILINEAR)


def pictures(count: int = 7, size: int = SIZE) -> NDArray[np.uint8]:
    """Random pixels, uint8 [n, 3, size, size]."""
    return np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8)


# --- domains


def make_domain(sizes: list[int], group_size: int = 0, name: str = "d") -> Domain:
    """A domain without pixels whose classes, all of them test classes, have the sizes given."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.arange(len(labels)) // group_size if group_size else None
    if groups is not None:  # a group lies within one class
        groups = np.unique(np.stack([labels, groups]), axis=1, return_inverse=True)[1].astype(
            np.int64
        )
    names = tuple(f"class {i}" for i in range(len(sizes)))
    split = ClassSplit((), (), tuple(range(len(sizes))), rule="file")
    return Domain(name, names, labels.astype(np.int64), groups, split=split)


SHARED = Path(__file__).parents[1].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the real images of ../shared/data are not on this machine"
)


# --- configs, packs and trainings

SHAPE = EpisodeShape(5, 2, 3)
ONE_SHOT = EpisodeShape(5, 1, 3)
TINY = Config(
    preset="tiny",
    size=16,
    model=ResNetConfig(width=4, stem="small/2"),
    base=BaseConfig(steps=7, batch=16, learning_rate=0.05, warm_up=2, validate_every=3),
    modulator=ModulatorConfig(
        steps=4, episodes=2, shape=SHAPE, validate_every=2, strengths=(0.5, 1.0)
    ),
    selector=SelectorConfig(steps=6, tasks=12, batch=8, hidden=8, validate_every=4),
    adaptation=AdaptationConfig(steps=15, updates=8),
    shape=SHAPE,
    validation_episodes=8,
)
"""Trains a whole pool of two sources in a second; it learns next to nothing."""


def with_base(config: Config, **changes: object) -> Config:
    """Change what concerns step 1."""
    return replace(config, base=replace(config.base, **changes))  # type: ignore[arg-type]


LEARNED = replace(
    with_base(TINY, steps=90, batch=64, learning_rate=0.05, warm_up=5, cool_down=1.0),
    model=ResNetConfig(width=8, stem="small/2"),
    adaptation=AdaptationConfig(steps=15, updates=4),
    validation_episodes=6,
)
"""Its base tells colours apart."""


def toy_packs(folder: Path, *names: str, each: int = 6, size: int = TINY.size) -> list[Pack]:
    """Draw toy domains with so many images a class."""
    return draw_packs(folder, names, size=size, per_class=each, workers=1)


def pack_of(
    sizes: Sequence[int], name: str = "d", size: int = TINY.size, group_size: int = 0
) -> Pack:
    """A pack in memory: each class is a coarse pattern of colours, its images are varied."""
    draw = np.random.default_rng(len(name))
    domain = make_domain(list(sizes), group_size, name)
    patterns = draw.integers(0, 256, (len(sizes), 3, 4, 4))[domain.labels]
    cell = np.arange(size) * 4 // size
    varied = (patterns + draw.integers(-70, 71, patterns.shape))[..., cell[:, None], cell[None, :]]
    pixels = np.clip(varied + draw.integers(-20, 21, varied.shape), 0, 255).astype(np.uint8)
    return Pack(Path(name), domain, pixels, f"hash of {name}", {})


def make_run(
    packs: Sequence[Pack], folder: Path, report: Progress | None = None, config: Config = TINY
) -> TrainingRun:
    """A training run on the CPU."""
    return TrainingRun(packs, config, folder, CPU, report)


def tasks_of(pack: Pack, shape: EpisodeShape, count: int = 3, seed: int = 0) -> Tasks:
    """Episodes over all classes of a pack."""
    sampler = EpisodeSampler(pack.domain, shape, part="all", seed=seed)
    return draw_tasks(Images([pack], "all", CPU), 0, sampler, count, frozen=True)


def from_table(images: Tensor, support: Tensor, query: Tensor, mask: Tensor | None = None) -> Tasks:
    """Tasks of images uint8 [n, 3, side, side] by their positions [E, W, S] and [E, Q]."""
    return Tasks(Table.of(images, CPU), query, support, mask)


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two networks are equal to the bit."""
    mine, yours = one.state_dict(), other.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(t, yours[n]) for n, t in mine.items())


def files_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All files with the time of their last change."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def step_files(run: Path) -> dict[str, bytes]:
    """What the steps of a run have written."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted((run / "steps").rglob("*"))
        if file.is_file()
    }


def metrics_of(run: Path) -> list[dict[str, float]]:
    """The lines that a training wrote about itself."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def record_in(folder: Path, report: Progress | None = None) -> Record:
    """Let a training write into a folder."""
    return Record(folder / "checkpoint.pt", Metrics(folder / "metrics.jsonl"), report)


class Steps:
    """A progress callback that counts the updates of each step."""

    def __init__(self) -> None:
        self.updates: dict[str, int] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        self.updates[name] = self.updates.get(name, 0) + 1


class Interrupt:
    """A progress callback that raises KeyboardInterrupt at every n-th update."""

    def __init__(self, every: int):
        self.every, self.calls = every, 0

    def __call__(self, name: str, done: int, total: int) -> None:
        if name.startswith("embed"):  # which starts again every time
            return
        self.calls += 1
        if self.calls % self.every == 0:
            raise KeyboardInterrupt


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, in the middle of which writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


Made = TypeVar("Made")


def until_done(work: Callable[[], Made]) -> tuple[Made, int]:
    """Start work again as often as it is interrupted: what it made, and how often that was."""
    interruptions = 0
    while True:
        try:
            return work(), interruptions
        except KeyboardInterrupt:
            interruptions += 1


# --- commands of README and docs, made short


def quick_default() -> Pool:
    """The pool that ships, which looks once, at fewer pixels, and learns less long."""
    pool = Pool.default().with_views("one")
    return replace(pool, size=32, adaptation=replace(pool.adaptation, updates=3))


QUICK = (
    " --set size=24 --set model.width=8 --set base.steps=6 --set base.batch=32 --set base.warm_up=1"
    " --set base.validate_every=3 --set modulator.steps=2 --set modulator.episodes=1"
    " --set modulator.validate_every=1 --set selector.steps=10 --set selector.tasks=10"
    " --set validation_episodes=5"
)
SHORTEST = (
    " --episodes 2 --shots 5 --sources glyphs,signs --targets glyphs --set size=16"
    " --methods base,protonet,average"  # test_cli_experiments.py has all of them
)
SHORTER = {
    "polyshot demo": QUICK + " --episodes 5",
    "polyshot train": QUICK,
    "polyshot reproduce": QUICK + SHORTEST,
    # Of several that look five times and learn a network, the first does so.
    "polyshot classify --support photos/ --query new/ --out": " --views one --adaptation head",
    "polyshot classify --support photos/ --query new/": " --views one",
    "polyshot fit photos/": " --views one --adaptation head",
    # An export takes as long as there are networks; test_onnx.py has several.
    "polyshot fit example/support": " --views one --rule base --adaptation ridge",
    "polyshot evaluate photos/": " --views one --episodes 5",
    "polyshot classify --support example/support": " --views one --adaptation head",
    "polyshot evaluate example/support": " --views one --episodes 5",
    "polyshot data toy": " --per-class 15",
}


def shortened(command: str) -> str:
    """Make a command of README or docs take less long."""
    return command + next(
        (more for start, more in SHORTER.items() if command.startswith(start)), ""
    )


def run_here(command: str, folder: Path) -> str:
    """Run ``polyshot ...`` in a folder, as a shell would but in this process; returns its output.

    A process of its own would first import torch, which takes seconds.
    """
    program, *words = shlex.split(command)
    assert program == "polyshot"
    out, err = io.StringIO(), io.StringIO()
    with (
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main(words)
    assert not end.value.code, err.getvalue()
    return out.getvalue()


def run_script(script: Path, folder: Path, *arguments: object) -> str:
    """Run ``python script ...`` in a folder, in this process; returns its output."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(folder), redirect_stdout(out):
        patch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        runpy.run_path(str(script), run_name="__main__")
    return out.getvalue()
