"""Messages are one line, whatever is in them; the system's own errors, too."""

import errno
from pathlib import Path

import pytest
import torch

from polyshot.errors import LONGEST, PolyshotError, is_short_of_memory, one_line
from polyshot.util.checks import BadValueError
from tests.commands import refused


@pytest.mark.parametrize("kind", [PolyshotError, BadValueError])
def test_a_message_is_one_line(kind: type[PolyshotError]) -> None:
    text = str(kind("a\nb\r\x1b[31m\x00 \udcff é 漢"))
    assert text == r"a\nb\r\x1b[31m\x00 \xff é 漢"
    assert one_line("x" * 10**6).count("x") == LONGEST and " ... " in one_line("x" * 10**6)


def test_what_means_that_memory_is_short() -> None:
    with pytest.raises(Exception, match="memory") as error:
        torch.empty(1 << 60)
    assert is_short_of_memory(error.value)
    assert is_short_of_memory(MemoryError())
    assert is_short_of_memory(OSError(errno.ENOMEM, "no"))
    assert not is_short_of_memory(OSError(errno.ENOENT, "no"))
    assert not is_short_of_memory(RuntimeError("shapes differ"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory is too small"),
        (OSError(errno.EIO, "Input/output error", "a\nb"), r"a\nb: Input/output error."),
    ],
)
def test_errors_of_the_system_are_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from polyshot.data import pack

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(pack, "find_packs", fail)
    assert said in refused("data", "list", tmp_path)
