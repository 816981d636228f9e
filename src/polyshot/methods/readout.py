"""Read-outs: from embeddings and a rule's weights to probabilities.

Each member compares a query with the support set, by prototypes or by a learned head; the rule
weighs the members' probabilities. A query's answer depends on the support set and on itself alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError, near, some
from polyshot.methods.adaptation import adapt_heads, head_logits
from polyshot.methods.rules import Rule
from polyshot.methods.rules import rule as find_rule
from polyshot.methods.tasks import TaskBatch
from polyshot.models.heads import Metric, prototypes

if TYPE_CHECKING:
    from polyshot.pool import Pool

Adaptation = Literal["none", "head"]


def prepared(embeddings: Tensor, metric: Metric) -> Tensor:
    """Scale embeddings [..., d] to unit norm where the metric is cosine; else leave them raw."""
    return F.normalize(embeddings, dim=-1) if metric == "cosine" else embeddings


def predict(pool: "Pool", tasks: TaskBatch, rule: str, adaptation: str = "none") -> Tensor:
    """Classify the queries: probabilities [E, Q, W].

    `adaptation` is ``none`` (prototypes) or ``head`` (a linear head learned on the support set, as
    `pool.adaptation` says).
    """
    return predict_many(pool, tasks, [find_rule(rule, pool)], adaptation)[0]


def predict_many(
    pool: "Pool", tasks: TaskBatch, rules: Sequence[Rule], adaptation: str = "none"
) -> Tensor:
    """Classify by several rules at once, [R, E, Q, W]; each member's opinion is formed once."""
    check_adaptation(adaptation)
    weights = torch.stack([rule.weights(pool, tasks) for rule in rules])  # [R, E, M]
    result: Tensor | None = None  # [R, E, W, Q]: ways last would slow softmax tenfold
    # One member at a time, and only on the episodes that ask it: a selected pool costs one member.
    for member in weights.any(0).any(0).nonzero().flatten().tolist():
        asked = weights[:, :, member].any(0)  # [E]
        rows = None if bool(asked.all()) else asked.nonzero().flatten()
        opinion = _opinion(pool, tasks, member, rows, adaptation)  # [rows, W, Q]
        share = weights[:, :, member, None, None].to(opinion.device)  # [R, E, 1, 1]
        if result is None:
            result = opinion.new_zeros(len(rules), len(tasks), *opinion.shape[1:])
        if rows is None:
            result.addcmul_(share, opinion)
        else:
            rows = rows.to(opinion.device)
            result.index_add_(1, rows, share[:, rows] * opinion)
    assert result is not None, "a rule gives weight to at least one member"
    return result.mT


def check_adaptation(name: str) -> None:
    """Refuse an adaptation that does not exist."""
    known = get_args(Adaptation)
    if name not in known:
        raise PolyshotError(
            f"There is no adaptation '{name}', only {some(known)}.{near(name, known)}"
        )


def _opinion(
    pool: "Pool", tasks: TaskBatch, member: int, rows: Tensor | None, adaptation: str
) -> Tensor:
    """Return the probabilities of one member on the episodes `rows`, [rows, W, Q]."""
    support, query = tasks.support_of(member, rows), tasks.query_of(member, rows)
    mask = tasks.mask if tasks.mask is None or rows is None else tasks.mask[rows]
    head = pool.adaptation if adaptation == "head" else None
    return opinion(support, query, mask, pool.metric, pool.scales[member], head)


def opinion(
    support: Tensor,
    query: Tensor,
    mask: Tensor | None,
    metric: Metric,
    scale: float,
    head: AdaptationConfig | None,
) -> Tensor:
    """Classify queries by one network's embeddings: probabilities [E, W, Q], ways before queries.

    Args:
        support: raw embeddings [E, W, S, d].
        query: raw embeddings [E, Q, d].
        mask: [E, W, S], True where there is an image; None where shots are even.
        metric: of the prototypes.
        scale: of their logits.
        head: how to learn a head on the support set; None for prototypes.

    """
    if head:
        weight, bias = adapt_heads(support, mask, head, metric)
        logits = head_logits(query, weight, bias, head, metric).mT
    else:
        centres = prototypes(prepared(support, metric), mask)  # [E, W, d]
        logits = _prototype_logits(query, centres, metric, scale)
    return torch.softmax(logits, 1)


def _prototype_logits(query: Tensor, centres: Tensor, metric: Metric, scale: float) -> Tensor:
    """Compare queries [E, Q, d] with prototypes [E, W, d]: logits [E, W, Q].

    They are those of `models.heads.prototype_logits`, transposed and less a number a query, which
    softmax takes away: it spares most of the work on tensors of the queries' size.
    """
    if metric == "cosine":
        length = torch.linalg.vector_norm(query, dim=-1).clamp(min=1e-12)  # [E, Q]
        cosines: Tensor = F.normalize(centres, dim=-1) @ query.mT / length.unsqueeze(1)
        return cosines * scale
    origin = centres.mean(1, keepdim=True)  # the embeddings' common mean would eat digits
    apart = centres - origin
    return (apart @ (query - origin).mT * 2 - apart.square().sum(-1, keepdim=True)) * scale
