"""The episodes of a target with their images, and what measures a method on them."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.data import table as batches
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.toy.packs import draw_packs
from polyshot.errors import PolyshotError
from polyshot.evaluation.cost import pass_cost
from polyshot.evaluation.measure import Meter, answer
from polyshot.evaluation.targets import TargetTasks
from polyshot.methods.image_tasks import ImageTasks
from polyshot.methods.method import Fitted, Method
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.methods.prototypes import Prototypes
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.pool.pool import Pool
from polyshot.training.world import World

from ..experiments.small_worlds import ONE_SHOT, SHAPE, SMALL, pack_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("packs")
    return draw_packs(folder, ["signs"], size=16, per_class=8, workers=1)[0]


class Mean(nn.Module):
    """Embeds an image as its mean colour, and counts the images."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images.mean((2, 3))


@pytest.mark.parametrize("room", [0.4, 0.0], ids=["resident", "streamed"])
def test_tasks_hold_the_images_of_the_episodes(
    pack: Pack, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROOM", room)
    target = TargetTasks(pack, CPU, [SHAPE, ONE_SHOT], 5, seed=3)
    for shape in (SHAPE, ONE_SHOT):
        drawn = EpisodeSampler(pack.domain, shape, seed=3)(0, 5)
        tasks = target.tasks(shape)
        for positions, ids in ((tasks.support, drawn.support), (tasks.query, drawn.query)):
            expected = torch.from_numpy(pack.images[ids.flatten().numpy()])
            assert torch.equal(tasks.take(positions.flatten()), expected)
        assert target.fingerprint(shape) == drawn.fingerprint()


def test_the_first_episodes_are_those_of_a_shorter_row(pack: Pack) -> None:
    long, short = (TargetTasks(pack, CPU, [SHAPE], count) for count in (7, 3))
    assert long.fingerprint(SHAPE, 3) == short.fingerprint(SHAPE)
    assert long.sampler(SHAPE).key == short.sampler(SHAPE).key
    assert len(long.tasks(SHAPE, 3)) == 3
    network = Mean()
    for one, other in zip(
        long.tasks(SHAPE, 3).embedded(network), short.tasks(SHAPE).embedded(network), strict=True
    ):
        assert torch.equal(one, other)


def test_an_image_is_embedded_once_for_all_shapes(pack: Pack) -> None:
    target = TargetTasks(pack, CPU, [SHAPE, ONE_SHOT], 6)
    network = Mean()
    for shape in (SHAPE, ONE_SHOT):
        target.tasks(shape, 2).embedded(network)
        target.tasks(shape).embedded(network)
    drawn = [EpisodeSampler(pack.domain, shape)(0, 6) for shape in (SHAPE, ONE_SHOT)]
    used = torch.cat([ids.flatten() for row in drawn for ids in (row.support, row.query)]).unique()
    assert network.seen == len(used)


def test_embeddings_go_with_their_network(pack: Pack) -> None:
    target = TargetTasks(pack, CPU, [SHAPE], 2)
    tasks = target.tasks(SHAPE)
    tasks.embedded(Mean())
    assert not len(tasks._kept)


def test_episodes_alone_have_their_own_images_and_nothing_kept(pack: Pack) -> None:
    target = TargetTasks(pack, CPU, [SHAPE], 6)
    network = Mean()
    whole = target.tasks(SHAPE, 2).embedded(network)
    before = network.seen
    alone = target.alone(SHAPE, 2)
    for one, other in zip(alone.embedded(network), whole, strict=True):
        assert torch.equal(one, other)
    assert network.seen == before + alone.count <= before + 2 * 25


def test_a_shape_too_large_is_refused_and_the_others_work(pack: Pack) -> None:
    large = EpisodeShape(5, 7, 3)
    target = TargetTasks(pack, CPU, [large, SHAPE], 2)
    assert len(target.tasks(SHAPE)) == 2
    for ask in (target.tasks, target.sampler, target.fingerprint):
        with pytest.raises(PolyshotError, match=r"7 \+ 3 images are needed"):
            ask(large)
    nothing = TargetTasks(pack_of([9, 9, 9], "few"), CPU, [SHAPE], 2)
    with pytest.raises(PolyshotError, match="5 ways are asked for"):
        nothing.tasks(SHAPE)


def test_one_episode_gives_no_interval(pack: Pack) -> None:
    with pytest.raises(PolyshotError, match="at least 2"):
        TargetTasks(pack, CPU, [SHAPE], 1)


# --- measuring


def test_a_pass_costs_what_the_literature_says() -> None:
    assert pass_cost(ResNetConfig(), 224) == pytest.approx(1.814e9, rel=0.01)  # He et al.: 1.8e9
    assert pass_cost(ResNetConfig(), 72) == pytest.approx(0.230e9, rel=0.01)


def test_counting_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    pass_cost(ResNetConfig(width=3), 16)
    assert torch.equal(torch.get_rng_state(), before)


class Known(Fitted):
    """Gives the right answer of the first queries of each class, and way 0 for the others."""

    def __init__(self, right: int):
        self.right = right

    def predict(self, tasks: ImageTasks, adaptation: str = "none") -> Tensor:
        each = tasks.query.shape[1] // tasks.way
        answers = torch.arange(tasks.way)[:, None].repeat(1, each)
        answers[:, self.right :] = 0
        return (
            nn.functional.one_hot(answers.flatten(), tasks.way).float().expand(len(tasks), -1, -1)
        )

    def parameters(self) -> int:
        return 1

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        return 1


def test_accuracy_counts_queries_class_by_class(pack: Pack) -> None:
    tasks = TargetTasks(pack, CPU, [SHAPE], 4).tasks(SHAPE)
    for right in range(4):
        expected = (5 * right + (3 - right)) / 15  # way 0 is right on all its queries
        answered = answer(Known(right), tasks, "none", 8)
        assert answered.accuracies.tolist() == pytest.approx([expected] * 4)
        # All answers are given with certainty: they are off by the share of the wrong ones.
        assert answered.calibration_error == pytest.approx(1 - expected, abs=1e-4)
        assert answered.diverged == 0


def test_fewer_tasks_are_tried_where_memory_is_full(pack: Pack) -> None:
    class Large(Known):
        sizes: ClassVar[list[int]] = []

        def predict(self, tasks: ImageTasks, adaptation: str = "none") -> Tensor:
            self.sizes.append(len(tasks))
            if len(tasks) > 2:
                raise torch.OutOfMemoryError
            return super().predict(tasks)

    tasks = TargetTasks(pack, CPU, [SHAPE], 9).tasks(SHAPE)
    plain, parts = (answer(fitted(2), tasks, "none", 8) for fitted in (Known, Large))
    assert parts.accuracies.tolist() == plain.accuracies.tolist()
    assert Large.sizes == [9, 4, 2, 2, 2, 2, 1]


def test_answers_that_are_no_numbers_are_refused(pack: Pack) -> None:
    class Nothing(Known):
        def predict(self, tasks: ImageTasks, adaptation: str = "none") -> Tensor:
            return super().predict(tasks) * float("nan")

    tasks = TargetTasks(pack, CPU, [SHAPE], 2).tasks(SHAPE)
    with pytest.raises(PolyshotError, match="not finite"):
        answer(Nothing(0), tasks, "none", 8)


def test_the_meter_writes_down_who_was_measured_how(pack: Pack, tmp_path: Path) -> None:
    world = World([pack], SMALL, tmp_path, CPU)
    network = ResNet(SMALL.model).eval().requires_grad_(False)
    fitted = Prototypes(network, "cosine", 10.0, AdaptationConfig(steps=2), "a note")
    method = Method("one", "paper", "about", lambda _, __: fitted, settings={"rate": 0.5})
    meter = Meter(world, method, {"rate": 0.25}, fitted)
    result = meter.measure(TargetTasks(pack, CPU, [SHAPE], 5), SHAPE, "head", 4)
    sampler = EpisodeSampler(pack.domain, SHAPE)
    assert (result.method, result.target, result.seen) == ("one", "signs", True)
    assert (result.episodes, len(result.per_episode)) == (4, 4)
    assert result.fingerprint == sampler(0, 4).fingerprint()
    assert result.draw == str(sampler.key)
    assert (result.preset, result.sources, result.train_seed) == ("tiny", ["signs"], 0)
    assert (result.settings, result.note) == ({"rate": 0.25}, "a note")
    assert result.parameters == sum(p.numel() for p in network.parameters())
    assert result.multiply_adds == 25 * pass_cost(SMALL.model, 16)
    assert result.seconds is not None and result.seconds > 0
    assert result.device.startswith("cpu")
    assert result.calibration_error is not None and 0 < result.calibration_error < 1
    with pytest.raises(PolyshotError, match="knows the adaptations none, head, not 'steps'"):
        meter.measure(TargetTasks(pack, CPU, [SHAPE], 5), SHAPE, "steps", 4)


def test_the_note_says_on_how_many_tasks_adaptation_diverged(pack: Pack, tmp_path: Path) -> None:
    config = AdaptationConfig(steps=2, updates=2, rates=(1e38,))
    base = ResNet(SMALL.model)
    pool = Pool(SMALL.model, 16, "conv1x1", "cosine", base, scales=[10.0], adaptation=config)
    fitted = PoolWithRule(pool, "base", [base], "a note")
    world = World([pack], SMALL, tmp_path, CPU)
    method = Method("one", "paper", "about", lambda _, __: fitted, ("none", "head", "tsa"))
    meter = Meter(world, method, {}, fitted)
    target = TargetTasks(pack, CPU, [SHAPE], 4)
    learned = meter.measure(target, SHAPE, "tsa", 3)
    assert learned.note == "a note; adaptation diverged on 3 of 3 tasks; these have none"
    # What diverged before, and in the episodes that were timed, is not counted again.
    assert meter.measure(target, SHAPE, "tsa", 4).note.endswith("on 4 of 4 tasks; these have none")
    plain = meter.measure(target, SHAPE, "none", 3)
    assert plain.note == "a note"
    assert plain.per_episode == learned.per_episode
    assert plain.calibration_error == learned.calibration_error
