"""protomaml: first-order Proto-MAML (Triantafillou et al., 2020, *Meta-Dataset*).

The head starts as the classifier of the prototypes, w = 2c and b = -|c|^2, then every kernel and
the head take some steps of SGD on the support set. The outer gradient flows through the head's
start, but not through the steps: what the steps add is a constant. Batch norm keeps the base's
statistics and is not adapted (Meta-Dataset normalises by the support set's), so no query depends on
another. Logits are divided by the root of the embedding's length, as protonet's are.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyshot.data.shapes import EpisodeShape
from polyshot.methods.finetune import TaskNetworks, learn_networks
from polyshot.methods.method import Fitted, Method, Settings, in_parts, register
from polyshot.methods.protonet import episodic_plan, trainable
from polyshot.models.foreign import Backbone
from polyshot.models.heads import prototypes
from polyshot.models.task_networks import task_kernels
from polyshot.predict.own_networks import tasks_at_once
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch, Learner
from polyshot.training.training_run import TrainingRun
from polyshot.util.device import bf16_on

VALIDATED, LOOKS = 5, 2
"""It looks at every fifth of the validation episodes, twice: each costs hundreds of passes."""


class ProtoMamlLearner(Learner):
    """A base that is good to start from."""

    wants_embeddings = False
    recordable = True

    def __init__(self, base: Backbone, steps: int, rate: float):
        super().__init__(base)
        self.steps, self.rate = steps, rate

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy of the queries after some steps on the support set."""
        support, query = batch.split(batch.images)
        present = torch.ones(support.shape[:3], dtype=torch.bool, device=support.device)
        weight, bias = self.head(support)
        learned = learn_networks(self.base, (weight, bias), support, present, self.steps, self.rate)
        # Values of the adapted network, gradients of the one it started from.
        start = task_kernels(self.base, len(support))
        kernels = {name: _moved(start[name], value) for name, value in learned.kernels.items()}
        adapted = TaskNetworks(kernels, _moved(weight, learned.weight), _moved(bias, learned.bias))
        return batch.cross_entropy(adapted.logits(self.base, query))

    def head(self, support: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the classifier of the images' prototypes: weight [E, W, d], bias [E, W]."""
        flat = support.flatten(0, 2).contiguous(memory_format=torch.channels_last)
        with bf16_on(support.device):
            embeddings = self.base(flat)
        centres = prototypes(embeddings.view(*support.shape[:3], -1), mask)  # [E, W, d]
        scale = 1 / math.sqrt(centres.shape[-1])
        return 2 * scale * centres, -scale * centres.square().sum(-1)

    def adapted(self, tasks: Tasks, steps: int) -> Tensor:
        """Classify after so many steps: probabilities [E, Q, W]."""

        def logits(part: Tasks) -> Tensor:
            images = part.support_images()
            start = self.head(images, part.mask)
            learned = learn_networks(self.base, start, images, part.present, steps, self.rate)
            return learned.logits(self.base, part.query_images(), part.table.views)

        step = tasks_at_once(self.base, tasks.way * tasks.shot, tasks.table.side, tasks.device)
        return in_parts(tasks, step, logits)

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
    plan = episodic_plan(run, settings)
    learner, _ = run.learned(
        f"protomaml-{steps}x{rate:g}",
        lambda: ProtoMamlLearner(trainable(run.base()), steps, rate),
        replace(plan, validate_every=max(1, plan.steps // LOOKS)),
    )
    return ProtoMaml(learner, steps, int(settings["more_steps"]))


register(
    Method(
        name="protomaml",
        paper="Meta-Dataset (Triantafillou et al., 2020), its first-order Proto-MAML",
        about="network and prototypes' head adapted by 3 steps (100 with further adaptation)",
        fit=_fit,
        adaptations=("none", "steps-100"),
        slow=("steps-100",),
        settings={
            "learning_rate": 1e-4,
            "weight_decay": 1e-4,
            "inner_rate": 0.01,
            "steps": 3,
            "more_steps": 100,
        },
        grid={"learning_rate": (1e-5, 1e-4), "inner_rate": (0.003, 0.03)},
    )
)
