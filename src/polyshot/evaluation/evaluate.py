"""Evaluation: every method on the same episodes of a target, from embeddings made once.

E episodes, W ways, S shots, Q queries, R rules. There is one evaluator, `measure`, for the rules of
a pool, for rivals and for episodes of any shape.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.data.shapes import META_DATASET, EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import Result
from polyshot.evaluation.stats import calibration_error, first_choices, interval
from polyshot.evaluation.targets import Shape, Target
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import AUTO, check_ensemble, predict_ensemble
from polyshot.predict.predict import Answers, check_adaptation
from polyshot.predict.rules import rule
from polyshot.tasks import EmbeddingCache, Tasks
from polyshot.util import __version__
from polyshot.util.device import in_parts
from polyshot.util.files import digest
from polyshot.util.progress import Progress

CHUNK = 1 << 19
"""Floats gathered at once (13 episodes of 5-way 5-shot 10 queries at 512).

With many more, the allocator hands its memory back to the system after each chunk: measured at four
times as many, that takes four times as long.
"""


class Measured(NamedTuple):
    """How R rules or methods answered the queries of E episodes."""

    right: Tensor
    """Bool ``[R, E, Q]``, on the CPU."""
    sure: Tensor
    """``[R, E, Q]``: the probability of the answer."""
    there: Tensor
    """Bool ``[E, Q]``: which queries there are."""
    diverged: Tensor
    """Bool ``[R, E]``: where learning diverged, so that there is none."""

    @property
    def accuracies(self) -> Tensor:
        """Share of right answers of each episode: float64 ``[R, E]``."""
        return (self.right & self.there).double().sum(-1) / self.there.sum(-1)

    def calibration_error(self, row: int) -> float:
        """How far probabilities are from shares of right answers, over all queries."""
        return calibration_error(self.sure[row][self.there], self.right[row][self.there])


def measure(
    predict: Callable[[Tasks], Answers],
    groups: Sequence[tuple[Tensor, Tasks]],
    dim: int,
    adaptation: str,
    look: Callable[[Tasks, Tensor], None] | None = None,
) -> Measured:
    """Let something classify the queries of episodes, some at a time.

    `groups` are episodes of one way each: their numbers ``[k]``, and their tasks (`Target.groups`).
    `dim`, the length of an embedding, decides how many are worked on at once; an `adaptation` takes
    many small steps, which a larger batch shares. `look` is told of some tasks and the answers to
    them, int64 ``[R, k, Q]``.
    """
    factor = 1 if adaptation == "none" else 8
    parts: list[tuple[Tensor, Measured]] = []
    for rows, group in groups:
        tasks = group.trimmed()
        images = tasks.way * tasks.shot + tasks.query.shape[1]
        step = episodes_at_once(images, dim, tasks.device, factor)

        truths = tasks.truth.cpu()  # [k, Q]

        def answer(part: slice, tasks: Tasks = tasks) -> tuple[Tasks, Answers]:
            some = tasks.part(part).trimmed()
            return some, predict(some)

        for part, (some, answers) in in_parts(len(tasks), step, answer):
            total = answers.probabilities.sum()  # one number tells of all
            # A GPU is waited for once, when all that is read from it has been asked for.
            sure, ways = (each.cpu() for each in first_choices(answers.probabilities))
            if not math.isfinite(float(total)):
                raise PolyshotError("The method's probabilities are not finite numbers.")
            truth = truths[part]
            if look:
                look(some, ways)
            parts.append((rows[part], Measured(ways == truth, sure, truth >= 0, answers.diverged)))
    return _joined(parts)


def _joined(parts: Sequence[tuple[Tensor, Measured]]) -> Measured:
    """Put parts together in the order of the episodes, padded to the most queries."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    most = max(part.there.shape[-1] for _, part in parts)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        padded = [F.pad(tensor, (0, most - tensor.shape[-1])) for tensor in tensors]
        return torch.cat(padded, -2)[..., order, :]

    right, sure, there, diverged = zip(*(part for _, part in parts), strict=True)
    lost = torch.cat(diverged, -1)[:, order]
    return Measured(join(right), join(sure).to(torch.get_default_dtype()), join(there), lost)


def episodes_at_once(images: int, dim: int, device: torch.device, factor: int = 1) -> int:
    """Return how many episodes of so many images gather `factor * CHUNK` floats a member."""
    if device.type != "cpu":  # a GPU wants large batches more than small caches
        factor *= 64
    return max(1, factor * CHUNK // (images * dim))


def describe(
    target: Target,
    shape: Shape,
    measured: Measured,
    row: int,
    method: str,
    adaptation: str,
    pool_hash: str,
    seen: bool | None,
) -> Result:
    """Make the result of a method from its answers on a target's first episodes."""
    accuracies = measured.accuracies[row].tolist()
    mean, half_width = interval(accuracies)
    diverged = int(measured.diverged[row].sum())
    note = f"adaptation diverged on {diverged} of {len(accuracies)} tasks; these have none"
    return replace(
        _unmeasured(target, shape, len(accuracies), method, adaptation, pool_hash, seen),
        fingerprint=target.fingerprint(shape, len(accuracies)),
        mean=mean,
        half_width=half_width,
        per_episode=[round(value, 4) for value in accuracies],
        calibration_error=measured.calibration_error(row),
        note=note if diverged else "",
    )


def _unmeasured(
    target: Target,
    shape: Shape,
    episodes: int,
    method: str,
    adaptation: str,
    pool_hash: str,
    seen: bool | None,
) -> Result:
    """Say what a result is of, before it is measured."""
    sampler = target.sampler(shape)
    fixed = shape if isinstance(shape, EpisodeShape) else None
    return Result(
        method=method,
        target=sampler.domain.name,
        seen=seen,
        way=fixed.way if fixed else 0,
        shot=fixed.shot if fixed else 0,
        queries=fixed.queries if fixed else 0,
        part=sampler.part,
        adaptation=adaptation,
        seed=sampler.seed,
        episodes=episodes,
        group_disjoint=sampler.group_disjoint,
        fingerprint="",
        mean=0.0,
        half_width=0.0,
        per_episode=[],
        pool=pool_hash,
        pack=target.pack.hash,
        version=__version__,
        draw=str(sampler.key),
        shape="" if fixed else META_DATASET,
    )


class Drawing(TypedDict, total=False):
    """Options of all that draws a target's episodes for a pool."""

    group_disjoint: bool
    """Keep support and query from sharing a group, where the target has groups: True by default."""
    drop_small: bool
    """Leave out classes too small for the shape, instead of refusing."""
    cache: EmbeddingCache | None
    """Where embeddings are kept."""
    report: Progress | None
    """Told of the embedding's progress."""


def _target(
    pool: Pool,
    pack: Pack,
    shape: Shape,
    episodes: int,
    seed: int = 0,
    part: str = "test",
    **how: Unpack[Drawing],
) -> Target:
    """Draw the episodes of a pack, as a pool looks at images; refuses images of another size."""
    pool.check_pack(pack)
    return Target(pack, pool.device, [shape], episodes, seed, part, views=pool.views, **how)


def evaluate(
    pool: Pool | Sequence[Pool],
    pack: Pack,
    methods: Sequence[str] = ("auto",),
    shape: Shape | None = None,
    episodes: int = 600,
    seed: int = 0,
    part: str = "test",
    adapt: bool | Sequence[str] = False,
    seen: bool | None = None,
    known: Sequence[Result] = (),
    **how: Unpack[Drawing],
) -> list[Result]:
    """Measure methods on the first episodes of a target.

    Args:
        pool: what classifies; several answer together.
        pack: the target.
        methods: names of rules, or ``member:<domain>``.
        shape: of the episodes; 5-way 5-shot with 10 queries by default, `VariableShape` is
            Meta-Dataset's.
        episodes: how many.
        seed: another seed, other episodes.
        part: of the target's class split.
        adapt: also with these adaptations (``head``, ``ridge``, ``pa``, ``tsa``, or ``auto``, as a
            classifier chooses); True is a learned head.
        seen: whether the target was a source; only written down.
        known: results of before: what is among them is not measured again.
        **how: `group_disjoint`, `drop_small`, `cache` and `report`, see `Drawing`.

    Returns:
        One result a method, then one a method with each adaptation. Episodes on which learning
        diverged count as without adaptation; the result's note says how many they were.

    """
    pools = [pool] if isinstance(pool, Pool) else list(pool)
    check_ensemble(pools)
    for each in pools:
        each.check_pack(pack)
        for name in methods:
            rule(name, each)  # refuses a name that the pool does not know
    wanted = (["head"] if adapt else []) if isinstance(adapt, bool) else list(adapt)
    for name in wanted:
        check_adaptation(name, (AUTO,))
    shape = shape or EpisodeShape()
    target = _target(pools[0], pack, shape, episodes, seed, part, **how)
    hashes = [each.hash for each in pools]
    results, pool_hash = [], hashes[0] if len(hashes) == 1 else digest(*hashes)
    before = {result.key: result for result in known}
    for adaptation in dict.fromkeys(["none", *wanted]):
        about = (adaptation, pool_hash, seen)
        keys = {name: _unmeasured(target, shape, episodes, name, *about).key for name in methods}
        if missing := [name for name in methods if keys[name] not in before]:
            predict = partial(predict_ensemble, pools, rules=missing, adaptation=adaptation)
            measured = measure(predict, target.groups(shape), pools[0].config.dim, adaptation)
            made = [describe(target, shape, measured, i, n, *about) for i, n in enumerate(missing)]
            before |= {result.key: result for result in made}
        results += [before[keys[name]] for name in methods]
    return results


def confusion(
    pool: Pool | Sequence[Pool],
    pack: Pack,
    method: str,
    shape: Shape | None = None,
    episodes: int = 600,
    seed: int = 0,
    part: str = "test",
    adaptation: str = "none",
    **how: Unpack[Drawing],
) -> Tensor:
    """Count how queries of each class (rows) were classified (columns): int64 [C, C].

    C is the number of the domain's classes; rows of classes outside of `part` are zero. Two classes
    are confused only in the episodes that hold both.
    """
    shape, pools = shape or EpisodeShape(), [pool] if isinstance(pool, Pool) else list(pool)
    check_adaptation(adaptation)
    check_ensemble(pools)
    target = _target(pools[0], pack, shape, episodes, seed, part, **how)
    count = len(pack.domain.class_names)
    result = torch.zeros(count * count, dtype=torch.int64)

    def note(tasks: Tasks, ways: Tensor) -> None:
        assert tasks.classes is not None
        truth = tasks.truth.cpu()  # [E, Q]
        actual = tasks.classes.gather(1, truth.clamp(min=0))
        cells = actual * count + tasks.classes.gather(1, ways[0])
        result.add_(torch.bincount(cells[truth >= 0], minlength=count * count))

    predict = partial(predict_ensemble, pools, rules=[method], adaptation=adaptation)
    measure(predict, target.groups(shape), pools[0].config.dim, adaptation, note)
    return result.view(count, count)


def class_accuracies(counts: Tensor) -> Tensor:
    """Share of each class's queries that were right, from `confusion`: [C], NaN without queries."""
    return counts.diagonal() / counts.sum(1)


def member_shares(
    pool: Pool,
    pack: Pack,
    shape: EpisodeShape | None = None,
    episodes: int = 600,
    method: str = "select",
    **how: Unpack[Drawing],
) -> list[float]:
    """Average a rule's weights over a target's episodes: one share a member."""
    shape = shape or EpisodeShape()
    target = _target(pool, pack, shape, episodes, **how)
    tasks, weights = target.tasks(shape), rule(method, pool).weights
    step = episodes_at_once(tasks.way * tasks.shot, pool.config.dim, pool.device)
    parts = in_parts(len(tasks), step, lambda part: weights(pool, tasks.part(part)))
    shares: list[float] = torch.cat([each for _, each in parts]).mean(0).tolist()  # of [E, M]
    return shares
