"""Work in parts, smaller ones where memory is full."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.util.device import in_parts


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
