import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyshot.errors import PolyshotError
from polyshot.util.files import locked, locked_if_free

HOLDER = """
import sys, time
from pathlib import Path
from polyshot.util.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_lock_is_not_free_and_another_is(tmp_path: Path) -> None:
    with locked(tmp_path / "deep" / "one.lock"):
        with locked_if_free(tmp_path / "deep" / "one.lock") as mine:
            assert not mine
        with locked_if_free(tmp_path / "two.lock") as mine:
            assert mine
    with locked_if_free(tmp_path / "deep" / "one.lock") as mine:
        assert mine


def test_an_error_frees_a_lock(tmp_path: Path) -> None:
    for lock in (locked, locked_if_free):
        with pytest.raises(ZeroDivisionError), lock(tmp_path / "lock"):
            raise ZeroDivisionError
        with locked_if_free(tmp_path / "lock") as mine:
            assert mine


def test_the_end_of_a_process_frees_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with locked_if_free(path) as mine:
            assert not mine
        os.kill(holder.pid, signal.SIGKILL)
        with locked(path):  # waits until it has ended
            assert path.exists(), "the file stays: a new one would be another lock"
    finally:
        holder.kill()
        holder.communicate()


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(workers=st.integers(2, 6), names=st.integers(1, 3))
def test_only_one_at_a_time_is_inside(tmp_path: Path, workers: int, names: int) -> None:
    inside = [0] * names
    most = [0] * names

    def work(number: int) -> None:
        which = number % names
        with locked(tmp_path / f"{which}.lock"):
            inside[which] += 1
            most[which] = max(most[which], inside[which])
            threading.Event().wait(0.002)
            inside[which] -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers * names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * names


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for lock in (locked, locked_if_free):
        with (
            pytest.raises(PolyshotError, match="cannot be written"),
            lock(tmp_path / "file" / "a.lock"),
        ):
            pass
