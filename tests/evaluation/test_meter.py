"""What measures a trained method on a target."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from polyshot.config import AdaptationConfig
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.meter import Meter, answer, pass_cost, predictor
from polyshot.evaluation.targets import Target
from polyshot.methods.method import Fitted, Method
from polyshot.methods.pool_rules import PoolWithRule
from polyshot.methods.prototypes import Prototypes
from polyshot.models.efficientnet import EfficientNetLite
from polyshot.models.foreign import Foreign
from polyshot.models.resnet import ResNet, ResNetConfig
from polyshot.pool.pool import Pool
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun
from tests.helpers import CPU, SHAPE, TINY, toy_packs


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return toy_packs(tmp_path_factory.mktemp("packs"), "signs", each=8)[0]


def test_a_pass_costs_what_the_literature_says() -> None:
    ours = ResNet(ResNetConfig())
    assert pass_cost(ours, 224) == pytest.approx(1.814e9, rel=0.01)  # He et al.: 1.8e9
    assert pass_cost(ours, 72) == pytest.approx(0.230e9, rel=0.01)
    lite0 = Foreign(EfficientNetLite(), 224, (0.5,) * 3, (0.5,) * 3)
    for size in (224, 72):  # it brings images to its own size; its authors: 0.407e9
        assert pass_cost(lite0, size) == pytest.approx(0.407e9, rel=0.06)


def test_counting_leaves_the_random_state_alone() -> None:
    network = ResNet(ResNetConfig(width=3))
    before = torch.get_rng_state()
    pass_cost(network, 16)
    assert torch.equal(torch.get_rng_state(), before)


class Known(Fitted):
    """Gives the right answer of the first queries of each class, and way 0 for the others."""

    def __init__(self, right: int):
        self.right = right

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
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
    tasks = Target(pack, CPU, [SHAPE], 4).tasks(SHAPE)
    for right in range(4):
        expected = (5 * right + (3 - right)) / 15  # way 0 is right on all its queries
        answered = answer(Known(right), tasks, "none", 8)
        assert answered.accuracies[0].tolist() == pytest.approx([expected] * 4)
        # All answers are given with certainty: they are off by the share of the wrong ones.
        assert answered.calibration_error(0) == pytest.approx(1 - expected, abs=1e-4)
        assert not answered.diverged.any()


def test_how_many_tasks_diverged_is_counted_part_by_part(pack: Pack) -> None:
    class Wild(Known):
        def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
            self.diverged += min(2, len(tasks))
            return super().predict(tasks)

    tasks, wild = Target(pack, CPU, [SHAPE], 5).tasks(SHAPE), Wild(1)
    assert predictor(wild, "none")(tasks).diverged.sum() == 2
    assert predictor(wild, "none")(tasks.part(slice(0, 1))).diverged.tolist() == [[True]]


def test_the_meter_writes_down_who_was_measured_how(pack: Pack, tmp_path: Path) -> None:
    world = TrainingRun([pack], TINY, tmp_path, CPU)
    network = ResNet(TINY.model).eval().requires_grad_(False)
    fitted = Prototypes(network, "cosine", 10.0, AdaptationConfig(steps=2), "a note")
    method = Method(
        "one",
        "paper",
        "about",
        lambda _, __: fitted,
        settings={"rate": 0.5},
        training_episodes=lambda run, settings: len(run.packs) + round(4 * settings["rate"]),
    )
    meter = Meter(world, method, {"rate": 0.25}, fitted)
    result = meter.measure(Target(pack, CPU, [SHAPE], 5), SHAPE, "head", 4)
    assert result.training_episodes == 2
    sampler = EpisodeSampler(pack.domain, SHAPE)
    assert (result.method, result.target, result.seen) == ("one", "signs", True)
    assert (result.episodes, len(result.per_episode)) == (4, 4)
    assert result.fingerprint == sampler(0, 4).fingerprint()
    assert result.draw == str(sampler.key)
    assert (result.preset, result.sources, result.train_seed) == ("tiny", ["signs"], 0)
    assert (result.settings, result.note) == ({"rate": 0.25}, "a note")
    assert result.parameters == sum(p.numel() for p in network.parameters())
    assert result.multiply_adds == 25 * pass_cost(network, 16)
    assert result.seconds is not None and result.seconds > 0
    assert result.device.startswith("cpu")
    assert result.calibration_error is not None and 0 < result.calibration_error < 1
    with pytest.raises(PolyshotError, match="knows the adaptations none, head, ridge, not 'steps'"):
        meter.measure(Target(pack, CPU, [SHAPE], 5), SHAPE, "steps", 4)


def test_the_note_says_on_how_many_tasks_adaptation_diverged(pack: Pack, tmp_path: Path) -> None:
    config = AdaptationConfig(steps=2, updates=2, rates=(1e38,))
    base = ResNet(TINY.model)
    pool = Pool(TINY.model, 16, "conv1x1", "cosine", base, scales=[10.0], adaptation=config)
    fitted = PoolWithRule(pool, "base", "a note")
    world = TrainingRun([pack], TINY, tmp_path, CPU)
    method = Method("one", "paper", "about", lambda _, __: fitted, ("none", "head", "tsa"))
    meter = Meter(world, method, {}, fitted)
    target = Target(pack, CPU, [SHAPE], 4)
    learned = meter.measure(target, SHAPE, "tsa", 3)
    assert learned.note == "a note; adaptation diverged on 3 of 3 tasks; these have none"
    # What diverged before, and in the episodes that were timed, is not counted again.
    assert meter.measure(target, SHAPE, "tsa", 4).note.endswith("on 4 of 4 tasks; these have none")
    plain = meter.measure(target, SHAPE, "none", 3)
    assert plain.note == "a note"
    assert plain.per_episode == learned.per_episode
    assert plain.calibration_error == learned.calibration_error
