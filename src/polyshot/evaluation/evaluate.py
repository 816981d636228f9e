"""Evaluation: every method on the same episodes of a target, from embeddings made once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyshot import __version__
from polyshot.data.episodes import Episodes, EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.calibration import calibration_error, first_choices
from polyshot.evaluation.embed import EmbeddingCache, embed_pack
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import interval
from polyshot.methods.tasks import IndexedTasks
from polyshot.pool.pool import Pool, Report
from polyshot.predict.readout import Answers, check_adaptation, predict_tasks
from polyshot.predict.rules import Rule, rule
from polyshot.util.memory import Done, in_parts

__all__ = ["Prepared", "Result", "class_accuracies", "confusion", "evaluate", "prepare"]

CHUNK = 1 << 19
"""Floats gathered at once (13 episodes of 5-way 5-shot 10 queries at 512).

With many more, the allocator hands its memory back to the system after each chunk: measured at four
times as many, that takes four times as long.
"""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Episodes of one target with the embeddings of their images."""

    episodes: Episodes
    embeddings: dict[int, Tensor]
    """float32 [n, d] by member, on the pool's device."""
    positions: Tensor
    """int64 [images of the pack]: where an image's embedding is."""
    take: Callable[[Tensor], Tensor] | None = None
    """Places of embeddings int64 [k] -> uint8 images [k, 3, side, side], on the pool's device."""

    def parts(
        self, work: Callable[[IndexedTasks], Done], factor: int = 1
    ) -> Iterator[tuple[slice, Done]]:
        """Work on batches of tasks that gather `factor * CHUNK` floats a member."""
        device = self.positions.device
        support = self.positions[self.episodes.support.to(device)]  # [E, W, S]
        query = self.positions[self.episodes.query.flatten(1).to(device)]  # [E, Q]
        images = support[0].numel() + query[0].numel()
        dim = next(iter(self.embeddings.values())).shape[1]

        def tasks(part: slice) -> IndexedTasks:
            return IndexedTasks(self.embeddings, support[part], query[part], take=self.take)

        step = episodes_at_once(images, dim, device, factor)
        return in_parts(len(self.episodes), step, lambda part: work(tasks(part)))


def episodes_at_once(images: int, dim: int, device: torch.device, factor: int = 1) -> int:
    """Return how many episodes of so many images gather `factor * CHUNK` floats a member."""
    if device.type != "cpu":  # a GPU wants large batches more than small caches
        factor *= 64
    return max(1, factor * CHUNK // (images * dim))


def describe(
    sampler: EpisodeSampler,
    pack_hash: str,
    method: str,
    adaptation: str,
    accuracies: Sequence[float],
    fingerprint: str,
    pool_hash: str,
    seen: bool | None,
) -> Result:
    """Make the result of a method from its accuracies on a sampler's first episodes."""
    shape = sampler.shape
    assert isinstance(shape, EpisodeShape)
    mean, half_width = interval(accuracies)
    return Result(
        method=method,
        target=sampler.domain.name,
        seen=seen,
        way=shape.way,
        shot=shape.shot,
        queries=shape.queries,
        part=sampler.part,
        adaptation=adaptation,
        seed=sampler.seed,
        episodes=len(accuracies),
        group_disjoint=sampler.group_disjoint,
        fingerprint=fingerprint,
        mean=mean,
        half_width=half_width,
        per_episode=[round(value, 4) for value in accuracies],
        pool=pool_hash,
        pack=pack_hash,
        version=__version__,
        draw=str(sampler.key),
    )


def evaluate(
    pool: Pool,
    pack: Pack,
    methods: Sequence[str] = ("auto",),
    shape: EpisodeShape | None = None,
    episodes: int = 600,
    seed: int = 0,
    part: str = "test",
    adapt: bool | Sequence[str] = False,
    group_disjoint: bool = True,
    cache: EmbeddingCache | None = None,
    seen: bool | None = None,
    report: Report | None = None,
    drop_small: bool = False,
) -> list[Result]:
    """Measure methods on the first episodes of a target.

    Args:
        pool: what classifies.
        pack: the target.
        methods: names of rules, or ``member:<domain>``.
        shape: of the episodes; 5-way 5-shot with 10 queries by default.
        episodes: how many.
        seed: another seed, other episodes.
        part: of the target's class split.
        adapt: also with these adaptations (``head``, ``pa``, ``tsa``); True is a learned head.
        group_disjoint: keep support and query from sharing a group, where the target has groups.
        cache: where embeddings are kept.
        seen: whether the target was a source; only written down.
        report: told of the embedding's progress.
        drop_small: leave out classes too small for the shape, instead of refusing.

    Returns:
        One result a method, then one a method with each adaptation. Episodes on which learning
        diverged count as without adaptation; the result's note says how many they were.

    """
    if episodes < 2:
        raise PolyshotError(f"{episodes} episodes give no interval: ask for at least 2.")
    rules = [rule(name, pool) for name in methods]
    adaptations = _adaptations(adapt)
    shape = shape or EpisodeShape()
    sampler = EpisodeSampler(
        pack.domain,
        shape,
        part=part,
        seed=seed,
        group_disjoint=group_disjoint,
        drop_small=drop_small,
    )
    task = prepare(pool, pack, sampler, episodes, rules, cache, report)
    fingerprint, pool_hash = task.episodes.fingerprint(), pool.hash
    labels = torch.arange(shape.way).repeat_interleave(shape.queries)
    results = []
    for adaptation in adaptations:
        answers = [
            (predicted.ways == labels, predicted.sure, predicted.diverged)
            for predicted in predictions(pool, task, rules, adaptation)
        ]
        correct, sure, failed = (torch.cat(parts, 1) for parts in zip(*answers, strict=True))
        accuracies = correct.double().mean(-1)  # [R, E]
        for i, name in enumerate(methods):
            result = describe(
                sampler,
                pack.hash,
                name,
                adaptation,
                accuracies[i].tolist(),
                fingerprint,
                pool_hash,
                seen,
            )
            result = replace(result, calibration_error=calibration_error(sure[i], correct[i]))
            note = divergence_note(int(failed[i].sum()), episodes)
            results.append(replace(result, note=note))
    return results


def divergence_note(diverged: int, tasks: int) -> str:
    """Say on how many tasks an adaptation diverged; nothing if on none."""
    if not diverged:
        return ""
    return f"adaptation diverged on {diverged} of {tasks} tasks; these have none"


def _adaptations(adapt: bool | Sequence[str]) -> list[str]:
    """List what is measured, without adaptation first; refuses names that are none."""
    wanted = (["head"] if adapt else []) if isinstance(adapt, bool) else list(adapt)
    for name in wanted:
        check_adaptation(name)
    return list(dict.fromkeys(["none", *wanted]))


def prepare(
    pool: Pool,
    pack: Pack,
    sampler: EpisodeSampler,
    count: int,
    rules: Sequence[Rule],
    cache: EmbeddingCache | None = None,
    report: Report | None = None,
) -> Prepared:
    """Draw episodes and embed their images with the members that the rules may ask."""
    drawn = sampler(0, count)
    used = np.unique(torch.cat([drawn.support.flatten(), drawn.query.flatten()]).numpy())
    ids = np.flatnonzero(np.isin(pack.domain.labels, sampler.class_ids))
    # All images of the classes, so that other seeds and shapes find them in the cache; unless the
    # episodes touch only a small share of a large target.
    if len(ids) > 2 * len(used):
        ids = used
    # The base in any case: it tells how familiar a task is.
    members = sorted({0, *(member for each in rules for member in each.members(pool))})
    embeddings = embed_pack(pool, pack, ids, cache, report, members)
    positions = torch.full((len(pack.domain.labels),), -1)
    positions[torch.from_numpy(ids)] = torch.arange(len(ids))
    there = embeddings.to(pool.device)

    def take(places: Tensor) -> Tensor:
        return torch.from_numpy(np.array(pack.images[ids[places.cpu().numpy()]])).to(pool.device)

    table = dict(zip(members, there, strict=True))
    return Prepared(drawn, table, positions.to(pool.device), take)


class Predicted(NamedTuple):
    """What R rules say of some episodes, on the CPU."""

    part: slice
    """Which episodes."""
    ways: Tensor
    """int64 ``[R, E, Q]``: the likeliest way of each query."""
    sure: Tensor
    """``[R, E, Q]``: its probability."""
    diverged: Tensor
    """Bool ``[R, E]``: where learning diverged."""


def predictions(
    pool: Pool, task: Prepared, rules: Sequence[Rule], adaptation: str
) -> Iterator[Predicted]:
    """Classify the queries of all episodes, some episodes at a time."""
    check_adaptation(adaptation)

    def predict(tasks: IndexedTasks) -> Answers:
        return predict_tasks(pool, tasks, rules, adaptation)  # probabilities [R, E, Q, W]

    # Learning heads takes many small steps, which a larger batch shares.
    for part, answers in task.parts(predict, 1 if adaptation == "none" else 8):
        sure, ways = first_choices(answers.probabilities)
        yield Predicted(part, ways.cpu(), sure.cpu(), answers.diverged)


def confusion(
    pool: Pool,
    pack: Pack,
    method: str,
    shape: EpisodeShape | None = None,
    episodes: int = 600,
    seed: int = 0,
    part: str = "test",
    adaptation: str = "none",
    group_disjoint: bool = True,
    cache: EmbeddingCache | None = None,
    report: Report | None = None,
    drop_small: bool = False,
) -> Tensor:
    """Count how queries of each class (rows) were classified (columns): int64 [C, C].

    C is the number of the domain's classes; rows of classes outside of `part` are zero. Two classes
    are confused only in the episodes that hold both.
    """
    shape = shape or EpisodeShape()
    sampler = EpisodeSampler(
        pack.domain,
        shape,
        part=part,
        seed=seed,
        group_disjoint=group_disjoint,
        drop_small=drop_small,
    )
    rules = [rule(method, pool)]
    task = prepare(pool, pack, sampler, episodes, rules, cache, report)
    count = len(pack.domain.class_names)
    result = torch.zeros(count * count, dtype=torch.int64)
    for predicted in predictions(pool, task, rules, adaptation):
        classes = task.episodes.classes[predicted.part]  # [E, W]
        actual = classes.repeat_interleave(shape.queries, 1)  # [E, Q]
        cells = actual * count + classes.gather(1, predicted.ways[0])
        result += torch.bincount(cells.flatten(), minlength=count * count)
    return result.view(count, count)


def class_accuracies(counts: Tensor) -> Tensor:
    """Share of each class's queries that were right, from `confusion`: [C], NaN without queries."""
    return counts.diagonal() / counts.sum(1)
