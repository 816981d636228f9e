"""Jobs on a Ray cluster of three machines, all of them this one: what is lost is done again."""

import csv
import os
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyshot.classifier import FewShotClassifier
from polyshot.data.toy import draw_packs
from polyshot.engines import Event, Job, Resources
from polyshot.engines.ray import TRIES, Ray
from polyshot.engines.ray_work import import_ray, scratch
from polyshot.errors import PolyshotError
from polyshot.evaluation.results import read_results
from polyshot.experiments.run import Summary
from polyshot.training.jobs import train_by
from polyshot.training.run import train
from tests.commands import Child, done, refused
from tests.engines import ray_jobs
from tests.experiments.small_worlds import run_grid
from tests.helpers import COLOURS, TINY, colour_pool, coloured, examples

# Ray leaves sockets and log files to the garbage collector, and tells its users of its own plans.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three machines of one core each; the driver is on the first."""
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    from ray.cluster_utils import Cluster

    import_ray()
    root = Path(__file__).parents[2]
    few = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        # Its processes import the jobs of tests, and Polyshot of this checkout.
        patch.setenv("PYTHONPATH", f"{root}{os.pathsep}{root / 'src'}")
        soon = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
        made = Cluster(initialize_head=True, head_node_args={**few, "_system_config": soon})
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture
def engine(cluster: Any) -> Iterator[Ray]:
    with Ray(address=cluster.address) as made:
        yield made


def ends(events: list[Event]) -> dict[str, str]:
    """Tell how jobs ended: key -> its error."""
    return {e.job.key: e.failed.message if e.failed else "" for e in events if e.ended}


def job(key: str, call: Any, *arguments: Any, **more: Any) -> Job:
    files = {"reads": ("made/**",), "outputs": ("made/**",)}
    return Job(key, call, arguments, **(files | more))


def test_files_travel_with_what_jobs_tell(engine: Ray, tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("12345")
    folder, kept = tmp_path / "grid", scratch("", "here").parent
    before = set(kept.iterdir()) if kept.exists() else set()  # of other clusters of this user
    inputs = {"five": tmp_path / "input.txt"}
    names = ["a-one.txt", "b-two.txt"]
    jobs = [job("sum", ray_jobs.add_up, names, needs=("a", "b"), inputs=inputs)]
    jobs += [job(key, ray_jobs.write, key, text) for key, text in (("a", "xx"), ("b", "yyy"))]
    events = []
    for event in engine.run(jobs, folder):
        events.append((event.job.key, event.value, event.ended))
        if event.value == "one":
            assert (folder / "made" / f"{event.job.key}-one.txt").exists()
    assert ("sum", 2 + 3 + 5, False) in events
    assert events.index(("sum", 10, False)) > max(
        events.index((key, None, True)) for key in ("a", "b")
    )
    made = {file.name: file.read_text() for file in (folder / "made").iterdir()}
    assert made == {
        **{f"a-{part}.txt": "xx" for part in ("one", "two")},
        **{f"b-{part}.txt": "yyy" for part in ("one", "two")},
    }
    assert set(kept.iterdir()) <= before, "machines keep nothing of a grid that is done"


def test_files_may_travel_by_a_path(cluster: Any, tmp_path: Path) -> None:
    jobs = [
        job("a", ray_jobs.write, "a", "xx"),
        job("sum", ray_jobs.add_up, ["a-one.txt"], needs=("a",)),
    ]
    store = tmp_path / "store"
    with Ray(cluster.address, store=f"file://{store}") as engine:
        told = [event.value for event in engine.run(jobs, tmp_path / "grid")]
    assert 2 in told and (tmp_path / "grid" / "made" / "a-two.txt").read_text() == "xx"
    assert len(list(store.iterdir())) == 1, "both files have one content"
    with pytest.raises(PolyshotError, match="cannot be reached"):
        Ray(cluster.address, store="nosuch://bucket")


def test_a_killed_process_is_replaced_and_leaves_nothing_half_written(
    engine: Ray, tmp_path: Path
) -> None:
    jobs = [
        job("hurt", ray_jobs.die_once, str(tmp_path / "mark")),
        job("small", ray_jobs.refuse),
        job("larger", ray_jobs.who, needs=("small",)),
        job("well", ray_jobs.who),
    ]
    found = ends(list(engine.run(jobs, tmp_path / "grid")))
    assert found["hurt"] == found["well"] == "" and engine.tries["hurt"] == 2
    assert found["small"] == found["larger"] == "It is too small."
    assert (engine.tries["small"], engine.tries["larger"]) == (1, 0)
    (only,) = (tmp_path / "grid" / "made").iterdir()
    assert only.read_text() == "whole"


@pytest.mark.slow
def test_a_job_that_always_dies_is_given_up(engine: Ray, tmp_path: Path) -> None:
    jobs = [job("bad", ray_jobs.die), job("later", ray_jobs.who, needs=("bad",))]
    found = ends(list(engine.run(jobs, tmp_path / "grid")))
    assert engine.tries["bad"] == TRIES and f"lost {TRIES} times" in found["bad"]
    assert found["later"] == found["bad"] and not engine.tries["later"]


def test_an_output_path_that_cannot_be_written_is_one_line(engine: Ray, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    folder.mkdir()
    (folder / "made").write_text("a file in the way")
    with pytest.raises(PolyshotError, match=r"made/a-one.txt cannot be written"):
        list(engine.run([job("a", ray_jobs.write, "a", "xx")], folder))
    (folder / "made").unlink()
    assert ends(list(engine.run([job("a", ray_jobs.write, "a", "xx")], folder))) == {"a": ""}


def test_two_grids_share_a_cluster(cluster: Any, tmp_path: Path) -> None:
    """With the same names of jobs and files: neither sees the other's."""
    told: dict[str, list[Any]] = {}

    def run(name: str) -> None:
        jobs = [
            job("a", ray_jobs.write, "a", name),
            job("sum", ray_jobs.add_up, ["a-one.txt"], needs=("a",)),
        ]
        with Ray(cluster.address) as engine:
            told[name] = [event.value for event in engine.run(jobs, tmp_path / name)]

    threads = [threading.Thread(target=run, args=(name,)) for name in ("x", "yyyy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert 1 in told["x"] and 4 in told["yyyy"]
    for name in told:
        assert (tmp_path / name / "made" / "a-one.txt").read_text() == name


def rows(folder: Path) -> dict[str, Any]:
    """Read the rows of a grid, without time and machine."""
    found = {}
    for file in sorted((folder / "results").rglob("*.jsonl")):
        (row,) = read_results(file)
        found[str(file.relative_to(folder))] = replace(row, seconds=None, device="")
    return found


def test_a_machine_is_lost_in_the_middle_of_a_grid(
    cluster: Any, engine: Ray, tmp_path: Path
) -> None:
    packs = draw_packs(tmp_path / "packs", ["signs", "textures"], size=16, per_class=6, workers=1)

    def grid(out: Path, **more: Any) -> Summary:
        how = {"methods": ["base", "select"], "adapt": False, "others": []}
        return run_grid(packs, out, "seen", "unseen", **how, **more)

    others = {node.node_id[:12]: node for node in cluster.list_all_nodes()}
    del others[cluster.head_node.node_id[:12]]
    folder, over, killed = scratch("", "here").parent, threading.Event(), []

    def kill() -> None:
        """Kill a machine as soon as it has begun with a job."""
        while not killed and not over.wait(0.01):
            for begun in folder.glob("*-*") if folder.exists() else ():
                if not killed and (node := others.get(begun.name.rpartition("-")[2])):
                    cluster.remove_node(node, allow_graceful=False)
                    killed.append(node)

    thread = threading.Thread(target=kill)
    thread.start()
    done = grid(tmp_path / "ray", engine=engine)
    over.set()
    thread.join()
    assert killed and max(engine.tries.values()) > 1, "a job was lost"
    assert (done.failed, done.measured + done.elsewhere) == ([], done.cells)
    grid(tmp_path / "local")
    assert rows(tmp_path / "ray") == rows(tmp_path / "local")
    assert not (tmp_path / "ray" / "failures").exists()
    # What is missing is measured again, from the trainings that are there.
    gone = next((tmp_path / "ray" / "results").rglob("*.jsonl"))
    gone.unlink()
    assert grid(tmp_path / "ray", engine=engine).measured == 1
    assert rows(tmp_path / "ray") == rows(tmp_path / "local")
    for lost in folder.glob(f"*-{killed[0].node_id[:12]}"):
        shutil.rmtree(lost)  # a machine that is lost cannot do it


@pytest.mark.slow
def test_a_pool_is_trained_by_a_job_a_source(engine: Ray, tmp_path: Path) -> None:
    packs = draw_packs(tmp_path / "packs", ["signs", "textures"], size=16, per_class=6, workers=1)
    pool = train_by(engine, Resources(), packs, TINY, tmp_path / "jobs")
    assert pool.hash == train(packs, TINY, tmp_path / "one", device="cpu").hash
    assert engine.tries == Counter(
        {
            **{f"train-{step}": 1 for step in ("base", "modulators", "selector")},
            **{f"train-modulators-{name}": 1 for name in ("signs", "textures")},
        }
    )


# --- what users ask for

SMALL = {
    **{"size": 16, "model.width": 4, "base.steps": 6, "base.batch": 16, "base.warm_up": 2},
    **{"modulator.steps": 2, "modulator.episodes": 1, "selector.steps": 6, "selector.tasks": 8},
    **{"validation_episodes": 4, "protonet.learning_rate": 0.001},
}


def family(pid: int) -> list[int]:
    """List a process and all that it has started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        below = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []
    return [pid, *(each for child in below for each in family(child))]


def kill_all(child: Child) -> None:
    for pid in family(child.process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.process.communicate(timeout=60)


def labels_of(folder: Path) -> list[dict[str, str]]:
    texts = [file.read_text() for file in sorted(folder.glob("labels-*.csv"))]
    return [row for text in texts for row in csv.DictReader(text.splitlines())]


@pytest.mark.slow
def test_labelling_is_killed_twice_and_every_image_has_one_row(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    model, photos, out = tmp_path / "m.polyshot", tmp_path / "photos", tmp_path / "labels"
    FewShotClassifier(colour_pool(), adaptation="none").fit(*examples(4, 4, 4)).save(model)
    photos.mkdir()
    for i in range(800):
        if i % 100 == 7:
            (photos / f"{i:03}.png").write_bytes(b"no image")
        else:
            coloured(list(COLOURS)[i % 3], i).save(photos / f"{i:03}.png")
    words = ("classify", "--model", model, "--query", photos, "--shard", 20, "--engine", "ray")
    for least in (2, 12):
        child = Child(*words, "--out", out)
        child.wait_until(lambda least=least: len(list(out.glob("labels-*.csv"))) >= least)
        kill_all(child)
    before = len(list(out.glob("labels-*.csv")))
    assert before < 40, "it was killed in the middle"
    child = Child(*words, "--out", out)
    said, errors = child.process.communicate(timeout=300)
    assert child.process.returncode == 0, errors
    assert f"{before} shards were there; " in said
    found = labels_of(out)
    assert [Path(row["path"]).name for row in found] == [f"{i:03}.png" for i in range(800)]
    assert sum(row["reason"] == "not an image" for row in found) == 8
    done(*words[:-2], "--out", tmp_path / "local")
    expected = [(row["path"], row["label"]) for row in labels_of(tmp_path / "local")]
    assert [(row["path"], row["label"]) for row in found] == expected


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_a_new_cluster_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    draw_packs(tmp_path / "packs", ["glyphs", "signs"], size=16, per_class=15, workers=1)
    sets = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    which = ("--methods", "base,protonet,select", "--episodes", 4, "--preset", "tiny", *sets)
    words = ("reproduce", "seen", "unseen", "--data", tmp_path / "packs", *which)
    out = tmp_path / "ray"
    child = Child(*words, "--out", out, "--engine", "ray")
    child.wait_until(lambda: len(list((out / "results").rglob("*.jsonl"))) >= 3)
    child.press_ctrl_c()
    before = {file: file.read_bytes() for file in (out / "results").rglob("*.jsonl")}
    child = Child(*words, "--out", out, "--engine", "ray")
    said, errors = child.process.communicate(timeout=300)
    assert child.process.returncode == 0, errors
    assert f"{len(before)} were there" in said and len(rows(out)) > len(before)
    assert all(file.read_bytes() == data for file, data in before.items())
    child = Child(*words, "--out", tmp_path / "local", "--processes", 1)
    child.process.communicate(timeout=300)
    assert rows(out) == rows(tmp_path / "local")


def test_the_cluster_file_of_the_documentation_is_one_that_ray_takes() -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    validate_config(prepare_config(yaml.safe_load(text)))


def test_without_the_extra_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused("reproduce", "seen", "--out", tmp_path, "--engine", "ray")
    assert "pip install 'polyshot[ray]'" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "rya"], "Did you mean 'ray'"),
        (["--address", "auto"], "--address is for --engine ray"),
        (["--gpus", "0.5"], "--gpus is for --engine ray"),
        (["--engine", "ray", "--processes", "2"], "--processes is for --engine local"),
        (["--engine", "ray", "--threads", "0"], "1 is the least"),
        (["--engine", "ray", "--gpus", "1.5"], "take a share of one"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    assert message in refused("reproduce", "seen", "--out", tmp_path / "grid", *words)
