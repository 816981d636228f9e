"""A whole training: three steps in a run folder that can be left and entered at any moment.

The folder holds ``config.json``, ``environment.json``, ``metrics.jsonl``, ``checkpoints/`` of the
step in work, ``steps/`` with the results of steps that are done, and the pool.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from polyshot.config import Config, to_dict
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.errors import PolyshotError, unknown
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import to_tensors
from polyshot.tasks import Network, Tasks
from polyshot.training import parallel
from polyshot.training.base import BaseStep, initial_base, named_base, pool_size
from polyshot.training.clusters import check_clusters, known_members, write_members
from polyshot.training.folder import Artifacts, check_sources, enter
from polyshot.training.joint import JointStep
from polyshot.training.loop import learn
from polyshot.training.modulators import ModulatorStep
from polyshot.training.selector import (
    Members,
    SelectorStep,
    UrtStep,
    fewer_tasks,
    network_scale,
    statistics_of,
)
from polyshot.training.step import Metrics, Record, Schedule
from polyshot.training.validation import selector_tasks, validation_tasks
from polyshot.util.files import locked_if_free, read_json, write_json
from polyshot.util.progress import Progress
from polyshot.util.tensors import read_weights, write_weights

STEPS = ("base", "modulators", "selector")
MOST_KEPT = 2**29
"""Numbers of the embeddings that step 3 keeps, so that each network embeds an image once; where
there would be more, it does so each time."""


def train(
    packs: Sequence[Pack],
    config: Config,
    out: Path,
    step: str = "all",
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    start: Path | None = None,
    trained_base: Path | None = None,
    only: str = "",
) -> Pool:
    """Train a pool on the sources, or go on with a run; steps that are done are skipped.

    Args:
        packs: the sources, in the order of the members.
        config: all choices.
        out: the run folder; the pool is ``out/pool``.
        step: ``base``, ``modulators``, ``selector`` or ``all``.
        device: a GPU if there is one, by default.
        progress: called with a name, images done and images in all.
        start: safetensors file of ResNet-18 weights to start the base from.
        trained_base: the base of another run (its ``steps/base.safetensors``), to be taken as it
            is: step 1 is not done again.
        only: of the step ``modulators``, the one of this domain alone: each can be learned by a
            process of its own.

    Returns:
        The pool as far as it is trained; without a selector until the last step is done.

    """
    if step not in (*STEPS, "all"):
        raise unknown("step", step, (*STEPS, "all"))
    check_sources(packs, config)
    check_clusters(packs, config)
    if start is not None:
        initial_base(config, start)  # a wrong file must not leave a run that cannot be mended
    elif config.foreign:
        named_base(config)  # nor a wrong name
    where = parallel.own_device(device)
    with parallel.processes(where), _alone(out, only):
        enter(out, packs, config, start, where)
        if trained_base is not None and parallel.rank() == 0:
            base_file = Artifacts(out, [], config, where).base_file
            if not base_file.exists():
                write_weights(base_file, *read_weights(trained_base))
        parallel.wait()
        run = _Run(packs, config, out, where, progress, start, only)
        with closing(run.metrics):
            for name in STEPS if step == "all" else (step,):
                if name == "base":
                    run.base()
                elif name == "modulators":
                    run.modulators()
                else:
                    run.selector()
                    run.attention()
                parallel.wait()  # the first process has written what the others read
            if parallel.rank() == 0:
                pool = run.pool()
            parallel.wait()
            return pool if parallel.rank() == 0 else Pool.load(run.out / "pool", where)


@contextmanager
def _alone(out: Path, only: str = "") -> Iterator[None]:
    """Let nobody else train in a folder: two would write each other's checkpoints.

    Modulators of different domains (`only`) have checkpoints and metrics of their own.
    """
    if parallel.rank() > 0 or (out.exists() and not out.is_dir()):
        yield
        return
    with locked_if_free(out / f".{only}.lock" if only else out / ".lock") as free:
        if not free:
            raise PolyshotError(
                f"Another process is training in {out}: wait for it, or name another folder."
            )
        yield


@dataclass(eq=False)
class _Run:
    """The three steps over one folder; only the first process writes."""

    packs: Sequence[Pack]
    config: Config
    out: Path
    device: torch.device
    report: Progress | None
    start: Path | None
    only: str = ""

    def __post_init__(self) -> None:
        self.names = [pack.domain.name for pack in self.packs]
        self._name_members()
        # One writer a file: modulators may be learned side by side.
        file = f"{self.only}-metrics.jsonl" if self.only else "metrics.jsonl"
        self.metrics = Metrics(self.out / file if parallel.rank() == 0 else None)

    def base(self) -> None:
        """Step 1, by all processes together."""
        if self.done.base_file.exists():
            return
        record, config = self._record(self.done.base_file), self.config
        if config.foreign:
            if parallel.rank() == 0:
                found = named_base(config).config
                record.finish(self.done.base_file, {}, {"name": found.name, "sha256": found.sha256})
            return
        train, val = (Images(self.packs, part, self.device) for part in ("train", "val"))
        step = (JointStep if config.joint else BaseStep)(train, val, config, self.start)
        best = learn(step, Schedule.of(config.base), record, config.seed)
        if isinstance(step, JointStep):
            for i, file in enumerate(self.done.modulator_files.values()):
                modulator, about = step.member(i, best)
                write_weights(file, modulator.state_dict(), about)
        if parallel.rank() == 0:
            record.finish(self.done.base_file, step.module.base.state_dict(), best.about())

    def modulators(self) -> None:
        """Step 2, one member after the other."""
        self.done.need(self.done.base_file, "base")
        if parallel.rank() != 0:
            return
        if not self.members:
            write_members(self.packs, self.done.base, self.config, self.out, self.device)
            self._name_members()
        if self.done.trained():
            return
        base = self.done.base
        train, validation = self._images_of_members(), self._validation()
        for i, member in enumerate(self.members):
            file, tasks = self.done.modulator_files[member.name], validation[member.source]
            if not file.exists() and self.only in ("", member.name):
                record = self._record(file)
                step = ModulatorStep(base, train, i, tasks, self.config)
                about = step.train(record)
                record.finish(file, step.modulator().state_dict(), about)

    def selector(self) -> None:
        """Step 3, after the scales: ties between members are broken by their likelihoods."""
        self.done.need(self.done.base_file, "base")
        self._name_members()
        for file in self.done.modulator_files.values():
            self.done.need(file, "modulators")
        done = self.done.selector_file.exists() and self.done.statistics_file.exists()
        if done or parallel.rank() != 0:
            return
        config = self.config
        tasks, owners = self._tasks
        members = self._members()
        checked = members.examples(self._checked, "embed validation")
        learned = members.examples(tasks, "embed training")
        kept = statistics_of(learned, owners, checked, self.names)
        write_weights(self.done.statistics_file, to_tensors(kept), {"sources": list(kept)})
        if self.done.selector_file.exists():  # made by a version that kept no statistics
            return
        step, record = SelectorStep(learned, checked, config), self._record(self.done.selector_file)
        about = step.train(record)
        record.finish(self.done.selector_file, step.module.state_dict(), about)
        self.metrics.forget("selector:labels", -1)
        self.metrics.write("selector:labels", config.selector.steps, **about)

    def attention(self) -> None:
        """Train what the rule `urt` asks, on tasks like the selector's."""
        if self.done.urt_file.exists() or parallel.rank() != 0:
            return
        numbers = (1 + len(self.members)) * self.done.base.config.dim
        few, members = fewer_tasks(self.config, numbers), self._members()
        tasks = [each.part(slice(few.selector.tasks)) for each in self._tasks[0]]
        train = members.sights(tasks, "embed training for urt")
        tasks = [each.part(slice(few.validation_episodes)) for each in self._checked]
        checked = members.sights(tasks, "embed validation for urt")
        step, record = UrtStep(train, checked, self.config), self._record(self.done.urt_file)
        about = step.train(record)
        record.finish(self.done.urt_file, step.module.state_dict(), about)

    def pool(self) -> Pool:
        """Put the pool together from the steps that are done; it is saved if it is news."""
        self.done.need(self.done.base_file, "base")
        domains, folder = self.done.trained(), self.out / "pool"
        if (folder / "pool.json").exists():
            saved = Pool.load(folder, self.device)
            if saved.about.get("edited"):
                raise PolyshotError(
                    f"{folder} was changed by 'polyshot pool' and is not overwritten: move it away "
                    "to get the run's own pool again."
                )
            there = (bool(saved.statistics), saved.selector is not None, saved.urt is not None)
            files = (self.done.statistics_file, self.done.selector_file, self.done.urt_file)
            if saved.members == ("base", *domains) and there == tuple(f.exists() for f in files):
                return saved
        modulators = {name: self.done.modulator(name) for name in domains}
        base = self.done.base
        pool = Pool(
            config=base.config,
            size=pool_size(base, self.config),
            kind=self.config.modulator.kind,
            metric=self.config.metric,
            base=base,
            modulators={name: modulator for name, (modulator, _) in modulators.items()},
            strengths={name: about["strength"] for name, (_, about) in modulators.items()},
            selector=self.done.selector(),
            unit_input=self.config.selector.standardise,
            scales=self._scales(),
            statistics=self.done.statistics(),
            adaptation=self.config.adaptation,
            about={
                "config": to_dict(self.config),
                "packs": {pack.domain.name: pack.hash for pack in self.packs},
                "steps": self.done.about(),
            },
            urt=self.done.urt(),
            views=self.config.views,
        ).to(self.device)
        pool.save(folder)
        return pool

    def _record(self, file: Path) -> Record:
        """Say where the step whose result is this file writes what it does."""
        inside = file.relative_to(self.out / "steps").with_suffix(".pt")
        return Record(self.out / "checkpoints" / inside, self.metrics, self.report)

    def _name_members(self) -> None:
        """Look which members the pool has; with clusters they are known once there is a base."""
        self.members = known_members(self.packs, self.config, self.out)
        names = [member.name for member in self.members] or self.names
        self.done = Artifacts(self.out, names, self.config, self.device)

    @cached_property
    def _tasks(self) -> tuple[list[Tasks], list[str]]:
        """Tasks of the members' classes, and of whole sources with clusters; also of which."""
        train, count = self._images_of_members(), self.config.selector.tasks
        tasks = selector_tasks(train, self.config, count)
        owners = [self.names[member.source] for member in self.members]
        if mixed := [pack for pack in self.packs if owners.count(pack.domain.name) > 1]:
            whole = Images(mixed, "train", self.device)
            tasks += selector_tasks(whole, self.config, count)
            owners += [pack.domain.name for pack in mixed]
        return self._kept(tasks), owners

    @cached_property
    def _checked(self) -> list[Tasks]:
        """The validation episodes of every source, as the members of step 3 see them."""
        return self._kept(self._validation())

    def _kept(self, sets: list[Tasks]) -> list[Tasks]:
        """Let embeddings by the members, which stay as they are, be kept if they are not many."""
        images = sum(tasks.table.count for tasks in sets)
        if images * len(set(self._networks)) * self.done.base.config.dim > MOST_KEPT:
            return sets
        return [replace(tasks, table=replace(tasks.table, frozen=True)) for tasks in sets]

    def _images_of_members(self) -> Images:
        return Images([member.pack for member in self.members], "train", self.device)

    def _validation(self) -> list[Tasks]:
        return validation_tasks(Images(self.packs, "val", self.device), self.config)

    @cached_property
    def _networks(self) -> Sequence[Network]:
        """The members' networks once they are trained, the base first."""
        return self.done.networks()

    def _members(self) -> Members:
        return Members(self._networks, self._scales(), self.config, self.report)

    def _scales(self) -> list[float]:
        """Find each member's scale by the likelihood of validation episodes, all sources alike."""
        members = ["base", *self.done.trained()]
        if self.done.scales_file.exists():
            known = read_json(self.done.scales_file)
            if known["members"] == members:
                return [float(scale) for scale in known["scales"]]
        found = {
            network: network_scale(self._checked, network, self.config.metric)
            for network in set(self._networks)
        }
        scales = [found[network] for network in self._networks]
        write_json(self.done.scales_file, {"members": members, "scales": scales})
        return scales
