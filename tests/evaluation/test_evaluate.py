import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.toy.packs import draw_packs
from polyshot.errors import PolyshotError
from polyshot.evaluation.embed import EmbeddingCache, embed_pack
from polyshot.evaluation.evaluate import (
    Prepared,
    class_accuracies,
    confusion,
    evaluate,
    predictions,
    prepare,
)
from polyshot.evaluation.results import append_results, read_results
from polyshot.evaluation.stats import interval
from polyshot.pool.pool import Pool
from polyshot.predict.readout import predict
from polyshot.predict.rules import rule

from ..conftest import make_domain
from ..pools import SIZE, SMALL, random_pool

SHAPE = EpisodeShape(way=3, shot=2, queries=4)
Calls = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("packs")
    return draw_packs(folder, ["signs"], size=SIZE, per_class=8, workers=1)[0]


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
    rules = [rule(name, pool) for name in ("auto", "average")]
    results = evaluate(pool, pack, ("auto", "average"), SHAPE, 9, part="all", adapt=True)
    sampler = EpisodeSampler(pack.domain, SHAPE, part="all")
    task = prepare(pool, pack, sampler, 9, rules)
    for result in results:
        bins: dict[int, list[float]] = {}
        answers = task.parts(
            partial(predict, pool, rule=result.method, adaptation=result.adaptation)
        )
        for _, chances in answers:  # [E, Q, W]
            for episode in chances.tolist():
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
    draw = torch.Generator().manual_seed(0)
    centres = 5 * torch.eye(8, SMALL.dim)
    labels = torch.from_numpy(domain.labels)
    apart = centres[labels] + 0.1 * torch.randn(80, SMALL.dim, generator=draw)
    blurred = torch.randn(80, SMALL.dim, generator=draw)

    def accuracy(table: Tensor, name: str, adaptation: str) -> float:
        pool = random_pool(
            metric="euclidean",
            adaptation=AdaptationConfig(start=start, steps=30),  # type: ignore[arg-type]
        )
        drawn = EpisodeSampler(domain, shape)(0, 40)
        task = Prepared(drawn, dict.fromkeys(range(4), table), torch.arange(80))
        answers = predictions(pool, task, [rule(name, pool)], adaptation)
        predicted = torch.cat([each.ways[0] for each in answers])
        return float((predicted == torch.arange(5).repeat_interleave(4)).double().mean())

    for name in ("select", "average", "base", "member:one"):
        for adaptation in ("none", "head"):
            assert accuracy(apart, name, adaptation) == 1.0
            assert 0.1 < accuracy(blurred, name, adaptation) < 0.3  # chance is 0.2


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


def test_embeddings_are_made_once(pack: Pack, tmp_path: Path) -> None:
    pool, cache, ids = random_pool(), EmbeddingCache(tmp_path / "cache"), np.array([7, 3, 20])
    calls: Calls = []

    def report(name: str, done: int, total: int) -> None:
        calls.append((name, done, total))

    first = embed_pack(pool, pack, ids, cache, report)
    assert calls == [("embed signs", done, 9) for done in (3, 6, 9)]  # `off` is the base
    torch.testing.assert_close(first, pool.embed(pack.images[ids]))
    files = sorted((tmp_path / "cache").iterdir())
    assert len(files) == 3 and not any(f.name.startswith(".") for f in files)
    calls.clear()
    assert torch.equal(embed_pack(random_pool(), pack, ids, cache, report), first)
    assert torch.equal(embed_pack(pool, pack, ids, cache, report, [2, 0]), first[[2, 0]])
    assert calls == []
    embed_pack(pool, pack, ids[::-1], cache, report, [0])
    assert len(calls) == 1


def test_changed_weights_are_embedded_anew(pack: Pack, tmp_path: Path) -> None:
    pool, cache, ids = random_pool(), EmbeddingCache(tmp_path), np.arange(5)
    first = embed_pack(pool, pack, ids, cache)
    calls: Calls = []
    with torch.no_grad():
        pool.modulators["one"].get_parameter("layer4.1.conv2.bias").add_(1.0)
    second = embed_pack(pool, pack, ids, cache, lambda *all: calls.append(all))
    assert calls == [("embed signs", 5, 5)]
    assert not torch.equal(second[1], first[1])
    assert torch.equal(second[[0, 2, 3]], first[[0, 2, 3]])
    pool.strengths["two"] = 1.0
    assert not torch.equal(embed_pack(pool, pack, ids, cache)[2], first[2])


def test_only_members_that_rules_may_ask_are_embedded(pack: Pack, tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    calls: Calls = []

    def run(methods: tuple[str, ...], seed: int = 0) -> int:
        calls.clear()
        evaluate(random_pool(), pack, methods, SHAPE, 30, seed, "all", cache=cache, report=report)
        return calls[-1][2] if calls else 0

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
    pool, cache, ids = random_pool(), EmbeddingCache(tmp_path), np.arange(5)
    embed_pack(pool, pack, ids, cache, members=[0])
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(PolyshotError, match=f"{file.name} are damaged .* delete this file"):
        embed_pack(pool, pack, ids, cache, members=[0])


def test_results_round_trip_through_a_file(pack: Pack, tmp_path: Path) -> None:
    results = evaluate(random_pool(), pack, ("base", "average"), SHAPE, 10, part="all")
    file = tmp_path / "deep" / "results.jsonl"
    append_results(file, results[:1])
    append_results(file, results[1:])
    assert read_results(file) == results
    assert [json.loads(line)["method"] for line in file.read_text().splitlines()] == [
        "base",
        "average",
    ]
    with file.open("a") as opened:
        opened.write('{"method": "base"}\n')
    with pytest.raises(PolyshotError, match="line 3, is no result"):
        read_results(file)
    with pytest.raises(PolyshotError, match="cannot be read"):
        read_results(tmp_path / "nowhere")


def test_bad_requests_are_refused_before_anything_is_embedded(pack: Pack) -> None:
    pool = random_pool()
    calls: Calls = []
    for methods, options, message in (
        (["selct"], {}, "Did you mean 'select'"),
        (["base"], {"episodes": 1}, "at least 2"),
        (["base"], {"shape": EpisodeShape(way=99)}, "99 ways"),
        (["base"], {"part": "tset"}, "Did you mean 'test'"),
    ):
        with pytest.raises(PolyshotError, match=message):
            evaluate(pool, pack, methods, report=lambda *all: calls.append(all), **options)  # type: ignore[arg-type]
    wide = Pool(SMALL, 2 * SIZE, "conv1x1", "cosine", pool.base)
    with pytest.raises(PolyshotError, match=r"16 pixels, the pool wants 32: .* --size 32"):
        evaluate(wide, pack, ["base"], SHAPE, part="all")
    assert calls == []
