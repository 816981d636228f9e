"""Networks of a task's own: `blend`, and `tsa` from every start."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError
from polyshot.methods import inner_loop
from polyshot.methods.image_tasks import ImageTasks
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.methods.tasks import IndexedTasks, shots_of
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.modulators import Kind, blend, fold
from polyshot.models.normalise import normalise
from polyshot.models.resnet import ResNet, modulated_layers
from polyshot.models.task_modulators import stem
from polyshot.models.views import CROPS, seen
from polyshot.pool.pool import Pool
from polyshot.predict.adapt.tsa import Networks, learn_own_networks
from polyshot.predict.blend import blended
from polyshot.predict.readout import predict, predict_tasks
from polyshot.predict.rules import rule
from polyshot.predict.temperature import sureness
from polyshot.predict.weights import by_selector

from ..pools import SIZE, random_pool, random_tasks

ALWAYS = AdaptationConfig(
    updates=3, rates=(0.5,), tsa_share=1.0, tsa_inverse_temperature=1.0, tsa_rotate_crops=False
)
EPISODES, WAY, SHOT, QUERIES = 3, 4, 3, 5


def picture_tasks(
    pool: Pool, seed: int = 0, mask: Tensor | None = None, way: int = WAY, shot: int = SHOT
) -> IndexedTasks:
    """Tasks of noisy colours, which need not share images."""
    draw = torch.Generator().manual_seed(seed)
    each = shot + QUERIES
    colours = 255 * torch.rand(EPISODES, way, 1, 3, 1, 1, generator=draw)
    noise = 60 * torch.randn(EPISODES, way, each, 3, SIZE, SIZE, generator=draw)
    images = (colours + noise).clamp(0, 255).byte().flatten(0, 2)
    places = torch.arange(len(images)).view(EPISODES, way, each)
    table = pool.embed(images)
    support = places[:, :, :shot]
    if mask is not None:
        support = support.where(mask, -1)
    query = places[:, :, shot:].flatten(1)
    return IndexedTasks(dict(enumerate(table)), support, query, mask, lambda p: images[p])


def uneven() -> Tensor:
    mask = torch.ones(EPISODES, WAY, SHOT, dtype=torch.bool)
    mask[0, 1, 1:] = False
    mask[1, :, 2:] = False
    return mask


@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("kind", get_args(Kind))
def test_blend_is_the_folded_blend_of_each_task(kind: Kind, metric: Metric) -> None:
    pool = random_pool(kind, metric)
    tasks = picture_tasks(pool, mask=uneven())
    weights = by_selector(pool, tasks)
    found = predict(pool, tasks, "blend")
    factors = sureness(pool, shots_of(tasks))
    assert tasks.take is not None and tasks.mask is not None
    for e in range(EPISODES):
        shares = weights[e, 1:] * torch.tensor(list(pool.strengths.values()))
        network = fold(pool.base, blend(list(pool.modulators.values()), shares))
        with torch.no_grad():
            support = network(normalise(tasks.take(tasks.support[e].clamp(min=0).flatten())))
            query = network(normalise(tasks.take(tasks.query[e])))
        support = support.view(WAY, SHOT, -1)
        support = F.normalize(support, dim=-1) if metric == "cosine" else support
        centres = prototypes(support, tasks.mask[e])
        scale = float(weights[e] @ torch.tensor(pool.scales))
        logits = factors[e] * prototype_logits(query, centres, metric, scale)
        torch.testing.assert_close(found[e], logits.softmax(-1), atol=1e-4, rtol=1e-3)


def by_torch(pool: Pool, tasks: IndexedTasks, episode: int, start: ResNet) -> Tensor:
    """TSA as one would write it for a single task: functional_call, autograd, Adadelta."""
    assert tasks.take is not None
    mask = torch.ones(WAY, SHOT, dtype=torch.bool) if tasks.mask is None else tasks.mask[episode]
    images = normalise(tasks.take(tasks.support[episode][mask]))
    labels = mask.nonzero()[:, 0]
    layers = [layer.conv for layer in modulated_layers(pool.config)]
    kernels = {conv: start.get_parameter(f"{conv}.weight").detach() for conv in layers}
    leaves = [torch.zeros(kernels[conv].shape[:2], requires_grad=True) for conv in layers]
    matrix = torch.eye(pool.config.dim, requires_grad=True)
    optimiser = torch.optim.Adadelta(
        [{"params": leaves, "lr": 0.5}, {"params": [matrix], "lr": 1.0}]
    )

    def embed(pixels: Tensor) -> Tensor:
        own = {
            f"{conv}.weight": kernels[conv] + F.pad(leaf[:, :, None, None], (1, 1, 1, 1))
            for conv, leaf in zip(layers, leaves, strict=True)
        }
        embeddings: Tensor = functional_call(start, own, (pixels,))
        return F.normalize(embeddings @ matrix.T, dim=-1)

    def centres() -> Tensor:
        unit = embed(images)
        return F.normalize(torch.stack([unit[labels == c].mean(0) for c in range(WAY)]), dim=-1)

    for _ in range(ALWAYS.updates):
        optimiser.zero_grad()
        unit = embed(images)
        cosines = unit @ centres().T
        for i, label in enumerate(labels):  # its own class without itself, if there is another
            rest = unit[(labels == label) & (torch.arange(len(labels)) != i)]
            if len(rest):
                own = F.cosine_similarity(unit[i], rest.mean(0), dim=0)
                cosines = cosines.index_put((torch.tensor(i), label), own)
        F.cross_entropy(10 * cosines, labels).backward()
        optimiser.step()
    with torch.no_grad():
        return embed(normalise(tasks.take(tasks.query[episode]))) @ centres().T


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("name", ["base", "member:one", "blend"])
def test_many_tasks_at_once_are_each_task_by_plain_torch(
    name: str, kind: Kind, masked: bool
) -> None:
    pool = random_pool(kind, adaptation=ALWAYS)
    tasks = picture_tasks(pool, mask=uneven() if masked else None)
    weights = rule(name, pool).weights(pool, tasks)
    found = predict(pool, tasks, name, "tsa")
    factors = sureness(pool, shots_of(tasks, rule(name, pool).members(pool)[0]))
    for e in range(EPISODES):
        shares = weights[e, 1:] * torch.tensor(list(pool.strengths.values()))
        start = fold(pool.base, blend(list(pool.modulators.values()), shares))
        scale = float(factors[e] * (weights[e] @ torch.tensor(pool.scales)))
        expected = (scale * by_torch(pool, tasks, e, start)).softmax(-1)
        torch.testing.assert_close(found[e], expected, atol=2e-4, rtol=2e-3)


def test_learning_may_start_from_the_rules_blend_the_base_or_the_heaviest_member() -> None:
    pool = random_pool(adaptation=ALWAYS)
    tasks = picture_tasks(pool)
    chosen = by_selector(pool, tasks).argmax(1)

    def answers(name: str, start: str) -> Tensor:
        config = replace(ALWAYS, tsa_start=start)  # type: ignore[arg-type]
        return predict(replace(pool, adaptation=config, scales=[10.0] * 4), tasks, name, "tsa")

    close = {"atol": 1e-5, "rtol": 0.0}
    torch.testing.assert_close(answers("auto", "base"), answers("base", "rule"), **close)
    torch.testing.assert_close(answers("soft", "selected"), answers("select", "rule"), **close)
    assert not torch.allclose(answers("auto", "rule"), answers("auto", "base"), atol=1e-3)
    for e, member in enumerate(chosen.tolist()):
        name = "base" if member == 0 else f"member:{pool.members[member]}"
        expected = answers(name, "rule")[e]
        torch.testing.assert_close(answers("select", "rule")[e], expected, **close)


@pytest.mark.parametrize("name", ["auto", "blend"])
def test_the_rule_may_keep_a_share_of_the_answer(name: str) -> None:
    pool = random_pool()
    tasks = picture_tasks(pool)

    def answer(share: float) -> Tensor:
        own = replace(ALWAYS, tsa_share=share)
        return predict(replace(pool, adaptation=own), tasks, name, "tsa")

    plain, learned, mixed = predict(pool, tasks, name), answer(1.0), answer(0.25)
    torch.testing.assert_close(answer(0.0), plain)
    expected = (0.25 * learned.log() + 0.75 * plain.log()).softmax(-1)
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(learned, plain, atol=1e-3)


def test_updates_may_take_crops_in_turn() -> None:
    pool = replace(random_pool(), views="five")
    tasks = picture_tasks(pool)
    rows, places = torch.arange(EPISODES), torch.arange(SHOT).expand(EPISODES, WAY, SHOT)
    start = blended(pool, torch.ones(EPISODES, 4) / 4)
    names = list(start.weights)
    networks = Networks(pool.base, start, tasks, names, turns=CROPS)
    images = tasks.support_images(rows).flatten(1, 2)
    for view, found in zip(CROPS, networks.inputs(rows, places), strict=True):
        torch.testing.assert_close(found, stem(pool.base, seen(images, view)))

    def answer(turns: bool, updates: int) -> Tensor:
        own = replace(ALWAYS, tsa_rotate_crops=turns, updates=updates)
        return predict(replace(pool, adaptation=own), tasks, "auto", "tsa")

    torch.testing.assert_close(answer(True, 1), answer(False, 1))  # the whole image comes first
    assert not torch.allclose(answer(True, 2), answer(False, 2), atol=1e-4)


def test_an_image_may_learn_from_a_prototype_that_holds_it() -> None:
    pool = random_pool()
    tasks = picture_tasks(pool)
    apart, as_the_paper = (
        predict(
            replace(pool, adaptation=replace(ALWAYS, tsa_leave_self_out=each)), tasks, "auto", "tsa"
        )
        for each in (True, False)
    )
    assert not torch.allclose(apart, as_the_paper, atol=1e-4)


def test_sharpness_changes_how_sure_it_is_and_no_answer() -> None:
    pool = random_pool()
    tasks = picture_tasks(pool)
    for share in (1.0, 0.4):
        plain, mild = (
            predict(
                replace(
                    pool,
                    adaptation=replace(ALWAYS, tsa_share=share, tsa_inverse_temperature=s),
                ),
                tasks,
                "auto",
                "tsa",
            )
            for s in (1.0, 0.5)
        )  # fmt: skip
        torch.testing.assert_close(mild, (0.5 * plain.log()).softmax(-1))
        assert torch.equal(mild.argmax(-1), plain.argmax(-1))


@pytest.mark.parametrize("rates", [(0.5,), (0.5, 0.05)])
@pytest.mark.parametrize("adaptation", ["pa", "tsa"])
def test_learning_from_single_images_may_be_allowed(
    adaptation: str, rates: tuple[float, ...]
) -> None:
    pool = random_pool(adaptation=replace(ALWAYS, least_shots=1, rates=rates))
    tasks = picture_tasks(pool, shot=1)
    found, plain = predict(pool, tasks, "auto", adaptation), predict(pool, tasks, "auto")
    assert found.isfinite().all()
    assert not torch.allclose(found, plain, atol=1e-4)


@pytest.mark.parametrize("name", ["auto", "select", "blend", "base"])
def test_at_one_shot_tsa_is_off(name: str) -> None:
    pool = random_pool()
    tasks = picture_tasks(pool, shot=1)
    found = predict_tasks(pool, tasks, [rule(name, pool)], "tsa")
    assert torch.equal(found.probabilities[0], predict(pool, tasks, name))
    assert not found.diverged.any()


def test_only_tasks_with_two_images_of_a_class_learn() -> None:
    pool, mask = random_pool(adaptation=ALWAYS), torch.ones(EPISODES, WAY, SHOT, dtype=torch.bool)
    mask[1, :, 1:] = False
    tasks = picture_tasks(pool, mask=mask)
    plain, learned = (predict(pool, tasks, "auto", a) for a in ("none", "tsa"))
    torch.testing.assert_close(learned[1], plain[1])
    for e in (0, 2):
        assert not torch.allclose(learned[e], plain[e], atol=1e-3)


@pytest.mark.parametrize("adaptation", ["none", "head", "pa", "tsa"])
@pytest.mark.parametrize("name", ["auto", "blend", "loo", "sur", "sum", "soft"])
def test_one_class_is_the_only_answer(name: str, adaptation: str) -> None:
    pool = random_pool(adaptation=AdaptationConfig(steps=3, updates=2))
    found = predict(pool, picture_tasks(pool, way=1), name, adaptation)
    torch.testing.assert_close(found, torch.ones(EPISODES, QUERIES, 1))


def test_a_task_that_runs_away_falls_back_and_is_counted() -> None:
    """A modulator of enormous weights: its embeddings overflow."""
    pool = random_pool(adaptation=ALWAYS)
    tasks = picture_tasks(pool)
    wild = replace(pool, adaptation=replace(ALWAYS, rates=(1e38,)))
    answers = predict_tasks(wild, tasks, [rule("base", pool), rule("auto", pool)], "tsa")
    assert answers.diverged.all() and answers.diverged.shape == (2, EPISODES)
    for name, found in zip(("base", "auto"), answers.probabilities, strict=True):
        assert torch.equal(found, predict(pool, tasks, name))
    mapped = predict_tasks(wild, tasks, [rule("auto", pool)], "pa")
    assert mapped.probabilities.isfinite().all()
    assert tasks.take is not None
    images = ImageTasks(tasks.take, 96, tasks.support, tasks.query)
    fitted = PoolWithRule(wild, "base", [pool.base])
    fitted.predict(images, "tsa")
    assert fitted.diverged == EPISODES


def test_the_halves_of_the_support_set_choose() -> None:
    pool = random_pool(adaptation=AdaptationConfig(updates=4, rates=(0.05, 0.5)))
    tasks = picture_tasks(pool)
    weights = rule("base", pool).weights(pool, tasks)

    def answer(shift: int) -> Callable[[Tensor, Tensor], Tensor]:
        def plain(known: Tensor, places: Tensor) -> Tensor:
            labels = (torch.arange(WAY) + shift).repeat_interleave(places.shape[-1]) % WAY
            return (50 * F.one_hot(labels, WAY).float()).log_softmax(-1).expand(EPISODES, -1, -1)

        return plain

    assert learn_own_networks(pool, tasks, weights, answer(0))[0] is None, "nothing could be better"
    networks, _ = learn_own_networks(pool, tasks, weights, answer(1))
    assert networks is not None and len(networks.rows) == EPISODES


def test_no_episode_depends_on_its_company(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool(adaptation=AdaptationConfig(updates=3, rates=(0.05, 0.5)))
    tasks = picture_tasks(pool)
    whole = {name: predict(pool, tasks, name, "tsa") for name in ("auto", "blend")}
    monkeypatch.setitem(inner_loop.AT_ONCE, "cpu", 1)
    for name, expected in whole.items():
        torch.testing.assert_close(predict(pool, tasks, name, "tsa"), expected, atol=1e-5, rtol=0)
        part = replace(tasks, support=tasks.support[1:2], query=tasks.query[1:2, 2:])
        alone = predict(pool, part, name, "tsa")
        torch.testing.assert_close(alone[0], expected[1, 2:], atol=1e-5, rtol=0)


def test_tasks_without_images_are_refused() -> None:
    for name, adaptation in (("blend", "none"), ("auto", "tsa")):
        with pytest.raises(PolyshotError, match="embeddings alone: give their images"):
            predict(random_pool(), random_tasks(), name, adaptation)


def test_a_pool_of_the_base_alone_learns_too() -> None:
    full = random_pool()
    pool = Pool(full.config, SIZE, "conv1x1", "cosine", full.base, adaptation=ALWAYS)
    tasks = picture_tasks(pool)
    for name in ("auto", "blend", "base", "loo", "sur"):
        for adaptation in ("none", "pa", "tsa"):
            found = predict(pool, tasks, name, adaptation)
            torch.testing.assert_close(found, predict(pool, tasks, "base", adaptation))


def test_200_ways() -> None:
    pool = random_pool(adaptation=AdaptationConfig(updates=1))
    tasks = picture_tasks(pool, way=200, shot=2)
    one = replace(tasks, support=tasks.support[:1], query=tasks.query[:1, :7])
    found = predict(pool, one, "auto", "tsa")
    assert found.shape == (1, 7, 200) and found.isfinite().all()
