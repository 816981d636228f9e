"""Work that is cut into smaller parts where a device's memory is full."""

import gc
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from polyshot.errors import PolyshotError

Done = TypeVar("Done")


def in_parts(count: int, step: int, work: Callable[[slice], Done]) -> Iterator[tuple[slice, Done]]:
    """Work on so many tasks, at most `step` at a time, on half as many where memory is too small.

    How much is free depends on the GPU and on who else uses it, so that no fixed number suits all.

    Args:
        count: of tasks.
        step: tasks at a time, at first.
        work: on the tasks of a slice; done again from its start where memory was full.

    Yields:
        Each part, in order, and what was done with it.

    """
    start = 0
    while start < count:
        part = slice(start, min(start + max(1, step), count))
        try:
            done = work(part)
        except torch.OutOfMemoryError as error:
            if part.stop - part.start == 1:
                raise PolyshotError(
                    "The GPU's memory does not hold a single task: end other programs that use it, "
                    "or take --device cpu."
                ) from None
            step = (part.stop - part.start) // 2
            forget(error)
        else:
            yield part, done
            start = part.stop


def forget(error: Exception) -> None:
    """Free what the work that has failed held: its frames have the tensors that were too many."""
    traceback.clear_frames(error.__traceback__)
    free_memory()


def free_memory() -> None:
    """Give memory that nothing uses any more back to the GPU, where other programs want it, too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
