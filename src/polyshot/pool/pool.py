"""The pool: base, modulators and selector, ready to embed images; on disk a folder without pickle.

``pool.json`` describes it and holds the sha256 of every other file: ``base.safetensors`` (keyed as
torchvision's ResNet-18), ``modulators/<domain>.safetensors``, ``selector.safetensors`` and
``task_statistics.safetensors``, what the selector needs when the pool grows.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.config import FOREIGN_VIEWS, AdaptationConfig, for_hash, foreign_adaptation
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import Snapshot, channels_last, state_hash
from polyshot.models.foreign import (
    EMBEDDINGS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    NO_IMAGES,
    Backbone,
    Foreign,
    ForeignConfig,
    Given,
    as_module,
)
from polyshot.models.heads import USUAL_SCALE, Metric
from polyshot.models.loaders import LOADERS, load_backbone
from polyshot.models.modulators import Kind, Modulator, fold
from polyshot.models.resnet import ResNetConfig
from polyshot.models.selector import MemberAttention, Selector
from polyshot.models.views import MEAN, STD, Views, check_views
from polyshot.pool.default import default_pool, pool_path
from polyshot.pool.files import check_domains, pickled, read_pool, unpickled, write_pool
from polyshot.pool.precision import Precision
from polyshot.pool.pretrained import find_pretrained, write_pretrained
from polyshot.pool.statistics import SourceTasks, check_statistics
from polyshot.tasks import MAKING, Pixels, Table, for_prediction
from polyshot.util.files import digest
from polyshot.util.progress import Progress

if TYPE_CHECKING:
    from polyshot.classifier.classifier import FewShotClassifier
    from polyshot.data.pack import Pack


@dataclass(eq=False)
class Pool:
    """Base + modulators + selector. Member 0 is the base, member i the i-th modulator's."""

    config: ResNetConfig | ForeignConfig
    """Architecture of the base."""
    size: int
    """Side length in pixels of the images it embeds; a base from elsewhere takes others, too, and
    brings them to its own."""
    kind: Kind
    """Of all its modulators."""
    metric: Metric
    """How embeddings are compared with prototypes."""
    base: Backbone
    modulators: dict[str, Modulator] = field(default_factory=dict)
    """By domain, in the order of the members."""
    strengths: dict[str, float] = field(default_factory=dict)
    """Factor lambda on each modulator: 1 as trained, 0 the base; 1 where none is given."""
    selector: Selector | None = None
    """One output a member."""
    unit_input: bool = True
    """Whether the selector's input, the mean embedding, is scaled to unit norm first."""
    scales: list[float] = field(default_factory=list)
    """One a member: logits are scale * (cosine or -squared distance); 1 where none is given."""
    adaptation: AdaptationConfig = field(default_factory=AdaptationConfig)
    """What `adaptation="head"` does."""
    about: dict[str, Any] = field(default_factory=dict)
    """How it was trained, and its measured accuracy; plain data."""
    urt: MemberAttention | None = None
    """What the rule `urt` asks; it serves any number of members."""
    statistics: dict[str, SourceTasks] = field(default_factory=dict)
    """By source, what is kept of the selector's tasks; without it the selector cannot grow."""
    views: Views = "one"
    """How often a member looks at an image."""
    query_views: Views | None = None
    """How often at an image to classify, where that differs: that is what takes the time."""

    def __post_init__(self) -> None:
        self.strengths = {name: self.strengths.get(name, 1.0) for name in self.modulators}
        self.scales = [float(scale) for scale in self.scales] or [1.0] * len(self.members)
        self._check()
        for module in self._modules():
            module.eval().requires_grad_(False)
        # One layout in memory, wherever it came from: answers are then the same to the bit.
        channels_last(self.base)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members: ``base`` and the domains of the modulators."""
        return ("base", *self.modulators)

    @property
    def task_shape(self) -> EpisodeShape:
        """Shape of the tasks that the scales were fitted to, and of those that are kept."""
        try:
            shape = self.about["config"]["shape"]
            return EpisodeShape(way=int(shape["way"]), shot=int(shape["shot"]))
        except (KeyError, TypeError, ValueError, PolyshotError):  # from elsewhere, or of long ago
            return EpisodeShape()

    @property
    def takes_images(self) -> bool:
        """Whether there is a network that embeds; else users bring embeddings."""
        return not (isinstance(self.config, ForeignConfig) and self.config.name == EMBEDDINGS)

    def members_of(self, domain: str) -> list[str]:
        """List the members of a domain: the one of its name, or those of its clusters."""
        if domain in self.modulators:
            return [domain]
        clusters = (name for name in self.modulators if name.startswith(f"{domain}/"))
        return [name for name in clusters if name.removeprefix(f"{domain}/").isdigit()]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(chain(self.base.parameters(), self.base.buffers())).device

    @property
    def hash(self) -> str:
        """Hash of all weights and settings: pools with the same one predict the same."""
        selector = "" if self.selector is None else state_hash(self.selector)
        shape = self.task_shape
        settings = (
            *(self.metric, self.size, self.scales, self.unit_input),
            for_hash(asdict(self.adaptation)),
            *(() if shape == EpisodeShape() else (shape.way, shape.shot)),
            *(() if self.query_views is None else (self.query_views,)),
        )
        attention = [] if self.urt is None else [state_hash(self.urt)]
        members = (*self.modulators, *self.member_hashes())
        return digest(repr(settings), selector, *members, *attention)

    def member_hashes(self) -> list[str]:
        """Hash what each member's embeddings depend on; members of strength 0 are the base."""
        views = () if self.views == "one" else (self.views,)
        config = self.config.for_hash if isinstance(self.config, ForeignConfig) else self.config
        base = digest(repr((config, MEAN, STD, *views)), state_hash(self.base))
        hashes = [base]
        for name, strength in self.strengths.items():
            own = [state_hash(self.modulators[name])] if strength else []
            hashes.append(digest(base, self.kind, repr(strength), *own) if own else base)
        return hashes

    @property
    def backbone(self) -> str:
        """The base's name: ``resnet18``, or where a network from elsewhere came from."""
        return self.config.name if isinstance(self.config, ForeignConfig) else "resnet18"

    def member_hash(self, member: int) -> str:
        """Hash what the embeddings of one member depend on."""
        return self.member_hashes()[member]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: weights in their smallest form, no networks made of them."""
        return pickled(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(unpickled(state))
        self.__post_init__()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pool":
        """Copy everything as it is, not by way of a pickle."""
        made = memo[id(self)] = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def __sklearn_clone__(self) -> "Pool":
        """Be shared by the clones of scikit-learn's estimators: nobody changes it."""
        return self

    def to(self, device: torch.device | str) -> "Pool":
        """Move all weights; returns the pool itself."""
        for module in self._modules():
            module.to(device)
        return self

    def with_views(self, views: str | None) -> "Pool":
        """Return the pool with other views, one of `models.views.VIEWS`; itself where None."""
        return self if views is None else replace(self, views=check_views(views), query_views=None)

    def network(self, member: int) -> nn.Module:
        """Return a member as a plain network for prediction, its modulator folded in.

        The same object as long as its weights stay; a member of strength 0 is the base itself, and
        need not run again.
        """
        name = self.members[member]
        if member == 0 or not self.strengths[name]:
            return for_prediction(self.base)
        modulator, strength = self.modulators[name], self.strengths[name]
        with MAKING:
            known, of = _NETWORKS.get(modulator), (self.base, strength)
            if known is None or known[0] != of or not known[1].holds():
                folded = for_prediction(fold(self.base, modulator, strength))
                known = _NETWORKS[modulator] = of, Snapshot(self.base, modulator), folded
            return known[2]

    def embed(
        self,
        images: Pixels,
        members: Sequence[int] | None = None,
        batch: int | None = None,
        report: Progress | None = None,
        ids: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Embed images [n, 3, size, size] with some members (all by default): [members, n, d].

        Images are uint8 (an array, also a memory map, or a tensor) or float in [0, 1]; the answer
        is float32 on the CPU. `report` counts images times members. `ids` are the rows to embed,
        in this order, where not all are wanted.
        """
        wanted = range(len(self.members)) if members is None else members
        self._check_images(images)
        table = Table.of(images if ids is None else images[ids], self.device, self.views, batch)
        total, done, told = len(wanted) * table.count, 0, 0

        def count(_: str, images_done: int, __: int) -> None:
            nonlocal told
            if report and done + images_done > told:
                told = done + images_done
                report("embed", told, total)

        table.report = count
        rows = []
        for member in wanted:
            rows.append(table.embed(self.network(member)).cpu())
            done += table.count
            count("", 0, 0)  # the base, asked for again, need not run
        return torch.stack(rows)

    def task_weights(self, tasks: Tensor) -> Tensor:
        """Weigh the members by the selector: mean base embeddings [E, d] -> [E, M], rows sum to 1.

        `tasks` are raw means of the support sets (`models.selector.task_embedding`).
        """
        selector, tasks = self.check_selector(), tasks.to(self.device)
        if self.unit_input:
            tasks = nn.functional.normalize(tasks, dim=-1)
        with torch.inference_mode():
            return torch.softmax(selector(tasks), -1).cpu()

    def check_selector(self) -> Selector:
        """Return the selector, or refuse in words."""
        if self.selector is None:
            raise PolyshotError(
                "This pool has no selector, so 'select' cannot choose: take 'average' or 'base', "
                "or train the selector (polyshot train --step selector)."
            )
        return self.selector

    def check_urt(self) -> MemberAttention:
        """Return what weighs members for `urt`, or refuse in words."""
        if self.urt is None:
            raise PolyshotError(
                "This pool has no attention over its members, which 'urt' asks: take 'auto', or "
                "train it (polyshot train --step selector)."
            )
        return self.urt

    def classifier(
        self,
        rule: str = "auto",
        adaptation: str = "auto",
        none_rate: float | None = None,
        batch: int | None = None,
    ) -> "FewShotClassifier":
        """Make a classifier for images of one's own: `fit(images, labels)`, then `predict`.

        With `none_rate` it may answer `none of these`, by mistake to about this share of images;
        `batch` images are embedded at once, as suits device and network if not given.
        """
        from polyshot.classifier.classifier import FewShotClassifier  # noqa: PLC0415 (it imports the pool)

        return FewShotClassifier(self, rule, adaptation, batch, none_rate)

    def add_domain(
        self,
        pack: "Pack",
        options: Sequence[str] = (),
        work: Path | None = None,
        selector: bool = True,
        report: Progress | None = None,
    ) -> "Pool":
        """Return a pool with one more member, trained on a new domain; this one stays as it is.

        Everything but the new modulator is frozen; the selector is trained anew on what the pool
        keeps of its old tasks (`selector=False` goes without one). `options` override the pool's
        config: ``["modulator.steps=500"]``. An interrupted training goes on in the folder `work`.
        """
        from polyshot.training.growth import add_domain  # noqa: PLC0415 (it imports the pool)

        return add_domain(self, pack, options, work, selector, report)

    def remove(self, domain: str) -> "Pool":
        """Return a pool without the members of a domain; this one stays as it is."""
        from polyshot.training.edit import remove  # noqa: PLC0415 (it imports the pool)

        return remove(self, domain)

    def save(self, path: Path | str, precision: Precision = "full") -> None:
        """Write the pool as a folder, in one rename; replaces a pool, refuses anything else.

        `precision` of the networks' kernels: ``full`` loads to the bit; ``half`` (16 bits) and
        ``eight`` are a half and a quarter of its size, rounded, and leave out the weights of
        modulators of strength 0.
        """
        write_pool(self, Path(path), precision)

    def save_pretrained(
        self,
        folder: Path | str,
        precision: Precision = "full",
        card: str | None = None,
        licence: str | None = None,
    ) -> None:
        """Write the pool in the layout of the Hugging Face Hub, ready to be uploaded.

        That is `save` with a README.md: what the Hub reads (`licence`, such as ``apache-2.0``,
        tags, datasets, what was measured), then the card, a text such as `polyshot card` makes.
        """
        write_pretrained(self, Path(folder), precision, card, licence)

    @classmethod
    def from_pretrained(
        cls,
        name: Path | str,
        device: torch.device | str = "cpu",
        network: Any = None,
        revision: str | None = None,
        download: bool = False,
    ) -> "Pool":
        """Load a pool of the Hugging Face Hub by its id, or from a folder.

        An id needs the extra ``[hub]``. `download` allows to fetch it, and a base that it names;
        without, it has to be in the Hub's local cache. `revision` is a branch, a tag or a commit.
        """
        return cls.load(find_pretrained(name, revision, download), device, network, download)

    @classmethod
    def default(cls, device: torch.device | str = "cpu") -> "Pool":
        """Load the pool that ships with Polyshot (or the one that ``POLYSHOT_POOL`` names)."""
        return cls.load(default_pool(), device)

    @classmethod
    def named(cls, name: str | Path, device: torch.device | str = "cpu") -> "Pool":
        """Load what a user named: a pool's folder, ``default``, or a backbone without modulators.

        A folder goes first; ``./default`` and the like are folders in any case.
        """
        backbone = str(name).partition(":")[0] in LOADERS and not Path(name).exists()
        return (
            cls.from_backbone(name, device=device)
            if backbone
            else cls.load(pool_path(name), device)
        )

    @classmethod
    def load(
        cls,
        path: Path | str,
        device: torch.device | str = "cpu",
        network: Any = None,
        download: bool = False,
    ) -> "Pool":
        """Read a pool, checking format, hashes and shapes.

        A base from elsewhere is loaded by its name and checked; one that has none, since the user
        made it, is given as `network`. One that lies elsewhere now is given as its new name
        (``transformers:/new/place``), which the pool takes over. `download` allows to fetch it.
        """
        return cls(**read_pool(Path(path), network, download)).to(device)

    @classmethod
    def from_backbone(
        cls,
        network: Any,
        size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        sites: Sequence[str] = (),
        views: Views = FOREIGN_VIEWS,
        metric: Metric = "cosine",
        kind: Kind = "conv1x1",
        download: bool = False,
        device: torch.device | str = "cpu",
    ) -> "Pool":
        """Make a pool of a network from elsewhere, without modulators: these can be added.

        Args:
            network: a module or function, images [B, 3, size, size] -> embeddings [B, d]; or the
                name of one (`models.loaders`), such as ``efficientnet-lite0``.
            size: side length of the images that it sees; 224 unless its name knows better.
            mean: of pixels from 0 to 1, by channel, ImageNet's where it is not given; a name
                brings its own.
            std: likewise.
            sites: names or patterns of the layers at which modulators act.
            views: how often it looks at an image.
            metric: how embeddings are compared with prototypes.
            kind: of the modulators that it may get.
            download: whether a named network that is not there may be fetched.
            device: where to put it.

        """
        if not isinstance(network, str):
            mean = IMAGENET_MEAN if mean is None else mean
            std = IMAGENET_STD if std is None else std
            side = 224 if size is None else size
            base = Foreign(as_module(network), side, mean, std, sites=sites)
        elif mean is None and std is None:
            base = load_backbone(network, size, sites, download)
        else:
            raise PolyshotError(f"'{network}' brings its own mean and std: leave them out.")
        base.check_kind(kind)
        return cls._of_base(base, metric, kind, views).to(device)

    @classmethod
    def from_embeddings(
        cls, dim: int, metric: Metric = "cosine", device: torch.device | str = "cpu"
    ) -> "Pool":
        """Make a pool without a network, for who has embeddings of `dim` entries already.

        Its classifiers take float arrays or tensors [n, dim] where others take images. What runs
        networks on images, `blend` and `tsa`, is refused.
        """
        return cls._of_base(Given(dim), metric, "conv1x1", "one").to(device)

    @classmethod
    def _of_base(cls, base: Foreign, metric: Metric, kind: Kind, views: Views) -> "Pool":
        config = base.config
        return cls(
            *(config, config.size, kind, metric, base),
            scales=[USUAL_SCALE] if metric == "cosine" else [],
            adaptation=foreign_adaptation(config.name),
            views=views,
        )

    def _modules(self) -> list[nn.Module]:
        beside = [part for part in (self.selector, self.urt) if part is not None]
        return [self.base, *self.modulators.values(), *beside]

    def _check(self) -> None:
        count = len(self.members)
        if len(self.scales) != count:
            raise PolyshotError(f"{count} members need as many scales, not {len(self.scales)}.")
        outputs = count if self.selector is None else self.selector.output.out_features
        if outputs != count:
            raise PolyshotError(
                f"The selector chooses among {outputs} members, the pool has {count}: train the "
                "selector anew."
            )
        members = self.modulators.items()
        alien = [name for name, m in members if m.kind != self.kind or not m.fits(self.base)]
        if alien or self.base.config != self.config:
            which = join_names(alien) or "The base"
            raise PolyshotError(f"{which}: not {self.kind} of {self.config}, as the pool is.")
        check_views(self.views)
        check_views(self.query_views or self.views)
        check_domains(list(self.modulators))
        check_statistics(self.statistics, self.config.dim, count)

    def check_pack(self, pack: "Pack") -> None:
        """Refuse a pack whose images are not of the size that the base wants."""
        if not self.takes_images:
            raise PolyshotError(NO_IMAGES)
        if pack.size != self.size and not isinstance(self.config, ForeignConfig):
            raise PolyshotError(
                f"The pack {pack.domain.name} has images of {pack.size} pixels, the pool wants "
                f"{self.size}: import it again with --size {self.size}."
            )

    def _check_images(self, images: Pixels) -> None:
        if not self.takes_images:
            raise PolyshotError(NO_IMAGES)
        shape = tuple(images.shape)
        if isinstance(self.config, ForeignConfig) and len(shape) == 4 and shape[1] == 3:
            return  # it brings images to its own size
        if len(shape) != 4 or shape[1:] != (3, self.size, self.size):
            raise PolyshotError(
                f"The pool embeds images of {self.size} x {self.size} pixels in three channels, "
                f"[n, 3, {self.size}, {self.size}], not {list(shape)}: import the pack with "
                f"--size {self.size}."
            )


_NETWORKS: WeakKeyDictionary[Modulator, tuple[object, Snapshot, nn.Module]] = WeakKeyDictionary()
"""Folded members by their modulators, made when they are first asked for: pools of some members of
another have the same networks."""
