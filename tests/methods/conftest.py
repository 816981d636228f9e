"""A tiny world in which every method trains in a second."""

import pytest

from polyshot.data.pack import Pack
from polyshot.training.training_run import TrainingRun
from tests.helpers import LEARNED, make_run, toy_packs


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Two threads would only wait for each other."""


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    return toy_packs(tmp_path_factory.mktemp("packs"), "signs", "glyphs", each=8)


@pytest.fixture(scope="session")
def world(packs: list[Pack], tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return make_run(packs, tmp_path_factory.mktemp("worlds"), config=LEARNED)
