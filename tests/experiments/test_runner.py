"""Grids of cells: what is missing is run, nothing twice, and a failure stops nobody else."""

import json
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.engines import Event, Job
from polyshot.engines.local import Local
from polyshot.errors import PolyshotError
from polyshot.evaluation.evaluate import evaluate
from polyshot.evaluation.results import Result
from polyshot.experiments import jobs
from polyshot.experiments.grid import read_grid
from polyshot.experiments.run import BAR, Summary
from polyshot.methods.method import METHODS, Fitted, Method, find_methods
from polyshot.pool.pool import Pool
from polyshot.tasks import Tasks
from polyshot.training.training_run import TrainingRun
from polyshot.util.files import locked, read_json
from tests.helpers import SHAPE, files_of, pack_of

from .small_worlds import OTHER, SMALL, run_grid

pytestmark = pytest.mark.usefixtures("one_thread", "small_shape")


def run(packs: list[Pack], out: Path, *names: str, **changes: Any) -> Summary:
    return run_grid(packs, out, *names, **({"methods": ["base", "finetune"]} | changes))


def results(out: Path) -> list[Result]:
    return read_grid(out).results


def key(result: Result) -> tuple[object, ...]:
    return (
        *(result.protocol, result.method, result.target, result.shot, result.adaptation),
        *(result.sources, result.train_seed),
    )


def numbers(out: Path) -> dict[str, list[float]]:
    return {str(key(result)): result.per_episode for result in results(out)}


def failures(out: Path) -> list[dict[str, str]]:
    files = sorted((out / "failures").glob("*.json"))
    return [json.loads(file.read_text()) for file in files]


class Fixed(Fitted):
    """Always answers way 0."""

    calls = 0

    def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
        Fixed.calls += len(tasks) == 4  # timing takes other numbers
        return torch.eye(tasks.way)[0].expand(len(tasks), tasks.query.shape[1], -1)

    def parameters(self) -> int:
        return 1

    def passes(self, shape: EpisodeShape, adaptation: str = "none") -> float:
        return 1


@pytest.fixture
def add_method(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers a method for one test."""
    find_methods()

    def add(name: str, fit: Callable[..., Fitted], **changes: Any) -> None:
        monkeypatch.setitem(METHODS, name, Method(name, "paper", "about", fit, **changes))

    return add


@pytest.fixture(scope="module")
def finished(
    packs: list[Pack], tmp_path_factory: pytest.TempPathFactory, small_shape: None
) -> Path:
    """A grid with all its cells: leave it as it is."""
    out = tmp_path_factory.mktemp("finished") / "grid"
    run(packs, out)
    return out


@pytest.fixture
def grid(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "grid"))


@pytest.fixture(scope="module")
def whole(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory, small_shape: None) -> Path:
    """A grid of two methods that was never interrupted: leave it as it is."""
    out = tmp_path_factory.mktemp("whole") / "grid"
    run(packs, out, methods=["base", "protonet"])
    return out


# --- what is run


def test_what_is_there_is_not_run_again(packs: list[Pack], tmp_path: Path) -> None:
    methods = ["base", "finetune", "protonet"]
    done = run(packs, tmp_path, methods=methods, command="polyshot reproduce seen")
    assert (done.cells, done.measured, done.before, done.failed) == (10, 10, 0, [])
    found = {key(result)[:5] for result in results(tmp_path)}
    assert found == {
        ("seen", method, target, 2, adaptation)
        for method, adaptations in (
            ("base", ("none", "head")),
            ("finetune", ("none",)),
            ("protonet", ("none", "head")),
        )
        for adaptation in adaptations
        for target in ("signs", "textures")
    }
    before = files_of(tmp_path)
    again = run(packs, tmp_path, methods=methods, command="polyshot reproduce seen")
    assert (again.measured, again.before) == (0, 10)
    assert files_of(tmp_path) == before


def test_a_finished_world_is_never_built(packs: list[Pack], grid: Path) -> None:
    shutil.rmtree(grid / "worlds")
    assert run(packs, grid).measured == 0
    assert not (grid / "worlds").exists()


def test_only_a_missing_cell_is_measured_to_the_same_numbers(packs: list[Pack], grid: Path) -> None:
    before = numbers(grid)
    (gone,) = (grid / "results").rglob("*finetune*/seen-signs-*.jsonl")
    gone.unlink()
    assert run(packs, grid).measured == 1
    assert numbers(grid) == before


def test_more_protocols_methods_and_seeds_share_a_folder(packs: list[Pack], grid: Path) -> None:
    done = run(packs, grid, "seen", "unseen", seeds=2, adapt=False)
    assert done.cells == 2 * 2 * (2 + 3)
    assert done.before == 4
    found = [key(result)[0:5:2] + key(result)[5:] for result in results(grid)]
    assert ("unseen", "signs", "none", ["textures"], 1) in found
    assert ("unseen", "other", "none", ["signs", "textures"], 0) in found
    assert {result.seen for result in results(grid) if result.protocol == "unseen"} == {False}
    names = sorted(folder.name for folder in (grid / "worlds").iterdir())
    assert len(names) == 6  # two seeds of both sources and of each alone


def test_targets_restrict_what_is_trained(packs: list[Pack], tmp_path: Path) -> None:
    done = run(packs, tmp_path, "unseen", targets=["signs"], methods=["base"])
    assert done.cells == 2
    (world,) = (tmp_path / "worlds").iterdir()
    assert json.loads((world / "world.json").read_text())["sources"] == ["textures"]


def test_one_measurement_serves_several_protocols(
    packs: list[Pack], tmp_path: Path, add_method: Callable[..., None]
) -> None:
    add_method("fixed", lambda _, __: Fixed(), adaptations=("none",), slow=("none",))
    Fixed.calls = 0
    done = run(packs, tmp_path, "seen", "sources-2", methods=["fixed"], others=[])
    assert (done.cells, Fixed.calls) == (2, 2)
    assert {key(result)[0] for result in results(tmp_path)} == {"seen", "sources-2"}
    first, second = (
        {
            result.target: replace(result, protocol="")
            for result in results(tmp_path)
            if mine(result)
        }
        for mine in (lambda r: r.protocol == "seen", lambda r: r.protocol == "sources-2")
    )
    assert first == second


def test_a_later_protocol_takes_what_an_earlier_one_measured(
    packs: list[Pack], tmp_path: Path, add_method: Callable[..., None]
) -> None:
    run(packs, tmp_path, methods=["select"], adapt=False, others=[])
    seen = read_json(next((tmp_path / "shares").glob("seen-*.json")))
    shutil.rmtree(tmp_path / "worlds")  # nothing may be trained for it
    done = run(packs, tmp_path, "sources-2", methods=["select"], adapt=False, others=[])
    assert (done.cells, done.measured, done.before) == (2, 0, 2)
    assert not (tmp_path / "worlds").exists()
    later = read_json(next((tmp_path / "shares").glob("sources-2-*.json")))
    assert later == {**seen, "protocol": "sources-2"}


def test_slow_adaptations_take_the_first_episodes(packs: list[Pack], tmp_path: Path) -> None:
    options = {"methods": ["finetune-all"], "overrides": {"finetune-all": {"steps": 1}}}
    run(packs, tmp_path / "few", slow_episodes=2, **options)
    run(packs, tmp_path / "all", **options)
    few, every = (numbers(tmp_path / name) for name in ("few", "all"))
    assert few == {name: accuracies[:2] for name, accuracies in every.items()}
    draws = [{r.target: r.draw for r in results(tmp_path / name)} for name in ("few", "all")]
    assert draws[0] == draws[1]
    assert all(result.settings["steps"] == 1 for result in results(tmp_path / "few"))


def test_adaptations_may_be_named(packs: list[Pack], tmp_path: Path) -> None:
    """Then others do not count, be they the paper's or not."""
    few = {"methods": ["base", "protonet"], "targets": ["signs"]}
    run(packs, tmp_path, adaptations=["head", "pa"], **few)
    found = {(result.method, result.adaptation) for result in results(tmp_path)}
    assert found == {("base", "head"), ("base", "pa"), ("protonet", "head")}


def test_it_measures_what_evaluate_measures(packs: list[Pack], tmp_path: Path) -> None:
    methods = ["base", "select", "average"]
    run(packs, tmp_path, methods=methods)
    (path,) = (tmp_path / "worlds").glob("*/pool-conv1x1/pool")
    expected = {
        (result.method, result.target, result.adaptation): result
        for pack in packs
        for result in evaluate(Pool.load(path), pack, methods, SHAPE, episodes=4, adapt=True)
    }
    found = results(tmp_path)
    assert len(found) == len(expected) == 12
    for result in found:
        other = expected[result.method, result.target, result.adaptation]
        assert result.fingerprint == other.fingerprint and result.draw == other.draw
        assert result.per_episode == pytest.approx(other.per_episode, abs=0.07)  # one near tie


def test_contributions_count_right_predictions(packs: list[Pack], tmp_path: Path) -> None:
    done = run(packs, tmp_path, "contributions", methods=[])
    assert (done.cells, done.failed) == (3, [])
    files = (tmp_path / "contributions").glob("*.json")
    found = [json.loads(file.read_text()) for file in files]
    assert {counted["target"] for counted in found} == {"signs", "textures", "other"}
    for counted in found:
        assert counted["queries"] == 15
        assert counted["methods"]["simple-avg"]["members"] == ["signs", "textures"]
        assert counted["methods"]["average"]["members"] == ["base", "signs", "textures"]
        for own in counted["methods"].values():
            assert len(own["correct"]) == 40
            assert all(0 <= count <= 15 for episode in own["correct"] for count in episode)
    assert run(packs, tmp_path, "contributions", methods=[]).measured == 0


def test_shares_say_which_members_were_selected(packs: list[Pack], tmp_path: Path) -> None:
    run(packs, tmp_path, methods=["select"])
    (shares,) = read_grid(tmp_path).shares
    assert shares.members == ["base", "signs", "textures"]
    assert set(shares.targets) == {"signs", "textures"}
    for row in shares.targets.values():
        assert sum(row) == pytest.approx(1, abs=1e-3)


def test_the_folder_says_what_was_run(packs: list[Pack], tmp_path: Path) -> None:
    for command in ("one", "two", "one"):
        run(packs, tmp_path, command=command)
    noted = read_grid(tmp_path).environment
    assert noted["commands"] == ["one", "two"]
    assert noted["packs"] == {pack.domain.name: pack.hash for pack in (*packs, OTHER)}
    assert noted["code"] and noted["torch"] == torch.__version__


def test_progress_counts_the_cells_of_the_grid(packs: list[Pack], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    run(packs, tmp_path, report=lambda *news: told.append(news))
    cells = [news[1:] for news in told if news[0] == BAR]
    assert cells == [(done, 6) for done in range(7)]
    assert "base" in {news[0] for news in told}


# --- failures


def test_a_target_too_small_says_so_and_the_grid_goes_on(packs: list[Pack], tmp_path: Path) -> None:
    small = pack_of([9, 9, 9], "small")
    done = run(packs, tmp_path, "unseen", methods=["base"], others=[small, OTHER])
    assert (done.measured, len(done.failed)) == (6, 2)
    assert "small: 3 classes in the part 'test', 5 ways are asked for" in done.failed[0]
    assert str(done).count("\n") == 0 and "2 failed: base on small, 5-way 2-shot" in str(done)
    (noted, _) = read_grid(tmp_path).failures
    assert noted.what.startswith("base on small, 5-way 2-shot")
    assert "5 ways are asked for" in noted.error


def test_one_shape_too_large_does_not_stop_the_other(packs: list[Pack], tmp_path: Path) -> None:
    done = run(packs, tmp_path, methods=["base"], shapes=(EpisodeShape(5, 4, 3), SHAPE))
    assert (done.measured, len(done.failed)) == (4, 4)


def test_a_target_too_small_needs_no_training(packs: list[Pack], tmp_path: Path) -> None:
    small = pack_of([9, 9, 9], "small")
    run(packs, tmp_path, "unseen", targets=["small"], others=[small])
    assert not list((tmp_path).glob("worlds/*/pool-*"))


def test_a_method_that_cannot_be_trained_fails_in_all_its_cells(
    packs: list[Pack], tmp_path: Path, add_method: Callable[..., None]
) -> None:
    fits = []

    def broken(world: TrainingRun, _: object) -> Fitted:
        fits.append(world)
        raise ValueError("it is\nbroken")

    add_method("broken", broken)
    done = run(packs, tmp_path, methods=["broken", "base"])
    assert (done.measured, len(done.failed), len(fits)) == (4, 4, 1)
    for noted in failures(tmp_path):
        assert noted["error"] == "ValueError: it is broken"
        assert "in broken" in noted["traceback"] and noted["when"]
    add_method("broken", lambda _, __: Fixed())  # mended
    mended = run(packs, tmp_path, methods=["broken", "base"])
    assert (mended.before, mended.measured, mended.failed) == (4, 4, [])
    assert failures(tmp_path) == []


def test_a_cell_out_of_memory_leaves_the_others_alone(
    packs: list[Pack], tmp_path: Path, add_method: Callable[..., None]
) -> None:
    class Hungry(Fixed):
        def predict(self, tasks: Tasks, adaptation: str = "none") -> Tensor:
            if adaptation == "head":
                raise torch.OutOfMemoryError("too much")
            return super().predict(tasks)

    add_method("hungry", lambda _, __: Hungry())
    done = run(packs, tmp_path, methods=["hungry"])
    assert (done.measured, len(done.failed)) == (2, 2)
    (error,) = {noted["error"] for noted in failures(tmp_path)}
    assert error.startswith("The GPU's memory does not hold a single task")


# --- interrupts and other processes


def stop_at(name: str, number: int) -> Callable[[str, int, int], None]:
    def report(named: str, done: int, total: int) -> None:
        if named == name and done >= number:
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize(("name", "number"), [(BAR, 3), ("base", 64), ("protonet", 1)])
def test_an_interrupted_grid_goes_on_where_it_was(
    packs: list[Pack], whole: Path, tmp_path: Path, name: str, number: int
) -> None:
    methods = ["base", "protonet"]
    with pytest.raises(KeyboardInterrupt):
        run(packs, tmp_path / "cut", methods=methods, report=stop_at(name, number))
    assert failures(tmp_path / "cut") == []
    done = run(packs, tmp_path / "cut", methods=methods)
    assert done.before == (3 if name == BAR else 4 if name == "protonet" else 0)
    assert numbers(tmp_path / "cut") == numbers(whole)


def test_a_job_of_another_process_is_left_for_the_end(packs: list[Pack], tmp_path: Path) -> None:
    run(packs, tmp_path, methods=["base"])
    (job,) = [file.name for file in (tmp_path / "locks").glob("*-base-*.lock")]
    (gone,) = (tmp_path / "results").rglob("*/base-*/seen-signs-*-none-*.jsonl")
    kept = gone.read_bytes()
    gone.unlink()
    held, release = threading.Event(), threading.Event()

    def other_process() -> None:
        with locked(tmp_path / "locks" / job):
            held.set()
            release.wait(60)
            gone.write_bytes(kept)  # it has measured what was missing

    thread = threading.Thread(target=other_process)
    thread.start()
    held.wait(60)

    def report(name: str, done: int, total: int) -> None:
        if name == BAR and done == total - 1:  # all but the other's
            release.set()

    done = run(packs, tmp_path, report=report)
    thread.join()
    assert (done.before, done.measured, done.elsewhere) == (3, 2, 1)
    assert "1 by other processes" in str(done)


# --- bad input


def test_bad_input_is_refused_before_any_work(packs: list[Pack], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"names": ["sen"]}, "Did you mean 'seen'"),
        ({"methods": ["protnet"]}, "Did you mean 'protonet'"),
        ({"targets": ["sings"]}, "no target 'sings'.*Did you mean 'signs'"),
        ({"targets": ["other"]}, "nothing to measure in seen"),
        ({"seeds": 0}, "at least 1"),
        ({"episodes": 1}, "at least 2"),
        ({"slow_episodes": 1}, "at least 2"),
        ({"adaptations": ["haed"]}, "an adaptation 'haed'.*Did you mean 'head'"),
        ({"others": [pack_of([7] * 6, "signs")]}, "twice: signs"),
        ({"others": [pack_of([7] * 6, "large", size=20)]}, "large has images of 20 pixels"),
        ({"config": replace(SMALL, size=20), "others": []}, "signs has images of 16 pixels"),
        ({"sources": [OTHER], "others": []}, "other cannot be a source"),
        ({"out": tmp_path / "file"}, "is a file, a grid needs a folder"),
        ({"out": tmp_path / "file" / "grid"}, "cannot be made"),
    ]
    for changes, message in bad:
        names = changes.pop("names", [])
        out = changes.pop("out", tmp_path / "grid")
        with pytest.raises(PolyshotError, match=message):
            run(packs, out, *names, **changes)
        assert not list(tmp_path.glob("grid/worlds/*"))


@pytest.mark.parametrize("text", ['{"method": "base"', "", "[]\n", '{"a": 1}\n'])
def test_a_damaged_result_is_named_in_one_line(packs: list[Pack], grid: Path, text: str) -> None:
    damaged = next((grid / "results").rglob("*.jsonl"))
    damaged.write_text(text)
    with pytest.raises(PolyshotError) as refused:
        run(packs, grid)
    message = str(refused.value)
    assert str(damaged) in message and message.endswith("Delete this file and run again.")
    assert "\n" not in message


def test_results_on_other_images_of_a_target_do_not_count(
    packs: list[Pack], tmp_path: Path
) -> None:
    run(packs, tmp_path, "unseen", targets=["other"], methods=["base"])
    changed = replace(OTHER, hash="another")
    with pytest.raises(PolyshotError, match="was measured on other images of other: delete"):
        run(packs, tmp_path, "unseen", targets=["other"], methods=["base"], others=[changed])


def test_a_full_memory_is_freed_between_worlds(
    packs: list[Pack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gc
    import weakref

    made: list[weakref.ref[TrainingRun]] = []

    class Watched(TrainingRun):
        def base(self) -> Any:
            alive = [ref for ref in made if ref() not in (None, self)]
            assert not alive, "the world before is still held"
            if not any(ref() is self for ref in made):
                made.append(weakref.ref(self))
            return super().base()

    monkeypatch.setattr(jobs, "TrainingRun", Watched)
    gc.collect()
    done = run(packs, tmp_path, "unseen", methods=["base"])
    assert done.failed == [] and len(made) == 3


def test_jobs_are_given_what_the_jobs_before_them_leave(packs: list[Pack], tmp_path: Path) -> None:
    """On another machine there is nothing else: it would train all of it again."""

    class Noting(Local):
        def run(self, jobs: Sequence[Job], *rest: Any) -> Generator[Event, None, None]:
            self.jobs = {job.key: job for job in jobs}
            yield from super().run(jobs, *rest)

    engine = Noting()
    run(packs, tmp_path, methods=["protonet", "select"], adapt=False, others=[], engine=engine)
    needs = [(job, engine.jobs[key]) for job in engine.jobs.values() for key in job.needs]
    assert len(needs) > 3
    for job, before in needs:
        assert set(before.outputs) <= set(job.reads), (job.key, before.key)
