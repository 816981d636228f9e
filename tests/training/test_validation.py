"""Episodes that choices are made on, against loops over queries."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.heads import Metric
from polyshot.models.views import normalise
from polyshot.training.base import initial_base
from polyshot.training.validation import (
    accuracy,
    class_accuracies,
    hits,
    log_likelihood,
    network_logits,
    selector_tasks,
    source_sampler,
    validation_tasks,
)
from tests.helpers import CPU


def test_hits_and_likelihood_look_at_the_right_class() -> None:
    logits = torch.randn(2, 3, 4, 3)  # [E, W, Q, W]
    right, log = hits(logits), log_likelihood(logits)
    probabilities = logits.softmax(-1)
    for e in range(2):
        for way in range(3):
            for q in range(4):
                assert bool(right[e, way, q]) == (int(logits[e, way, q].argmax()) == way)
                assert log[e, way, q].exp() == pytest.approx(float(probabilities[e, way, q, way]))


def test_accuracy_counts_right_answers_class_by_class() -> None:
    right = F.one_hot(torch.tensor([[0, 0, 1, 1]]), 2).float()
    assert accuracy(right) == 1
    assert accuracy(right[:, [2, 1, 0, 3]]) == 0.5
    assert accuracy(torch.cat([right, 1 - right])) == 0.5


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_accuracies_of_classes_are_those_of_a_loop(
    metric: Metric, packs: list[Pack], config: Config
) -> None:
    base = initial_base(config).eval()
    tasks = validation_tasks(Images(packs, "val", CPU), config)[1]
    found, logits = class_accuracies(tasks, base, metric), network_logits(tasks, base, metric)
    assert tasks.classes is not None
    shape = config.shape
    for e in range(len(tasks)):
        images = normalise(tasks.table.take(tasks.support[e].flatten()))  # type: ignore[misc]
        support = base(images).view(shape.way, shape.shot, -1)
        query = base(normalise(tasks.table.take(tasks.query[e])))  # type: ignore[misc]
        if metric == "cosine":
            support, query = F.normalize(support, dim=-1), F.normalize(query, dim=-1)
        centres = support.mean(1)
        for way in range(shape.way):
            right = 0
            for q in range(shape.queries):
                own = query[way * shape.queries + q]
                if metric == "cosine":
                    scores = F.cosine_similarity(own[None], centres)
                else:
                    scores = -(own - centres).square().sum(-1)
                torch.testing.assert_close(logits[e, way, q], scores, atol=1e-4, rtol=1e-4)
                right += int(scores.argmax()) == way
            assert found[e, way] == pytest.approx(right / shape.queries)


def test_accuracies_with_fewer_images_are_those_of_smaller_tasks(
    packs: list[Pack], config: Config
) -> None:
    base = initial_base(config).eval()
    tasks = validation_tasks(Images(packs, "val", CPU), config)[1]
    few = [replace(tasks, support=tasks.support[..., :shot]) for shot in (1, 3)]
    each = [class_accuracies(some, base, "cosine") for some in few]
    both = class_accuracies(tasks, base, "cosine", (1, 3))
    assert torch.allclose(both, torch.stack(each).mean(0))
    assert not torch.equal(each[0], each[1])
    whole = class_accuracies(tasks, base, "cosine")
    assert torch.equal(class_accuracies(tasks, base, "cosine", (config.shape.shot,)), whole)


def test_episodes_are_of_their_part_and_the_seeds(packs: list[Pack], config: Config) -> None:
    val, train = (Images(packs, part, CPU) for part in ("val", "train"))
    for pack, chosen, learned in zip(
        packs, validation_tasks(val, config), selector_tasks(train, config, 5), strict=True
    ):
        assert chosen.classes is not None and learned.classes is not None
        assert set(chosen.classes.flatten().tolist()) <= set(pack.domain.split.val)
        assert set(learned.classes.flatten().tolist()) <= set(pack.domain.split.train)
        assert (len(chosen), len(learned)) == (config.validation_episodes, 5)
    again = validation_tasks(val, config, frozen=True)[0]
    assert torch.equal(again.support, validation_tasks(val, config)[0].support)
    assert again.table.frozen


def test_a_source_that_cannot_serve_the_shape_is_refused(packs: list[Pack]) -> None:
    with pytest.raises(PolyshotError, match=r"signs cannot be a source: its validation classes"):
        source_sampler(packs[0], "val", EpisodeShape(99, 1, 1), 0)
