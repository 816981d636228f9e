"""The episodes of a target with their images."""

import pytest
import torch
from torch import Tensor, nn

from polyshot.data import table as batches
from polyshot.data.episodes import EpisodeSampler
from polyshot.data.pack import Pack
from polyshot.data.shapes import EpisodeShape, VariableShape
from polyshot.errors import PolyshotError
from polyshot.evaluation.targets import Shape, Target
from tests.helpers import CPU, ONE_SHOT, SHAPE, pack_of, toy_packs

VARIABLE = VariableShape(min_way=5, max_way=8, max_queries=3, max_support=40)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return toy_packs(tmp_path_factory.mktemp("packs"), "signs", each=8)[0]


class Mean(nn.Module):
    """Embeds an image as its mean colour, and counts the images."""

    for_prediction = True
    """Work as it is: a copy would count for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images.mean((2, 3))


@pytest.mark.parametrize("room", [0.4, 0.0], ids=["resident", "streamed"])
def test_tasks_hold_the_images_of_the_episodes(
    pack: Pack, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROOM", room)
    target = Target(pack, CPU, [SHAPE, ONE_SHOT], 5, seed=3)
    for shape in (SHAPE, ONE_SHOT):
        drawn = EpisodeSampler(pack.domain, shape, seed=3)(0, 5)
        tasks = target.tasks(shape)
        for positions, ids in ((tasks.support, drawn.support), (tasks.query, drawn.query)):
            expected = torch.from_numpy(pack.images[ids.flatten().numpy()])
            assert tasks.table.take is not None
            assert torch.equal(tasks.table.take(positions.flatten()), expected)
        assert target.fingerprint(shape) == drawn.fingerprint()


def test_the_first_episodes_are_those_of_a_shorter_row(pack: Pack) -> None:
    long, short = (Target(pack, CPU, [SHAPE], count) for count in (7, 3))
    assert long.fingerprint(SHAPE, 3) == short.fingerprint(SHAPE)
    assert long.sampler(SHAPE).key == short.sampler(SHAPE).key
    assert len(long.tasks(SHAPE, 3)) == 3
    network = Mean()
    for one, other in zip(
        long.tasks(SHAPE, 3).embedded(network), short.tasks(SHAPE).embedded(network), strict=True
    ):
        assert torch.equal(one, other)


def test_an_image_is_embedded_once_for_all_shapes(pack: Pack) -> None:
    target = Target(pack, CPU, [SHAPE, ONE_SHOT], 6)
    network = Mean()
    for shape in (SHAPE, ONE_SHOT):
        target.tasks(shape, 2).embedded(network)
        target.tasks(shape).embedded(network)
    drawn = [EpisodeSampler(pack.domain, shape)(0, 6) for shape in (SHAPE, ONE_SHOT)]
    used = torch.cat([ids.flatten() for row in drawn for ids in (row.support, row.query)]).unique()
    assert network.seen == len(used)


def test_embeddings_go_with_their_network(pack: Pack) -> None:
    target = Target(pack, CPU, [SHAPE], 2)
    tasks = target.tasks(SHAPE)
    tasks.embedded(Mean())
    assert not len(tasks.table._kept)


def test_episodes_alone_have_their_own_images_and_nothing_kept(pack: Pack) -> None:
    target = Target(pack, CPU, [SHAPE], 6)
    network = Mean()
    whole = target.tasks(SHAPE, 2).embedded(network)
    before = network.seen
    alone = target.alone(SHAPE, 2)
    for one, other in zip(alone.embedded(network), whole, strict=True):
        assert torch.equal(one, other)
    assert network.seen == before + alone.table.count <= before + 2 * 25


def test_a_shape_too_large_is_refused_and_the_others_work(pack: Pack) -> None:
    large = EpisodeShape(5, 7, 3)
    target = Target(pack, CPU, [large, SHAPE], 2)
    assert len(target.tasks(SHAPE)) == 2
    for ask in (target.tasks, target.sampler, target.fingerprint):
        with pytest.raises(PolyshotError, match=r"7 \+ 3 images are needed"):
            ask(large)
    with pytest.raises(PolyshotError, match="5 ways are asked for"):  # there is no other
        Target(pack_of([9, 9, 9], "few"), CPU, [SHAPE], 2)
    nothing = Target(pack_of([9, 9, 9], "few"), CPU, [SHAPE, ONE_SHOT], 2)
    for shape in (SHAPE, ONE_SHOT):
        with pytest.raises(PolyshotError, match="5 ways are asked for"):
            nothing.tasks(shape)


def test_one_episode_gives_no_interval(pack: Pack) -> None:
    with pytest.raises(PolyshotError, match="at least 2"):
        Target(pack, CPU, [SHAPE], 1)


# --- variable ways and shots


@pytest.fixture(scope="module")
def uneven() -> Pack:
    return pack_of([4, 5, 6, 8, 12, 16, 7, 9, 11, 5], "uneven")


def test_variable_episodes_come_as_tasks_of_one_way_each(uneven: Pack) -> None:
    target = Target(uneven, CPU, [VARIABLE, SHAPE], 12, seed=2, drop_small=True)
    drawn = EpisodeSampler(uneven.domain, VARIABLE, seed=2)(0, 12)
    groups = target.groups(VARIABLE)
    assert sorted(torch.cat([rows for rows, _ in groups]).tolist()) == list(range(12))
    assert len({tasks.way for _, tasks in groups}) == len(groups) > 1
    for rows, tasks in groups:
        assert tasks.table.take is not None and tasks.mask is not None
        assert tasks.table is target.tasks(SHAPE).table, "images are embedded once for all shapes"
        for i, e in enumerate(rows.tolist()):
            ways = [c for c in drawn.classes[e].tolist() if c >= 0]
            assert tasks.classes is not None and tasks.classes[i].tolist() == ways
            for c in range(tasks.way):
                for ids, positions in (
                    (drawn.support[e, c], tasks.support[i, c][tasks.mask[i, c]]),
                    (drawn.query[e, c], tasks.query[i][tasks.truth[i] == c]),
                ):
                    expected = torch.from_numpy(uneven.images[ids[ids >= 0].numpy()])
                    assert torch.equal(tasks.table.take(positions), expected)
            assert int((tasks.truth[i] >= 0).sum()) == int((drawn.query[e] >= 0).sum())


@pytest.mark.parametrize("shape", [SHAPE, VARIABLE], ids=["fixed", "variable"])
def test_the_first_episodes_in_groups_are_those_of_a_shorter_row(
    shape: Shape, uneven: Pack
) -> None:
    long, short = (Target(uneven, CPU, [shape], n, drop_small=True) for n in (12, 5))
    sampler = EpisodeSampler(uneven.domain, shape, drop_small=True)
    for count in range(1, 13):
        assert long.fingerprint(shape, count) == sampler(0, count).fingerprint()
    network = Mean()
    few, all_ = long.groups(shape, 5), short.groups(shape)
    assert [rows.tolist() for rows, _ in few] == [rows.tolist() for rows, _ in all_]
    for (_, one), (_, other) in zip(few, all_, strict=True):
        assert torch.equal(one.present.sum(-1), other.present.sum(-1))
        mine, its = one.support_of(network)[one.present], other.support_of(network)[other.present]
        assert torch.equal(mine, its)
        asked = [each.query_of(network)[each.truth >= 0] for each in (one, other)]
        assert torch.equal(*asked)


def test_variable_episodes_alone_have_their_own_images(uneven: Pack) -> None:
    target = Target(uneven, CPU, [VARIABLE], 12)
    alone = target.alone(VARIABLE, 12)
    whole = max((tasks for _, tasks in target.groups(VARIABLE)), key=len)
    network = Mean()
    mine, its = (each.support_of(network)[each.present] for each in (alone, whole))
    assert torch.equal(mine, its)
    assert torch.equal(alone.truth, whole.truth)
    used = torch.cat([whole.support[whole.present], whole.query[whole.truth >= 0]]).unique()
    assert alone.table.count <= len(used) + 1  # what pads may be one more


def test_too_few_classes_for_variable_ways_are_refused(pack: Pack) -> None:
    few = pack_of([9] * 4, "few")
    with pytest.raises(PolyshotError, match="5 ways are asked for"):
        Target(few, CPU, [VARIABLE], 2)
    both = Target(pack_of([9] * 5, "five"), CPU, [VariableShape(min_way=6), SHAPE], 2)
    assert len(both.tasks(SHAPE)) == 2
    with pytest.raises(PolyshotError, match="6 ways are asked for"):
        both.groups(VariableShape(min_way=6))
