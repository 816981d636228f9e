"""Packs, pools, runs and grids that were written before a refactor still load.

The files in ``before`` are made by `make_before`, by the code of before; they are not made anew.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .scenes import (
    NAMES,
    SMALLEST,
    Pack,
    Pool,
    describe_grid,
    describe_pack,
    describe_pool,
    run_grid,
    train,
)

FOLDER = Path(__file__).parent / "before"
KNOWN = json.loads((FOLDER / "known.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Unpack the files of before: the folders packs, pools, run and grid."""
    for name in ("packs", "pools", "run", "grid"):
        with tarfile.open(FOLDER / f"{name}.tar.xz") as packed:
            packed.extractall(tmp_path / name, filter="data")
    return tmp_path


def packs_in(before: Path) -> list[Pack]:
    return [Pack.open(before / "packs" / name) for name in NAMES]


def files_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files but locks, with the time of their last change."""
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file() and file.suffix != ".lock"
    }


def check_pool(found: dict[str, Any], known: dict[str, Any]) -> None:
    answers, recorded = found.pop("answers"), dict(known)
    for key, chances in recorded.pop("answers").items():
        np.testing.assert_allclose(answers[key], chances, rtol=0, atol=1e-5, err_msg=key)
    assert found == recorded


def test_packs_of_before_hold_the_same(before: Path) -> None:
    for pack in packs_in(before):
        assert describe_pack(pack) == KNOWN["packs"][pack.domain.name]


@pytest.mark.parametrize("precision", KNOWN["pools"])
def test_pools_of_before_answer_the_same(precision: str, before: Path) -> None:
    pool = Pool.load(before / "pools" / precision)
    check_pool(describe_pool(pool), KNOWN["pools"][precision])


def test_a_pool_of_before_in_full_answers_the_same(before: Path) -> None:
    check_pool(describe_pool(Pool.load(before / "run" / "pool")), KNOWN["run"])


def test_a_finished_run_of_before_is_finished(before: Path) -> None:
    def report(name: str, done: int, total: int) -> None:
        raise AssertionError(f"{name} is done again")

    there = files_in(before / "run")
    pool = train(packs_in(before)[:2], SMALLEST, before / "run", device="cpu", progress=report)
    after = files_in(before / "run")
    assert after.pop(".lock")[1] == b""  # who trains is alone with the folder
    assert after == there
    check_pool(describe_pool(pool), KNOWN["run"])


def test_a_grid_of_before_is_read_and_has_all_cells(before: Path) -> None:
    assert json.loads(json.dumps(describe_grid(before / "grid"))) == KNOWN["grid"]
    packs = packs_in(before)
    measured, there = run_grid(before / "grid", packs[:2], packs[2:], SMALLEST)
    assert (measured, there) == (0, len(KNOWN["grid"]["rows"]))
