"""Self-attention over a context and one query together, for many queries at once.

One block as FEAT has it (Ye et al., 2018): a single head, a residual, layer norm. But the output
layer starts at zero, not at random: the block then starts as layer norm of what it is given, and
little training suffices. E episodes, N context vectors, Q queries, d entries. Each query forms a
set of N + 1 vectors with the context and sees no other query. Only what differs from query to query
is computed for each of them: every product with a matrix [d, d] is made once a vector.
"""

import math

import torch
from torch import Tensor, nn

ATTENTION_DROPOUT, OUTPUT_DROPOUT = 0.1, 0.5


class QueryAttention(nn.Module):
    """The block; a set's order does not matter, nor its size."""

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

    def forward(self, context: Tensor, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Let each query and the context look at one another.

        Args:
            context: [E, N, d].
            query: [E, Q, d].

        Returns:
            The context as each query sees it [E, Q, N, d], the queries [E, Q, d], and the logarithm
            of the attention [E, Q, N + 1, N + 1]: who looks, at whom; the query stands last.

        """
        count, queries = context.shape[1], query.shape[1]
        log_attention = self._scores(context, query).log_softmax(-1)
        attention = self.drop_attention(log_attention.exp())
        # The output layer is linear: it may as well come before the values are mixed.
        values, own = (self.value(x) @ self.out.weight.mT for x in (context, query))
        at_context = attention[..., :count].flatten(1, 2) @ values  # [E, Q * (N + 1), d]
        mixed = at_context.unflatten(1, (queries, -1)) + attention[..., count:] * own.unsqueeze(2)
        before = torch.cat(
            [context.unsqueeze(1).expand(-1, queries, -1, -1), query.unsqueeze(2)], 2
        )  # [E, Q, N + 1, d]
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
