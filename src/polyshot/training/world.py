"""A world: sources, config and seed, and everything that is trained from them, each thing once.

Methods of one world share its base; worlds of one folder share the networks of single sources.
Several processes may work on one world: whoever trains something holds its lock, the others wait
and then read it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from polyshot.config import Config, to_dict, with_old_names
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.models.modulators import Kind
from polyshot.models.resnet import ResNet
from polyshot.pool.pool import Pool
from polyshot.tasks import Tasks
from polyshot.training.base import initial_base
from polyshot.training.clusters import check_clusters
from polyshot.training.episodic import Learner, Plan, train_learner
from polyshot.training.folder import check_sources, identity
from polyshot.training.metrics import Metrics
from polyshot.training.results import Results
from polyshot.training.run import train
from polyshot.training.selector import fit_scale
from polyshot.training.validation import network_logits, validation_tasks
from polyshot.util import counter_rng
from polyshot.util.device import on_device
from polyshot.util.files import read_weights, write_json, write_weights
from polyshot.util.hashing import digest
from polyshot.util.locks import locked
from polyshot.util.progress import Progress


@dataclass(eq=False)
class World:
    """What methods are trained on, and where."""

    packs: Sequence[Pack]
    """The sources."""
    config: Config
    folder: Path
    """Of all worlds; this one is in a folder of its own inside."""
    device: torch.device
    report: Progress | None = None

    def __post_init__(self) -> None:
        check_sources(self.packs, self.config)
        check_clusters(self.packs, self.config)

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of the members."""
        return [pack.domain.name for pack in self.packs]

    @cached_property
    def key(self) -> str:
        """Hash of all that decides what is trained."""
        packs = [identity(pack) for pack in self.packs]
        return digest(json.dumps([with_old_names(to_dict(self.config)), packs], sort_keys=True))[
            :10
        ]

    @property
    def name(self) -> str:
        """Name of the world's own folder; nothing is written."""
        count = f"{len(self.packs)}-sources" if len(self.packs) > 1 else self.sources[0]
        return f"{self.config.preset}-{count}-seed{self.config.seed}-{self.key}"

    @cached_property
    def out(self) -> Path:
        """The world's own folder; it is described the first time it is asked for."""
        out = self.folder / self.name
        with locked(out / "locks" / "world.lock"):  # two processes would rename one file
            if not (out / "world.json").exists():
                about = {"preset": self.config.preset, "seed": self.config.seed}
                write_json(out / "world.json", {**about, "sources": self.sources, "key": self.key})
        return out

    def base(self) -> ResNet:
        """Return the base, in evaluation mode; always the same object."""
        return self._base

    def pool(self, kind: Kind) -> Pool:
        """Return the pool with this kind of modulators; the base is not trained again."""
        if kind not in self._pools:
            self.base()
            config = replace(self.config, modulator=replace(self.config.modulator, kind=kind))
            with self._lock(f"pool-{kind}"):
                pool = self._train(config, self.out / f"pool-{kind}", "all")
                # One object, so that what it makes of images is made once for all methods.
                self._pools[kind] = replace(pool, base=self.base())
        return self._pools[kind]

    def single(self, source: int) -> "World":
        """Return the world of one source alone, for networks trained by episodes from scratch.

        Its config holds nothing that these do not depend on, so that worlds of several presets
        share it.
        """
        plain, own = Config(), self.config
        episodes = replace(
            own.modulator,
            kind="conv1x1",
            strengths=plain.modulator.strengths,
            channel_learning_rate=plain.modulator.channel_learning_rate,
            members=plain.modulator.members,
        )
        config = replace(
            plain,
            preset="episodes",
            seed=own.seed,
            size=own.size,
            model=own.model,
            metric="euclidean",
            modulator=episodes,
            shape=own.shape,
            validation_episodes=own.validation_episodes,
        )
        return World([self.packs[source]], config, self.folder, self.device, self.report)

    def initial(self) -> ResNet:
        """Return an untrained network."""
        return on_device(initial_base(self.config), self.device)

    def learned(
        self, name: str, make: Callable[[], Learner], plan: Plan
    ) -> tuple[Learner, dict[str, Any]]:
        """Train a learner, or read it: the learner in evaluation mode, and what is known of it.

        `name` must tell apart learners of one world whose `make` differs; plans are told apart
        here.
        """
        mark = digest(json.dumps(asdict(plan), sort_keys=True))[:6]
        file = self.out / "rivals" / f"{name}-{mark}.safetensors"
        with self._lock(f"{name}-{mark}"):
            learner = make()
            if not file.exists():
                checkpoint = file.with_suffix(".pt")
                metrics = Metrics(file.with_name(f"{file.stem}-metrics.jsonl"))
                try:
                    best = train_learner(
                        name,
                        learner,
                        self.images("train"),
                        self.validation,
                        plan,
                        self.config.seed,
                        checkpoint,
                        metrics,
                        self.report,
                    )
                finally:
                    metrics.close()
                about = {"validation": best.value, "best": best.number, "skipped": best.skipped}
                write_weights(file, learner.state_dict(), about)
                checkpoint.unlink(missing_ok=True)
        weights, known = read_weights(file)
        learner.load_state_dict(weights)
        return on_device(learner, self.device).eval().requires_grad_(False), known

    @cached_property
    def validation(self) -> list[Tasks]:
        """Episodes of the validation classes of every source: all choices are made on them."""
        return validation_tasks(self.images("val"), self.config)

    def validation_tasks(self, shape_seed: int = 0) -> list[Tasks]:
        """Return validation episodes for networks that stay as they are."""
        config = replace(self.config, seed=counter_rng.key("tune", self.config.seed, shape_seed))
        return validation_tasks(self.images("val"), config, frozen=True)

    def scale(self, network: ResNet) -> float:
        """Find the scale of a network's prototype logits with the highest likelihood."""
        metric = self.config.metric
        return fit_scale([network_logits(tasks, network, metric) for tasks in self.validation])

    def images(self, part: str) -> Images:
        """Return the sources' images of one part of their classes, loaded once."""
        if part not in self._images:
            self._images[part] = Images(self.packs, part, self.device)
        return self._images[part]

    @cached_property
    def _images(self) -> dict[str, Images]:
        return {}

    @cached_property
    def _pools(self) -> dict[Kind, Pool]:
        return {}

    @cached_property
    def _base(self) -> ResNet:
        kind = self.config.modulator.kind
        with self._lock(f"pool-{kind}"):
            out = self.out / f"pool-{kind}"
            self._train(self.config, out, "base")
            return Results(out, self.sources, self.config, self.device).base()

    def _train(self, config: Config, out: Path, step: str) -> Pool:
        kind = self.config.modulator.kind
        own = self.out / f"pool-{kind}"
        base = None
        if out != own:
            base = Results(own, self.sources, self.config, self.device).base_file
        return train(
            self.packs, config, out, step, self.device, progress=self.report, trained_base=base
        )

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        # Networks are made before weights are read into them: the caller's chance stays untouched.
        with locked(self.out / "locks" / f"{name}.lock"), torch.random.fork_rng([]):
            yield


def settings_mark(settings: Mapping[str, float]) -> str:
    """Hash a method's settings, for the names of files."""
    return digest(json.dumps(dict(settings), sort_keys=True))[:6]
