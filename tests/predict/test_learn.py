"""Learning on support sets: `pa`, `tsa`, and what they share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.config import AdaptationConfig
from polyshot.models.heads import Metric, prototypes
from polyshot.predict.adapt import learn
from polyshot.predict.adapt.learn import (
    Adadelta,
    _learn,
    _loss,
    compact,
    halves,
    judge,
    learn_tasks,
)
from polyshot.predict.adapt.pa import Maps, learn_maps
from polyshot.predict.readout import fit_classifiers

ALWAYS = AdaptationConfig(updates=10, rates=(0.5,))
CHOICE = AdaptationConfig(updates=10, rates=(0.05, 0.5))


def embeddings(*shape: int, seed: int = 0) -> Tensor:
    """Positive, as after a ReLU, with classes [..., W, S, d] that differ."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(*shape[:-2], 1, shape[-1], generator=draw)
    return (centres + torch.randn(shape, generator=draw)).relu()


def everywhere(support: Tensor) -> Tensor:
    return torch.ones(support.shape[:-1], dtype=torch.bool)


masks = st.integers(0, 99).map(
    lambda seed: torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(seed)) < 0.5
)


@given(masks)
def test_compact_moves_what_is_there_to_the_front(mask: Tensor) -> None:
    places, there = compact(mask)
    assert places.shape[-1] == mask.sum(-1).max()
    for e in range(3):
        for way in range(4):
            expected = mask[e, way].nonzero().flatten().tolist()
            assert places[e, way][there[e, way]].tolist() == expected


@given(masks)
def test_halves_part_the_images_and_keep_every_class(mask: Tensor) -> None:
    mask = mask.clone()
    mask[..., 2] = True
    known, tried = halves(mask)
    assert not (known & tried).any()
    assert torch.equal(known | tried, mask.expand(2, -1, -1, -1))
    assert known.any(-1).all(), "a class without an image to learn from"
    assert not (tried[0] & tried[1]).any()
    twice = mask.sum(-1) > 1
    assert torch.equal(tried.any(0), mask & twice.unsqueeze(-1))
    assert torch.equal(tried.any(-1), twice.expand(2, -1, -1))


def test_answers_are_counted_and_scaled_at_their_best() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat(40).expand(2, -1)
    cosines = 0.3 * F.one_hot(labels, 5) + 0.15 * torch.randn(2, 200, 5, generator=draw)
    there = torch.ones(2, 200, dtype=torch.bool)
    usual = torch.tensor([10.0, 10.0])
    right, scale = judge(cosines, labels, there, usual)
    assert right.tolist() == (cosines.argmax(-1) == labels).sum(1).tolist()
    ratio = scale / judge(4 * cosines, labels, there, usual)[1]
    assert (ratio >= 2.8).all() and (ratio <= 4.1).all()  # both are held near the usual
    hidden = there.clone()
    hidden[:, 100:] = False
    spoilt = cosines.clone()
    spoilt[:, 100:] = 9.0
    for a, b in zip(
        judge(spoilt, labels, hidden, usual), judge(cosines, labels, hidden, usual), strict=True
    ):
        assert torch.equal(a, b)
    broken = cosines.clone()
    broken[1] = torch.nan
    assert judge(broken, labels, there, usual)[0].tolist() == [int(right[0]), -1]


def test_a_few_right_answers_do_not_ask_for_certainty() -> None:
    labels = torch.arange(5).expand(1, -1)
    _, scale = judge(
        0.9 * F.one_hot(labels, 5), labels, torch.ones(1, 5, dtype=torch.bool), torch.tensor([10.0])
    )
    assert 10 <= float(scale) <= 20


def test_the_optimiser_is_adadelta() -> None:
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(2, 3, 4, generator=draw), torch.randn(2, 5, generator=draw)]
    ours = [value.clone() for value in start]
    optimiser = Adadelta(ours, [torch.tensor([0.1, 1.0]), torch.tensor([0.2, 2.0])])
    theirs = [[v[task].clone().requires_grad_() for v in start] for task in range(2)]
    rates = [(0.1, 0.2), (1.0, 2.0)]
    others = [
        torch.optim.Adadelta(
            [{"params": [p], "lr": rate} for p, rate in zip(each, own, strict=True)]
        )
        for each, own in zip(theirs, rates, strict=True)
    ]
    for _ in range(5):
        gradients = [torch.randn(v.shape, generator=draw) for v in start]
        optimiser.step(gradients)
        for task in range(2):
            for leaf, gradient in zip(theirs[task], gradients, strict=True):
                leaf.grad = gradient[task]
            others[task].step()
    for task in range(2):
        for leaf, value in zip(theirs[task], ours, strict=True):
            torch.testing.assert_close(value[task], leaf.detach())


def test_maps_are_those_of_autograd_and_adadelta() -> None:
    support = embeddings(3, 4, 3, 12)
    mask = everywhere(support)
    mask[1, 2, 1:] = False
    learned = learn_maps(support, mask, torch.full((3,), 10.0), unused, ALWAYS)
    assert learned.rows.tolist() == [0, 1, 2] and not learned.diverged.any()
    for e in range(3):
        matrix = torch.eye(12, requires_grad=True)
        optimiser = torch.optim.Adadelta([matrix], lr=1.0)
        images = F.normalize(support[e], dim=-1)
        labels = mask[e].nonzero()[:, 0]
        for _ in range(10):
            unit = F.normalize(images @ matrix.T, dim=-1)
            centres = torch.stack([unit[c][mask[e, c]].mean(0) for c in range(4)])
            logits = 10 * unit[mask[e]] @ F.normalize(centres, dim=-1).T
            optimiser.zero_grad()
            F.cross_entropy(logits, labels).backward()
            optimiser.step()
        torch.testing.assert_close(learned.leaves[0][e], matrix.detach(), atol=1e-4, rtol=1e-3)


def unused(known: Tensor, places: Tensor) -> Tensor:
    raise AssertionError("a single rate is taken as it is")


def by_prototypes(support: Tensor, scale: float = 10.0) -> object:
    def plain(known: Tensor, places: Tensor) -> Tensor:
        centres = F.normalize(prototypes(F.normalize(support, dim=-1), known), dim=-1)
        index = places.unsqueeze(-1).expand(*places.shape, support.shape[-1])
        queries = F.normalize(support.gather(2, index).flatten(1, 2), dim=-1)
        return (scale * queries @ centres.mT).log_softmax(-1)

    return plain


def test_nothing_is_learned_from_one_image_a_class() -> None:
    support = embeddings(3, 4, 3, 12)
    mask = everywhere(support)
    mask[1, :, 1:] = False
    learned = learn_maps(support, mask, torch.full((3,), 10.0), unused, ALWAYS)
    assert learned.rows.tolist() == [0, 2]
    assert learned.centres.shape == (2, 4, 12)
    alone = learn_maps(support[:, :, :1], None, torch.full((3,), 10.0), unused, CHOICE)
    assert len(alone.rows) == 0 and not alone.diverged.any()


def test_a_map_helps_where_it_can() -> None:
    """Classes that a map can tell apart, drowned in three directions that tell nothing."""
    draw = torch.Generator().manual_seed(0)
    images = torch.zeros(8, 5, 26, 12)
    images[..., :5] = torch.eye(5).unsqueeze(1)
    images[..., 5:] = 0.1 * torch.randn(8, 5, 26, 7, generator=draw)
    images[..., 5:8] += 2.0 * torch.randn(8, 5, 26, 3, generator=draw)
    support, queries = images[:, :, :6], images[:, :, 6:].flatten(1, 2)
    labels = torch.arange(5).repeat_interleave(20)

    def accuracy(adaptation: str) -> float:
        config = AdaptationConfig(rates=(0.5,))
        fitted = fit_classifiers(support, None, "cosine", 10.0, adaptation, config)
        return float((fitted.logits(queries).argmax(1) == labels).float().mean())

    assert accuracy("pa") > accuracy("none") + 0.02


def test_halves_must_clearly_prefer_another_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without learning that are right on some more of 40 images than with it."""
    support = embeddings(1, 5, 8, 12)
    usual = torch.full((1,), 10.0)
    config = AdaptationConfig(updates=3, rates=(0.5, 0.6))

    def right_on(count: int) -> Callable[[Tensor, Tensor], Tensor]:
        def plain(known: Tensor, places: Tensor) -> Tensor:
            labels = torch.arange(5).repeat_interleave(places.shape[-1])
            wrong = torch.arange(len(labels)) >= count / 2
            return 9.0 * F.one_hot((labels + wrong) % 5, 5).float().unsqueeze(0)

        return plain

    def learns() -> list[int]:
        answers = (right_on(count) for count in range(0, 41, 2))
        return [len(learn_maps(support, None, usual, each, config).rows) for each in answers]

    found = learns()
    assert found[0] == 1 and found[-1] == 0
    assert found == sorted(found, reverse=True)
    monkeypatch.setattr(learn, "MARGIN", 0.0)
    assert sum(found) - sum(learns()) == 2  # four images, of which `count` takes two a step


def test_one_class_learns_nothing() -> None:
    support = embeddings(2, 1, 4, 12)
    learned = learn_maps(support, None, torch.full((2,), 10.0), by_prototypes(support), CHOICE)  # type: ignore[arg-type]
    assert len(learned.rows) == 0


@dataclass(frozen=True)
class Explosive(Maps):
    """Maps of which one task's diverges."""

    bad: int = 1

    def embed(self, leaves: Sequence[Tensor], rows: Tensor, inputs: Tensor) -> Tensor:
        factor = torch.where(rows == self.bad, torch.inf, 1.0).view(-1, 1, 1)
        return super().embed(leaves, rows, inputs) * factor


@pytest.mark.parametrize("config", [ALWAYS, AdaptationConfig(updates=4, rates=(0.5, 0.6))])
def test_a_task_that_diverges_is_left_as_it_was(config: AdaptationConfig) -> None:
    support = F.normalize(embeddings(3, 4, 4, 12), dim=-1)
    mask, usual = everywhere(support), torch.full((3,), 10.0)

    def hopeless(known: Tensor, places: Tensor) -> Tensor:
        return torch.zeros(3, places.shape[1] * places.shape[2], 4)

    plain = unused if len(config.rates) == 1 else hopeless
    calm = learn_tasks(Maps(support), mask, config, usual, plain)
    wild = learn_tasks(Explosive(support), mask, config, usual, plain)
    assert calm.rows.tolist() == [0, 1, 2]
    assert wild.rows.tolist() == [0, 2]
    assert wild.diverged.tolist() == ([False, True, False] if config is ALWAYS else [False] * 3)
    assert torch.equal(wild.leaves[0], calm.leaves[0][[0, 2]])
    assert wild.centres.isfinite().all()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 99), st.sampled_from([ALWAYS, CHOICE]))
def test_tasks_do_not_depend_on_their_company(seed: int, config: AdaptationConfig) -> None:
    support = embeddings(4, 3, 4, 10, seed=seed)
    mask = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[..., 0] = True
    whole = fit_classifiers(support, mask, "cosine", 10.0, "pa", config)
    queries = embeddings(4, 6, 1, 10, seed=seed + 1).squeeze(2)
    expected = whole.logits(queries)
    for rows in ([2], [3, 0]):
        part = fit_classifiers(support[rows], mask[rows], "cosine", 10.0, "pa", config)
        torch.testing.assert_close(part.logits(queries[rows]), expected[rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_tasks_that_learn_nothing_are_read_out_as_ever(metric: Metric) -> None:
    support, queries = embeddings(3, 4, 3, 12), embeddings(3, 5, 1, 12, seed=1).squeeze(2)
    mask = everywhere(support)
    mask[1, :, 1:] = False
    plain = fit_classifiers(support, mask, metric, 3.0, "none", ALWAYS).logits(queries)
    mapped = fit_classifiers(support, mask, metric, 3.0, "pa", ALWAYS).logits(queries)
    torch.testing.assert_close(mapped[1], plain[1])
    assert not torch.allclose(mapped[0], plain[0])


def test_a_step_lowers_the_loss() -> None:
    support = F.normalize(embeddings(5, 4, 3, 16), dim=-1)
    mask = everywhere(support)
    places, there = compact(mask)
    rows = torch.arange(5)
    before = _loss(support, mask, leave_self_out=False)
    for rate in (0.05, 0.5):
        _, after = _learn(Maps(support), rows, places, there, torch.full((5,), rate), 10)
        assert _loss(after, mask, leave_self_out=False) < before


def test_an_image_left_out_learns_from_the_others_of_its_class() -> None:
    support = embeddings(2, 3, 4, 8)
    mask = everywhere(support)
    mask[1, 0, 1:] = False  # the only image of its class stays in its prototype
    mask[1, 2, 3:] = False
    losses = []
    for task, there in zip(F.normalize(support, dim=-1), mask, strict=True):
        own = []
        for way, place in there.nonzero().tolist():
            kept = there.clone()
            kept[way, place] = bool(there[way].sum() == 1)
            centres = torch.stack([task[w][kept[w]].mean(0) for w in range(3)])
            cosines = F.cosine_similarity(task[way, place][None], centres)
            own.append(F.cross_entropy(10 * cosines[None], torch.tensor([way])))
        losses.append(torch.stack(own).mean())
    torch.testing.assert_close(_loss(support, mask, leave_self_out=True), torch.stack(losses).sum())
    single = support[:, :, :1]
    alone = everywhere(single)
    assert torch.equal(
        _loss(single, alone, leave_self_out=True), _loss(single, alone, leave_self_out=False)
    )


def test_200_ways() -> None:
    support, queries = embeddings(1, 200, 2, 12), embeddings(1, 3, 1, 12).squeeze(2)
    for config in (ALWAYS, CHOICE):
        fitted = fit_classifiers(support, None, "cosine", 10.0, "pa", config)
        assert fitted.logits(queries).softmax(1).sum(1).allclose(torch.ones(1, 3))
