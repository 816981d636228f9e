"""tadam: *TADAM: Task dependent adaptive metric* (Oreshkin et al., 2018).

A task is represented by the mean of its prototypes, from which a small network scales and shifts
the channels of the base before all images are embedded again. Distances have a learned scale, and
an auxiliary classifier of the training classes helps at first.

The paper reports that TADAM did not converge on many domains. Here it starts from the base with no
conditions at all, batch norm keeps its statistics, the learning rate warms up and is lower for the
base, and each source has an auxiliary head of its own. The metric is the run's (prototypes by
squared distance or by cosine), so that at its start it answers exactly as the base does. Whether
it then gets any better, its note says.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.data.shapes import EpisodeShape
from polyshot.methods.feat import faster_than_base
from polyshot.methods.method import Fitted, Method, Settings, in_parts, on_base, register
from polyshot.methods.protonet import BUDGET, episodic_plan, planned_episodes, trainable
from polyshot.models.backbone import Site, affine, parameter_count, sites_of, walk_through
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric, prepared, prototype_logits, prototypes
from polyshot.models.modulators import TaskAct
from polyshot.models.views import over_views
from polyshot.predict.adapt.head import START_SCALE
from polyshot.predict.readout import fit_classifiers
from polyshot.tasks import BATCH, Tasks
from polyshot.training.episodic import EpisodeBatch, Learner
from polyshot.training.step import Group
from polyshot.training.training_run import TrainingRun
from polyshot.training.validation import accuracy
from polyshot.util.device import bf16_on, for_device, seeded

MOST_HIDDEN = 128
"""Widest hidden layer: one as wide as the convolution would hold as much as the base itself."""
STRENGTH_PULL = 0.01
"""Weight of the squares of gamma_0 and beta_0 in the loss."""
WARM_UP = 0.1
"""Share of the training during which the learning rate rises."""
VALIDATED = 1 / 3
"""Share of the validation episodes that it looks at: the images of each are embedded anew, while
other methods embed every image once."""


class TaskConditions(nn.Module):
    """The task embedding network: two residual networks of three layers for each site.

    It reads a task's representation and says how the channels of each site change after batch norm:
    h -> (1 + gamma) h + beta. Both are multiplied by learned numbers that start at 0, so that a
    training starts from the base itself.
    """

    def __init__(self, sites: Sequence[Site], dim: int):
        super().__init__()
        self.sites = sites
        self.networks = nn.ModuleList(_Pair(dim, site.outputs) for site in sites)
        self.strengths = nn.Parameter(torch.zeros(2 * len(sites)))
        """How much each layer is scaled and shifted: gamma_0 and beta_0, layer by layer."""

    def forward(self, task: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Turn representations of tasks [E, d] into gamma and beta, [E, channels], by layer."""
        task = F.layer_norm(task, task.shape[-1:])  # sources differ in size, and training moves it
        result = {}
        strengths = self.strengths.view(-1, 2, 1, 1)
        for site, network, strength in zip(self.sites, self.networks, strengths, strict=True):
            gamma, beta = strength * network(task)  # [E, channels] each
            result[site.layer] = gamma, beta
        return result


class _Pair(nn.Module):
    """Two networks side by side: [E, d] -> [2, E, channels]."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        hidden = min(outputs, MOST_HIDDEN)
        sizes = ((inputs, hidden), (hidden, hidden), (hidden, outputs))
        self.weights = nn.ParameterList(
            torch.randn(2, *size) / math.sqrt(size[0]) for size in sizes
        )
        # Of one axis, as all that weight decay leaves alone.
        self.biases = nn.ParameterList(torch.zeros(2 * size[1]) for size in sizes)

    def forward(self, task: Tensor) -> Tensor:
        x = F.silu(self._layer(0, task.expand(2, -1, -1)))  # [2, E, hidden]
        x = x + F.silu(self._layer(1, x))
        return self._layer(2, x)

    def _layer(self, number: int, x: Tensor) -> Tensor:
        return torch.baddbmm(self.biases[number].view(2, 1, -1), x, self.weights[number])


def embed_conditioned(
    base: nn.Module, conditions: Mapping[str, tuple[Tensor, Tensor]], images: Tensor
) -> Tensor:
    """Embed normalised images [E, B, 3, H, W], those of a task under its conditions: [E, B, d].

    Batch norm keeps its statistics, in training too; it and the conditions are one step, since both
    are linear by channel. One walk, for all tasks together.
    """
    tasks, acts = len(images), {}
    for site in sites_of(base):
        slope, shift = affine(base, site)  # [channels]
        gamma, beta = conditions[site.layer]  # [E, channels]
        scale = 1 + gamma
        acts[site.layer] = TaskAct(site, tasks, None, scale * slope, scale * shift + beta)
    flat = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return walk_through(base)(flat, acts).view(tasks, images.shape[1], -1)


class TadamLearner(Learner):
    """A base, which learns too, the network that conditions it, a scale and the auxiliary heads.

    `classes` are the training classes of each source, ascending ids; `auxiliary` is the weight of
    the auxiliary loss at the start, it decays.
    """

    def __init__(
        self, base: Backbone, metric: Metric, classes: Sequence[Sequence[int]], auxiliary: float
    ):
        super().__init__(base)
        dim = base.config.dim
        self.metric, self.auxiliary = metric, auxiliary
        self.conditions = TaskConditions(sites_of(base), dim)
        start = START_SCALE if metric == "cosine" else 1 / math.sqrt(dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(start)))
        # The heads lie side by side in one matrix; at zero they do not pull the base anywhere yet.
        self.heads = nn.Linear(dim, sum(map(len, classes)))
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)
        every = torch.tensor([(source, each) for source, own in enumerate(classes) for each in own])
        owners, ids = every.T
        rows = torch.full((len(classes), 1 + int(ids.max())), -1)
        rows[owners, ids] = torch.arange(len(every))
        self.rows: Tensor
        """int64 ``[sources, class ids]``: the row of a class in the heads."""
        self.register_buffer("rows", rows, persistent=False)
        self.owners: Tensor
        """int64 ``[rows]``: the source of each."""
        self.register_buffer("owners", owners, persistent=False)

    def groups(self) -> list[Group]:
        """Let the base learn slower than the rest."""
        return faster_than_base(self, super().groups())

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy under the conditions, the auxiliary loss, and a pull on the strengths."""
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
        sources = torch.tensor(batch.sources, device=batch.classes.device)
        labels = self.rows[sources.unsqueeze(1), batch.classes]  # [E, W]
        logits = self.heads(batch.embeddings)  # [E, W, S + Q, rows]
        strange = self.owners != sources.unsqueeze(1)  # [E, rows]
        logits = logits.masked_fill(strange[:, None, None], -torch.inf)
        every = labels.unsqueeze(2).expand(logits.shape[:-1])
        return F.cross_entropy(logits.flatten(0, 2), every.flatten())

    def conditioned(self, support: Tensor, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embed images of tasks as the base's embeddings of their support tell: [E, B, d]."""
        conditions = self.conditions(prototypes(support, mask).mean(1))
        with bf16_on(images.device):
            return embed_conditioned(self.base, conditions, images)

    def answers(
        self, tasks: Tasks, adaptation: str = "none", config: AdaptationConfig | None = None
    ) -> Tensor:
        """Classify by prototypes, or by heads, under the tasks' conditions: [E, Q, W]."""
        count = tasks.support.shape[1:].numel()
        images = count + tasks.query.shape[1]  # of one task
        scale = float(self.log_scale.detach().exp())

        def logits(part: Tasks) -> Tensor:
            plain = part.support_of(self.base)
            both = torch.cat([part.support_images().flatten(1, 2), part.query_images()], 1)
            network = partial(self.conditioned, plain, mask=part.mask)
            embeddings = over_views(network, both, part.table.views)
            support, query = embeddings[:, :count].view_as(plain), embeddings[:, count:]
            about = (self.metric, scale, adaptation, config)
            classifiers = fit_classifiers(support, part.mask, *about)
            return classifiers.logits(query).mT

        return in_parts(tasks, for_device(BATCH, tasks.device) // images, logits)

    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify the first episodes by prototypes: [E, Q, W]."""
        return self.answers(_validated(tasks))


def auxiliary_share(progress: float) -> float:
    """Return how much the auxiliary loss still counts: from 0.9 down to 0.12, in 20 steps."""
    return 0.9 ** (math.floor(20 * progress) + 1)


@dataclass(eq=False)
class Tadam(Fitted):
    """The base under the conditions of each task."""

    learner: TadamLearner
    adaptation: AdaptationConfig
    note: str

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Classify the queries: probabilities [E, Q, W]."""
        return self.learner.answers(tasks, adaptation, self.adaptation)

    def parameters(self) -> int:
        """Count base, conditions and scale; the auxiliary heads are of no use any more."""
        return parameter_count(self.learner) - parameter_count(self.learner.heads)

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """The support set is embedded twice, the queries once."""
        return shape.way * (2 * shape.shot + shape.queries)


def _fit(run: TrainingRun, settings: Settings) -> Tadam:
    auxiliary = settings["auxiliary"]
    classes = [pack.domain.split.train for pack in run.packs]

    def make() -> TadamLearner:
        base = trainable(run.base())
        with seeded("tadam", run.config.seed):
            return TadamLearner(base, run.config.metric, classes, auxiliary)

    plan = episodic_plan(run, settings)
    plan = replace(plan, warm_up=round(WARM_UP * plan.steps))
    learner, about = run.learned(f"tadam-{auxiliary:g}", make, plan)
    note = convergence(_before(run), about["validation"])
    return Tadam(learner, run.config.adaptation, note)


def _validated(tasks: Tasks) -> Tasks:
    return tasks.part(slice(0, math.ceil(VALIDATED * len(tasks))))


def _before(run: TrainingRun) -> float:
    """Return the base's accuracy on the episodes that TADAM is validated on."""
    values = []
    for tasks in run.validation:
        support, query = _validated(tasks).embedded(run.base())
        classifiers = fit_classifiers(support, None, run.config.metric, 1.0)
        values.append(accuracy(classifiers.logits(query).mT))
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
        shared=on_base,
        settings={"learning_rate": 1e-4, "weight_decay": 5e-4, "auxiliary": 1, **BUDGET},
        training_episodes=planned_episodes,
        grid={"learning_rate": (1e-5, 1e-4), "auxiliary": (0, 1)},
    )
)
