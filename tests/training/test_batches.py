from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.table import Batches, Images, Prefetch
from polyshot.training.base import mixed, same_source_partner
from polyshot.training.run import train
from tests.helpers import CPU


@pytest.fixture(params=[True, False], ids=["resident", "streamed"])
def images(request: pytest.FixtureRequest, packs: list[Pack]) -> Images:
    return Images(packs, "train", CPU, resident=request.param)


def test_streamed_and_resident_batches_are_the_same(packs: list[Pack]) -> None:
    both = [
        Batches(Images(packs, "train", CPU, resident=resident), 32, 0.5, seed=1, last=5)
        for resident in (True, False)
    ]
    for number in (0, 1, 2, 5, 3):
        drawn = [batches.draw(number) for batches in both]
        for one, other in zip(*drawn, strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(both[0].draw(0).images, both[0].draw(1).images)
    for batches in both:
        batches.close()


def test_a_drawn_image_is_a_training_image_with_its_label(
    images: Images, packs: list[Pack]
) -> None:
    batch = Batches(images, 64, 0.5, seed=0, last=0).draw(0)
    offsets = [0, len(packs[0].domain.split.train)]
    assert images.classes == sum(len(pack.domain.split.train) for pack in packs)
    for pixels, label, source, mirror in zip(*batch, strict=True):
        pack = packs[int(source)]
        same = (pack.images == pixels.numpy()).all((1, 2, 3))
        classes = {pack.domain.labels[i] for i in np.flatnonzero(same)}
        assert pack.domain.split.train[int(label) - offsets[int(source)]] in classes
        assert bool(mirror) == pack.domain.mirror


def test_the_processes_slices_make_the_whole_batch(images: Images) -> None:
    whole = Batches(images, 30, 0.5, seed=4, last=9).draw(7)
    for world in (2, 4):
        parts = [Batches(images, 30, 0.5, 4, 9, rank, world).draw(7) for rank in range(world)]
        for i, tensor in enumerate(whole):
            assert torch.equal(torch.cat([part[i] for part in parts]), tensor)


def test_sources_are_drawn_by_a_power_of_their_size(packs: list[Pack]) -> None:
    images = Images(packs, "train", CPU)
    for sampling in (0.0, 0.5, 1.0):
        sources = Batches(images, 20000, sampling, seed=0, last=0).draw(0).sources
        weights = torch.tensor(images.sizes).double() ** sampling
        shares = sources.bincount(minlength=2) / 20000
        assert torch.allclose(shares.double(), weights / weights.sum(), atol=0.015)


def test_places_find_the_pixels_of_ids(images: Images, packs: list[Pack]) -> None:
    for source, pack in enumerate(packs):
        ids = torch.from_numpy(np.flatnonzero(np.isin(pack.domain.labels, pack.domain.split.train)))
        some = ids[[3, 0, 5]]
        taken = images.take(images.places(source, some))
        assert np.array_equal(taken.numpy(), pack.images[some.numpy()])


def test_a_training_does_not_depend_on_where_its_images_lie(
    packs: list[Pack], config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for room in (1.0, 0.0):  # everything fits, nothing fits
        monkeypatch.setattr("polyshot.data.table.ROOM", room)
        folder = tmp_path / str(room)
        results.append(train(packs, config, folder, "base", CPU).base.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_an_error_in_the_background_reaches_the_caller() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise OSError("disk")
        return number

    prefetch = Prefetch(make, last=3)
    assert [prefetch(0), prefetch(1)] == [0, 1]
    with pytest.raises(OSError, match="disk"):
        prefetch(2)
    prefetch.close()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_partners_are_of_the_same_source_and_everyone_is_one(sources: list[int]) -> None:
    given_sources = torch.tensor(sources)
    partner = same_source_partner(given_sources, 5)
    assert torch.equal(given_sources[partner], given_sources)
    assert sorted(partner.tolist()) == list(range(len(sources)))
    for i, other in enumerate(partner.tolist()):
        assert i != other or sources.count(sources[i]) == 1


chance = st.floats(0, 1, exclude_max=True, width=32)


@given(st.tuples(chance, chance, chance, chance))
def test_the_share_is_the_share_of_the_own_image(chances: tuple[float, ...]) -> None:
    pixels = torch.stack([torch.ones(3, 12, 12), torch.zeros(3, 12, 12)])
    result, share = mixed(pixels, pixels[[1, 0]], chances)
    assert 0 <= share <= 1
    assert result[0].mean().item() == pytest.approx(share, abs=1e-5)
    assert result[1].mean().item() == pytest.approx(1 - share, abs=1e-5)
    if chances[0] >= 0.5:  # CutMix takes pixels, it makes no new ones
        assert set(result.unique().tolist()) <= {0.0, 1.0}
