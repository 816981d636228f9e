"""A world whose pool has grown: one more domain, added when everything else was trained.

What was trained before is the ungrown world's own, in its folder, so that nothing is trained twice;
only the addition lies beside it, as ``added-<domain>-<mark>-<kind of modulators>``.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.models.modulators import Kind
from polyshot.models.resnet import ResNet
from polyshot.pool.pool import Pool
from polyshot.training.folder import check_sources, device_name, identity
from polyshot.training.world import World
from polyshot.util.files import read_json, write_json
from polyshot.util.hashing import digest
from polyshot.util.progress import Progress


@dataclass(frozen=True)
class Addition:
    """What it took to add a domain to a pool."""

    seconds: float | None
    """Of the whole addition, selector included; None where it was interrupted."""
    device: str


@dataclass(eq=False)
class GrownWorld(World):
    """A world with one more domain in its pools; base and old members stay as they are."""

    added: Pack = field(kw_only=True)
    """The new domain."""

    def __post_init__(self) -> None:
        check_sources([*self.packs, self.added], self.config)

    @cached_property
    def before(self) -> World:
        """The world that has not grown."""
        return World(self.packs, self.config, self.folder, self.device, self.report)

    @property
    def sources(self) -> list[str]:
        """Names of the sources in the order of the members, the added one last."""
        return [*self.before.sources, self.added.domain.name]

    @cached_property
    def key(self) -> str:
        """Hash of all that decides what is trained."""
        return digest(json.dumps([self.before.key, identity(self.added)], sort_keys=True))[:10]

    @property
    def name(self) -> str:
        """Name for results: they are not those of the ungrown world."""
        return f"{self.before.name}-{self._mark}"

    @cached_property
    def out(self) -> Path:
        """The folder of the ungrown world."""
        return self.before.out

    def base(self) -> ResNet:
        """Return the ungrown world's base."""
        return self.before.base()

    def pool(self, kind: Kind) -> Pool:
        """Return the pool with the added domain; it is added if that was not done yet."""
        if kind not in self._pools:
            old, folder = self.before.pool(kind), self._addition_folder(kind)
            with self._lock(folder.name):
                if not (folder / "pool" / "pool.json").exists():
                    self._add(old, folder)
            grown = Pool.load(folder / "pool", self.device)
            self._pools[kind] = replace(grown, base=self.base())
        return self._pools[kind]

    def addition(self, kind: Kind) -> Addition:
        """Tell what the addition took, which is made if it was not yet."""
        self.pool(kind)
        return Addition(**read_json(self._addition_folder(kind) / "addition.json"))

    @property
    def _mark(self) -> str:
        # A domain of the same name with other images or classes is another one.
        own = digest(json.dumps(identity(self.added), sort_keys=True))[:6]
        return f"added-{self.added.domain.name}-{own}"

    def _addition_folder(self, kind: Kind) -> Path:
        return self.out / f"{self._mark}-{kind}"

    def _add(self, old: Pool, folder: Path) -> None:
        interrupted = folder.exists()
        start = time.perf_counter()
        grown = old.add_domain(self.added, work=folder, report=self.report)
        seconds = None if interrupted else round(time.perf_counter() - start, 2)
        about = folder / "addition.json"
        if not about.exists():  # there is one where only the pool was not written any more
            write_json(about, {"seconds": seconds, "device": device_name(self.device)})
        grown.save(folder / "pool")  # last: with it, the addition is done
        for checkpoint in folder.glob("*.pt"):
            checkpoint.unlink()


def make_world(
    packs: Sequence[Pack],
    config: Config,
    folder: Path,
    device: torch.device | None = None,
    report: Progress | None = None,
    added: Pack | None = None,
) -> World:
    """Make the world of some sources, grown by one more domain where one is given."""
    where = (packs, config, folder, device or torch.device("cpu"), report)
    return World(*where) if added is None else GrownWorld(*where, added=added)
