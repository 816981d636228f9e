"""tadam: *TADAM: Task dependent adaptive metric* (Oreshkin et al., 2018).

A task is represented by the mean of its prototypes, from which a small network scales and shifts
the channels of the base before all images are embedded again. Distances have a learned scale, and
an auxiliary classifier of the training classes helps at first.

The paper reports that TADAM did not converge on many domains. Here it starts from the base with no
conditions at all, batch norm keeps its statistics, the learning rate warms up and is lower for the
base, and each source has an auxiliary head of its own. The metric is the world's (prototypes by
squared distance or by cosine), so that at its start it answers exactly as the base does. Whether
it then gets any better, its note says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.feat import faster_than_base
from polyshot.methods.image_tasks import BATCH, ImageTasks
from polyshot.methods.method import Fitted, Method, Settings, register
from polyshot.methods.protonet import episodic_plan, trainable
from polyshot.models.conditioned import TaskConditions, embed_conditioned
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.resnet import ResNet, parameter_count
from polyshot.models.views import over_views
from polyshot.predict.adapt.head import START_SCALE
from polyshot.predict.readout import opinion, prepared
from polyshot.training.device import seeded
from polyshot.training.episodic import EpisodeBatch, Learner, accuracy
from polyshot.training.step import Group
from polyshot.util.device import bf16_on

if TYPE_CHECKING:
    from polyshot.training.world import World

STRENGTH_PULL = 0.01
"""Weight of the squares of gamma_0 and beta_0 in the loss."""
WARM_UP = 0.1
"""Share of the training during which the learning rate rises."""
VALIDATED = 1 / 3
"""Share of the validation episodes that it looks at: the images of each are embedded anew, while
other methods embed every image once."""


class TadamLearner(Learner):
    """A base, the network that conditions it, a scale and the auxiliary heads.

    Args:
        base: learns too.
        metric: of the prototypes.
        classes: the training classes of each source, ascending ids.
        auxiliary: weight of the auxiliary loss at the start; it decays.

    """

    def __init__(
        self, base: ResNet, metric: Metric, classes: Sequence[Sequence[int]], auxiliary: float
    ):
        super().__init__(base)
        dim = base.config.dim
        self.metric, self.auxiliary = metric, auxiliary
        self.conditions = TaskConditions(base.config)
        start = START_SCALE if metric == "cosine" else 1 / math.sqrt(dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(start)))
        # The heads lie side by side in one matrix; at zero they do not pull the base anywhere yet.
        self.heads = nn.Linear(dim, sum(len(own) for own in classes))
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)
        rows = torch.full((len(classes), 1 + max(map(max, classes))), -1)
        first = 0
        for source, own in enumerate(classes):
            rows[source, list(own)] = torch.arange(first, first + len(own))
            first += len(own)
        owners = [source for source, own in enumerate(classes) for _ in own]
        self.rows: Tensor
        """int64 ``[sources, class ids]``: the row of a class in the heads."""
        self.register_buffer("rows", rows, persistent=False)
        self.owners: Tensor
        """int64 ``[rows]``: the source of each."""
        self.register_buffer("owners", torch.tensor(owners), persistent=False)

    def groups(self) -> list[Group]:
        """Let the base learn slower than the rest."""
        return faster_than_base(self, super().groups())

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy under the conditions, the auxiliary loss, and a pull on the strengths."""
        assert batch.embeddings is not None
        plain, _ = batch.split(batch.embeddings)
        embeddings = self.conditioned(plain, batch.images.flatten(1, 2))
        support, query = batch.split(embeddings.view_as(batch.embeddings))
        centres = prototypes(prepared(support, self.metric))
        logits = prototype_logits(query, centres, self.metric, self.log_scale.exp())
        weight = self.auxiliary * auxiliary_share(batch.progress)
        pull = STRENGTH_PULL * self.conditions.strengths.square().sum()
        return batch.cross_entropy(logits) + weight * self.auxiliary_loss(batch) + pull

    def auxiliary_loss(self, batch: EpisodeBatch) -> Tensor:
        """Classify the images among all training classes of their source, unconditioned."""
        assert batch.embeddings is not None
        sources = torch.tensor(batch.sources, device=batch.classes.device)
        labels = self.rows[sources.unsqueeze(1), batch.classes]  # [E, W]
        logits = self.heads(batch.embeddings)  # [E, W, S + Q, rows]
        strange = self.owners != sources.unsqueeze(1)  # [E, rows]
        logits = logits.masked_fill(strange[:, None, None], -torch.inf)
        every = labels.unsqueeze(2).expand(logits.shape[:-1])
        return F.cross_entropy(logits.flatten(0, 2), every.flatten())

    def conditioned(self, support: Tensor, images: Tensor) -> Tensor:
        """Embed images of tasks under their conditions: [E, B, 3, side, side] -> [E, B, d].

        `support` [E, W, S, d] are the base's own embeddings.
        """
        conditions = self.conditions(prototypes(support).mean(1))
        with bf16_on(images.device):
            return embed_conditioned(self.base, conditions, images)

    def answers(self, tasks: ImageTasks, head: AdaptationConfig | None) -> Tensor:
        """Classify by prototypes, or by heads, under the tasks' conditions: [E, Q, W]."""
        count = tasks.support.shape[1:].numel()
        images = count + tasks.query.shape[1]  # of one task
        scale, parts = float(self.log_scale.detach().exp()), []
        with torch.no_grad():
            for part in tasks.chunks(BATCH[tasks.support.device.type] // images):
                plain, _ = part.embedded(self.base)
                both = torch.cat([part.support_images(), part.query_images()], 1)
                embeddings = over_views(partial(self.conditioned, plain), both, part.views)
                support = embeddings[:, :count].view_as(plain)
                query = embeddings[:, count:]
                parts.append(opinion(support, query, None, self.metric, scale, head).mT)
        return torch.cat(parts)

    def probabilities(self, tasks: ImageTasks) -> Tensor:
        """Classify the first episodes by prototypes: [E, Q, W]."""
        return self.answers(_validated(tasks), None)


def auxiliary_share(progress: float) -> float:
    """Return how much the auxiliary loss still counts: from 0.9 down to 0.12, in 20 steps."""
    return 0.9 ** (math.floor(20 * progress) + 1)


@dataclass(eq=False)
class Tadam(Fitted):
    """The base under the conditions of each task."""

    learner: TadamLearner
    adaptation: AdaptationConfig
    note: str

    def predict(self, tasks: ImageTasks, adaptation: str = "none") -> Tensor:
        """Classify the queries: probabilities [E, Q, W]."""
        return self.learner.answers(tasks, self.adaptation if adaptation == "head" else None)

    def parameters(self) -> int:
        """Count base, conditions and scale; the auxiliary heads are of no use any more."""
        return parameter_count(self.learner) - parameter_count(self.learner.heads)

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """The support set is embedded twice, the queries once."""
        return shape.way * (2 * shape.shot + shape.queries)


def _fit(world: "World", settings: Settings) -> Tadam:
    auxiliary = settings["auxiliary"]
    classes = [pack.domain.split.train for pack in world.packs]

    def make() -> TadamLearner:
        base = trainable(world.base())
        with seeded("tadam", world.config.seed):
            return TadamLearner(base, world.config.metric, classes, auxiliary)

    plan = episodic_plan(world, settings)
    plan = replace(plan, warm_up=round(WARM_UP * plan.steps))
    learner, about = world.learned(f"tadam-{auxiliary:g}", make, plan)
    assert isinstance(learner, TadamLearner)
    note = convergence(_before(world), about["validation"])
    return Tadam(learner, world.config.adaptation, note)


def _validated(tasks: ImageTasks) -> ImageTasks:
    return tasks.part(slice(0, math.ceil(VALIDATED * len(tasks))))


def _before(world: "World") -> float:
    """Return the base's accuracy on the episodes that TADAM is validated on."""
    values = []
    for tasks in world.validation:
        support, query = _validated(tasks.with_images()).embedded(world.base())
        answers = opinion(support, query, None, world.config.metric, 1.0, None)
        values.append(accuracy(answers.mT))
    return float(torch.stack(values).mean())


def convergence(before: float, after: float) -> str:
    """Say how the training changed the accuracy on validation classes."""
    note = f"validation {100 * before:.1f} before, {100 * after:.1f} after"
    return note if after > before else f"{note}: did not improve on the base"


register(
    Method(
        name="tadam",
        paper="TADAM: Task dependent adaptive metric (Oreshkin et al., 2018)",
        about="the base conditioned on the task by channel, with a learned metric scale",
        fit=_fit,
        settings={"learning_rate": 1e-4, "weight_decay": 5e-4, "auxiliary": 1},
        grid={"learning_rate": (1e-5, 1e-4), "auxiliary": (0, 1)},
    )
)
