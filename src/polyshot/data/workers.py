"""All cores for work that splits into chunks, results in order."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from polyshot.errors import PolyshotError

Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use: fewer than the machine has, inside a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_order(
    function: Callable[..., Result],
    chunks: Sequence[tuple[object, ...]],
    workers: int | None = None,
) -> Iterator[Result]:
    """Call ``function(*chunk)`` for each chunk in worker processes; yield the results in order."""
    workers = workers or cores()
    if workers == 1 or len(chunks) <= 2:  # processes would take longer to start than to work
        for chunk in chunks:
            yield function(*chunk)
        return
    # On Linux fork starts at once and asks no __main__ guard of a user's script; the children only
    # run Pillow and numpy. Elsewhere fork is unsafe.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_serve, initargs=(os.getpid(),)
    )
    waiting: deque[Future[Result]] = deque()
    try:
        with _undisturbed():  # the first task starts all workers
            waiting.append(pool.submit(function, *chunks[0]))
        for chunk in chunks[1:]:
            waiting.append(pool.submit(function, *chunk))
            if len(waiting) > 4 * workers:  # bounds the memory, keeps every worker busy
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise PolyshotError(
            "A worker process was killed, most likely for want of memory: try --workers 1."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back until afterwards: Python loses one that arrives in the middle of a fork."""
    if threading.current_thread() is not threading.main_thread():  # it does not get signals
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        signal.raise_signal(signal.SIGINT)


def _serve(parent: int) -> None:
    """Leave Ctrl-C, which goes to the whole process group, to the parent; end where it was killed.

    A worker that outlived it would keep the locks that the parent held when it was forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
