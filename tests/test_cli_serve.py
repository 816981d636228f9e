"""`polyshot serve`: what it refuses, in one line. How it serves is in tests/serving."""

import socket
import sys
from pathlib import Path

import pytest

from .test_cli_pool import refused


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ("--folder", tmp_path / "folder")
    assert "give a --token" in refused("serve", "--host", "0.0.0.0", *folder)
    assert "16 or more" in refused("serve", "--token", "short", *folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert "another --port" in refused("serve", "--port", port, *folder)
    assert "There is no file" in refused("serve", tmp_path / "none.polyshot", *folder)
    (tmp_path / "file").write_text("x")
    assert "cannot be written" in refused("serve", "--folder", tmp_path / "file")
    for name in [name for name in sys.modules if name.startswith("polyshot.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'polyshot[serve]'" in refused("serve", *folder)
