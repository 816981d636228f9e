"""Freed memory is kept by the program, and given back when it is asked for."""

import os
import subprocess
import sys

import pytest

CODE = """
import ctypes, sys
from polyshot.serving.limits import resident_bytes
from polyshot.util.memory import give_back, keep_freed
keep_freed()
memory = ctypes.CDLL(None)
memory.malloc.restype, memory.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
before = resident_bytes()
block = memory.malloc(ctypes.c_size_t(100_000_000))
ctypes.memset(block, 1, 100_000_000)
memory.free(block)
kept = resident_bytes() - before
give_back()
print(kept > 90_000_000, resident_bytes() - before > 90_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize(
    ("own", "said"), [({}, "True False"), ({"MALLOC_ARENA_MAX": "8"}, "False False")]
)
def test_freed_memory_is_kept_unless_the_user_has_chosen(own: dict[str, str], said: str) -> None:
    plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=plain | own, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == said
