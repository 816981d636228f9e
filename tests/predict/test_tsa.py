"""Networks of a task's own: `blend`, and `tsa` from every start."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyshot.config import AdaptationConfig, for_hash, override, preset, to_dict
from polyshot.errors import PolyshotError
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.models.backbone import sites_of, walk_through
from polyshot.models.efficientnet import EfficientNetLite
from polyshot.models.foreign import Foreign
from polyshot.models.heads import Metric, prototype_logits, prototypes
from polyshot.models.modulators import Kind, Modulator, fold
from polyshot.models.resnet import ResNet
from polyshot.models.views import CROPS, VIEWS, Views, apply_view
from polyshot.models.walk import Recording, Walk
from polyshot.pool.pool import Pool
from polyshot.predict import own_networks
from polyshot.predict.adapt.tsa import (
    Networks,
    TaskSettings,
    learn_own_networks,
    learning_sites,
)
from polyshot.predict.own_networks import blended
from polyshot.predict.predict import inverse_temperature, predict_tasks
from polyshot.predict.rules import by_selector, rule, uniform
from polyshot.tasks import Tasks
from tests.helpers import (
    SIZE,
    answers,
    double_pool,
    embedded_tasks,
    in_double,
    mixed_modulator,
    random_base,
    random_tasks,
    shared_pool,
    uneven,
)
from tests.predict.plain_tsa import PlainTSA

ALWAYS = AdaptationConfig(
    updates=3, rates=(0.5,), tsa_share=1.0, tsa_inverse_temperature=1.0, tsa_rotate_crops=False
)
EPISODES, WAY, SHOT, QUERIES = 3, 4, 3, 5


@pytest.mark.parametrize("name", ["blend", "soup"])
@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("kind", get_args(Kind))
def test_blend_is_the_folded_blend_of_each_task(kind: Kind, metric: Metric, name: str) -> None:
    pool = shared_pool(kind, metric)
    tasks = random_tasks(mask=uneven())
    weights = (by_selector if name == "blend" else uniform)(pool, tasks)
    found = answers(pool, tasks, name)
    factors = inverse_temperature(pool, tasks.shots)
    assert tasks.mask is not None
    for e in range(EPISODES):
        network = blend_of(pool, weights[e])
        with torch.no_grad():
            support = network(tasks.support_images()[e].flatten(0, 1)).view(WAY, SHOT, -1)
            query = network(tasks.query_images()[e])
        support = F.normalize(support, dim=-1) if metric == "cosine" else support
        centres = prototypes(support, tasks.mask[e])
        scale = float(weights[e] @ torch.tensor(pool.scales))
        logits = factors[e] * prototype_logits(query, centres, metric, scale)
        torch.testing.assert_close(found[e], logits.softmax(-1), atol=1e-4, rtol=1e-3)


def blend_of(pool: Pool, weights: Tensor) -> torch.nn.Module:
    """The network of one task where a rule weighs the members so, [M]."""
    shares = weights[1:] * torch.tensor(list(pool.strengths.values()))
    return fold(pool.base, mixed_modulator(list(pool.modulators.values()), shares))


@pytest.mark.parametrize(
    ("name", "kind", "options", "masked"),
    [
        ("base", "conv1x1", {}, True),
        ("blend", "conv1x1", {}, True),
        ("blend", "conv1x1", {}, False),
        ("member:one", "channel", {}, True),
        ("member:one", "channel", {}, False),
        ("blend", "channel", {"tsa_leave_self_out": False}, True),
        ("auto", "conv1x1", {"tsa_rotate_crops": True, "updates": 6}, True),
    ],
)
def test_many_tasks_at_once_are_each_task_by_the_plain_form(
    name: str, kind: Kind, options: dict[str, object], masked: bool
) -> None:
    """Of uneven tasks the last has all its images, as tasks without a mask do."""
    config = replace(replace(ALWAYS, updates=5), **options)  # type: ignore[arg-type]
    check_against_the_plain_form(name, kind, config, masked)


@pytest.mark.parametrize("name", ["base", "blend"])
def test_prototypes_are_of_all_views_as_in_the_plain_form(name: str) -> None:
    config = replace(ALWAYS, tsa_rotate_crops=True)
    check_against_the_plain_form(name, "conv1x1", config, masked=True, views="three")


def check_against_the_plain_form(
    name: str,
    kind: Kind,
    config: AdaptationConfig,
    masked: bool,
    sites: Sequence[str] | None = None,
    views: Views = "one",
) -> None:
    """Let a batch of tasks learn by a rule, and each of them alone by `PlainTSA`."""
    with in_double():
        pool = replace(double_pool(shared_pool(kind)), adaptation=config, views=views)
        tasks = random_tasks(mask=uneven() if masked else None, queries=2, views=views)
        weights = rule(name, pool).weights(pool, tasks)
        found = answers(pool, tasks, name, "tsa")
        factors = inverse_temperature(pool, tasks.shots)
        scales = torch.tensor(pool.scales)
        for e in range(EPISODES):
            mask = tasks.present[e]
            plain = PlainTSA(
                blend_of(pool, weights[e]),
                tasks.support_images()[e][mask],
                mask.nonzero()[:, 0],
                rate=0.5,
                updates=config.updates,
                leave_self_out=config.tsa_leave_self_out,
                crops=CROPS if config.tsa_rotate_crops else VIEWS["one"],
                views=VIEWS[views],
                sites=sites,
            )
            cosines = plain.cosines(tasks.query_images()[e])
            expected = (factors[e] * (weights[e] @ scales) * cosines).softmax(-1)
            torch.testing.assert_close(found[e], expected, atol=1e-6, rtol=1e-6)
            assert plain.moved > 1e-3, "nothing was learned"


LATER = [f"layer{i}.{j}.conv{k}" for i in (3, 4) for j in (0, 1) for k in (1, 2)]


@pytest.mark.parametrize(
    ("name", "kind", "wanted", "sites", "masked"),
    [
        ("blend", "conv1x1", ("late",), LATER, True),
        ("auto", "channel", ("late",), LATER, True),
        ("auto", "channel", ("late",), LATER, False),
        ("base", "conv1x1", ("layer2.1.conv?", "layer4.*.conv2"),
         ["layer2.1.conv1", "layer2.1.conv2", "layer4.0.conv2", "layer4.1.conv2"], True),
        ("blend", "conv1x1", ("layer4.1.conv2",), ["layer4.1.conv2"], True),
    ],
)  # fmt: skip
def test_learning_at_some_sites_is_the_plain_form_at_these(
    name: str, kind: Kind, wanted: tuple[str, ...], sites: list[str], masked: bool
) -> None:
    config = replace(ALWAYS, updates=6, tsa_rotate_crops=True, tsa_sites=wanted)
    check_against_the_plain_form(name, kind, config, masked, sites)


def test_sites_that_learn() -> None:
    names = [f"network.blocks.{i}.{part}" for i in range(3) for part in ("up", "down")]
    assert learning_sites(names, ("all",)) == names
    assert learning_sites(names, ("late",)) == names[3:]
    assert learning_sites(names[:5], ("late",)) == names[2:5]
    assert learning_sites(names, ("blocks.2.*", "blocks.0.up")) == [names[0], *names[4:]]
    assert learning_sites(names, ()) == learning_sites([], ("late",)) == []
    for known, such in ((names, r"such as blocks\.0\.up.*"), ([], "none here")):
        with pytest.raises(
            PolyshotError, match=rf"is called 'block\.\*'.*all, late.*{such}"
        ) as told:
            learning_sites(known, ("late", "block.*"))
        assert "\n" not in str(told.value)


def test_sites_are_chosen_by_an_option_and_hashes_of_before_stay() -> None:
    config = override(preset("tiny"), ['adaptation.tsa_sites=["layer4.*"]'])
    assert config.adaptation.tsa_sites == ("layer4.*",)
    before = for_hash(to_dict(preset("tiny")))
    assert "tsa_sites" not in before["adaptation"]
    assert for_hash(to_dict(config))["adaptation"]["tsa_sites"] == ["layer4.*"]


@pytest.mark.parametrize("sites", [("all",), ("late",), ()])
def test_without_sites_the_map_alone_is_learned(sites: tuple[str, ...]) -> None:
    """A plain function has no layers that anything could act at."""
    directions = torch.randn(3 * 64, 10, generator=torch.Generator().manual_seed(0))
    config = replace(ALWAYS, updates=4, tsa_rotate_crops=True, tsa_sites=sites)
    tasks = random_tasks()

    def not_asked(known: Tensor, places: Tensor) -> Tensor:
        raise AssertionError("there is one rate")

    def function(images: Tensor) -> Tensor:
        return F.interpolate(images, (8, 8)).flatten(1) @ directions

    # The other network has sites, none of which is to learn.
    for network in (function,) if sites else (function, random_base()):
        pool = replace(Pool.from_backbone(network, SIZE), adaptation=config)
        found, plain = answers(pool, tasks, "base", "tsa"), answers(pool, tasks, "base")
        assert found.isfinite().all() and not torch.allclose(found, plain, atol=1e-3)
        weights = rule("base", pool).weights(pool, tasks)
        (own,), _ = learn_own_networks(
            pool, tasks, weights, TaskSettings.of(pool, tasks), not_asked
        )
        assert not own.modulators.weights and len(own.rows) == EPISODES


def test_learning_may_start_from_the_rules_blend_the_base_or_the_heaviest_member() -> None:
    pool = shared_pool(adaptation=ALWAYS)
    tasks = random_tasks()
    chosen = by_selector(pool, tasks).argmax(1)

    def started(name: str, start: str) -> Tensor:
        config = replace(ALWAYS, tsa_start=start)  # type: ignore[arg-type]
        return answers(replace(pool, adaptation=config, scales=[10.0] * 4), tasks, name, "tsa")

    close = {"atol": 1e-5, "rtol": 0.0}
    torch.testing.assert_close(started("auto", "base"), started("base", "rule"), **close)
    torch.testing.assert_close(started("soft", "selected"), started("select", "rule"), **close)
    assert not torch.allclose(started("auto", "rule"), started("auto", "base"), atol=1e-3)
    for e, member in enumerate(chosen.tolist()):
        name = "base" if member == 0 else f"member:{pool.members[member]}"
        expected = started(name, "rule")[e]
        torch.testing.assert_close(started("select", "rule")[e], expected, **close)


@pytest.mark.parametrize("name", ["auto", "blend"])
def test_the_rule_may_keep_a_share_of_the_answer(name: str) -> None:
    pool, mask = shared_pool(), torch.ones(EPISODES, WAY, SHOT, dtype=torch.bool)
    mask[1, :, 1:] = False  # the second task has nothing to learn from
    tasks = random_tasks(mask=mask)

    def answer(share: float) -> Tensor:
        own = replace(ALWAYS, tsa_share=share)
        return answers(replace(pool, adaptation=own), tasks, name, "tsa")

    plain, learned, mixed = answers(pool, tasks, name), answer(1.0), answer(0.25)
    torch.testing.assert_close(answer(0.0), plain)
    expected = (0.25 * learned.log() + 0.75 * plain.log()).softmax(-1)
    expected[1] = plain[1]
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-4)
    for e in (0, 2):
        assert not torch.allclose(learned[e], plain[e], atol=1e-3)


def test_updates_may_take_crops_in_turn() -> None:
    pool = replace(shared_pool(), views="five")
    tasks = random_tasks(views="five")
    rows, places = torch.arange(EPISODES), torch.arange(SHOT).expand(EPISODES, WAY, SHOT)
    start = blended(pool, torch.ones(EPISODES, 4) / 4)
    names = list(start.weights)
    networks = Networks(pool.base, start, tasks, names, [1.0], CROPS, True)
    images = tasks.support_images(rows).flatten(0, 2)
    walk, acts = walk_through(pool.base), start.acts(EPISODES)
    with torch.no_grad():
        for view, found in zip(CROPS, networks.inputs(rows, places), strict=True):
            expected = walk(apply_view(images, view), acts)
            torch.testing.assert_close(walk.replay(found, acts), expected)

    def answer(turns: bool, updates: int) -> Tensor:
        own = replace(ALWAYS, tsa_rotate_crops=turns, updates=updates)
        return answers(replace(pool, adaptation=own), tasks, "auto", "tsa")

    torch.testing.assert_close(answer(True, 1), answer(False, 1))  # the whole image comes first
    assert not torch.allclose(answer(True, 2), answer(False, 2), atol=1e-4)


def test_an_image_may_learn_from_a_prototype_that_holds_it() -> None:
    pool = shared_pool()
    tasks = random_tasks()
    apart, as_the_paper = (
        answers(
            replace(pool, adaptation=replace(ALWAYS, tsa_leave_self_out=each)), tasks, "auto", "tsa"
        )
        for each in (True, False)
    )
    assert not torch.allclose(apart, as_the_paper, atol=1e-4)


def test_sharpness_changes_how_sure_it_is_and_no_answer() -> None:
    pool = shared_pool()
    tasks = random_tasks()
    for share in (1.0, 0.4):
        plain, mild = (
            answers(
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
    pool = shared_pool(adaptation=replace(ALWAYS, least_shots=1, rates=rates))
    tasks = random_tasks(shot=1)
    found, plain = answers(pool, tasks, "auto", adaptation), answers(pool, tasks, "auto")
    assert found.isfinite().all()
    assert not torch.allclose(found, plain, atol=1e-4)


@pytest.mark.parametrize("name", ["auto", "select", "blend", "base"])
def test_at_one_shot_tsa_is_off(name: str) -> None:
    pool = shared_pool()
    tasks = random_tasks(shot=1)
    found = predict_tasks(pool, tasks, [rule(name, pool)], "tsa")
    assert torch.equal(found.probabilities[0], answers(pool, tasks, name))
    assert not found.diverged.any()


def test_only_tasks_with_two_images_of_a_class_learn() -> None:
    pool, mask = shared_pool(adaptation=ALWAYS), torch.ones(EPISODES, WAY, SHOT, dtype=torch.bool)
    mask[1, :, 1:] = False
    tasks = random_tasks(mask=mask)
    plain, learned = (answers(pool, tasks, "auto", a) for a in ("none", "tsa"))
    torch.testing.assert_close(learned[1], plain[1])
    for e in (0, 2):
        assert not torch.allclose(learned[e], plain[e], atol=1e-3)


@pytest.mark.parametrize("adaptation", ["none", "head", "pa", "tsa"])
@pytest.mark.parametrize("name", ["auto", "blend", "loo", "sur", "sum", "soft"])
def test_one_class_is_the_only_answer(name: str, adaptation: str) -> None:
    pool = shared_pool(adaptation=AdaptationConfig(steps=3, updates=2))
    found = answers(pool, random_tasks(way=1), name, adaptation)
    torch.testing.assert_close(found, torch.ones(EPISODES, QUERIES, 1))


def test_a_task_that_diverges_falls_back_and_is_counted() -> None:
    """A modulator of enormous weights: its embeddings overflow."""
    pool = shared_pool(adaptation=ALWAYS)
    tasks = random_tasks()
    wild = replace(pool, adaptation=replace(ALWAYS, rates=(1e38,)))
    told = predict_tasks(wild, tasks, [rule("base", pool), rule("auto", pool)], "tsa")
    assert told.diverged.all() and told.diverged.shape == (2, EPISODES)
    for name, found in zip(("base", "auto"), told.probabilities, strict=True):
        assert torch.equal(found, answers(pool, tasks, name))
    mapped = predict_tasks(wild, tasks, [rule("auto", pool)], "pa")
    assert mapped.probabilities.isfinite().all()
    fitted = PoolWithRule(wild, "base")
    fitted.predict(tasks, "tsa")
    assert fitted.diverged == EPISODES


def test_the_halves_of_the_support_set_choose() -> None:
    pool = shared_pool(adaptation=AdaptationConfig(updates=4, rates=(0.05, 0.5)))
    tasks = random_tasks()
    weights = rule("base", pool).weights(pool, tasks)

    def answer(shift: int) -> Callable[[Tensor, Tensor], Tensor]:
        def plain(known: Tensor, places: Tensor) -> Tensor:
            labels = (torch.arange(WAY) + shift).repeat_interleave(places.shape[-1]) % WAY
            return (50 * F.one_hot(labels, WAY).float()).log_softmax(-1).expand(EPISODES, -1, -1)

        return plain

    settings = TaskSettings.of(pool, tasks)
    nothing, _ = learn_own_networks(pool, tasks, weights, settings, answer(0))
    assert not nothing, "nothing could be better"
    (networks,), _ = learn_own_networks(pool, tasks, weights, settings, answer(1))
    assert len(networks.rows) == EPISODES


@pytest.mark.parametrize("sites", ["all", "late"])
def test_no_episode_depends_on_its_company(monkeypatch: pytest.MonkeyPatch, sites: str) -> None:
    pool = shared_pool(adaptation=AdaptationConfig(updates=3, rates=(0.05, 0.5)))
    tasks = random_tasks()
    late = replace(pool.adaptation, tsa_sites=("late",))
    pool = replace(pool, adaptation=late) if sites == "late" else pool
    whole = {name: answers(pool, tasks, name, "tsa") for name in ("auto", "blend")}
    monkeypatch.setitem(own_networks.AT_ONCE, "cpu", 1)
    for name, expected in whole.items():
        torch.testing.assert_close(answers(pool, tasks, name, "tsa"), expected, atol=1e-5, rtol=0)
        part = replace(tasks.part(slice(1, 2)), query=tasks.query[1:2, 2:])
        alone = answers(pool, part, name, "tsa")
        torch.testing.assert_close(alone[0], expected[1, 2:], atol=1e-5, rtol=0)


def test_answers_do_not_depend_on_how_many_crops_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(ALWAYS, updates=25, tsa_rotate_crops=True, tsa_sites=("late",))
    config = replace(config, rates=(0.1, 0.5), tsa_rates="average")
    pool, tasks = shared_pool(adaptation=config), random_tasks()
    expected = answers(pool, tasks, "blend", "tsa")
    made = []
    record = Walk.record

    def counted(walk: Walk, images: Tensor, *rest: object) -> Recording:
        made.append(record(walk, images, *rest))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(Walk, "record", counted)
    for room in (0, 20_000, 1 << 30):
        made.clear()
        monkeypatch.setattr(own_networks, "free_memory", lambda device, room=room: 4 * room)
        found = answers(pool, tasks, "blend", "tsa")  # one task after the other
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        # Every update and the end of learning asks for one; the second rate finds those of the
        # first.
        if room == 1 << 30:
            assert len(made) == len(CROPS)
        elif not room:
            assert len(made) == EPISODES * 2 * (config.updates + 1)
        else:
            assert EPISODES * len(CROPS) < len(made) < EPISODES * 2 * (config.updates + 1)


def test_tasks_side_by_side_fit_into_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    resnet, lite0 = ResNet().eval(), Foreign(EfficientNetLite(), 224)
    cpu, at_once = torch.device("cpu"), own_networks.tasks_at_once
    assert [at_once(resnet, images, 72, cpu) for images in (5, 25, 50, 1000)] == [8, 4, 2, 1]
    assert at_once(lite0, 25, 72, cpu) == 1
    assert at_once(lite0, 12, 72, cpu) == 2
    monkeypatch.setitem(own_networks.AT_ONCE, "cpu", 100)
    assert at_once(resnet, 25, 72, cpu) < 100
    monkeypatch.setattr(own_networks, "ON_A_CPU", 70 << 30)  # half of a large GPU
    assert at_once(resnet, 25, 72, cpu) == 100
    assert 30 < at_once(lite0, 25, 72, cpu) < 70  # in bf16 twice as many


def test_tasks_without_images_are_refused() -> None:
    pool = shared_pool()
    for name, adaptation in (("blend", "none"), ("auto", "tsa")):
        with pytest.raises(PolyshotError, match="embeddings alone: give their images"):
            answers(pool, embedded_tasks(pool), name, adaptation)


def test_a_pool_of_the_base_alone_learns_too() -> None:
    full = shared_pool()
    pool = Pool(full.config, SIZE, "conv1x1", "cosine", full.base, adaptation=ALWAYS)
    tasks = random_tasks()
    for name in ("auto", "blend", "base", "loo", "sur"):
        for adaptation in ("none", "pa", "tsa"):
            found = answers(pool, tasks, name, adaptation)
            torch.testing.assert_close(found, answers(pool, tasks, "base", adaptation))


def test_200_ways() -> None:
    pool = shared_pool(adaptation=AdaptationConfig(updates=1))
    tasks = random_tasks(way=200, shot=2)
    one = replace(tasks.part(slice(0, 1)), query=tasks.query[:1, :7])
    found = answers(pool, one, "auto", "tsa")
    assert found.shape == (1, 7, 200) and found.isfinite().all()


def test_the_soup_is_one_network_for_all_tasks_while_the_pool_stays() -> None:
    pool, tasks = shared_pool("conv1x1", "cosine"), random_tasks(mask=uneven())
    weights = uniform(pool, tasks)
    one, other = (own_networks.blend_networks(pool, tasks, weights, "none") for _ in range(2))
    assert one.common is not None and one.common is other.common
    single = own_networks.blend_networks(pool, tasks.part(slice(0, 1)), weights[:1], "none")
    assert single.common is one.common  # a classifier's examples are a batch of one
    weaker = replace(pool, strengths=dict.fromkeys(pool.strengths, 0.5))
    assert own_networks.blend_networks(weaker, tasks, weights, "none").common is not one.common


@pytest.mark.parametrize("name", ["blend", "soup", "base"])
def test_images_of_a_single_task_are_embedded_once_and_no_others(name: str) -> None:
    pool, drawn = shared_pool("conv1x1", "cosine"), random_tasks()
    if name == "base":  # without modulators it is asked as a member and as a blend
        pool = replace(pool, modulators={}, strengths={}, scales=pool.scales[:1], selector=None)
    counted: list[int] = []
    table = drawn.table

    def take(positions: Tensor) -> Tensor:
        counted.extend(positions.tolist())
        assert table.take is not None
        return table.take(positions)

    weights = torch.full((1, len(pool.members)), 1 / len(pool.members))
    if name == "blend":
        weights = F.normalize(torch.arange(1.0, weights.shape[1] + 1).unsqueeze(0), p=1)
    alone = replace(drawn, table=replace(table, take=take)).part(slice(1, 2))
    own_networks.blend_networks(pool, alone, weights, "none")
    wanted = alone.support.flatten().tolist()
    # One look more is at how large images are.
    assert sorted(set(counted)) == wanted and len(counted) == len(wanted) + 1

    counted.clear()
    first = replace(table, take=take, count=12)
    labels = torch.arange(4).repeat_interleave(3)
    examples = Tasks.of_examples(first, labels)
    if name == "base":
        examples.support_of(pool.network(0))
    networks = own_networks.blend_networks(pool, examples, weights, "ridge")
    seen = own_networks.support_embeddings(networks, examples)
    assert sorted(set(counted)) == list(range(12)) and len(counted) == 12 + 1
    walked = own_networks.embed_own(
        *(pool.base, networks.modulators, own_networks.flat_support(examples)),
        *(networks.rows, "one"),
    )
    torch.testing.assert_close(seen.flatten(1, 2), walked, rtol=1e-4, atol=1e-4)


def test_auto_is_the_soup_on_a_network_from_elsewhere_with_modulators() -> None:
    ours = shared_pool("conv1x1", "cosine")
    assert rule("auto", ours).name == "auto"
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 8), torch.nn.Flatten())
    plain = Pool.from_backbone(network, size=16, sites=["0"])
    assert rule("auto", plain).name == "auto"  # it has nothing to average
    modulator = Modulator(sites_of(plain.base), "conv1x1")
    grown = replace(plain, modulators={"one": modulator}, scales=[20.0, 20.0], strengths={})
    assert rule("auto", grown).name == "soup"


@pytest.mark.parametrize("readout", ["prototypes", "ridge"])
def test_tsa_goes_a_part_of_the_way_in_weights(readout: str) -> None:
    with in_double():
        pool = double_pool(shared_pool("conv1x1"))
        tasks = random_tasks(queries=2)

        def learned(strength: float) -> list[Tensor]:
            config = replace(ALWAYS, updates=4, tsa_strength=strength, tsa_readout=readout)
            own = replace(pool, adaptation=config)
            (found,), _ = learn_own_networks(
                own, tasks, uniform(own, tasks), TaskSettings.of(own, tasks), never_asked
            )
            assert found.classifiers.maps is not None
            return [*found.modulators.weights.values(), found.classifiers.maps]

        def never_asked(known: Tensor, places: Tensor) -> Tensor:
            raise AssertionError("a single rate is taken as it is")

        for none, half, full in zip(learned(0.0), learned(0.5), learned(1.0), strict=True):
            torch.testing.assert_close(half, (none + full) / 2)
            assert not torch.allclose(none, full)
        frozen = replace(ALWAYS, updates=4, tsa_strength=0.0, tsa_readout=readout)
        none, plain = (replace(pool, adaptation=each) for each in (frozen, ALWAYS))
        reads = "ridge" if readout == "ridge" else "none"
        found = answers(none, tasks, "blend", "tsa")
        expected = answers(plain, tasks, "blend", reads)
        torch.testing.assert_close(found.argmax(-1), expected.argmax(-1))
