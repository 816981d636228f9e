"""simple-avg: the paper's Simple-Avg, separate networks that share nothing (Choi et al., 2019).

One network a source, trained as ProtoNet from random weights on that source alone; the networks'
probabilities are averaged. Runs that share a source share its network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyshot.data.shapes import EpisodeShape
from polyshot.methods.method import Fitted, Method, Settings, register
from polyshot.methods.protonet import from_scratch
from polyshot.methods.prototypes import Prototypes, prototypes_on
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun


@dataclass(eq=False)
class Average(Fitted):
    """Several networks whose probabilities are averaged."""

    members: Sequence[Prototypes]
    names: Sequence[str]
    """Their sources."""
    note: str = "networks from random weights, one a source"

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Average the members' probabilities: [E, Q, W]."""
        return self.member_probabilities(tasks, adaptation).mean(0)

    def member_probabilities(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Return each member's probabilities: [M, E, Q, W]."""
        return torch.stack([member.predict(tasks, adaptation) for member in self.members])

    def member_names(self) -> tuple[str, ...]:
        """Name the networks by their sources."""
        return tuple(self.names)

    def parameters(self) -> int:
        """Count those of all networks."""
        return sum(member.parameters() for member in self.members)

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        """Each network embeds each image."""
        return sum(member.passes(shape, adaptation) for member in self.members)


def _fit(run: TrainingRun, settings: Settings) -> Average:
    singles = [run.single(source) for source in range(len(run.packs))]
    return Average(
        [prototypes_on(run, from_scratch(single, settings)) for single in singles], run.sources
    )


register(
    Method(
        name="simple-avg",
        paper="Learning Disparate Modulators (Choi et al., 2019), its Simple-Avg",
        about="one separate network a source, trained as ProtoNet; probabilities averaged",
        fit=_fit,
        settings={"learning_rate": 1e-3},
        grid={"learning_rate": (3e-4, 1e-3, 3e-3)},
    )
)
