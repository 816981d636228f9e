"""A training as jobs of an engine."""

from pathlib import Path

import pytest

from polyshot.data.pack import Pack
from polyshot.engines import Resources
from polyshot.engines.local import Local
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.training.jobs import train_by
from tests.helpers import TINY, files_of, metrics_of


def test_jobs_train_what_one_command_does(packs: list[Pack], whole: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    report = lambda *news: told.append(news)  # noqa: E731
    pool = train_by(Local(), Resources(), packs, TINY, tmp_path / "run", report=report)
    assert pool.hash == Pool.load(whole / "pool").hash
    assert ("steps", 5, 5) in told  # base, two modulators, what is left of these, selector
    names = {file.name for file in (tmp_path / "run").glob("*metrics.jsonl")}
    assert names == {"metrics.jsonl", "signs-metrics.jsonl", "textures-metrics.jsonl"}
    assert {line["step"] for line in metrics_of(tmp_path / "run")} >= {"base", "selector"}
    before = files_of(tmp_path / "run")
    train_by(Local(), Resources(), packs, TINY, tmp_path / "run")
    assert files_of(tmp_path / "run") == before


def test_bad_input_is_one_line(packs: list[Pack], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyshotError, match="is a file, a run needs a folder"):
        train_by(Local(), Resources(), packs, TINY, tmp_path / "file")
    with pytest.raises(PolyshotError, match="to start from"):
        train_by(Local(), Resources(), packs, TINY, tmp_path / "run", start=tmp_path / "none")
    with pytest.raises(PolyshotError, match="no safetensors file"):
        train_by(Local(), Resources(), packs, TINY, tmp_path / "run", start=tmp_path / "file")
