"""What tests of experiments share."""

from collections.abc import Iterator

import pytest

from polyshot.data.pack import Pack
from polyshot.data.toy import draw_packs
from polyshot.experiments import jobs, protocols
from tests.helpers import ONE_SHOT, SHAPE


@pytest.fixture(scope="module")
def small_shape() -> Iterator[None]:
    """Make the shape of shares and contributions one that the small packs can serve."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in (jobs, protocols):
            monkeypatch.setattr(module, "SHAPES", (SHAPE, ONE_SHOT))
        yield


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    folder = tmp_path_factory.mktemp("packs")
    return draw_packs(folder, ["signs", "textures"], size=16, per_class=6, workers=1)
