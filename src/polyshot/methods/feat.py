"""feat: *Learning Embedding Adaptation for Few-Shot Learning* (Ye et al., 2018), its FEAT*.

The form that the paper compares with, which modulates the space for each query: prototypes and one
query go through self-attention together, and the query is compared with the prototypes as it sees
them. Later versions of FEAT leave the query out. The temperature starts at a quarter of the
embedding's length (theirs, 128 at 512: layer norm gives embeddings that size) and is learned.
With further adaptation all support images and one query go through the attention, and a head is
learned for each query on the support set as it sees it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.methods.method import Fitted, Method, Settings, in_parts, on_base, register
from polyshot.methods.protonet import BUDGET, episodic_plan, planned_episodes, trainable
from polyshot.models.foreign import Backbone
from polyshot.models.heads import Metric, prototypes
from polyshot.predict.adapt.head import adapt_heads, head_logits
from polyshot.predict.readout import by_ridge
from polyshot.tasks import Tasks
from polyshot.training.episodic import EpisodeBatch, Learner
from polyshot.training.step import Group
from polyshot.training.training_run import TrainingRun
from polyshot.util.device import for_device, seeded

ATTENTION_DROPOUT, OUTPUT_DROPOUT = 0.1, 0.5
LR_FACTOR = 10.0
"""Learning rate of what is new, in those of the base."""
FLOATS = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Numbers of adapted embeddings that are made at once."""


class QueryAttention(nn.Module):
    """Self-attention over a context and one query together, for many queries at once.

    One block as FEAT has it: a single head, a residual, layer norm. But the output layer starts at
    zero, not at random: the block then starts as layer norm of what it is given, and little
    training suffices. Each query forms a set of N + 1 vectors with the context and sees no other
    query; a set's order does not matter, nor its size. Only what differs from query to query is
    computed for each of them: every product with a matrix [d, d] is made once a vector.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.ask, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        for layer in (self.ask, self.key, self.value):
            nn.init.normal_(layer.weight, std=math.sqrt(1 / dim))
        self.out = nn.Linear(dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.norm = nn.LayerNorm(dim)
        self.drop_attention = nn.Dropout(ATTENTION_DROPOUT)
        self.drop_output = nn.Dropout(OUTPUT_DROPOUT)

    def forward(
        self, context: Tensor, query: Tensor, present: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let each query [E, Q, d] and the context [E, N, d] look at one another.

        `present` [E, N] says which of the context is there, all of it where None. Returns the
        context as each query sees it [E, Q, N, d], the queries [E, Q, d], and the logarithm of the
        attention [E, Q, N + 1, N + 1]: who looks, at whom; the query stands last.
        """
        count, queries = context.shape[1], query.shape[1]
        scores = self._scores(context, query)
        if present is not None:  # nobody looks at what is not there
            there = F.pad(present, (0, 1), value=True)[:, None, None]  # [E, 1, 1, N + 1]
            scores = scores.masked_fill(~there, -torch.inf)
        log_attention = scores.log_softmax(-1)
        attention = self.drop_attention(log_attention.exp())
        # The output layer is linear: it may as well come before the values are mixed.
        values, own = (self.value(x) @ self.out.weight.mT for x in (context, query))
        at_context = attention[..., :count].flatten(1, 2) @ values  # [E, Q * (N + 1), d]
        mixed = at_context.unflatten(1, (queries, -1)) + attention[..., count:] * own.unsqueeze(2)
        each = context.unsqueeze(1).expand(-1, queries, -1, -1)
        before = torch.cat([each, query.unsqueeze(2)], 2)  # [E, Q, N + 1, d]
        after = self.norm(before + self.drop_output(mixed + self.out.bias))
        return after[:, :, :count], after[:, :, count], log_attention

    def _scores(self, context: Tensor, query: Tensor) -> Tensor:
        """Compare all vectors of each set: [E, Q, N + 1, N + 1]."""
        scale = 1 / math.sqrt(context.shape[-1])
        context_asks, query_asks = scale * self.ask(context), scale * self.ask(query)
        context_key, query_key = self.key(context), self.key(query)
        among = (context_asks @ context_key.mT).unsqueeze(1)  # [E, 1, N, N]
        of_query = (context_asks @ query_key.mT).mT.unsqueeze(-1)  # [E, Q, N, 1]
        rows = torch.cat([among.expand(-1, query.shape[1], -1, -1), of_query], -1)
        by_query = query_asks @ context_key.mT  # [E, Q, N]
        itself = (query_asks * query_key).sum(-1, keepdim=True)  # [E, Q, 1]
        return torch.cat([rows, torch.cat([by_query, itself], -1).unsqueeze(2)], 2)


class FeatLearner(Learner):
    """A base and an attention block that adapts prototypes to a query."""

    def __init__(self, base: Backbone, pull: float):
        super().__init__(base)
        dim = base.config.dim
        self.pull = pull
        """Weight of the loss that tells the attention where to look, a mean over those who look."""
        self.attention = QueryAttention(dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(4 / dim)))

    def groups(self) -> list[Group]:
        """Let everything but the base learn faster."""
        return faster_than_base(self, super().groups())

    def loss(self, batch: EpisodeBatch) -> Tensor:
        """Cross-entropy, and the divergence of the attention from where it should look."""
        support, query = batch.split(batch.embeddings)
        logits, log_attention = self.logits(support, query)
        target = wanted_attention(batch.labels, batch.shape.way)
        rows = log_attention.shape[:-1].numel()
        divergence = F.kl_div(log_attention, target, reduction="sum") / rows
        return batch.cross_entropy(logits) + self.pull * divergence

    def logits(
        self, support: Tensor, query: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compare queries [E, Q, d] with prototypes: logits [E, Q, W], and the log of attention."""
        centres, own, log_attention = self.attention(prototypes(support, mask), query)
        distances = (centres - own.unsqueeze(2)).square().sum(-1)
        return -self.log_scale.exp() * distances, log_attention

    def probabilities(self, tasks: Tasks) -> Tensor:
        """Classify by the adapted prototypes: [E, Q, W]."""
        return self.in_parts(tasks, tasks.way + 1, lambda *of: self.logits(*of)[0])

    def in_parts(self, tasks: Tasks, vectors: int, logits: Callable[..., Tensor]) -> Tensor:
        """Classify a few tasks at a time, each query with so many vectors of its own: [E, Q, W]."""
        floats = tasks.query.shape[1] * vectors * self.base.config.dim  # of one task
        size = for_device(FLOATS, tasks.device) // floats
        return in_parts(tasks, size, lambda part: logits(*part.embedded(self.base), part.mask))


def faster_than_base(learner: Learner, groups: Sequence[Group]) -> list[Group]:
    """Part groups of a learner's parameters: what is new learns faster, by `LR_FACTOR`."""
    known = {id(parameter) for parameter in learner.base.parameters()}
    result = []
    for parameters, decayed, _ in groups:
        result.append(Group([p for p in parameters if id(p) in known], decayed))
        result.append(Group([p for p in parameters if id(p) not in known], decayed, LR_FACTOR))
    return result


def wanted_attention(labels: Tensor, way: int) -> Tensor:
    """Say where the attention should look, for queries of these classes [E, Q].

    Each vector at itself, but a query and its class half at each other: [E, Q, W + 1, W + 1].
    """
    pair = F.one_hot(labels, way + 1).float()
    pair[..., way] = 1  # the query stands last
    halves = pair.unsqueeze(-1) * pair.unsqueeze(-2) / 2
    return torch.diag_embed(1 - pair) + halves


@dataclass(eq=False)
class Feat(Fitted):
    """The trained attention on its base."""

    learner: FeatLearner
    metric: Metric
    adaptation: AdaptationConfig
    note: str = "from the base"

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        """Classify the queries, each in its own space: probabilities [E, Q, W]."""
        if adaptation == "none":
            return self.learner.probabilities(tasks)
        vectors = tasks.way * tasks.shot + 1
        logits = partial(self._head_logits, adaptation)
        return self.learner.in_parts(tasks, vectors, logits)

    def _head_logits(
        self, adaptation: str, support: Tensor, query: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Learn a head a query on the support set [E, W, S, d] as it sees it: [E, Q, W]."""
        there = None if mask is None else mask.flatten(1)
        images, own, _ = self.learner.attention(support.flatten(1, 2), query, there)
        seen = images.unflatten(2, support.shape[1:3])  # [E, Q, W, S, d]
        shown = None if mask is None else mask.unsqueeze(1)  # [E, 1, W, S]
        alone = own.unsqueeze(2)  # [E, Q, 1, d]: the one query of its head
        if adaptation == "ridge":
            each = None if shown is None else shown.expand(seen.shape[:4]).flatten(0, 1)
            heads = by_ridge(seen.flatten(0, 1), each, self.adaptation)
            return heads.logits(alone.flatten(0, 1)).view(*seen.shape[:3])
        weight, bias = adapt_heads(seen, shown, self.adaptation, self.metric)
        return head_logits(alone, weight, bias, self.adaptation, self.metric).squeeze(2)


def _fit(run: TrainingRun, settings: Settings) -> Feat:
    pull = settings["attention_pull"]

    def make() -> FeatLearner:
        base = trainable(run.base())
        with seeded("feat", run.config.seed):
            return FeatLearner(base, pull)

    learner, _ = run.learned(f"feat-{pull:g}", make, episodic_plan(run, settings))
    return Feat(learner, run.config.metric, run.config.adaptation)


register(
    Method(
        name="feat",
        paper="Learning Embedding Adaptation for Few-Shot Learning (Ye et al., 2018), its FEAT*",
        about="prototypes and one query through self-attention together, from the base",
        fit=_fit,
        shared=on_base,
        settings={"learning_rate": 1e-4, "weight_decay": 1e-4, "attention_pull": 1, **BUDGET},
        grid={"learning_rate": (1e-5, 1e-4), "attention_pull": (0.1, 1, 10)},  # theirs is 10
        training_episodes=planned_episodes,
    )
)
