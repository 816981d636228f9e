"""What a pool is in memory: base, modulators and selector, ready to embed images.

`Pool` adds what users do with it: learn, grow, save and load.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyshot.config import AdaptationConfig, for_hash
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import Snapshot, channels_last, state_hash
from polyshot.models.foreign import EMBEDDINGS, NO_IMAGES, Backbone, ForeignConfig
from polyshot.models.heads import Metric
from polyshot.models.modulators import Kind, Modulator, fold
from polyshot.models.resnet import ResNetConfig
from polyshot.models.selector import MemberAttention, Selector
from polyshot.models.views import MEAN, STD, Views, check_views
from polyshot.pool.files import check_domains
from polyshot.pool.statistics import SourceTasks, check_statistics
from polyshot.tasks import MAKING, Pixels, Table, for_prediction
from polyshot.util.files import digest
from polyshot.util.progress import Progress

if TYPE_CHECKING:
    from polyshot.data.pack import Pack


@dataclass(eq=False)
class Members:
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
    one_network: bool = False
    """Whether the rule `auto` mixes the members' modulators, so that a task has one network."""

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
            *(("one network",) if self.one_network else ()),
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

    def to(self, device: torch.device | str) -> Self:
        """Move all weights; returns the pool itself."""
        for module in self._modules():
            module.to(device)
        return self

    def with_views(self, views: str | None) -> Self:
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
                "This pool has no selector, which 'select' and 'soft' ask: take 'average' or "
                "'base', or train the selector (polyshot train --step selector)."
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
