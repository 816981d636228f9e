"""Scenes: small pieces of real work whose numbers are recorded. Everything of polyshot is here.

A scene returns arrays by key. Keys that start with ``answers/`` are probabilities [..., classes].
Where nothing is learned by gradient a scene is exact and runs in float32; else it runs in float64,
and in float32 only the labels of its answers count (trainings are shorter there, see `FIRST`).
All images are drawn by numpy.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot import Pool
from polyshot.classifier import FewShotClassifier
from polyshot.config import AdaptationConfig, BaseConfig, Config, ModulatorConfig, SelectorConfig
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Domain, Pack, PackWriter
from polyshot.data.shapes import EpisodeShape
from polyshot.data.splits import ClassSplit
from polyshot.data.table import Images
from polyshot.experiments.grid import read_grid
from polyshot.experiments.request import Request
from polyshot.experiments.run import reproduce
from polyshot.methods.method import find_methods
from polyshot.models.backbone import sites_of
from polyshot.models.heads import Metric
from polyshot.models.modulators import Kind, Modulator
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.models.selector import MemberAttention, Selector
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import RULES, rule
from polyshot.tasks import Table, Tasks, draw_tasks
from polyshot.training.edit import merge
from polyshot.training.run import train
from polyshot.training.training_run import TrainingRun

Arrays = dict[str, NDArray[np.generic]]

CPU = torch.device("cpu")
SIZE = 16
MODEL = ResNetConfig(width=4, stem="small/2")
SHAPE = EpisodeShape(5, 2, 3)
QUICK = AdaptationConfig(steps=15, updates=4)
TRAINING = Config(
    preset="tiny",
    size=SIZE,
    model=MODEL,
    base=BaseConfig(steps=20, batch=24, learning_rate=0.05, warm_up=4, validate_every=20),
    modulator=ModulatorConfig(steps=20, episodes=2, shape=SHAPE, validate_every=20),
    selector=SelectorConfig(steps=20, tasks=12, batch=8, hidden=8, validate_every=20),
    adaptation=QUICK,
    shape=SHAPE,
    validation_episodes=6,
)
"""Twenty updates of each step, looked at once, after the last."""
FIRST = 3
"""Updates in float32. A ReLU that rounding turns on or off changes a gradient by a hundredth, and
a few such updates later the weights have nothing in common: with two threads instead of one, four
in ten labels differ after twenty updates. In float64 that does not happen."""
LATER = ("soup", "ridge")
"""Rules, and adaptations of methods, that nobody knew when the scenes were recorded."""
BEFORE: Mapping[str, Mapping[str, float]] = {
    **{name: {"per_source": 0, "fall_back": 0} for name in ("protonet", "feat", "tadam")},
    "protomaml": {"per_source": 0, "fall_back": 0, "cosine": 0},
    "finetune-all": {"turns": 0},
}
"""Settings of rivals that mean what was before, where their own have changed since."""
FEW = {"steps": 4, "epochs": 20, "more_steps": 8}
"""The most that methods may learn on a support set, by the names of their settings."""


# --- inputs, drawn by numpy alone

_drawn = hashlib.sha256()


def pictures(seed: int, classes: int, each: int, size: int, noise: int = 20) -> NDArray[np.uint8]:
    """Draw coarse colour patterns, one a class, varied and noisy: [classes * each, 3, size, size].

    What is drawn is added to the hash of the scene's inputs.
    """
    draw = np.random.default_rng(seed)
    patterns = draw.integers(0, 256, (classes, 1, 3, 4, 4))
    varied = np.clip(patterns + draw.integers(-60, 61, (classes, each, 3, 4, 4)), 0, 255)
    cell = np.arange(size) * 4 // size
    large = varied[..., cell[:, None], cell[None, :]]
    noisy = np.clip(large + draw.integers(-noise, noise + 1, large.shape), 0, 255)
    images = noisy.reshape(classes * each, 3, size, size).astype(np.uint8)
    _drawn.update(images.tobytes())
    return images


def domain_of(name: str, classes: int, each: int, parts: Sequence[int]) -> Domain:
    """Name classes and split them into so many of training, validation and test."""
    ids = iter(range(classes))
    split = ClassSplit(*(tuple(next(ids) for _ in range(n)) for n in parts), rule="file")
    names = tuple(f"{name} {i:02}" for i in range(classes))
    return Domain(name, names, np.repeat(np.arange(classes), each), split=split)


def write_pack(
    folder: Path,
    name: str,
    seed: int,
    parts: Sequence[int] = (8, 5, 5),
    each: int = 6,
    noise: int = 20,
) -> Pack:
    """Write a pack ``folder/name`` of drawn images."""
    classes = sum(parts)
    with PackWriter(folder / name, SIZE) as writer:
        writer.append(pictures(seed, classes, each, SIZE, noise))
        return writer.finish(domain_of(name, classes, each, parts), {"reader": "golden"})


# --- pools, whose weights are drawn by numpy as well


def fill(module: nn.Module, seed: int) -> None:
    """Give a network random weights and statistics: the same numbers in any precision."""
    draw = np.random.default_rng(seed)
    for name, tensor in module.state_dict().items():
        shape, noise = tuple(tensor.shape), draw.standard_normal(tuple(tensor.shape))
        if name.endswith("num_batches_tracked"):
            continue
        if name.endswith("running_var"):
            noise = draw.uniform(0.5, 2.0, shape)
        elif len(shape) > 1:
            noise *= (2 / np.prod(shape[1:])) ** 0.5
        else:
            noise = 0.2 * noise + float(name.endswith("weight"))
        tensor.copy_(torch.from_numpy(np.asarray(noise)))


def move(module: nn.Module, seed: int, by: float) -> None:
    """Move all parameters at random, from where they start."""
    draw = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.from_numpy(by * draw.standard_normal(tuple(parameter.shape))))


def random_pool(kind: Kind, metric: Metric = "cosine") -> Pool:
    """Make a pool of the members base, one, two (of strength 0.5) and off (of strength 0)."""
    base = ResNet(MODEL)
    fill(base, 1)
    modulators = {name: Modulator(sites_of(base), kind) for name in ("one", "two", "off")}
    for i, modulator in enumerate(modulators.values()):
        move(modulator, 10 + i, 0.15)
    selector, attention = Selector(MODEL.dim, 4, hidden=16), MemberAttention(MODEL.dim, hidden=8)
    for module, seed in ((selector, 20), (attention, 21)):
        for parameter in module.parameters():
            parameter.data.zero_()
        move(module, seed, 0.5)
    return Pool(
        config=MODEL,
        size=SIZE,
        kind=kind,
        metric=metric,
        base=base,
        modulators=modulators,
        strengths={"one": 1.0, "two": 0.5, "off": 0.0},
        selector=selector,
        scales=[10.0, 8.0, 12.0, 10.0] if metric == "cosine" else [0.2, 0.1, 0.3, 0.2],
        adaptation=QUICK,
        urt=attention,
    )


def shipped_pool(size: int, updates: int = 2) -> Pool:
    """Load the pool that ships, as for images of a size, to learn less long on a support set."""
    with torch_default(torch.float32):
        pool = Pool.default()
    adaptation = replace(pool.adaptation, updates=updates, steps=15)
    pool = replace(pool, size=size, adaptation=adaptation)
    for module in pool._modules():
        module.to(torch.get_default_dtype())
    return pool


def state(module: nn.Module, name: str) -> Arrays:
    """Return all tensors of a module, under a name."""
    return {
        f"{name}/{key}": tensor.detach().numpy().copy()
        for key, tensor in module.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }


# --- tasks


def task_batches(
    pool: Pool, seed: int, way: int = 4, shot: int = 3, each: int = 6, tasks: int = 2
) -> dict[str, Tasks]:
    """Draw tasks of so many shots, and as many of uneven shots, as positions in one table."""
    queries = 4
    images = torch.from_numpy(pictures(seed, way + 1, each, pool.size))
    draw = np.random.default_rng(seed)
    support, query = [], []
    for _ in range(tasks):
        places = np.stack([draw.permutation(each) for _ in range(way)])
        chosen = draw.permutation(way + 1)[:way, None] * each + places
        support.append(chosen[:, :shot])
        query.append(chosen[:, shot:].flatten()[draw.permutation(way * (each - shot))[:queries]])
    mask = torch.arange(shot) < torch.arange(way)[:, None] % shot + 1  # 1, 2, 3, 1 images
    asked, known = torch.tensor(np.stack(query)), torch.tensor(np.stack(support))
    used = torch.cat([asked.flatten(), known.flatten()]).unique()  # the others are not embedded
    table = Table.of(images[used], pool.device, pool.views)
    where = torch.searchsorted(used, asked), torch.searchsorted(used, known)
    uneven = torch.stack([mask.roll(i, 0) for i in range(tasks)])
    return {
        "even": Tasks(table, *where),
        "uneven": Tasks(table, *where, uneven),
    }


FEW_RULES = ("auto", "average", "blend")
"""One of each way to mix: scores, probabilities and modulators."""


def answers_of(pool: Pool, seed: int, adaptations: Sequence[str], **how: int) -> Arrays:
    """Classify tasks by every rule and some adaptations.

    Of a large network `tsa` learns on uneven shots alone and by few rules, to save time.
    """
    found: Arrays = {}
    last = list(pool.modulators)[-1]
    rules = [rule(name, pool) for name in (*(n for n in RULES if n not in LATER), f"member:{last}")]
    for kind, tasks in task_batches(pool, seed, **how).items():
        for each in rules:
            if "none" in adaptations:
                found[f"weights/{kind}/{each.name}"] = each.weights(pool, tasks).numpy()
        for adaptation in adaptations:
            large = adaptation == "tsa" and pool.config != MODEL
            if large and kind == "even":
                continue
            asked = [each for each in rules if each.name in FEW_RULES] if large else rules
            answers = predict_tasks(pool, tasks, asked, adaptation)
            for each, chances in zip(asked, answers.probabilities, strict=True):
                found[f"answers/{kind}/{each.name}/{adaptation}"] = chances.detach().numpy()
    return found


LEARNED = ("head", "pa", "tsa")


def shipped_rules() -> Arrays:
    """Every rule over the pool that ships, nothing learned."""
    return answers_of(shipped_pool(72), 101, ["none"], way=3, each=5, tasks=1)


def shipped_learned() -> Arrays:
    """Every rule over the pool that ships, at fewer pixels: heads, maps and networks learned."""
    return answers_of(shipped_pool(32), 102, LEARNED, way=3, shot=2, each=4, tasks=1)


def tiny_rules() -> Arrays:
    """Every rule over tiny pools of both kinds and both metrics, nothing learned."""
    return _tiny(["none"], [("channel", "cosine"), ("conv1x1", "cosine"), ("channel", "euclidean")])


def tiny_learned() -> Arrays:
    """Every rule over tiny pools of both kinds and both metrics, with all that is learned."""
    return _tiny(LEARNED, [("channel", "cosine"), ("conv1x1", "euclidean")])


def _tiny(adaptations: Sequence[str], pools: Sequence[tuple[Kind, Metric]]) -> Arrays:
    found: Arrays = {}
    for kind, metric in pools:
        for key, value in answers_of(random_pool(kind, metric), 103, adaptations).items():
            top, _, rest = key.partition("/")
            found[f"{top}/{kind}-{metric}/{rest}"] = value
    return found


# --- the path of `classify`


def classified_tiny() -> Arrays:
    """A classifier over a tiny pool, nothing learned."""
    return _classified(random_pool("conv1x1"), ["none"], ["auto", "select", "blend"], 104)


def classified_tiny_learned() -> Arrays:
    """A classifier over tiny pools, with all that is learned."""
    found = _classified(random_pool("conv1x1"), LEARNED, ["auto", "select", "blend"], 104)
    return found | {
        key.replace("auto", "channel-auto"): value
        for key, value in _classified(random_pool("channel"), LEARNED, ["auto"], 104).items()
    }


def classified_shipped() -> Arrays:
    """A classifier over the pool that ships, nothing learned."""
    return _classified(shipped_pool(72), ["none"], ["auto"], 105)


def classified_shipped_learned() -> Arrays:
    """A classifier over the pool that ships, at fewer pixels, with all that is learned."""
    return _classified(shipped_pool(32), ["head", "tsa"], ["auto"], 105)


def _classified(pool: Pool, adaptations: Sequence[str], rules: Sequence[str], seed: int) -> Arrays:
    """Fit and ask: probabilities, weights, the estimate and the threshold of `none of these`."""
    images = pictures(seed, 4, 4, pool.size).transpose(0, 2, 3, 1)
    classes, places = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)
    known = (places < 3) & ((classes > 0) | (places < 2)) & (classes < 3)  # class 3 is foreign
    queries = list(images[~known][::2])
    found: Arrays = {}
    for name in rules:
        for adaptation in adaptations:
            asked = FewShotClassifier(pool, name, adaptation, none_rate=0.2, precision="full")
            asked.fit(list(images[known]), [f"class {c}" for c in classes[known]])
            at = f"{name}/{adaptation}"
            found[f"answers/{at}"] = asked.predict_proba(queries)
            found[f"weights/{at}"] = asked.weights_
            estimate, threshold = asked.estimate(), asked.threshold_
            assert threshold is not None
            found[f"estimate/{at}"] = np.array([estimate.accuracy, estimate.low, estimate.high])
            found[f"threshold/{at}"] = np.array([threshold.value, threshold.rank])
            if adaptation == "none":
                labels = asked.predict(queries)
                found[f"none/{at}"] = np.array([label == "none of these" for label in labels])
    return found


# --- trainings


def answers_of_trained(pool: Pool, rules: Sequence[str] = ("auto", "urt", "select")) -> Arrays:
    """Classify tasks by a pool that was trained."""
    found: Arrays = {}
    for kind, tasks in task_batches(pool, 107).items():
        for name in rules:
            chances = predict_tasks(pool, tasks, [rule(name, pool)], "none").probabilities[0]
            found[f"answers/{kind}/{name}"] = chances.numpy()
    return found


def weights_of(pool: Pool, base: bool = True) -> Arrays:
    """Return all that a training made."""
    found = state(pool.base, "base") if base else {}
    for name, modulator in pool.modulators.items():
        found |= state(modulator, f"modulator:{name}")
    found["strengths"] = np.array(list(pool.strengths.values()))
    found["scales"] = np.array(pool.scales)
    if pool.selector is not None:
        found |= state(pool.selector, "selector")
    if pool.urt is not None:
        found |= state(pool.urt, "urt")
    return found


def updates() -> int:
    """Say how many updates a training has: twenty in float64."""
    return TRAINING.base.steps if torch.get_default_dtype() == torch.float64 else FIRST


def training() -> Config:
    """Return the config of a training of so many updates a step."""
    n = updates()
    return replace(
        TRAINING,
        base=replace(TRAINING.base, steps=n, validate_every=n),
        modulator=replace(TRAINING.modulator, steps=n, validate_every=n),
        selector=replace(TRAINING.selector, steps=n, validate_every=n),
    )


def sources_in(folder: Path) -> list[Pack]:
    """Draw two sources."""
    return [write_pack(folder, "discs", 201), write_pack(folder, "waves", 202)]


def trained(kind: Kind, joint: bool, folder: Path, base: Path | None = None) -> Pool:
    """Train a pool on the two sources."""
    config = training()
    config = replace(config, modulator=replace(config.modulator, kind=kind), joint=joint)
    packs = sources_in(folder / f"packs-{kind}-{joint}")
    out = folder / f"run-{kind}-{joint}"
    return train(packs, config, out, device="cpu", trained_base=base)


def steps_one_after_the_other() -> Arrays:
    """Base, modulators of both kinds, selector, URT and growth, twenty updates each.

    Also a grown pool without an old domain, and two grown pools as one.
    """
    with temporary() as folder:
        pool = trained("conv1x1", False, folder)
        base = folder / "run-conv1x1-False" / "steps" / "base.safetensors"
        channel = trained("channel", False, folder, base)
        packs = [write_pack(folder, name, seed) for name, seed in (("flames", 203), ("knots", 204))]
        found = _under("conv1x1", weights_of(pool) | answers_of_trained(pool))
        found |= _under("channel", weights_of(channel, base=False) | answers_of_trained(channel))
        return (
            found
            | _under("conv1x1", _grown(pool, packs))
            | _under("channel", _grown(channel, packs))
        )


def _grown(pool: Pool, packs: Sequence[Pack]) -> Arrays:
    """Add one of two domains, remove an old one, and join both additions."""
    grown, other = (
        pool.add_domain(pack, [f"modulator.steps={n}", f"modulator.validate_every={n}"])
        for pack, n in zip(packs, (updates(), 2), strict=True)
    )
    name = packs[0].domain.name
    assert grown.selector is not None
    found = state(grown.modulators[name], f"grown/modulator:{name}")
    found |= state(grown.selector, "grown/selector") | {"grown/scales": np.array(grown.scales)}
    found["grown/strengths"] = np.array(list(grown.strengths.values()))
    pools = {"grown": grown, "fewer": grown.remove("waves"), "joint": merge(grown, other)}
    for key, made in pools.items():
        found |= _below(key, answers_of_trained(made))
    return found


def steps_together() -> Arrays:
    """Base and modulators of both kinds trained together, twenty updates."""
    found: Arrays = {}
    kinds: tuple[Kind, ...] = ("conv1x1", "channel")
    with temporary() as folder:
        for kind in kinds:
            pool = trained(kind, True, folder)
            found |= _under(kind, weights_of(pool) | answers_of_trained(pool))
    return found


def rivals() -> Arrays:
    """Every method with each of its adaptations, in one world."""
    found: Arrays = {}
    with temporary() as folder:
        packs = sources_in(folder / "packs")
        world = TrainingRun(packs, training(), folder / "worlds", CPU)
        unseen = write_pack(folder, "flames", 203)
        images = Images([unseen], "all", CPU)
        sampler = EpisodeSampler(unseen.domain, SHAPE, part="all", drop_small=True)
        tasks = draw_tasks(images, 0, sampler, 2, frozen=True)
        for method in (each for each in find_methods() if each.name not in LATER):
            settings = {k: min(v, FEW.get(k, v)) for k, v in method.settings.items()}
            settings |= BEFORE.get(method.name, {})
            fitted = method.fit(world, settings)
            for adaptation in (each for each in method.adaptations if each not in LATER):
                chances = fitted.predict(tasks, adaptation).detach().numpy()
                found[f"answers/{method.name}/{adaptation}"] = chances
            found[f"parameters/{method.name}"] = np.array(fitted.parameters())
    return found


def grid() -> Arrays:
    """The accuracy of every episode of a small grid."""
    found: Arrays = {}
    with temporary() as folder:
        others = [write_pack(folder, "flames", 203, (0, 0, 6))]
        run_grid(folder / "grid", sources_in(folder / "packs"), others, TRAINING)
        for row in read_grid(folder / "grid").results:
            shape = f"{row.way}-way-{row.shot}-shot"
            key = (row.protocol, row.method, "+".join(row.sources), row.target, shape)
            found["/".join(("rows", *key, row.adaptation))] = np.array(row.per_episode)
    return found


def run_grid(
    folder: Path, sources: Sequence[Pack], others: Sequence[Pack], config: Config
) -> tuple[int, int]:
    """Run what a small grid lacks: how many cells were measured, and how many were there."""
    request = Request(
        ["seen", "unseen"],
        methods=["base", "protonet", "select", "average"],
        episodes=8,
        shapes=(SHAPE, EpisodeShape(5, 1, 3)),
        overrides=BEFORE,
    )
    done = reproduce(request, sources, others, config, folder, command="polyshot reproduce")
    assert not done.failed, done.failed
    return done.measured, done.before


# --- files of before

SMALLEST = replace(
    TRAINING,
    model=ResNetConfig(width=2, stem="small/2"),
    base=replace(TRAINING.base, steps=4, validate_every=2),
    modulator=replace(TRAINING.modulator, steps=2, validate_every=2),
    selector=replace(TRAINING.selector, steps=4, validate_every=4, hidden=4),
)
"""The config of the run and the grid of before."""
NAMES = ("discs", "waves", "flames")
"""Packs of before: two sources, and a target that is no source."""


def describe_pack(pack: Pack) -> dict[str, object]:
    """Say all that a pack holds, as plain data."""
    domain, split = pack.domain, pack.domain.split
    return {
        "name": domain.name,
        "hash": pack.hash,
        "classes": list(domain.class_names),
        "labels": domain.labels.tolist(),
        "groups": None if domain.groups is None else domain.groups.tolist(),
        "mirror": domain.mirror,
        "split": [list(split.train), list(split.val), list(split.test), split.rule],
        "pixels": hashlib.sha256(np.ascontiguousarray(pack.images).tobytes()).hexdigest(),
    }


def describe_pool(pool: Pool) -> dict[str, object]:
    """Say what a pool is and what it answers, as plain data."""
    answers = answers_of_trained(pool)
    return {
        "hash": pool.hash,
        "members": list(pool.members),
        "strengths": pool.strengths,
        "scales": pool.scales,
        "kept": {
            name: [len(part.tasks) for part in kept] for name, kept in pool.statistics.items()
        },
        "about": sorted(pool.about),
        "answers": {key: value.round(7).tolist() for key, value in answers.items()},
    }


def describe_grid(folder: Path) -> dict[str, object]:
    """Say what a grid holds, as plain data; times are left out."""
    grid = read_grid(folder)
    kinds = ("protocol", "method", "sources", "target", "way", "shot", "adaptation", "train_seed")
    rows = [
        [*(getattr(row, kind) for kind in kinds), row.seen, row.mean, row.per_episode]
        for row in grid.results
    ]
    return {
        "rows": sorted(rows, key=repr),
        "failures": len(grid.failures),
        "shares": sorted([s.protocol, s.method, s.members, dict(s.targets)] for s in grid.shares),
        "contributions": sorted([c.protocol, c.target, c.correct] for c in grid.contributions),
        "worlds": sorted([name, w.preset, w.seed, w.sources] for name, w in grid.worlds.items()),
        "curves": len(grid.curves),
        "packs": sorted(grid.environment.get("packs", {})),
    }


def _under(name: str, arrays: Arrays) -> Arrays:
    """Name where arrays come from: after ``answers/``, before all else."""
    return _below(name, {k: v for k, v in arrays.items() if k.startswith("answers/")}) | {
        f"{name}/{key}": value for key, value in arrays.items() if not key.startswith("answers/")
    }


def _below(name: str, arrays: Arrays) -> Arrays:
    return {f"answers/{name}/{key.removeprefix('answers/')}": v for key, v in arrays.items()}


# --- running them


@dataclass(frozen=True)
class Scene:
    """A scene, and how closely it must be met again."""

    make: Callable[[], Arrays]
    learned: bool
    labels: bool = True
    """Whether the labels in float32 count, too; of large networks that takes too long."""
    margin: float = 1e-3
    """Answers of float32 whose two best classes are nearer than this have no label."""


SCENES = {
    scene.make.__name__: scene
    for scene in (
        Scene(tiny_rules, learned=False),
        Scene(tiny_learned, learned=True),
        Scene(classified_tiny, learned=False),
        Scene(classified_tiny_learned, learned=True),
        Scene(shipped_rules, learned=False),
        Scene(shipped_learned, learned=True, labels=False),
        Scene(classified_shipped, learned=False),
        Scene(classified_shipped_learned, learned=True, labels=False),
        Scene(steps_one_after_the_other, learned=True, margin=0.01),
        Scene(steps_together, learned=True, margin=0.01),
        Scene(rivals, learned=True, margin=0.01),
        Scene(grid, learned=True, labels=False),
    )
}

NO_LABEL = 255


def run_scene(name: str) -> Arrays:
    """Make a scene's arrays: values, labels of float32 (``label/...``) and a hash of the inputs."""
    global _drawn  # noqa: PLW0603 (whoever draws adds to it)
    scene = SCENES[name]
    _drawn = hashlib.sha256()
    if not scene.learned:
        found = scene.make()
        return found | {"inputs": np.frombuffer(_drawn.digest(), np.uint8)}
    with float64():
        found = scene.make()
    for key, value in found.items():
        assert value.dtype != np.float32, f"{name}: {key} was not made in float64"
    found["inputs"] = np.frombuffer(_drawn.digest(), np.uint8)
    if scene.labels:
        for key, value in scene.make().items():
            if key.startswith("answers/"):
                found[f"label/{key}"] = labels_of(value, scene.margin)
    return found


def labels_of(chances: NDArray[np.generic], margin: float) -> NDArray[np.uint8]:
    """Name the likeliest class, [..., W] -> [...]; `NO_LABEL` where another is as likely."""
    second, first = np.moveaxis(np.sort(chances, -1)[..., -2:], -1, 0)
    return np.where(first - second > margin, chances.argmax(-1), NO_LABEL).astype(np.uint8)


@contextmanager
def torch_default(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors of a type, for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def float64() -> Iterator[None]:
    """Work in float64, also where the code asks for ``float()`` to leave bf16 behind."""

    def double(tensor: Tensor) -> Tensor:
        return tensor.double()

    with torch_default(torch.float64), mock.patch.object(torch.Tensor, "float", double):
        yield


@contextmanager
def temporary() -> Iterator[Path]:
    """Make a folder for a while."""
    with TemporaryDirectory(prefix="golden-") as folder:
        yield Path(folder)
