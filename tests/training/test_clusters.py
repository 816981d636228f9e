"""Several members of one source: its classes in clusters."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.views import normalise
from polyshot.pool.pool import Pool
from polyshot.tasks import embed
from polyshot.training.base import initial_base
from polyshot.training.clusters import (
    class_means,
    cluster,
    find_clusters,
    member_packs,
    natural_clusters,
    silhouette,
)
from polyshot.training.run import train
from polyshot.util.files import read_json
from tests.helpers import Interrupt, step_files, until_done


def blobs(count: int, each: int, dim: int = 16, spread: float = 0.15) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    centres = torch.randn(count, 1, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, each, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize((centres + spread * noise).flatten(0, 1), dim=1)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_clear_groups_are_found_and_counted(count: int) -> None:
    points, true = blobs(count, 14), torch.arange(count).repeat_interleave(14)
    for labels in (cluster(points, count, 5, 0), natural_clusters(points, 10, 0)):
        assert len(set(zip(labels.tolist(), true.tolist(), strict=True))) == count
        assert int(labels.max()) + 1 == count


def test_one_cloud_is_one_cluster() -> None:
    points = blobs(1, 60, spread=1.0)
    assert natural_clusters(points, 10, 0).eq(0).all()
    assert natural_clusters(blobs(3, 4), 10, 0).eq(0).all()  # too few for two of ten


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 20), st.integers(0, 3))
def test_every_cluster_has_enough_points(k: int, least: int, more: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(k * least + more, 4, generator=generator, dtype=torch.float64)
    labels = cluster(points, k, least, seed)
    assert labels.bincount(minlength=k).min() >= least and int(labels.max()) < k
    assert torch.equal(labels, cluster(points, k, least, seed))


def test_points_that_are_all_the_same_are_shared_out() -> None:
    labels = cluster(torch.ones(12, 3, dtype=torch.float64), 3, 4, 0)
    assert sorted(labels.bincount().tolist()) == [4, 4, 4]


def test_the_silhouette_is_its_definition() -> None:
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    scores = []
    for i in range(9):
        distance = (points - points[i]).norm(dim=1)
        own = distance[(labels == labels[i]) & (torch.arange(9) != i)].mean()
        other = min(distance[labels == k].mean() for k in range(3) if k != labels[i])
        scores.append(float((other - own) / max(own, other)))
    assert silhouette(points, labels) == pytest.approx(np.mean(scores))


def test_class_means_are_of_their_classes(packs: list[Pack], config: Config) -> None:
    images = Images(packs, "train", torch.device("cpu"))
    base = initial_base(config).eval()
    classes = packs[1].domain.split.train[:4]
    means = class_means(base, images, 1, classes)
    assert means.shape == (4, 32)
    ids = torch.from_numpy(np.flatnonzero(packs[1].domain.labels == classes[2]))
    pixels = images.bring(images.take(images.places(1, ids)))
    own = embed(base, normalise(pixels)).double()
    own = torch.nn.functional.normalize(own, dim=1).mean(0)
    torch.testing.assert_close(means[2], own / own.norm())


def with_members(config: Config, members: int) -> Config:
    return replace(config, modulator=replace(config.modulator, members=members))


def test_clusters_share_out_the_training_classes(packs: list[Pack], config: Config) -> None:
    images = Images(packs, "train", torch.device("cpu"))
    base = initial_base(config).eval()
    found = find_clusters(base, images, 0, with_members(config, 3))
    split = packs[0].domain.split
    assert len(found) == 3 and min(map(len, found)) >= config.modulator.shape.way
    assert sorted(c for each in found for c in each) == sorted(split.train)
    parts = member_packs(packs[0], found)
    assert [part.domain.name for part in parts] == ["signs/1", "signs/2", "signs/3"]
    assert [part.domain.split.train for part in parts] == found
    assert all(part.domain.split.val == split.val for part in parts)
    assert member_packs(packs[0], [split.train]) == [packs[0]]


def test_a_pool_with_several_members_a_source(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    config = with_members(config, 2)
    whole = train(packs, config, tmp_path / "whole", device="cpu")
    names = ("base", "signs/1", "signs/2", "textures/1", "textures/2")
    assert whole.members == names and list(whole.statistics) == ["signs", "textures"]
    assert whole.members_of("signs") == ["signs/1", "signs/2"]
    labels = whole.about["steps"]["selector"]["labels"]
    # Tasks of each cluster, and of each source as a whole.
    assert len(labels) == 5 and sum(labels) == 6 * config.selector.tasks
    assert Pool.load(tmp_path / "whole" / "pool").members == names
    out, progress = tmp_path / "run", Interrupt(3)
    _, times = until_done(lambda: train(packs, config, out, device="cpu", progress=progress))
    assert times > 3
    assert step_files(out) == step_files(tmp_path / "whole")
    less = whole.remove("signs")
    assert less.members == ("base", "textures/1", "textures/2")
    assert list(less.statistics) == ["textures"]
    assert list(whole.remove("signs/2").statistics) == ["signs", "textures"]


def test_steps_one_by_one_know_the_members(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    config = with_members(config, 0)
    for step in ("base", "modulators", "selector"):
        pool = train(packs, config, tmp_path, step, "cpu")
    found = read_json(tmp_path / "steps" / "clusters.json")
    assert list(found) == ["signs", "textures"]
    assert len(pool.members) == 1 + sum(map(len, found.values()))


def test_more_clusters_than_the_classes_allow_are_refused(
    packs: list[Pack], config: Config, tmp_path: Path
) -> None:
    many = with_members(config, 9)
    said = r"signs has \d+ training classes: enough for \d members with 5-way.*not for 9"
    with pytest.raises(PolyshotError, match=said):
        train(packs, many, tmp_path / "run", device="cpu")
    wide = replace(many, modulator=replace(many.modulator, members=2, shape=EpisodeShape(20, 2, 3)))
    with pytest.raises(PolyshotError, match="20-way"):
        train(packs, wide, tmp_path / "run", device="cpu")
    named = replace(packs[1], domain=replace(packs[1].domain, name="signs/1"))
    with pytest.raises(PolyshotError, match="'signs/1' could be a member of 'signs'"):
        train([packs[0], named], with_members(config, 2), tmp_path / "run", device="cpu")
    with pytest.raises(PolyshotError, match=r"modulator\.members=-1 is too small"):
        with_members(config, -1)
    assert not (tmp_path / "run").exists()
