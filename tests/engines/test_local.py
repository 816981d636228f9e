"""Processes that share the work on a grid."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.engines.job import Job, Place
from polyshot.engines.local import MOST, Helper, Local, helped, lost, process_count
from polyshot.errors import PolyshotError
from polyshot.experiments.run import from_world

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@dataclass(frozen=True, eq=False)
class Told:
    """What a job of these tests does."""

    value: int

    def __call__(self, _: Place) -> Iterator[int]:
        if not self.value:
            raise ValueError("it fails at once")
        return iter([self.value])


def test_a_job_that_fails_at_once_stops_no_other(tmp_path: Path) -> None:
    jobs = [Job("bad", Told(0)), Job("after", Told(1), needs=("bad",)), Job("good", Told(2))]
    events = list(Local().run(jobs, tmp_path))
    ends = {event.job.key: event.failed for event in events if event.ended}
    assert [event.value for event in events if not event.ended] == [2]
    assert ends["good"] is None and ends["bad"] == ends["after"]
    assert ends["bad"] is not None and ends["bad"].message == "ValueError: it fails at once"


def test_a_cpu_has_a_process_for_each_core_and_a_gpu_has_one() -> None:
    assert process_count(None, CPU) == min(MOST, torch.get_num_threads())
    assert process_count(None, GPU) == 1
    assert process_count(3, CPU) == process_count(3, GPU) == 3
    with pytest.raises(PolyshotError, match="1 is the least"):
        process_count(0, CPU)


def test_cores_are_shared_while_there_are_helpers() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with helped(2, ["reproduce", "parameters"]):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 4
        with helped(1, ["no command"]):
            assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_a_helper_lives_as_long_as_its_parent() -> None:
    helper = Helper(1, 4, os.getppid())
    assert Helper.of(str(helper)) == helper and helper.offset == 0.25
    helper.report("cells", 1, 2)
    with pytest.raises(KeyboardInterrupt):
        helper._replace(parent=0).report("cells", 1, 2)


@pytest.mark.parametrize("text", ["x", "1,2", "1,2,3,4", "1,,3"])
def test_what_only_helpers_are_told_is_refused_from_others(text: str) -> None:
    with pytest.raises(PolyshotError, match="leave it out"):
        Helper.of(text)


def test_helpers_that_end_early_are_counted() -> None:
    with helped(2, ["no-such-command"]) as helpers:
        (helper,) = helpers
        helper.wait(timeout=300)
        assert lost(helpers) == 1
    with helped(3, ["reproduce", "parameters"]) as helpers:
        helpers[0].kill()
        for helper in helpers:
            helper.wait(timeout=300)
        assert [helper.returncode for helper in helpers] == [-signal.SIGKILL, 0]
        assert lost(helpers) == 1


@given(st.lists(st.sampled_from("abcde")), st.integers(1, 6), st.data())
def test_processes_start_at_worlds_of_their_own(worlds: str, count: int, data: Any) -> None:
    jobs: list[Any] = [SimpleNamespace(world=world) for world in sorted(worlds)]
    number = data.draw(st.integers(0, count - 1))
    ordered = from_world(jobs, number / count)
    assert sorted(map(id, ordered)) == sorted(map(id, jobs))
    names = list(dict.fromkeys(job.world for job in jobs))
    found = list(dict.fromkeys(job.world for job in ordered))
    first = number * len(names) // count
    assert found == names[first:] + names[:first]
    starts = {int(i / count * len(names)) for i in range(count)}
    assert len(starts) == min(count, len(names)) or not names
    changes = sum(one.world != two.world for one, two in pairwise(ordered))
    assert changes == max(0, len(names) - 1), "jobs of one world stay together"
