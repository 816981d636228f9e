"""What every method must do, whichever it is: one that is registered is tested here."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.errors import PolyshotError
from polyshot.methods.image_tasks import ImageTasks
from polyshot.methods.method import METHODS, Fitted, check_adaptation, find_methods
from polyshot.training.world import World

from .conftest import from_table, make_world, tasks_of

every_method = pytest.mark.parametrize("name", [method.name for method in find_methods()])
every_adaptation = pytest.mark.parametrize(
    ("name", "adaptation"), [(m.name, a) for m in find_methods() for a in m.adaptations]
)
USUAL = EpisodeShape(5, 2, 3)


class Fits:
    """Methods fitted in one world, each when it is asked for."""

    def __init__(self, world: World):
        self.world = world
        self._fitted: dict[str, Fitted] = {}

    def __call__(self, name: str) -> Fitted:
        if name not in self._fitted:
            self._fitted[name] = fit(name, self.world)
        return self._fitted[name]


def fit(name: str, world: World) -> Fitted:
    """Fit a method with its own settings, but with few steps on a support set."""
    settings = METHODS[name].settings
    fewer = {key: min(value, 3) for key, value in settings.items() if key.endswith("steps")}
    return METHODS[name].fit(world, {**settings, **fewer})


@pytest.fixture(scope="session")
def fitted(world: World) -> Fits:
    return Fits(world)


@pytest.fixture(scope="session")
def other_world(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same world in another folder."""
    return make_world(packs, tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="session")
def interrupted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interrupted")


@every_adaptation
@pytest.mark.parametrize(
    "shape",
    [EpisodeShape(2, 1, 3), EpisodeShape(5, 5, 3), EpisodeShape(7, 3, 1), EpisodeShape(20, 1, 1)],
    ids=str,
)
def test_probabilities_of_any_way_and_shot(
    shape: EpisodeShape, name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks = tasks_of(packs[0], shape)
    answers = fitted(name).predict(tasks, adaptation)
    assert answers.shape == (3, shape.way * shape.queries, shape.way)
    assert answers.dtype == torch.float32
    assert not answers.requires_grad
    assert answers.min() >= 0
    torch.testing.assert_close(answers.sum(-1), torch.ones(answers.shape[:2]))
    assert answers.std(1).max() > 1e-4, "all queries have the same answer"


@every_adaptation
def test_the_same_question_has_the_same_answer(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    first = fitted(name).predict(tasks_of(packs[1], USUAL), adaptation)
    fitted(name).predict(tasks_of(packs[0], USUAL, seed=1), adaptation)  # leaves nothing behind
    assert torch.equal(first, fitted(name).predict(tasks_of(packs[1], USUAL), adaptation))


@every_adaptation
def test_it_looks_at_images_as_often_as_it_is_told(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks = tasks_of(packs[1], USUAL, count=2)
    once, often = (
        fitted(name).predict(replace(tasks, views=views), adaptation) for views in ("one", "three")
    )
    torch.testing.assert_close(often.sum(-1), torch.ones(often.shape[:2]))
    assert not torch.allclose(once, often, atol=1e-4)


@every_adaptation
def test_no_query_changes_the_answer_to_another(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks = tasks_of(packs[0], USUAL)
    whole = fitted(name).predict(tasks, adaptation)
    for chosen in ([4], [14, 0, 7, 3], [*range(15), 2, 2]):
        some = ImageTasks(tasks.take, tasks.count, tasks.support, tasks.query[:, chosen])
        answers = fitted(name).predict(some, adaptation)
        torch.testing.assert_close(answers, whole[:, chosen], atol=1e-5, rtol=0)


@every_adaptation
def test_episodes_do_not_depend_on_their_company(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks = tasks_of(packs[1], USUAL, count=6)
    whole = fitted(name).predict(tasks, adaptation)
    for rows in (slice(2, 3), slice(1, 5)):
        answers = fitted(name).predict(tasks.part(rows), adaptation)
        torch.testing.assert_close(answers, whole[rows], atol=1e-5, rtol=0)


@every_adaptation
def test_the_order_of_classes_is_only_a_name(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    if name == "finetune":
        pytest.skip("its random layer starts differently for each class")
    tasks, order = tasks_of(packs[0], USUAL), [3, 0, 4, 1, 2]
    renamed = ImageTasks(tasks.take, tasks.count, tasks.support[:, order], tasks.query)
    answers = fitted(name).predict(renamed, adaptation)
    whole = fitted(name).predict(tasks, adaptation)
    torch.testing.assert_close(answers, whole[..., order], atol=1e-4, rtol=0)


def colours() -> ImageTasks:
    """Episodes of six colours with noise: any network that is not broken tells them apart."""
    draw = torch.Generator().manual_seed(0)
    corners = torch.tensor(
        [[220, 40, 40], [40, 200, 40], [40, 40, 220], [210, 210, 40], [40, 200, 210], [30, 30, 30]]
    )
    noise = 25 * torch.randn(6, 8, 3, 16, 16, generator=draw)
    images = (corners[:, None, :, None, None] + noise).clamp(0, 255).byte()
    classes = torch.stack([torch.randperm(6, generator=draw)[:5] for _ in range(8)])  # [E, W]
    places = 8 * classes.unsqueeze(-1) + torch.arange(8)  # [E, W, 8]
    return from_table(images.flatten(0, 1), places[..., :4], places[..., 4:].flatten(1))


@every_adaptation
def test_a_problem_that_it_must_solve(name: str, adaptation: str, fitted: Fits) -> None:
    answers = fitted(name).predict(colours(), adaptation)
    right = torch.arange(5).repeat_interleave(4)
    assert (answers.argmax(-1) == right).float().mean() > 0.9


def chance_states() -> tuple[Tensor, object, str]:
    return torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


@every_method
def test_chance_is_the_worlds_alone(
    name: str, fitted: Fits, other_world: World, packs: list[Pack]
) -> None:
    """Another folder and another state of the generators: the same bits, and states as before."""
    tasks = tasks_of(packs[0], USUAL)
    expected = {a: fitted(name).predict(tasks, a) for a in METHODS[name].adaptations}
    torch.manual_seed(1234)
    before = chance_states()
    again = fit(name, other_world)
    for adaptation, answers in expected.items():
        assert torch.equal(again.predict(tasks, adaptation), answers)
    after = chance_states()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@every_method
def test_what_is_trained_is_read(name: str, fitted: Fits, world: World, packs: list[Pack]) -> None:
    tasks = tasks_of(packs[0], USUAL)
    expected = {a: fitted(name).predict(tasks, a) for a in METHODS[name].adaptations}
    before = files_of(world.folder)

    def refuse(step: str, done: int, total: int) -> None:
        raise AssertionError(f"{step} is trained again")

    again = fit(name, make_world(packs, world.folder, refuse))
    assert files_of(world.folder) == before
    assert again.note == fitted(name).note
    for adaptation, answers in expected.items():
        assert torch.equal(again.predict(tasks, adaptation), answers)


class Interrupt:
    """A progress callback that raises KeyboardInterrupt after two updates of each step."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.stopped: set[tuple[str, int]] = set()

    def __call__(self, step: str, done: int, total: int) -> None:
        if step.startswith("embed"):  # which starts again every time
            return
        self.told.add(step)
        if len({where for name, where in self.stopped if name == step}) < 2:
            self.stopped.add((step, done))
            raise KeyboardInterrupt


@every_method
def test_interrupted_again_and_again_it_ends_with_the_same_bits(
    name: str, fitted: Fits, interrupted_folder: Path, packs: list[Pack]
) -> None:
    interrupt = Interrupt()
    while True:  # each time as a new process would
        try:
            again = fit(name, make_world(packs, interrupted_folder, interrupt))
            break
        except KeyboardInterrupt:
            continue
    assert len(interrupt.stopped) == 2 * len(interrupt.told)
    tasks = tasks_of(packs[0], USUAL)
    for adaptation in METHODS[name].adaptations:
        expected = fitted(name).predict(tasks, adaptation)
        assert torch.equal(again.predict(tasks, adaptation), expected)
    assert not list(interrupted_folder.rglob("*.pt"))


@every_adaptation
def test_costs_are_counted(name: str, adaptation: str, fitted: Fits, world: World) -> None:
    base = sum(parameter.numel() for parameter in world.base().parameters())
    assert fitted(name).parameters() >= base
    small, large = EpisodeShape(5, 1, 10), EpisodeShape(5, 5, 10)
    images = large.way * (large.shot + large.queries)
    assert fitted(name).passes(large, adaptation) >= images
    assert fitted(name).passes(large, adaptation) > fitted(name).passes(small, adaptation) > 0


@every_method
def test_it_says_what_it_is(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert "20" in method.paper, "a paper has a year"
    assert method.about and "\n" not in method.about
    assert method.adaptations[0] == "none"
    assert set(method.slow) <= set(method.adaptations)
    assert set(method.grid) <= set(method.settings)
    points = np.prod([len(values) for values in method.grid.values()])
    assert points <= 6, "a small grid"


@every_method
def test_unknown_adaptations_are_refused(name: str) -> None:
    for adaptation in METHODS[name].adaptations:
        check_adaptation(METHODS[name], adaptation)
    with pytest.raises(PolyshotError, match=rf"'{name}' knows the adaptations none.*not 'wings'"):
        check_adaptation(METHODS[name], "wings")


def test_unknown_methods_are_refused_with_a_hint() -> None:
    with pytest.raises(PolyshotError, match=r"no method 'protonte'.*Did you mean 'protonet'"):
        find_methods(["protonte"])
    assert [method.name for method in find_methods(["feat", "base"])] == ["feat", "base"]
