"""select, average: the paper's DoS and DoA (Choi et al., 2019), with either kind of modulator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from polyshot.data.shapes import EpisodeShape
from polyshot.methods.image_tasks import ImageTasks
from polyshot.methods.method import Fitted, Method, Settings, register
from polyshot.methods.readout import predict_many
from polyshot.methods.rules import rule
from polyshot.methods.tasks import IndexedTasks
from polyshot.models.modulators import Kind
from polyshot.models.resnet import ResNet, parameter_count
from polyshot.pool import Pool

if TYPE_CHECKING:
    from polyshot.training.world import World


@dataclass(eq=False)
class PoolWithRule(Fitted):
    """A pool whose members are weighed by a rule."""

    pool: Pool
    rule: str
    networks: list[ResNet]
    """The members; those of strength 0 are the base itself."""
    note: str = ""

    def predict(self, tasks: ImageTasks, adaptation: str = "none") -> Tensor:
        """Weigh the members' opinions: probabilities [E, Q, W]."""
        indexed = self._indexed(tasks)
        return predict_many(self.pool, indexed, [rule(self.rule, self.pool)], adaptation)[0]

    def opinions(self, tasks: ImageTasks, adaptation: str = "none") -> Tensor:
        """Return each member's probabilities: [M, E, Q, W]."""
        domains = self.pool.members[1:]
        rules = [rule("base", self.pool), *(rule(f"member:{d}", self.pool) for d in domains)]
        return predict_many(self.pool, self._indexed(tasks), rules, adaptation)

    def weights(self, tasks: ImageTasks) -> Tensor:
        """Return the weights that the rule gives to the members: [E, M]."""
        return rule(self.rule, self.pool).weights(self.pool, self._indexed(tasks))

    def _indexed(self, tasks: ImageTasks) -> IndexedTasks:
        tables = {i: tasks.table(network) for i, network in enumerate(self.networks)}
        return IndexedTasks(tables, tasks.support, tasks.query)

    def parameters(self) -> int:
        """Count base, modulators and, where the rule needs it, the selector."""
        parts = [self.pool.base, *self.pool.modulators.values()]
        if self.rule == "select" and self.pool.selector is not None:
            parts.append(self.pool.selector)
        return parameter_count(*parts)

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Selecting embeds the support set twice; averaging embeds all images with every member."""
        images = shape.way * (shape.shot + shape.queries)
        if self.rule == "select":
            return images + shape.way * shape.shot
        return images * len(self.networks)


def _fit(kind: Kind, rule_name: str) -> Callable[["World", Settings], PoolWithRule]:
    def fit(world: "World", _: Settings) -> PoolWithRule:
        return PoolWithRule(world.pool(kind), rule_name, world.members(kind))

    return fit


def _method(name: str, rule_name: str, kind: Kind, about: str) -> Method:
    paper = "Learning Disparate Modulators (Choi et al., 2019)"
    return Method(name, paper, about, _fit(kind, rule_name))


register(_method("select", "select", "conv1x1", "DoS: the member that the selector chooses"))
register(_method("average", "average", "conv1x1", "DoA: the average of all members"))
register(_method("select-channel", "select", "channel", "DoS-Ch: select, modulators by channel"))
register(_method("average-channel", "average", "channel", "DoA-Ch: average, modulators by channel"))
