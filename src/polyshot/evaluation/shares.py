"""How often each member is used: what a rule makes of a target."""

import torch

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.evaluation.embed import EmbeddingCache
from polyshot.evaluation.evaluate import prepare
from polyshot.pool.pool import Pool
from polyshot.predict.rules import rule


def member_shares(
    pool: Pool,
    pack: Pack,
    shape: EpisodeShape | None = None,
    episodes: int = 600,
    method: str = "select",
    cache: EmbeddingCache | None = None,
) -> list[float]:
    """Average a rule's weights over a target's test episodes: one share a member."""
    sampler = EpisodeSampler(pack.domain, shape or EpisodeShape())
    rules = [rule(method, pool)]
    task = prepare(pool, pack, sampler, episodes, rules, cache)
    parts = task.parts(lambda tasks: rules[0].weights(pool, tasks))
    shares: list[float] = torch.cat([weights for _, weights in parts]).mean(0).tolist()  # of [E, M]
    return shares
