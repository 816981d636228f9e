"""What every method must do, whichever it is: one that is registered is tested here.

Rules over the pool share their code: each is tested once without adaptation, and an adaptation once
for each kind of modulator and of mixing. A rival is tested with every adaptation that it knows.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape, VariableShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.evaluate import measure
from polyshot.evaluation.meter import predictor
from polyshot.evaluation.targets import Target
from polyshot.methods.method import METHODS, Fitted, check_adaptation, find_methods
from polyshot.predict.rules import RULES
from polyshot.tasks import Table, Tasks
from polyshot.training.training_run import TrainingRun
from polyshot.util.tensors import read_weights
from tests.helpers import (
    CPU,
    LEARNED,
    files_of,
    from_table,
    make_run,
    pack_of,
    tasks_of,
    until_done,
)


def distinct_paths() -> Iterator[tuple[str, str]]:
    """Yield methods with their adaptations, but what runs the same code only once."""
    known = set()
    for method in find_methods():
        for adaptation in method.adaptations:
            if method.pool is not None and adaptation != "none":
                mixes = RULES[method.name.removesuffix("-channel")].mixes
                path = method.pool, mixes, adaptation
                if path in known:
                    continue
                known.add(path)
            yield method.name, adaptation


PATHS = list(distinct_paths())
every_method = pytest.mark.parametrize("name", [method.name for method in find_methods()])
every_path = pytest.mark.parametrize(("name", "adaptation"), PATHS)
USUAL = EpisodeShape(5, 2, 3)


def test_every_path_is_among_those_that_are_tested() -> None:
    over_pool = {
        (METHODS[name].pool, RULES[name.removesuffix("-channel")].mixes, adaptation)
        for name, adaptation in PATHS
        if METHODS[name].pool is not None
    }
    for mixes in ("probabilities", "scores", "modulators"):
        for adaptation in ("none", "head", "ridge", "pa", "tsa"):
            assert ("conv1x1", mixes, adaptation) in over_pool
    assert ("channel", "probabilities", "head") in over_pool
    rivals = [method for method in find_methods() if method.pool is None]
    assert len(rivals) >= 8
    assert {(m.name, a) for m in rivals for a in m.adaptations} <= set(PATHS)
    assert {name for name, adaptation in PATHS if adaptation == "none"} == set(METHODS)


def adaptations_of(name: str) -> list[str]:
    """Those of a method that are tested."""
    return [adaptation for other, adaptation in PATHS if other == name]


class Fits:
    """Methods fitted in one world, each when it is asked for."""

    def __init__(self, world: TrainingRun, packs: list[Pack]):
        self.world, self.packs = world, packs
        self._fitted: dict[str, Fitted] = {}
        self._answers: dict[tuple[str, str], Tensor] = {}

    def __call__(self, name: str) -> Fitted:
        if name not in self._fitted:
            self._fitted[name] = fit(name, self.world)
        return self._fitted[name]

    def answers(self, name: str, adaptation: str) -> Tensor:
        """Classify the usual tasks, once: several tests compare with what comes out."""
        if (name, adaptation) not in self._answers:
            tasks = tasks_of(self.packs[0], USUAL)
            self._answers[name, adaptation] = self(name).predict(tasks, adaptation)
        return self._answers[name, adaptation]


def fit(name: str, world: TrainingRun) -> Fitted:
    """Fit a method with its own settings, but with few steps on a support set."""
    settings = METHODS[name].settings
    fewer = {key: min(value, 3) for key, value in settings.items() if key.endswith("steps")}
    return METHODS[name].fit(world, {**settings, **fewer})


@pytest.fixture(scope="session")
def fitted(world: TrainingRun, packs: list[Pack]) -> Fits:
    return Fits(world, packs)


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


def chance_states() -> tuple[Tensor, object, str]:
    return torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


@dataclass(frozen=True)
class Resumed:
    """A method that was interrupted again and again while it was fitted."""

    fitted: Fitted
    interrupt: Interrupt
    before: tuple[Tensor, object, str]
    """States of the generators, others than those of the world that nothing interrupted."""
    after: tuple[Tensor, object, str]


class Resumptions:
    """The same world in another folder: each method is fitted there when it is asked for."""

    def __init__(self, packs: list[Pack], folder: Path):
        self.packs, self.folder = packs, folder
        self._resumed: dict[str, Resumed] = {}

    def __call__(self, name: str) -> Resumed:
        if name not in self._resumed:
            interrupt = Interrupt()
            torch.manual_seed(1234)
            before = chance_states()
            made, _ = until_done(  # each time as a new process would
                lambda: fit(name, make_run(self.packs, self.folder, interrupt, LEARNED))
            )
            self._resumed[name] = Resumed(made, interrupt, before, chance_states())
        return self._resumed[name]


@pytest.fixture(scope="session")
def resumed(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> Resumptions:
    return Resumptions(packs, tmp_path_factory.mktemp("interrupted"))


@every_path
@pytest.mark.parametrize(
    "shape",
    [EpisodeShape(2, 1, 3), EpisodeShape(5, 5, 3), EpisodeShape(20, 1, 1)],
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


@every_path
def test_the_same_question_has_the_same_answer(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    first = fitted(name).predict(tasks_of(packs[1], USUAL), adaptation)
    fitted(name).predict(tasks_of(packs[0], USUAL, seed=1), adaptation)  # leaves nothing behind
    assert torch.equal(first, fitted(name).predict(tasks_of(packs[1], USUAL), adaptation))


@every_path
def test_it_looks_at_images_as_often_as_it_is_told(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks = tasks_of(packs[1], USUAL, count=2)
    once, often = (
        fitted(name).predict(replace(tasks, table=replace(tasks.table, views=views)), adaptation)
        for views in ("one", "three")
    )
    torch.testing.assert_close(often.sum(-1), torch.ones(often.shape[:2]))
    assert not torch.allclose(once, often, atol=1e-4)


@every_path
def test_no_query_changes_the_answer_to_another(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks, whole = tasks_of(packs[0], USUAL), fitted.answers(name, adaptation)
    for chosen in ([4], [14, 0, 7, 3, 3]):
        some = replace(tasks, query=tasks.query[:, chosen])
        answers = fitted(name).predict(some, adaptation)
        # What is learned by gradient rounds more: in float32 by twice 1e-5 on some processors.
        room = 1e-5 if adaptation == "none" else 1e-4
        torch.testing.assert_close(answers, whole[:, chosen], atol=room, rtol=0)


@every_path
def test_episodes_do_not_depend_on_their_company(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    tasks, whole = tasks_of(packs[0], USUAL), fitted.answers(name, adaptation)
    for rows in (slice(2, 3), torch.tensor([2, 0, 1, 1])):
        answers = fitted(name).predict(tasks.part(rows), adaptation)
        torch.testing.assert_close(answers, whole[rows], atol=1e-5, rtol=0)


@every_path
def test_the_order_of_classes_is_only_a_name(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    if name == "finetune":
        pytest.skip("its random layer starts differently for each class")
    tasks, order = tasks_of(packs[0], USUAL), [3, 0, 4, 1, 2]
    renamed = replace(tasks, support=tasks.support[:, order])
    answers, whole = fitted(name).predict(renamed, adaptation), fitted.answers(name, adaptation)
    torch.testing.assert_close(answers, whole[..., order], atol=1e-4, rtol=0)


# --- uneven tasks


@every_path
def test_what_the_mask_hides_changes_nothing(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    """A hidden place may hold any image, or not be there at all."""
    tasks = tasks_of(packs[0], EpisodeShape(5, 3, 2), count=2)
    whole = fitted(name).predict(tasks, adaptation)
    other = torch.randint(0, tasks.table.count, (2, 5, 2), generator=draw(0))
    for hidden in (other, torch.full_like(other, -1)):
        shown = torch.ones(2, 5, 3, dtype=torch.bool)
        padded = replace(
            tasks,
            support=torch.cat([tasks.support, hidden], 2),
            mask=torch.cat([shown, torch.zeros(2, 5, 2, dtype=torch.bool)], 2),
        )
        answers = fitted(name).predict(padded, adaptation)
        torch.testing.assert_close(answers, whole, atol=1e-4, rtol=0)


@every_path
def test_uneven_shots_are_the_images_that_are_there(
    name: str, adaptation: str, fitted: Fits, packs: list[Pack]
) -> None:
    """Which image stands in a hidden place does not matter, which in another does."""
    tasks = tasks_of(packs[1], EpisodeShape(5, 4, 2), count=2)
    mask = torch.arange(4) < torch.tensor([[4, 1, 2, 3, 4], [2, 2, 1, 4, 3]])[..., None]
    uneven = replace(tasks, mask=mask)
    answers = fitted(name).predict(uneven, adaptation)
    torch.testing.assert_close(answers.sum(-1), torch.ones(answers.shape[:2]))
    other = torch.randint(0, tasks.table.count, (2, 5, 4), generator=draw(1))
    changed = replace(uneven, support=tasks.support.where(mask, other))
    torch.testing.assert_close(
        fitted(name).predict(changed, adaptation), answers, atol=1e-5, rtol=0
    )
    assert not torch.allclose(fitted(name).predict(tasks, adaptation), answers, atol=1e-4)


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


VARIABLE = VariableShape(min_way=5, max_way=7, max_queries=2, max_support=20)


@pytest.fixture(scope="session")
def uneven_pack() -> Pack:
    return pack_of([4, 5, 6, 8, 12, 16, 7, 9, 11, 5], "uneven")


@every_path
def test_variable_ways_and_shots_are_those_of_episodes_one_by_one(
    name: str, adaptation: str, fitted: Fits, uneven_pack: Pack
) -> None:
    count = 3
    target = Target(uneven_pack, CPU, [VARIABLE], count)
    groups = target.groups(VARIABLE)
    assert len(groups) > 1, "several ways"
    assert any(tasks.mask is not None and not tasks.mask.all() for _, tasks in groups)
    dim = LEARNED.model.dim
    measured = measure(predictor(fitted(name), adaptation), groups, dim, adaptation)
    drawn = EpisodeSampler(uneven_pack.domain, VARIABLE)(0, count)
    images = Table.of(uneven_pack.images, CPU)
    for e in range(count):
        way = int((drawn.classes[e] >= 0).sum())
        support = [row[row >= 0] for row in drawn.support[e, :way]]
        query = [row[row >= 0] for row in drawn.query[e, :way]]
        mask = torch.zeros(1, way, max(map(len, support)), dtype=torch.bool)
        places = torch.zeros(mask.shape, dtype=torch.int64)
        for c, own in enumerate(support):
            mask[0, c, : len(own)], places[0, c, : len(own)] = True, own
        task = Tasks(images, torch.cat(query)[None], places, mask)
        answers = fitted(name).predict(task, adaptation)[0]  # [Q, W]
        labels = torch.arange(way).repeat_interleave(torch.tensor([len(own) for own in query]))
        there = measured.there[e]
        assert int(there.sum()) == len(labels)
        right, sure = measured.right[0, e][there], measured.sure[0, e][there]
        torch.testing.assert_close(answers.amax(-1), sure, atol=1e-4, rtol=0)
        assert torch.equal(answers.argmax(-1) == labels, right)
        assert float(measured.accuracies[0, e]) == pytest.approx(float(right.double().mean()))


def colours() -> Tasks:
    """Episodes of six colours with noise: any network that is not broken tells them apart."""
    draw = torch.Generator().manual_seed(0)
    corners = torch.tensor(
        [[220, 40, 40], [40, 200, 40], [40, 40, 220], [210, 210, 40], [40, 200, 210], [30, 30, 30]]
    )
    noise = 10 * torch.randn(6, 8, 3, 16, 16, generator=draw)
    images = (corners[:, None, :, None, None] + noise).clamp(0, 255).byte()
    classes = torch.stack([torch.randperm(6, generator=draw)[:5] for _ in range(8)])  # [E, W]
    places = 8 * classes.unsqueeze(-1) + torch.arange(8)  # [E, W, 8]
    return from_table(images.flatten(0, 1), places[..., :4], places[..., 4:].flatten(1))


@every_path
def test_a_problem_that_it_must_solve(name: str, adaptation: str, fitted: Fits) -> None:
    answers = fitted(name).predict(colours(), adaptation)
    right = torch.arange(5).repeat_interleave(4)
    assert (answers.argmax(-1) == right).float().mean() > 0.9


@every_method
def test_chance_is_the_worlds_alone(
    name: str, fitted: Fits, resumed: Resumptions, packs: list[Pack]
) -> None:
    """Another folder and another state of the generators: the same bits, and states as before."""
    tasks, again = tasks_of(packs[0], USUAL), resumed(name)
    torch.manual_seed(1234)
    before = chance_states()
    for adaptation in adaptations_of(name):
        answers = again.fitted.predict(tasks, adaptation)
        assert torch.equal(answers, fitted.answers(name, adaptation))
    for one, other in ((before, chance_states()), (again.before, again.after)):
        assert torch.equal(one[0], other[0])
        assert one[1:] == other[1:]


@every_method
def test_what_is_trained_is_read(
    name: str, fitted: Fits, world: TrainingRun, packs: list[Pack]
) -> None:
    tasks, note = tasks_of(packs[0], USUAL), fitted(name).note
    before = files_of(world.folder)

    def refuse(step: str, done: int, total: int) -> None:
        raise AssertionError(f"{step} is trained again")

    again = fit(name, make_run(packs, world.folder, refuse, LEARNED))
    assert files_of(world.folder) == before
    assert again.note == note
    for adaptation in adaptations_of(name):
        answers = again.predict(tasks, adaptation)
        assert torch.equal(answers, fitted.answers(name, adaptation))


@every_method
def test_interrupted_again_and_again_nothing_is_left(name: str, resumed: Resumptions) -> None:
    """That it then answers to the bit as what nobody interrupted is tested above."""
    again = resumed(name)
    assert len(again.interrupt.stopped) == 2 * len(again.interrupt.told)
    assert not list(resumed.folder.rglob("*.pt"))


@every_path
def test_costs_are_counted(name: str, adaptation: str, fitted: Fits, world: TrainingRun) -> None:
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
    assert re.search(r"\((.*, )?(19|20)\d\d\)", method.paper), "a paper has a year"
    assert method.about and "\n" not in method.about
    assert method.adaptations[0] == "none"
    assert set(method.slow) <= set(method.adaptations)
    assert set(method.grid) <= set(method.settings)
    points = np.prod([len(values) for values in method.grid.values()])
    assert points <= 8, "a small grid"
    assert method.tuned_with in method.adaptations


TRAINED = [method.name for method in find_methods() if "fall_back" in method.settings]
"""Rivals that are trained by episodes, from the base."""


def test_trained_rivals_have_the_budget_of_all_modulators(world: TrainingRun) -> None:
    own = world.config.modulator
    wanted = len(world.packs) * own.steps * own.episodes
    assert TRAINED == ["protonet", "feat", "protomaml", "tadam"]
    for name in [*TRAINED, "select", "average-channel", "auto"]:
        method = METHODS[name]
        assert method.training_episodes(world, method.settings) == wanted, name
    for name in ("base", "finetune", "finetune-all"):
        assert METHODS[name].training_episodes(world, METHODS[name].settings) == 0, name
    scratch = METHODS["simple-avg"]
    assert scratch.training_episodes(world, scratch.settings) == 2.5 * wanted


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_that_only_harms_falls_back_to_its_start(name: str, world: TrainingRun) -> None:
    few = {key: 2 for key in METHODS[name].settings if key.endswith("steps")}
    for fall_back in (1, 0):
        harm = {**METHODS[name].settings, **few, "learning_rate": 3.0, "fall_back": fall_back}
        METHODS[name].fit(world, harm)
        file = max(world.out.glob(f"rivals/{name}-*.safetensors"), key=lambda f: f.stat().st_mtime)
        assert (read_weights(file)[1]["best"] == 0) == bool(fall_back)
        looks = [json.loads(line) for line in metrics_of(file).read_text().splitlines()]
        seen = {look["number"]: look["validation"] for look in looks if "validation" in look}
        assert (0 in seen) == bool(fall_back)
        if fall_back:
            assert seen[0] == max(seen.values())


def metrics_of(file: Path) -> Path:
    return file.with_name(f"{file.stem}-metrics.jsonl")


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
