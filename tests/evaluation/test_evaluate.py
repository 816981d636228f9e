"""The one evaluator, against loops over episodes and queries."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape, VariableShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.evaluate import (
    class_accuracies,
    confusion,
    evaluate,
    measure,
    member_shares,
)
from polyshot.evaluation.stats import interval
from polyshot.evaluation.targets import Target
from polyshot.pool.pool import Pool
from polyshot.predict.predict import Answers, predict_tasks
from polyshot.predict.rules import rule
from polyshot.tasks import EmbeddingCache, Table, Tasks
from tests.helpers import CPU, SIZE, SMALL, from_table, make_domain, pack_of, random_pool, toy_packs

SHAPE = EpisodeShape(way=3, shot=2, queries=4)
VARIABLE = VariableShape(min_way=5, max_way=8, max_queries=3, max_support=40)
Calls = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return toy_packs(tmp_path_factory.mktemp("packs"), "signs", each=8, size=SIZE)[0]


@pytest.fixture(scope="module")
def uneven() -> Pack:
    return pack_of([4, 5, 6, 8, 12, 16, 7, 9, 11, 5], "uneven")


def test_the_accuracy_is_that_of_a_naive_loop(pack: Pack) -> None:
    pool = random_pool()
    methods = ("base", "member:two")
    results = evaluate(pool, pack, methods, SHAPE, episodes=7, seed=3, part="all")
    drawn = EpisodeSampler(pack.domain, SHAPE, part="all", seed=3)(0, 7)
    for member, result in zip((0, 2), results, strict=True):
        for e in range(7):
            right = 0
            centres = []
            for ids in drawn.support[e]:
                images = pool.embed(pack.images[ids.numpy()], [member])[0]
                centres.append(F.normalize(images, dim=-1).mean(0))
            for way, ids in enumerate(drawn.query[e]):
                for query in pool.embed(pack.images[ids.numpy()], [member])[0]:
                    near = [float(F.cosine_similarity(query, c, dim=0)) for c in centres]
                    right += near.index(max(near)) == way
            assert result.per_episode[e] == round(right / 12, 4)
        assert result.mean == pytest.approx(np.mean(result.per_episode), abs=1e-4)
        assert result.fingerprint == drawn.fingerprint()


def test_results_are_reproducible_and_say_what_was_done(pack: Pack) -> None:
    pool = random_pool()
    methods = ("select", "average", "base")
    first = evaluate(pool, pack, methods, SHAPE, 30, seed=1, part="all", adapt=True, seen=False)
    assert first == evaluate(
        random_pool(), pack, methods, SHAPE, 30, seed=1, part="all", adapt=True, seen=False
    )
    assert [(r.adaptation, r.method) for r in first] == [
        (adaptation, method) for adaptation in ("none", "head") for method in methods
    ]
    one = first[0]
    assert (one.target, one.seen, one.part, one.seed) == ("signs", False, "all", 1)
    assert (one.way, one.shot, one.queries, one.episodes) == (3, 2, 4, 30)
    assert (one.pool, one.pack, one.version) == (pool.hash, pack.hash, "0.1.0")
    assert not one.group_disjoint  # the domain has no groups
    mean, half_width = interval(one.per_episode)
    assert (one.mean, one.half_width) == (
        pytest.approx(mean, abs=1e-4),
        pytest.approx(half_width, abs=1e-4),
    )
    other = evaluate(pool, pack, methods, SHAPE, 30, seed=2, part="all")
    assert other[0].fingerprint != one.fingerprint


def test_chunks_of_any_size_give_the_same(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool()
    arguments = (pool, pack, ("select", "average"), SHAPE, 25)
    whole = evaluate(*arguments, part="all", adapt=True)
    monkeypatch.setattr("polyshot.evaluation.evaluate.CHUNK", 7 * 18 * SMALL.dim)
    assert evaluate(*arguments, part="all", adapt=True) == whole


def test_every_adaptation_can_be_asked_for(pack: Pack) -> None:
    pool = random_pool(adaptation=AdaptationConfig(steps=3, updates=2))
    methods = ("member:one", "blend")
    arguments = (pool, pack, methods, SHAPE, 4)
    results = evaluate(*arguments, part="all", adapt=["head", "tsa", "pa", "none"])
    names = [(r.adaptation, r.method) for r in results]
    expected = [(a, m) for a in ("none", "head", "tsa", "pa") for m in methods]
    assert names == expected
    assert not any(r.note for r in results)
    assert [r.method for r in evaluate(pool, pack, shape=SHAPE, episodes=2, part="all")] == ["auto"]
    with pytest.raises(PolyshotError, match="Did you mean 'tsa'"):
        evaluate(*arguments, part="all", adapt=["tsaa"])


def test_episodes_on_which_learning_diverged_are_counted(pack: Pack) -> None:
    pool = random_pool(adaptation=AdaptationConfig(updates=3, rates=(1e38,)))
    plain, learned = evaluate(pool, pack, ["base"], SHAPE, 5, part="all", adapt=["tsa"])
    assert learned.note == "adaptation diverged on 5 of 5 tasks; these have none"
    assert learned.per_episode == plain.per_episode and plain.note == ""


def test_the_calibration_error_is_that_of_a_naive_loop(pack: Pack) -> None:
    pool = random_pool()
    results = evaluate(pool, pack, ("auto", "average"), SHAPE, 9, part="all", adapt=True)
    tasks = Target(pack, CPU, [SHAPE], 9, part="all").tasks(SHAPE)
    for result in results:
        bins: dict[int, list[float]] = {}
        answers = predict_tasks(pool, tasks, [rule(result.method, pool)], result.adaptation)
        for episode in answers.probabilities[0].tolist():
            for query, ways in enumerate(episode):
                top = max(ways)
                right = ways.index(top) == query // SHAPE.queries
                bins.setdefault(math.ceil(15 * top), []).append(right - top)
        expected = sum(abs(sum(gaps)) for gaps in bins.values()) / (9 * 12)
        assert result.calibration_error == pytest.approx(expected, abs=2e-4)
        assert result.calibration_error is not None and result.calibration_error > 0.01


@pytest.mark.parametrize("start", ["prototypes", "random"])
def test_a_separable_problem_is_solved(start: str) -> None:
    """Classes whose embeddings lie apart are told apart by every rule and head."""
    shape = EpisodeShape(way=5, shot=3, queries=4)
    domain = make_domain([10] * 8)
    drawn = EpisodeSampler(domain, shape)(0, 40)
    draw = torch.Generator().manual_seed(0)
    centres = 5 * torch.eye(8, SMALL.dim)
    labels = torch.from_numpy(domain.labels)
    apart = centres[labels] + 0.1 * torch.randn(80, SMALL.dim, generator=draw)
    blurred = torch.randn(80, SMALL.dim, generator=draw)
    pool = random_pool(
        metric="euclidean",
        adaptation=AdaptationConfig(start=start, steps=30),  # type: ignore[arg-type]
    )
    methods = ("select", "average", "base", "member:one")

    def accuracies(embeddings: Tensor, adaptation: str) -> Tensor:
        table = Table(None, 80, CPU)
        for member in range(4):
            table.keep(pool.network(member), embeddings)
        tasks = Tasks(table, drawn.query.flatten(1), drawn.support)
        measured = measure(
            lambda some: predict_tasks(pool, some, [rule(m, pool) for m in methods], adaptation),
            [(torch.arange(40), tasks)],
            SMALL.dim,
            adaptation,
        )
        return measured.accuracies.mean(1)

    for adaptation in ("none", "head"):
        assert (accuracies(apart, adaptation) == 1.0).all()
        guessed = accuracies(blurred, adaptation)
        assert (guessed > 0.1).all() and (guessed < 0.3).all()  # chance is 0.2


# --- anything that answers


def known_answers(rows: int = 2) -> Callable[[Tasks], Answers]:
    """Answer by the number of a query's image, so that every part of a batch has its own."""

    def predict(tasks: Tasks) -> Answers:
        lots = (tasks.query[..., None] * 31 + torch.arange(tasks.way) * 17) % 23 / 5.0
        chances = torch.stack([(lots * (1 + i)).softmax(-1) for i in range(rows)])
        return Answers(
            chances, torch.stack([(tasks.query[:, 0] + i) % 3 == 0 for i in range(rows)])
        )

    return predict


@pytest.mark.parametrize("chunk", [1, 1 << 19])
@pytest.mark.parametrize("shape", [SHAPE, VARIABLE], ids=["fixed", "variable"])
def test_measuring_is_a_loop_over_queries(
    shape: EpisodeShape | VariableShape,
    chunk: int,
    uneven: Pack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polyshot.evaluation.evaluate.CHUNK", chunk)
    target = Target(uneven, CPU, [shape], 11, drop_small=True)
    looked: list[int] = []
    measured = measure(
        known_answers(),
        target.groups(shape),
        8,
        "none",
        lambda tasks, ways: looked.append(int((tasks.truth >= 0).sum()) * len(ways)),
    )
    right, gaps = torch.zeros(2, 11, dtype=torch.float64), [dict[int, float](), dict[int, float]()]
    queries = 0
    for rows, tasks in target.groups(shape):
        for i, e in enumerate(rows.tolist()):
            answers = known_answers()(tasks.part(slice(i, i + 1)))
            truth = tasks.truth[i].tolist()
            asked = [q for q, label in enumerate(truth) if label >= 0]
            queries += len(asked)
            assert int(measured.there[e].sum()) == len(asked)
            for r in range(2):
                for q in asked:
                    chances = answers.probabilities[r, 0, q].tolist()
                    hit = chances.index(max(chances)) == truth[q]
                    right[r, e] += hit / len(asked)
                    place = math.ceil(15 * max(chances))
                    gaps[r][place] = gaps[r].get(place, 0.0) + hit - max(chances)
                assert bool(measured.diverged[r, e]) == bool(answers.diverged[r, 0])
    torch.testing.assert_close(measured.accuracies, right)
    assert 0.05 < float(right.mean()) < 0.95
    for r in range(2):
        expected = sum(map(abs, gaps[r].values())) / queries
        assert measured.calibration_error(r) == pytest.approx(expected, abs=2e-4)
    assert sum(looked) == 2 * queries


def test_no_place_is_worked_on_that_no_class_of_some_tasks_fills(uneven: Pack) -> None:
    groups = Target(uneven, CPU, [VARIABLE], 12).groups(VARIABLE)
    seen: list[Tasks] = []

    def watched(tasks: Tasks) -> Answers:
        seen.append(tasks)
        return known_answers()(tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyshot.evaluation.evaluate.CHUNK", 1)  # one task at a time
        measure(watched, groups, 8, "none")
    assert [len(tasks) for tasks in seen] == [1] * 12
    for tasks in seen:
        assert tasks.mask is not None
        assert int(tasks.mask.sum(-1).max()) == tasks.shot == tasks.support.shape[2]
    assert len({tasks.shot for tasks in seen}) > 1


@pytest.mark.parametrize("shape", [SHAPE, VARIABLE], ids=["fixed", "variable"])
def test_fewer_tasks_are_tried_where_memory_is_full(
    shape: EpisodeShape | VariableShape, uneven: Pack
) -> None:
    sizes: list[int] = []

    def large(tasks: Tasks) -> Answers:
        sizes.append(len(tasks))
        if len(tasks) > 2:
            raise torch.OutOfMemoryError
        return known_answers()(tasks)

    target = Target(uneven, CPU, [shape], 9, drop_small=True)
    groups = target.groups(shape)
    plain, parts = (measure(each, groups, 8, "none") for each in (known_answers(), large))
    for one, other in zip(plain, parts, strict=True):
        assert torch.equal(one, other)
    if shape == SHAPE:
        assert sizes == [9, 4, 2, 2, 2, 2, 1]

    def never(tasks: Tasks) -> Answers:
        raise torch.OutOfMemoryError

    with pytest.raises(PolyshotError, match="does not hold a single task"):
        measure(never, groups, 8, "none")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_answers_that_are_no_numbers_are_refused(bad: float, uneven: Pack) -> None:
    def broken(tasks: Tasks) -> Answers:
        answers = known_answers()(tasks)
        answers.probabilities[-1, -1, -1, -1] = bad
        return answers

    groups = Target(uneven, CPU, [VARIABLE], 4).groups(VARIABLE)
    with pytest.raises(PolyshotError, match="not finite"):
        measure(broken, groups, 8, "none")


# --- variable ways and shots


def one_by_one(
    pool: Pool, pack: Pack, method: str, adaptation: str, count: int, part: str = "test"
) -> list[float]:
    """Accuracies of variable episodes, each alone with its own images and nothing padded."""
    drawn = EpisodeSampler(pack.domain, VARIABLE, part=part)(0, count)
    found = []
    for e in range(count):
        way = int((drawn.classes[e] >= 0).sum())
        ids = [[row[row >= 0] for row in rows[e, :way]] for rows in (drawn.support, drawn.query)]
        longest = max(map(len, ids[0]))
        mask = torch.stack([torch.arange(longest) < len(own) for own in ids[0]])[None]
        images = torch.from_numpy(pack.images[torch.cat([*ids[0], *ids[1]]).numpy()])
        place, support = 0, torch.zeros(1, way, longest, dtype=torch.int64)
        for c, own in enumerate(ids[0]):
            support[0, c, : len(own)] = torch.arange(place, place + len(own))
            place += len(own)
        query = torch.arange(place, len(images))[None]
        task = from_table(images, support, query, mask)
        answers = predict_tasks(pool, task, [rule(method, pool)], adaptation).probabilities[0, 0]
        truth = [c for c, own in enumerate(ids[1]) for _ in own]
        right = [int(row.argmax()) == c for row, c in zip(answers, truth, strict=True)]
        found.append(round(sum(right) / len(right), 4))
    return found


def test_variable_episodes_are_those_of_a_loop_over_single_tasks(uneven: Pack) -> None:
    pool = random_pool(adaptation=AdaptationConfig(steps=5, updates=3))
    methods = ("base", "select", "auto", "blend")
    results = evaluate(pool, uneven, methods, VARIABLE, 5, adapt=["head", "tsa"])
    drawn = EpisodeSampler(uneven.domain, VARIABLE)(0, 5)
    ways, shots = (drawn.classes >= 0).sum(1), (drawn.support >= 0).sum(2)
    assert len(ways.unique()) > 1 and ways.min() >= 5 and ways.max() <= 8
    assert any(len(row[row > 0].unique()) > 1 for row in shots), "imbalanced"
    assert len(results) == 12
    for result in results:
        expected = one_by_one(pool, uneven, result.method, result.adaptation, 5)
        assert result.per_episode == expected, (result.method, result.adaptation)
        assert result.shape == "meta-dataset"
        assert (result.way, result.shot, result.queries) == (0, 0, 0)
        assert result.fingerprint == drawn.fingerprint()
        assert result.mean == pytest.approx(np.mean(expected), abs=1e-4)
        assert result.calibration_error is not None


def test_variable_episodes_keep_groups_apart() -> None:
    pack, pool = pack_of([12] * 7, "grouped", group_size=3), random_pool()
    (apart,) = evaluate(pool, pack, ["base"], VARIABLE, 6)
    (shared,) = evaluate(pool, pack, ["base"], VARIABLE, 6, group_disjoint=False)
    assert apart.group_disjoint and not shared.group_disjoint
    assert apart.fingerprint != shared.fingerprint
    groups = pack.domain.groups
    assert groups is not None
    drawn = EpisodeSampler(pack.domain, VARIABLE)(0, 6)
    assert apart.fingerprint == drawn.fingerprint()
    for support, query in zip(drawn.support, drawn.query, strict=True):
        known, asked = (set(groups[ids[ids >= 0].numpy()].tolist()) for ids in (support, query))
        assert known and asked and not known & asked


def test_confusion_of_variable_episodes_counts_every_query_once(uneven: Pack) -> None:
    pool = random_pool()
    counts = confusion(pool, uneven, "base", VARIABLE, 20)
    drawn = EpisodeSampler(uneven.domain, VARIABLE)(0, 20)
    queries = drawn.query[drawn.query >= 0]
    assert torch.equal(counts.sum(1), torch.from_numpy(uneven.domain.labels)[queries].bincount())
    (result,) = evaluate(pool, uneven, ["base"], VARIABLE, 20)
    per_episode = (drawn.query >= 0).sum((1, 2))
    right = (torch.tensor(result.per_episode) * per_episode).round().sum()
    assert int(counts.trace()) == int(right)


def test_a_domain_with_too_few_classes_is_refused_in_one_line() -> None:
    few = pack_of([9] * 4, "few")
    with pytest.raises(PolyshotError, match="few: 4 classes in the part 'test', 5 ways") as error:
        evaluate(random_pool(), few, ["base"], VARIABLE, 5)
    assert "\n" not in str(error.value)
    with pytest.raises(PolyshotError, match="'class 6' has 1 images"):
        evaluate(random_pool(), pack_of([9] * 6 + [1], "lone"), ["base"], VARIABLE, 5)


# --- what is embedded


def test_confusion_counts_every_query_once(pack: Pack) -> None:
    pool = random_pool()
    counts = confusion(pool, pack, "base", SHAPE, 40, part="test")
    result = evaluate(pool, pack, ["base"], SHAPE, 40, part="test")[0]
    assert counts.sum() == 40 * 12
    assert counts.trace() / counts.sum() == pytest.approx(result.mean)
    test = list(pack.domain.split.test)
    others = [i for i in range(len(pack.domain.class_names)) if i not in test]
    assert not counts[others].any() and not counts[:, others].any()
    drawn = EpisodeSampler(pack.domain, SHAPE)(0, 40)
    rows = drawn.classes.flatten().bincount(minlength=len(counts))
    assert torch.equal(counts.sum(1), 4 * rows)
    shares = class_accuracies(counts)
    assert shares[others].isnan().all()
    assert shares[test[0]] == counts[test[0], test[0]] / counts[test[0]].sum()


def embed_all(target: Target, pool: Pool) -> Tensor:
    """Embed a target's images with every member: [M, n, d]."""
    table = target.tasks(SHAPE).table
    return torch.stack([table.embed(pool.network(i)) for i in range(len(pool.members))])


def test_embeddings_are_made_once(pack: Pack, tmp_path: Path) -> None:
    pool, cache = random_pool(), EmbeddingCache(tmp_path / "cache")
    calls: Calls = []

    def report(name: str, done: int, total: int) -> None:
        calls.append((name, done, total))

    def target(seed: int = 0) -> Target:
        return Target(pack, CPU, [SHAPE], 30, seed, "all", cache=cache, report=report)

    first, images = embed_all(target(), pool), len(pack.domain.labels)
    ends = [call for call in calls if call[1] == images]
    assert ends == 3 * [("embed signs", images, images)]  # `off` is the base
    torch.testing.assert_close(first, pool.embed(pack.images))
    files = sorted((tmp_path / "cache").iterdir())
    assert len(files) == 3 and not any(f.name.startswith(".") for f in files)
    calls.clear()
    assert torch.equal(embed_all(target(), random_pool()), first)
    assert torch.equal(embed_all(target(seed=5), pool), first)  # other episodes, the same images
    assert calls == []


def test_changed_weights_are_embedded_anew(pack: Pack, tmp_path: Path) -> None:
    def made(pool: Pool) -> tuple[Tensor, int]:
        calls: Calls = []
        cache = EmbeddingCache(tmp_path)
        target = Target(
            pack, CPU, [SHAPE], 30, part="all", cache=cache, report=lambda *all: calls.append(all)
        )
        return embed_all(target, pool), sum(done == total for _, done, total in calls)

    first, _ = made(random_pool())
    other = random_pool()
    with torch.no_grad():
        other.modulators["one"].get_parameter("layer4.1.conv2.bias").add_(1.0)
    second, calls = made(other)
    assert calls == 1
    assert not torch.equal(second[1], first[1])
    assert torch.equal(second[[0, 2, 3]], first[[0, 2, 3]])
    stronger = random_pool()
    stronger.strengths["two"] = 1.0
    assert not torch.equal(made(stronger)[0][2], first[2])


def test_only_members_that_rules_may_ask_are_embedded(pack: Pack, tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    calls: Calls = []

    def run(methods: tuple[str, ...], seed: int = 0) -> int:
        calls.clear()
        evaluate(random_pool(), pack, methods, SHAPE, 30, seed, "all", cache=cache, report=report)
        return sum(total for _, done, total in calls if done == total)

    def report(name: str, done: int, total: int) -> None:
        calls.append((name, done, total))

    images = len(pack.domain.labels)
    assert run(("base", "member:off")) == images
    assert run(("base", "average")) == 2 * images
    assert run(("select", "base", "average"), seed=9) == 0  # other episodes, the same images


def test_few_episodes_of_a_large_target_embed_few_images(pack: Pack) -> None:
    calls: Calls = []
    evaluate(
        random_pool(), pack, ["base"], SHAPE, 2, part="all", report=lambda *all: calls.append(all)
    )
    assert calls[-1][2] <= 2 * 18


def test_damaged_cache_files_are_named(pack: Pack, tmp_path: Path) -> None:
    pool, cache = random_pool(), EmbeddingCache(tmp_path)
    evaluate(pool, pack, ["base"], SHAPE, 5, cache=cache)
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(PolyshotError, match=f"{file.name} are damaged .* delete this file"):
        evaluate(pool, pack, ["base"], SHAPE, 5, cache=cache)


def test_shares_of_members_are_the_mean_of_the_rules_weights(pack: Pack) -> None:
    pool = random_pool()
    tasks = Target(pack, CPU, [SHAPE], 12).tasks(SHAPE)
    for method in ("select", "soft"):
        expected = rule(method, pool).weights(pool, tasks).mean(0)
        assert member_shares(pool, pack, SHAPE, 12, method) == pytest.approx(expected.tolist())


def test_bad_requests_are_refused_before_anything_is_embedded(pack: Pack) -> None:
    pool = random_pool()
    calls: Calls = []
    for methods, options, message in (
        (["selct"], {}, "Did you mean 'select'"),
        (["base"], {"episodes": 1}, "at least 2"),
        (["base"], {"shape": EpisodeShape(way=99)}, "99 ways"),
        (["base"], {"shape": VariableShape(min_way=50)}, "50 ways"),
        (["base"], {"part": "tset"}, "Did you mean 'test'"),
    ):
        with pytest.raises(PolyshotError, match=message):
            evaluate(pool, pack, methods, report=lambda *all: calls.append(all), **options)  # type: ignore[arg-type]
    wide = Pool(SMALL, 2 * SIZE, "conv1x1", "cosine", pool.base)
    with pytest.raises(PolyshotError, match=r"16 pixels, the pool wants 32: .* --size 32"):
        evaluate(wide, pack, ["base"], SHAPE, part="all")
    with pytest.raises(PolyshotError, match="the pool wants 32"):
        confusion(wide, pack, "base", SHAPE, episodes=2)
    with pytest.raises(PolyshotError, match="the pool wants 32"):
        member_shares(wide, pack, SHAPE, episodes=2)
    assert calls == []
