"""protomaml: first-order Proto-MAML (Triantafillou et al., 2020, *Meta-Dataset*).

The head starts as the classifier of the prototypes, w = 2c and b = -|c|^2, then every kernel and
the head take some steps of SGD on the support set. With `cosine` the head sees embeddings of unit
norm and starts at the unit prototypes times ten. The prototypes are those of all views that queries
are seen by: without any steps it answers as prototypes do. The outer gradient flows through the
start of the head, but not through the steps: what they add is a constant. Batch norm keeps the
base's statistics and is not adapted (Meta-Dataset normalises by the support set's), so no query
depends on another. Logits of distances are divided by the root of the embedding's length, as
protonet's are.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyshot.data.shapes import EpisodeShape
from polyshot.methods.finetune import TaskNetworks, learn_networks
from polyshot.methods.method import Fitted, Method, Settings, on_base, register
from polyshot.methods.protonet import BUDGET, episodic_plan, planned_episodes, trainable
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric, prepared, prototypes
from polyshot.models.task_networks import task_kernels
from polyshot.predict.adapt.head import START_SCALE
from polyshot.predict.own_networks import tasks_at_once
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch, Learner
from polyshot.training.training_run import TrainingRun
from polyshot.util.device import bf16_on

VALIDATED = 5
"""It looks at every fifth of the validation episodes: each costs hundreds of passes."""


class ProtoMamlLearner(Learner):
    """A base that is good to start from."""

    wants_embeddings = False
    recordable = True

    def __init__(self, base: Backbone, steps: int, rate: float, metric: Metric = "euclidean"):
        super().__init__(base)
        self.steps, self.rate, self.metric = steps, rate, metric
        self.unit = metric == "cosine"

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy of the queries after some steps on the support set."""
        support, query = batch.split(batch.images)
        present = torch.ones(support.shape[:3], dtype=torch.bool, device=support.device)
        weight, bias = self.head(support)
        learned = self._learned((weight, bias), support, present, self.steps)
        # Values of the adapted network, gradients of the one it started from.
        start = task_kernels(self.base, len(support))
        kernels = {name: _moved(start[name], value) for name, value in learned.kernels.items()}
        moved = _moved(weight, learned.weight), _moved(bias, learned.bias)
        adapted = TaskNetworks(kernels, *moved, self.unit)
        return batch.cross_entropy(adapted.logits(self.base, query))

    def head(self, support: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the classifier of images' prototypes, seen once: weight [E, W, d], bias [E, W]."""
        flat = support.flatten(0, 2).contiguous(memory_format=torch.channels_last)
        with bf16_on(support.device):
            embeddings = self.base(flat)
        return self.classifier(embeddings.view(*support.shape[:3], -1), mask)

    def classifier(self, support: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the classifier of the prototypes of embeddings [E, W, S, d], as `head` does."""
        centres = prototypes(prepared(support, self.metric), mask)  # [E, W, d]
        if self.unit:
            weight = START_SCALE * prepared(centres, self.metric)
            return weight, weight.new_zeros(weight.shape[:2])
        scale = 1 / math.sqrt(centres.shape[-1])
        return 2 * scale * centres, -scale * centres.square().sum(-1)

    def _learned(
        self, start: tuple[Tensor, Tensor], images: Tensor, present: Tensor, steps: int
    ) -> TaskNetworks:
        return learn_networks(self.base, start, images, present, steps, self.rate, unit=self.unit)

    def adapted(self, tasks: Tasks, steps: int) -> Tensor:
        """Classify after so many steps: probabilities [E, Q, W]."""

        def logits(part: Tasks, support: Tensor) -> Tensor:
            start = self.classifier(support, part.mask)
            learned = self._learned(start, part.support_images(), part.present, steps)
            return learned.logits(self.base, part.query_images(), part.table.views)

        step = tasks_at_once(self.base, tasks.way * tasks.shot, tasks.table.side, tasks.device)
        with torch.no_grad():
            # Embedded once for all parts.
            support = torch.split(tasks.support_of(self.base), max(1, step))
            parts = zip(tasks.chunks(step), support, strict=True)
            return torch.cat([torch.softmax(logits(*each), -1) for each in parts])

    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify some episodes after as many steps as in training."""
        return self.adapted(tasks.part(slice(0, None, VALIDATED)), self.steps)


def _moved(start: Tensor, value: Tensor) -> Tensor:
    """Return a value with the gradient of where it started."""
    return start + (value - start.detach())


@dataclass(eq=False)
class ProtoMaml(Fitted):
    """The learned start, adapted to each task."""

    learner: ProtoMamlLearner
    steps: int
    more_steps: int
    note: str = "from the base"

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Adapt a network to each task, then classify: probabilities [E, Q, W]."""
        return self.learner.adapted(tasks, self._steps(adaptation))

    def learning_passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count three for each support image and step."""
        return 3 * self._steps(adaptation) * shape.way * shape.shot

    def _steps(self, adaptation: str) -> int:
        return self.steps if adaptation == "none" else self.more_steps


def _fit(run: TrainingRun, settings: Settings) -> ProtoMaml:
    steps, rate = int(settings["steps"]), settings["inner_rate"]
    metric: Metric = "cosine" if settings["cosine"] else "euclidean"
    learner, _ = run.learned(
        f"protomaml-{steps}x{rate:g}{'-cosine' if settings['cosine'] else ''}",
        lambda: ProtoMamlLearner(trainable(run.base()), steps, rate, metric),
        episodic_plan(run, settings),
    )
    return ProtoMaml(learner, steps, int(settings["more_steps"]))


register(
    Method(
        name="protomaml",
        paper="Meta-Dataset (Triantafillou et al., 2020), its first-order Proto-MAML",
        about="network and prototypes' head adapted by 3 steps (100 with further adaptation)",
        fit=_fit,
        shared=on_base,
        adaptations=("none", "steps-100"),
        slow=("steps-100",),
        settings={
            "learning_rate": 1e-4,
            "weight_decay": 1e-4,
            "inner_rate": 0.01,
            "steps": 3,
            "more_steps": 100,
            "cosine": 1,
            **BUDGET,
        },
        grid={"learning_rate": (1e-5, 1e-4), "inner_rate": (1e-3, 3e-3), "cosine": (1, 0)},
        training_episodes=planned_episodes,
    )
)
