"""The commands about experiments as users run them."""

import io
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from polyshot.data.pack import open_packs
from polyshot.data.toy import draw_packs
from polyshot.engines import local
from polyshot.engines.local import lost
from polyshot.evaluation.results import read_results
from polyshot.experiments.grid import read_grid
from polyshot.methods.method import Method, find_methods
from polyshot.predict.rules import RULES
from tests.commands import Child, done, polyshot, refused
from tests.helpers import files_of

SMALL = {
    "size": 16,
    "model.width": 4,
    "base.steps": 6,
    "base.batch": 16,
    "base.validate_every": 6,
    "base.warm_up": 2,
    "modulator.steps": 2,
    "modulator.episodes": 1,
    "modulator.validate_every": 2,
    "selector.steps": 6,
    "selector.tasks": 8,
    "validation_episodes": 4,
    "adaptation.steps": 20,
}
FAST = {
    "finetune.epochs": 5,
    "finetune-all.steps": 2,
    "protomaml.steps": 1,
    "protomaml.more_steps": 2,
    "protomaml.inner_rate": 0.0001,  # what is hardly trained would diverge
}
"""Settings of methods."""


pytestmark = pytest.mark.usefixtures("one_thread", "wide_terminal")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "packs"
    draw_packs(folder, ["glyphs", "signs", "plankton"], size=16, per_class=15, workers=1)
    return folder


def options(packs: Path | None, out: Path, *more: object, **settings: object) -> list[object]:
    chosen = SMALL | {name.replace("_", ".", 1): value for name, value in settings.items()}
    words = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    data = ("--data", packs, "--sources", "glyphs,signs") if packs else ()
    return [*data, "--preset", "tiny", "--out", out, "--device", "cpu", *words, *more]


SHORT = ("--episodes", 4, "--slow-episodes", 2)
TWO = ("--targets", "glyphs,plankton")


def fast() -> list[str]:
    return [word for name, value in FAST.items() for word in ("--set", f"{name}={value}")]


def of_paper() -> list[Method]:
    return [method for method in find_methods() if not method.beyond]


@pytest.fixture(scope="module")
def grid(packs: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The paper's methods, seen and unseen, both shots, with and without further adaptation."""
    out = tmp_path_factory.mktemp("grids") / "grid"
    said = done("reproduce", "seen", "unseen", *options(packs, out, *SHORT, *fast(), *TWO))
    cells = 3 * 2 * sum(len(method.adaptations_of_paper()) for method in of_paper())
    assert said.startswith(f"{cells} cells: 0 were there, {cells} measured")
    assert f"polyshot report {out}" in said
    return out


def test_every_cell_of_the_tables_is_there(grid: Path) -> None:
    found = [
        (result.protocol, result.target, result.method, result.shot, result.adaptation)
        for result in read_grid(grid).results
    ]
    expected = {
        (protocol, target, method.name, shot, adaptation)
        for protocol, targets in (
            ("seen", ("glyphs",)),
            ("unseen", ("glyphs", "plankton")),
        )
        for target in targets
        for method in of_paper()
        for shot in (5, 1)
        for adaptation in method.adaptations_of_paper()
    }
    assert len(found) == len(expected) and set(found) == expected
    for result in read_grid(grid).results:
        assert result.seen == (result.target in result.sources) == (result.protocol == "seen")
        assert result.parameters and result.multiply_adds and result.seconds
        slow = result.adaptation in next(m for m in find_methods() if m.name == result.method).slow
        assert result.episodes == (2 if slow else 4)
    assert read_grid(grid).failures == []


def test_beyond_the_paper_is_run_where_it_is_asked_for(packs: Path, tmp_path: Path) -> None:
    few = ("--episodes", 2, "--slow-episodes", 2, "--shots", 5, "--targets", "glyphs")
    which = ("--methods", "base,auto", "--beyond")
    words = options(packs, tmp_path, *few, *which, adaptation_updates=5)
    assert done("reproduce", "seen", *words).startswith("10 cells: 0 were there, 10 measured")
    found = {(result.method, result.adaptation) for result in read_grid(tmp_path).results}
    adaptations = ("none", "head", "ridge", "pa", "tsa")
    assert found == {(m, a) for m in ("base", "auto") for a in adaptations}


def test_seeds_and_parts_add_up(packs: Path, tmp_path: Path) -> None:
    few = ("--episodes", 2, "--shots", 1, "--methods", "base", "--no-adapt", "--targets", "glyphs")
    words = options(packs, tmp_path, *few)
    done("reproduce", "seen", *words)
    said = done("reproduce", "seen", *words, "--seeds", 2, "--set", "seed=1", "--part", "val")
    assert said.startswith("2 cells: 0 were there, 2 measured")
    found = sorted((result.part, result.train_seed) for result in read_grid(tmp_path).results)
    assert found == [("test", 0), ("val", 1), ("val", 2)]


def test_pools_that_grow_and_pools_of_one_source(packs: Path, tmp_path: Path) -> None:
    few = ("--episodes", 2, "--shots", 1, "--methods", "base,average", "--no-adapt")
    words = options(packs, tmp_path, *few, "--set", "modulator.members=2")
    said = done("reproduce", "one-source", *words)
    assert said.startswith("4 cells: 0 were there, 4 measured")
    assert {r.note for r in read_grid(tmp_path).results} == {"", "modulators for 1 source: 2"}
    said = done("reproduce", "added", *options(packs, tmp_path, *few, "--targets", "signs"))
    assert said.startswith("9 cells: 0 were there, 9 measured")
    added = [result for result in read_grid(tmp_path).results if result.protocol == "added"]
    assert {(result.method, result.added) for result in added} == {
        *(("base", ""), ("average", ""), ("average", "signs")),
    }
    assert "Look at" in done("report", tmp_path)
    assert "A domain added later" in (tmp_path / "report" / "tables.md").read_text("utf-8")


def test_every_method_answers_the_same_episodes(grid: Path) -> None:
    draws: dict[tuple[str, int], set[str]] = {}
    for result in read_grid(grid).results:
        draws.setdefault((result.target, result.shot), set()).add(result.draw)
    assert all(len(own) == 1 for own in draws.values())


def test_the_same_command_does_nothing_twice(grid: Path, packs: Path) -> None:
    before = files_of(grid)
    said = done("reproduce", "seen", "unseen", *options(packs, grid, *SHORT, *fast(), *TWO))
    assert "0 measured" in said
    assert files_of(grid) == before


def test_the_command_is_noted_as_it_was_given(grid: Path, packs: Path) -> None:
    (command,) = read_grid(grid).environment["commands"]
    assert command.startswith(f"polyshot reproduce seen unseen --data {packs} --preset tiny")
    assert "--episodes 4" in command and "--set base.steps=6" in command
    assert "--shots" not in command and "--no-adapt" not in command


def test_a_report_can_be_made_of_it(grid: Path, tmp_path: Path) -> None:
    assert "Look at" in done("report", grid, "--out", tmp_path / "report")


def test_methods_are_listed_with_their_papers() -> None:
    said = done("methods")
    for method in find_methods():
        assert f" {method.name} " in said
    for rule in RULES:
        assert f" {rule} " in said
    assert "Snell et al., 2017" in said


def test_parameters_need_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = done("reproduce", "parameters")
    assert "11,176,512" in said and "66,696" in said
    assert list(tmp_path.iterdir()) == []


def test_without_data_embedded_domains_are_drawn(tmp_path: Path, few_are_drawn: None) -> None:
    command = ("reproduce", "unseen", "--methods", "base", "--targets", "plankton", "--no-adapt")
    words = options(None, tmp_path / "grid", "--episodes", 2, "--shots", 1)
    assert done(*command, *words).startswith("1 cells: 0 were there, 1 measured")
    (result,) = read_grid(tmp_path / "grid").results
    assert result.sources == ["glyphs", "textures", "signs"]
    assert (result.target, result.seen, result.shot) == ("plankton", False, 1)


def test_failed_cells_give_exit_code_1_and_are_tried_again(packs: Path, tmp_path: Path) -> None:
    words = options(packs, tmp_path, "--methods", "base", "--no-adapt", *SHORT, "--shots", "9,1")
    outcome = polyshot("reproduce", "seen", *words)
    assert outcome.code == 1
    assert "4 cells: 0 were there, 2 measured" in outcome.out
    assert re.search(r"2 failed: base on glyphs, 5-way 9-shot .* 9 \+ 10 images", outcome.out)
    assert len(outcome.out.splitlines()) == 1
    assert str(tmp_path / "failures") in outcome.err
    outcome = polyshot("reproduce", "seen", *words)
    assert outcome.code == 1 and "2 were there, 0 measured" in outcome.out


def test_tuning_prints_what_it_tried(packs: Path, tmp_path: Path) -> None:
    said = done("tune", "finetune", *options(packs, tmp_path / "grid"))
    assert said.count("learning_rate") >= 3 and said.count("chosen") == 1
    assert f"wrote {tmp_path / 'grid' / 'tuned.json'}" in said
    entry = json.loads((tmp_path / "grid" / "tuned.json").read_text())["tiny"]["finetune"]
    assert len(entry["tried"]) == said.count("learning_rate")
    assert "leave theirs out" in refused(
        "tune", "finetune", *options(packs, tmp_path / "grid"), "--set", "finetune.epochs=1"
    )


def test_bad_input_is_one_line(packs: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid"
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    bad: list[tuple[list[object], str]] = [
        (["reproduce", "sene", *options(packs, out)], "Did you mean 'seen'"),
        (["reproduce", "seen", *options(packs, out), "--methods", "feet"], "Did you mean 'feat'"),
        (["reproduce", "seen", *options(packs, out), "--targets", "birds"], "no target 'birds'"),
        (["reproduce", "seen", *options(packs, out), "--sources", "birds"], "no domain 'birds'"),
        (["reproduce", "seen", *options(packs, out), "--seeds", 0], "at least 1"),
        (["reproduce", "seen", *options(packs, out), "--episodes", 1], "at least 2"),
        (["reproduce", "added", *options(packs, out), "--methods", "feat"], "not feat: take some"),
        (["reproduce", "one-sources", *options(packs, out)], "Did you mean 'one-source'"),
        (["reproduce", "seen", *options(packs, out), "--part", "vla"], "Did you mean 'val'"),
        (["reproduce", "seen", *options(packs, out), "--shots", "five"], "numbers of shots"),
        (["reproduce", "seen", *options(packs, out), "--preset", "huge"], "no preset 'huge'"),
        (["reproduce", "sources-4", *options(packs, out)], "there are 2"),
        (["reproduce", "seen", *options(packs, out), "--set", "protonet.x=1"], "no setting"),
        (["reproduce", "seen", *options(packs, out), "--set", "base.x=1"], "no field 'x'"),
        (["reproduce", "seen", *options(packs, tmp_path / "file")], "is a file"),
        (["reproduce", "seen", *options(tmp_path / "empty", out)], "no packs"),
        (["reproduce", "seen", *options(tmp_path / "none", out)], "no folder"),
        (["tune", "select", *options(packs, out)], "nothing to tune"),
        (["tune", "bse", *options(packs, out)], "no method 'bse'"),
    ]
    for command, message in bad:
        assert message in refused(*command), command
    assert not out.exists()


def test_two_processes_share_a_folder(packs: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid"
    which = ("--methods", "base,finetune,protonet", "--no-adapt", "--shots", 1)
    command = ("reproduce", "seen", *options(packs, out, *which, *SHORT, *fast()))
    child = Child(*command)
    child.wait_until(lambda: list((out / "worlds").rglob("metrics.jsonl")))
    mine = done(*command)
    others, errors = child.process.communicate(timeout=300)
    assert child.process.returncode == 0, errors
    for said in (mine, others):
        assert said.startswith("6 cells")
    # each cell by one of the two
    assert sum(int(n) for n in re.findall(r"(\d+) measured", mine + others)) == 6
    files = list((out / "results").rglob("*.jsonl"))
    assert len(files) == 6 and all(len(read_results(file)) == 1 for file in files)
    assert not (out / "failures").exists()


def processes_on(folder: Path) -> list[str]:
    """List the running processes whose commands name a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_a_command_with_two_processes(
    packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "grid"
    which = ("--methods", "base,protonet", "--no-adapt", "--shots", 1, "--processes", 2)
    started: list[list[str]] = []

    def watched(helpers: Sequence[subprocess.Popen[bytes]]) -> int:
        started.extend(helper.args for helper in helpers)
        return lost(helpers)

    monkeypatch.setattr(local, "lost", watched)
    outcome = polyshot("reproduce", "seen", "unseen", *options(packs, out, *which, *SHORT))
    (helper,) = started
    assert str(out) in helper and helper[-2:] == ["--helper", f"1,2,{os.getpid()}"]
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("10 cells: 0 were there") and "10/10" in outcome.err
    assert processes_on(out) == []
    files = list((out / "results").rglob("*.jsonl"))
    assert len(files) == 10 and all(len(read_results(file)) == 1 for file in files)
    about = json.loads((out / "environment.json").read_text())
    (command,) = about["commands"]
    assert command.endswith("--processes 2")
    kept = [pack.domain.name for pack in open_packs(packs) if not pack.domain.mirror]
    assert about["not_mirrored"] == kept and kept
    assert "1 is the least" in refused("reproduce", "seen", *options(packs, out), "--processes", 0)


def test_ctrl_c_ends_helpers_too(packs: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid"
    slow = options(packs, out, "--processes", 2, base_steps=100_000)
    child = Child("reproduce", "seen", "unseen", *slow)
    child.wait_until(lambda: len(list((out / "worlds").rglob("metrics.jsonl"))) == 2)
    child.press_ctrl_c()
    assert processes_on(out) == []


def test_a_helper_begins_elsewhere_and_stops_without_its_parent(
    packs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "grid"
    which = ("--methods", "base", "--no-adapt", "--shots", 1)
    command = ("reproduce", "unseen", *options(packs, out, *which, *SHORT))
    assert polyshot(*command, "--helper", "1,2,0").code == 130
    assert not (out / "results").exists()
    done(*command, "--helper", f"1,2,{os.getppid()}")
    files = sorted((out / "results").rglob("*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    places = list(dict.fromkeys(file.parent.parent.name for file in files))
    again = tmp_path / "again"
    done("reproduce", "unseen", *options(packs, again, *which, *SHORT, "--processes", 1))
    others = sorted((again / "results").rglob("*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    order = list(dict.fromkeys(file.parent.parent.name for file in others))
    assert len(order) == 3 and places == order[1:] + order[:1]
    assert json.loads((out / "environment.json").read_text())["commands"] == []


def test_bars_of_finished_trainings_go_and_the_grids_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.console import Console

    from polyshot.cli import display

    shown = io.StringIO()
    monkeypatch.setattr(display, "err", Console(file=shown, width=100))
    with display.progress("images", whole="cells") as report:
        report("cells", 3, 9)
        report("base", 5, 10)
        report("base", 10, 10)  # full
        report("protonet", 2, 10)  # fails here
        report("cells", 4, 9)
        report("feat", 1, 10)
    said = shown.getvalue()
    assert re.search(r"cells\s.*4/9", said) and re.search(r"feat\s.*1/10", said)
    assert "base" not in said and "protonet" not in said
