"""finetune-all: every layer fine-tuned on the support set, *Meta-Dataset*'s stronger baseline.

Triantafillou et al., 2020: Adam on the whole network with a cosine head. Here the head starts at
the unit prototypes times ten, which is never worse than a random start, and batch norm stays.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.data.shapes import EpisodeShape
from polyshot.methods.inner_loop import learn_networks
from polyshot.methods.method import Fitted, Method, Settings, register
from polyshot.models.backbone import parameter_count
from polyshot.models.heads import prototypes
from polyshot.models.resnet import ResNet
from polyshot.models.views import CROPS, VIEWS
from polyshot.predict.adapt.head import START_SCALE
from polyshot.predict.own_networks import tasks_at_once
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun


@dataclass(eq=False)
class FineTunedNetworks(Fitted):
    """The base, all of which is learned further for each task."""

    network: ResNet
    steps: int
    rate: float
    rotate_crops: bool
    """Whether steps take crops in turn, instead of the whole image always."""

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Learn a network a task, then classify: probabilities [E, Q, W]."""
        size = tasks_at_once(tasks.way * tasks.shot, tasks.device)
        return torch.cat([self._predict(part) for part in tasks.chunks(size)])

    def _predict(self, tasks: Tasks) -> Tensor:
        with torch.no_grad():
            support, _ = tasks.embedded(self.network)
            centres = prototypes(F.normalize(support, dim=-1), tasks.mask)
            weight = START_SCALE * F.normalize(centres, dim=-1)  # [E, W, d]
            start = weight, weight.new_zeros(weight.shape[:2])
            learned = learn_networks(
                self.network,
                start,
                tasks.support_images(),
                tasks.present,
                self.steps,
                self.rate,
                optimiser="adam",
                unit=True,
                crops=CROPS if self.rotate_crops else VIEWS["one"],
            )
            logits = learned.logits(self.network, tasks.query_images(), tasks.table.views)
            return torch.softmax(logits, -1)

    def parameters(self) -> int:
        """Count the network's."""
        return parameter_count(self.network)

    def learning_passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Count three for each support image and step."""
        return 3 * self.steps * shape.way * shape.shot


def _fit(run: TrainingRun, settings: Settings) -> FineTunedNetworks:
    steps, rate = int(settings["steps"]), settings["learning_rate"]
    return FineTunedNetworks(run.base(), steps, rate, bool(settings["turns"]))


register(
    Method(
        name="finetune-all",
        paper="Meta-Dataset (Triantafillou et al., 2020), its fine-tuned baseline",
        about="every layer of the base and a cosine head learned on the support set",
        fit=_fit,
        adaptations=("none",),  # it is nothing but adaptation
        slow=("none",),
        settings={"learning_rate": 1e-4, "steps": 50, "turns": 0},
        grid={"learning_rate": (3e-5, 1e-4, 3e-4), "steps": (25, 100)},
    )
)
