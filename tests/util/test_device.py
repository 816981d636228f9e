"""Which device is taken, and work in parts, smaller ones where memory is full."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.util import device
from polyshot.util.device import best_device, for_device, in_parts, mps_works


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose PyTorch says that it has Apple's GPU, and no other."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    mps_works.cache_clear()
    yield
    mps_works.cache_clear()


def test_apples_gpu_is_taken_where_it_does_what_is_needed(
    apple: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = device._probe, []

    def probe(wanted: torch.device) -> list[torch.Tensor]:
        asked.append(wanted.type)
        return real(torch.device("cpu"))  # what a GPU without faults would answer

    monkeypatch.setattr(device, "_probe", probe)
    assert best_device() == torch.device("mps") == best_device("mps")
    assert sorted(asked) == ["cpu", "mps"]


def test_apples_gpu_is_left_where_an_operation_is_missing(apple: None) -> None:
    """The real probe fails here, as it does where PyTorch has no such operation."""
    assert best_device() == torch.device("cpu")
    assert best_device("mps") == torch.device("mps"), "who asks for it gets it"


def test_apples_gpu_is_left_where_it_computes_something_else(
    apple: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = device._probe
    off = {"cpu": 0.0, "mps": 0.01}

    def probe(wanted: torch.device) -> list[torch.Tensor]:
        return [each + off[wanted.type] for each in real(torch.device("cpu"))]

    monkeypatch.setattr(device, "_probe", probe)
    assert best_device() == torch.device("cpu")


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert best_device() == best_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:7", "mps", "xpu"):
        with pytest.raises(PolyshotError, match=f"no device '{name}'.*try cpu"):
            best_device(name)
    with pytest.raises(PolyshotError, match="no kind of device 'gpu': try cpu, cuda or mps"):
        best_device("gpu")


def test_a_device_that_nobody_measured_on_counts_as_a_cpu() -> None:
    sizes = {"cpu": 1, "cuda": 2}
    kinds = ("cpu", "cuda", "mps")
    assert [for_device(sizes, torch.device(kind)) for kind in kinds] == [1, 2, 1]


@given(count=st.integers(0, 60), step=st.integers(0, 80), room=st.integers(1, 70))
def test_every_task_is_done_once_in_order_whatever_the_room(
    count: int, step: int, room: int
) -> None:
    tried = []

    def work(part: slice) -> list[int]:
        tried.append(part.stop - part.start)
        if part.stop - part.start > room:
            raise torch.OutOfMemoryError
        return list(range(count))[part]

    done = list(in_parts(count, step, work))
    assert [task for _, tasks in done for task in tasks] == list(range(count))
    assert all(len(tasks) == part.stop - part.start <= max(1, step) for part, tasks in done)
    full = [size for size in tried if size > room]
    assert len(full) <= 7, "what did not fit is not tried again"


def test_a_single_task_that_does_not_fit_is_refused() -> None:
    def work(_: slice) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(PolyshotError, match=r"single task.*--device cpu"):
        list(in_parts(5, 5, work))


def test_other_errors_are_not_swallowed() -> None:
    def work(_: slice) -> None:
        raise ValueError("other")

    with pytest.raises(ValueError, match="other"):
        list(in_parts(5, 5, work))
