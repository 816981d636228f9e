"""A training run: sources, config and seed, and everything that is trained from them, each once.

Methods of one run share its base; runs of one folder share the networks of single sources. Several
processes may work on one run: whoever trains something holds its lock, the others wait and then
read it. A pool may grow by one more domain (`added`), when everything else was trained: what was
trained before stays where it is, only the addition lies beside it, as
``added-<domain>-<mark>-<kind of modulators>``.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from polyshot.config import Config, for_hash, to_dict
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.models.foreign import Backbone
from polyshot.models.modulators import Kind
from polyshot.pool.pool import Pool
from polyshot.tasks import Tasks
from polyshot.training.base import initial_base
from polyshot.training.clusters import check_clusters
from polyshot.training.episodic import EpisodicStep, Learner
from polyshot.training.folder import Artifacts, check_sources, device_name, identity
from polyshot.training.loop import learn
from polyshot.training.run import train
from polyshot.training.selector import network_scale
from polyshot.training.step import Metrics, Plan, Record, Schedule
from polyshot.training.validation import validation_tasks
from polyshot.util import counter_rng
from polyshot.util.device import on_device
from polyshot.util.files import digest, locked, read_json, write_json
from polyshot.util.progress import Progress
from polyshot.util.tensors import read_weights

AnyLearner = TypeVar("AnyLearner", bound=Learner)


@dataclass(frozen=True)
class Addition:
    """What it took to add a domain to a pool."""

    seconds: float | None
    """Of the whole addition, selector included; None where it was interrupted."""
    device: str


@dataclass(frozen=True, eq=False)
class Training:
    """A training that several methods or runs share: whoever comes first does it for all."""

    run: "TrainingRun"
    name: str
    do: Callable[[], object]
    """Trains it, or reads it."""
    outputs: tuple[str, ...]
    """Patterns of its files, in the folder of all runs."""
    needs: tuple["Training", ...] = ()

    @property
    def key(self) -> str:
        """Tell it from all others of the folder."""
        return f"{self.run.name}-train-{self.name}"

    def reads(self) -> tuple[str, ...]:
        """List patterns of the files that it goes on from, its own among them."""
        every = [pattern for each in self.needs for pattern in each.reads()]
        return tuple(dict.fromkeys([*every, *self.outputs]))


@dataclass(eq=False)
class TrainingRun:
    """What methods are trained on, and where."""

    packs: Sequence[Pack]
    """The sources."""
    config: Config
    folder: Path
    """Of all runs; this one is in a folder of its own inside."""
    device: torch.device
    report: Progress | None = None
    added: Pack | None = None
    """A domain that was added to the pools later; base and old members stay as they are."""

    def __post_init__(self) -> None:
        check_sources([*self.packs, *([self.added] if self.added else [])], self.config)
        check_clusters(self.packs, self.config)
        self._pools: dict[Kind, Pool] = {}
        self._images: dict[str, Images] = {}

    @cached_property
    def before(self) -> "TrainingRun":
        """The run without the domain that was added."""
        return replace(self, added=None) if self.added else self

    @property
    def sources(self) -> list[str]:
        """Names of the sources in the order of the members, an added one last."""
        packs = [*self.packs, *([self.added] if self.added else [])]
        return [pack.domain.name for pack in packs]

    @cached_property
    def key(self) -> str:
        """Hash of all that decides what is trained."""
        if self.added:
            return _mark([self.before.key, identity(self.added)], 10)
        packs = [identity(pack) for pack in self.packs]
        return _mark([for_hash(to_dict(self.config)), packs], 10)

    @property
    def name(self) -> str:
        """Name of the run's own folder, and of its results; nothing is written."""
        if self.added:
            return f"{self.before.name}-{self._addition}"
        count = f"{len(self.packs)}-sources" if len(self.packs) > 1 else self.sources[0]
        return f"{self.config.preset}-{count}-seed{self.config.seed}-{self.key}"

    @cached_property
    def out(self) -> Path:
        """The run's own folder; it is described the first time it is asked for."""
        if self.added:
            return self.before.out
        out = self.folder / self.name
        with locked(out / "locks" / "world.lock"):  # two processes would rename one file
            if not (out / "world.json").exists():
                about = {"preset": self.config.preset, "seed": self.config.seed}
                write_json(out / "world.json", {**about, "sources": self.sources, "key": self.key})
        return out

    def base(self) -> Backbone:
        """Return the base, in evaluation mode; always the same object."""
        return self.before._base

    def pool(self, kind: Kind) -> Pool:
        """Return the pool with this kind of modulators; the base is not trained again."""
        if kind not in self._pools:
            base = self.base()  # one object: what it makes of images is made once for all methods
            pool = self._grown(kind) if self.added else self._train(kind, "all")
            self._pools[kind] = replace(pool, base=base)
        return self._pools[kind]

    def addition(self, kind: Kind) -> Addition | None:
        """Tell what adding a domain took, which is done if it was not yet; None without one."""
        if not self.added:
            return None
        self.pool(kind)
        return Addition(**read_json(self._addition_folder(kind) / "addition.json"))

    def trainings(self, kind: Kind | None = None) -> list[Training]:
        """List what it takes to train the base, or a pool: what others need comes first.

        The modulators of a pool do not need each other, so that each is a training of its own,
        where it is known beforehand which ones there will be.
        """
        if self.added is not None:
            before = self.before.trainings(kind)
            if kind is None:
                return before
            added = (f"{self.before.name}/{self._addition}-{kind}/**",)
            grown = Training(self, f"pool-{kind}", lambda: self.pool(kind), added, (before[-1],))
            return [*before, grown]
        own = self.config.modulator
        described = f"{self.name}/world.json"
        files = (described, f"{self.name}/pool-{own.kind}/**")
        base = Training(self, "base", self.base, files)
        if kind is None:
            return [base]
        files = (described, f"{self.name}/pool-{kind}/**")
        parts = [base]
        if not self.config.joint and own.members == 1 and len(self.packs) > 1:
            parts += [
                Training(self, f"modulator-{kind}-{name}", partial(self._member, kind, name), files)
                for name in self.sources
            ]
            parts[1:] = [replace(part, needs=(base,)) for part in parts[1:]]
        return [*parts, Training(self, f"pool-{kind}", lambda: self.pool(kind), files, (*parts,))]

    def single(self, source: int) -> "TrainingRun":
        """Return the run of one source alone, for networks trained by episodes from scratch.

        Runs of several presets share it: its config holds what these networks depend on alone.
        """
        plain, own = Config(), self.config
        idle = (
            "kind",
            "strengths",
            "strength_shots",
            "channel_learning_rate",
            "members",
            "loss_metric",
        )
        usual = {name: getattr(plain.modulator, name) for name in idle}
        needed = ("seed", "size", "backbone", "model", "shape", "validation_episodes")
        config = replace(
            plain,
            preset="episodes",
            metric="euclidean",
            modulator=replace(own.modulator, shape=own.shape, **usual),
            **{name: getattr(own, name) for name in needed},
        )
        return TrainingRun([self.packs[source]], config, self.folder, self.device, self.report)

    def initial(self) -> Backbone:
        """Return an untrained network."""
        return on_device(initial_base(self.config), self.device)

    def learned(
        self, name: str, make: Callable[[], AnyLearner], plan: Plan
    ) -> tuple[AnyLearner, dict[str, Any]]:
        """Train a learner, or read it: the learner in evaluation mode, and what is known of it.

        `name` must tell apart learners of one run whose `make` differs; plans are told apart here.
        """
        mark = _mark(plan.for_mark(), 6)
        file = self.out / "rivals" / f"{name}-{mark}.safetensors"
        with self._lock(f"{name}-{mark}"):
            learner = make()
            if not file.exists():
                images, seed = self.images("train"), self.config.seed
                step = EpisodicStep(name, learner, images, self.validation, plan, seed)
                with closing(Metrics(file.with_name(f"{file.stem}-metrics.jsonl"))) as metrics:
                    record = Record(file.with_suffix(".pt"), metrics, self.report)
                    best = learn(step, Schedule.of(plan), record, seed)
                record.finish(file, learner.state_dict(), best.about())
        weights, known = read_weights(file)
        learner.load_state_dict(weights)
        return on_device(learner, self.device).eval().requires_grad_(False), known

    @cached_property
    def validation(self) -> list[Tasks]:
        """Episodes of the validation classes of every source: all choices are made on them."""
        return validation_tasks(self.images("val"), self.config)

    @cached_property
    def tuning_tasks(self) -> list[Tasks]:
        """Other validation episodes, for networks that stay: methods are tuned on them."""
        config = replace(self.config, seed=counter_rng.key("tune", self.config.seed, 0))
        return validation_tasks(self.images("val"), config, frozen=True)

    def scale(self, network: Backbone) -> float:
        """Find the scale of a network's prototype logits with the highest likelihood."""
        return network_scale(self.validation, network, self.config.metric)

    def images(self, part: str) -> Images:
        """Return the sources' images of one part of their classes, loaded once."""
        if part not in self._images:
            self._images[part] = Images(self.packs, part, self.device)
        return self._images[part]

    @cached_property
    def _base(self) -> Backbone:
        return self._train(self.config.modulator.kind, "base").base

    def _member(self, kind: Kind, name: str) -> None:
        """Train one modulator of a pool."""
        self.base()
        self._train(kind, "modulators", name)

    def _train(self, kind: Kind, step: str, only: str = "") -> Pool:
        """Train a pool; its base is the one of the config's own kind of modulators."""
        out, own = self.out / f"pool-{kind}", self.config.modulator.kind
        trained = Artifacts(self.out / f"pool-{own}", [], self.config, self.device).base_file
        base = None if kind == own else trained
        config = replace(self.config, modulator=replace(self.config.modulator, kind=kind))
        with self._lock("-".join(filter(None, (out.name, only)))):
            return train(
                *(self.packs, config, out, step, self.device, self.report),
                trained_base=base,
                only=only,
            )

    def _grown(self, kind: Kind) -> Pool:
        assert self.added is not None
        old, folder = self.before.pool(kind), self._addition_folder(kind)
        with self._lock(folder.name):
            if not (folder / "pool" / "pool.json").exists():
                interrupted, start = folder.exists(), time.perf_counter()
                grown = old.add_domain(self.added, work=folder, report=self.report)
                seconds = None if interrupted else round(time.perf_counter() - start, 2)
                about = folder / "addition.json"
                if not about.exists():  # there is one where only the pool was not written any more
                    write_json(about, {"seconds": seconds, "device": device_name(self.device)})
                grown.save(folder / "pool")  # last: with it, the addition is done
                for checkpoint in folder.glob("*.pt"):
                    checkpoint.unlink()
        return Pool.load(folder / "pool", self.device)

    @property
    def _addition(self) -> str:
        assert self.added is not None
        # A domain of the same name with other images or classes is another one.
        return f"added-{self.added.domain.name}-{_mark(identity(self.added), 6)}"

    def _addition_folder(self, kind: Kind) -> Path:
        return self.out / f"{self._addition}-{kind}"

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        # Networks are made before weights are read into them: the caller's chance stays untouched.
        with locked(self.out / "locks" / f"{name}.lock"), torch.random.fork_rng([]):
            yield


LATER: Mapping[str, float] = {
    "per_source": 0,
    "fall_back": 0,
    "cosine": 0,
    "adam": 0,
    "head_rate": 0,
}
"""Settings of methods that came later, with the values that mean what was before."""


def settings_mark(settings: Mapping[str, Any]) -> str:
    """Hash settings of methods, for the names of files: those of before keep theirs."""

    def plain(own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: plain(value) if isinstance(value, Mapping) else value
            for name, value in own.items()
            if isinstance(value, Mapping) or value != LATER.get(name)
        }

    return _mark(plain(settings), 6)


def _mark(plain: object, letters: int) -> str:
    return digest(json.dumps(plain, sort_keys=True))[:letters]
