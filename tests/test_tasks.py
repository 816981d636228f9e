"""Tasks as positions in a table, and the one place that embeds it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyshot.data.episodes import EpisodeSampler
from polyshot.data.shapes import EpisodeShape
from polyshot.data.table import Images
from polyshot.data.toy import draw_packs
from polyshot.errors import PolyshotError
from polyshot.models.backbone import fused
from polyshot.models.views import VIEWS, apply_view, normalise
from polyshot.tasks import (
    EmbeddingCache,
    Queries,
    Table,
    Tasks,
    draw_tasks,
    embed,
    for_prediction,
    pick,
)
from polyshot.tasks.table import network_hash
from tests.helpers import (
    CPU,
    SIZE,
    assert_near,
    in_double,
    pictures,
    random_base,
    random_tasks,
    randomised,
    uneven,
)


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Work on one thread."""


class Counted(nn.Module):
    """A network that counts the images of each pass; copies count in the same list."""

    def __init__(self, passes: list[int], largest: int = 10**6) -> None:
        super().__init__()
        self.map = nn.Linear(3, 4)
        self.passes, self.largest = passes, largest

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.largest:
            raise torch.OutOfMemoryError
        self.passes.append(len(images))
        result: Tensor = self.map(images.mean((2, 3)))
        return result

    def __deepcopy__(self, memo: object) -> "Counted":
        other = Counted(self.passes, self.largest)
        other.map.load_state_dict(self.map.state_dict())
        return other


@pytest.fixture
def passes() -> list[int]:
    return []


@pytest.fixture
def counted(passes: list[int]) -> Counted:
    torch.manual_seed(0)
    network = Counted(passes)
    for_prediction(network)  # looking for its layers is a pass
    passes.clear()
    return network


# --- embedding


def test_a_table_is_embedded_once_for_each_network(counted: Counted, passes: list[int]) -> None:
    images, other = pictures(7), Counted(passes)
    table = Table.of(images, CPU, batch=3)
    first = table.embed(counted)
    assert passes == [3, 3, 1]
    assert table.embed(counted) is first and table.embed(for_prediction(counted)) is first
    assert passes == [3, 3, 1]
    expected = counted.map(normalise(torch.from_numpy(images)).mean((2, 3)))
    torch.testing.assert_close(first, expected.detach())
    assert first.shape == (7, 4) and not first.requires_grad
    passes.clear()
    for_prediction(other)
    passes.clear()
    assert not torch.equal(table.embed(other), first)
    assert passes == [3, 3, 1]
    tasks = random_tasks()
    passes.clear()
    for _ in range(2):
        tasks.support_of(counted), tasks.query_of(counted), tasks.embedded(counted)
    assert sum(passes) == tasks.table.count


def test_weights_that_change_in_place_are_embedded_anew(counted: Counted) -> None:
    table = Table.of(pictures(5), CPU)
    first = table.embed(counted)
    with torch.no_grad():
        counted.map.bias.add_(1.0)
    torch.testing.assert_close(table.embed(counted), first + 1)
    state = {name: value + 1 for name, value in counted.state_dict().items()}
    counted.load_state_dict(state)
    assert not torch.allclose(table.embed(counted), first + 1)
    again = for_prediction(counted)
    assert for_prediction(counted) is again and for_prediction(again) is again
    optimiser = torch.optim.SGD(counted.parameters(), lr=1.0)
    counted(torch.rand(2, 3, 4, 4)).sum().backward()
    optimiser.step()
    assert for_prediction(counted) is not again


def test_statistics_that_change_in_training_are_embedded_anew() -> None:
    base, table = random_base(), Table.of(pictures(4), CPU)
    first = table.embed(base)
    with torch.no_grad():
        base.train()(torch.randn(6, 3, SIZE, SIZE))
    base.eval()
    found = table.embed(base)
    assert not torch.allclose(found, first)
    with torch.no_grad():
        assert_near(found, base(normalise(torch.from_numpy(pictures(4)))))


@pytest.mark.parametrize("norms", [False, True])
def test_a_network_that_moves_to_another_precision_is_copied_anew(norms: bool) -> None:
    """A network without batch norm has no buffers whose replacement would tell."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4) if norms else nn.ReLU())
    network.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten())
    randomised(network)
    assert next(for_prediction(network).parameters()).dtype == torch.float32
    network.double()
    assert next(for_prediction(network).parameters()).dtype == torch.float64


def test_networks_that_learn_are_not_kept(counted: Counted, passes: list[int]) -> None:
    table = Table.of(pictures(5), CPU)
    table.frozen = False
    for _ in range(2):
        table.embed(counted)
    assert passes == [5, 5]
    assert not table.embed(counted).requires_grad
    passes.clear()
    Tasks(table, torch.tensor([[3, 4]]), torch.tensor([[[0], [1]]])).embedded(counted)
    assert passes == [5], "support and queries in one pass"


def test_functions_may_embed_and_are_asked_each_time() -> None:
    asked: list[int] = []

    def network(images: Tensor) -> Tensor:
        asked.append(len(images))
        return images.mean((2, 3))

    table = Table.of(pictures(5), CPU)
    assert torch.equal(table.embed(network), table.embed(network))
    assert asked == [5, 5]


@pytest.mark.parametrize("views", VIEWS)
def test_embeddings_are_the_mean_over_the_views_of_the_network_in_evaluation_mode(
    views: str,
) -> None:
    base = random_base().train()
    table = Table.of(pictures(4), CPU, views)  # type: ignore[arg-type]
    found = table.embed(base)
    assert base.training and found.dtype == torch.float32
    images = normalise(torch.from_numpy(pictures(4)))
    with torch.no_grad():
        seen = [base.eval()(apply_view(images, view)) for view in VIEWS[views]]  # type: ignore[index]
    assert_near(found, torch.stack(seen).mean(0))
    wider = images.view(2, 2, *images.shape[1:])
    flat = fused(base)
    per_task = embed(lambda x: flat(x.flatten(0, 1)).view(2, 2, -1), wider, views)  # type: ignore[arg-type]
    assert_near(per_task.flatten(0, 1), found)


@pytest.mark.parametrize("form", ["array", "memory map", "tensor", "floats"])
def test_images_come_in_any_form(form: str, tmp_path: Path, counted: Counted) -> None:
    pixels = pictures(6)
    expected = Table.of(pixels, CPU).embed(counted)
    np.save(tmp_path / "images.npy", pixels)
    images = {
        "array": pixels,
        "memory map": np.load(tmp_path / "images.npy", mmap_mode="r"),
        "tensor": torch.from_numpy(pixels),
        "floats": torch.from_numpy(pixels).float() / 255,
    }[form]
    torch.testing.assert_close(Table.of(images, CPU).embed(counted), expected)


def test_float64_all_the_way() -> None:
    base = random_base().double()
    with in_double():
        table = Table.of(pictures(3), CPU, "three")
        found = table.embed(base)
        assert found.dtype == torch.float64
        images = normalise(torch.from_numpy(pictures(3)))
        assert images.dtype == torch.float64
        with torch.no_grad():
            seen = [base(apply_view(images, view)) for view in VIEWS["three"]]
        torch.testing.assert_close(found, torch.stack(seen).mean(0), atol=1e-12, rtol=1e-12)


def test_where_memory_is_full_smaller_batches_follow(passes: list[int]) -> None:
    images, told = pictures(13), []
    torch.manual_seed(0)
    network = Counted(passes)
    expected = Table.of(images, CPU).embed(network)
    small = Counted(passes, largest=3)
    small.map.load_state_dict(network.map.state_dict())
    for_prediction(small)
    passes.clear()
    table = Table.of(images, CPU, batch=8, report=lambda *step: told.append(step))
    torch.testing.assert_close(table.embed(small), expected)
    assert max(passes) <= 3 and sum(passes) == 13
    assert [done for _, done, _ in told] == np.cumsum(passes).tolist()
    assert {(name, total) for name, _, total in told} == {("images", 13)}
    hopeless = Counted(passes)
    for_prediction(hopeless).largest = 0
    with pytest.raises(PolyshotError, match="memory does not hold"):
        Table.of(images, CPU).embed(hopeless)


def test_batches_and_progress(counted: Counted, passes: list[int]) -> None:
    told: list[tuple[str, int, int]] = []
    table = Table.of(pictures(7), CPU, batch=4, report=lambda *step: told.append(step))
    table.name = "signs"
    whole = Table.of(pictures(7), CPU).embed(counted)
    passes.clear()
    torch.testing.assert_close(table.embed(counted), whole)
    assert passes == [4, 3] and told == [("signs", 4, 7), ("signs", 7, 7)]


# --- the cache on disk


def cached_table(folder: Path, content: str = "a", views: str = "one", count: int = 5) -> Table:
    table = Table.of(pictures(count), CPU, views)  # type: ignore[arg-type]
    table.cache, table.content = EmbeddingCache(folder), content
    return table


def test_embeddings_are_kept_on_disk_by_content(
    tmp_path: Path, counted: Counted, passes: list[int]
) -> None:
    first = cached_table(tmp_path).embed(counted)
    assert passes == [5]
    again = cached_table(tmp_path).embed(counted)
    same = Counted(passes)  # another object of the same weights
    same.map.load_state_dict(counted.map.state_dict())
    for_prediction(same)
    passes.clear()
    assert torch.equal(cached_table(tmp_path).embed(same), first) and torch.equal(again, first)
    assert passes == []
    assert len(list(tmp_path.iterdir())) == 1
    others: list[Callable[[], Tensor]] = [
        lambda: cached_table(tmp_path, content="b").embed(counted),
        lambda: cached_table(tmp_path, views="three").embed(counted),
        lambda: cached_table(tmp_path).embed(moved(counted)),
    ]
    for number, other in enumerate(others, 2):
        passes.clear()
        assert len(other()) == 5 and passes
        assert len(list(tmp_path.iterdir())) == number
    passes.clear()
    assert len(cached_table(tmp_path, count=6).embed(counted)) == 6, "as many as there are now"
    assert passes == [6]


def moved(network: Counted) -> Counted:
    other = Counted(network.passes)
    other.map.load_state_dict({k: v + 1 for k, v in network.map.state_dict().items()})
    return other


def test_a_damaged_cache_says_which_file_to_delete(tmp_path: Path, counted: Counted) -> None:
    cached_table(tmp_path).embed(counted)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(PolyshotError, match=f"{file.name} are damaged.*delete this file") as error:
        cached_table(tmp_path).embed(counted)
    assert "\n" not in str(error.value)


def test_a_cache_gives_what_was_put(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "deep" / "cache")
    assert cache.get("x") is None
    values = torch.randn(3, 2)
    cache.put("x", values)
    found = cache.get("x")
    assert found is not None and torch.equal(found, values)
    assert [file.name for file in cache.folder.iterdir()] == ["x.npy"]


def test_what_embeddings_depend_on_is_hashed() -> None:
    assert network_hash(random_base()) == network_hash(random_base())
    assert network_hash(random_base()) != network_hash(random_base(seed=1))
    assert network_hash(random_base()) == network_hash(random_base().train())


# --- embeddings alone


def test_embeddings_from_elsewhere_stand_in(counted: Counted, passes: list[int]) -> None:
    table, made = Table(None, 5, CPU), torch.randn(5, 4)
    table.keep(counted, made)
    assert torch.equal(table.embed(counted), made) and torch.equal(
        table.embed(for_prediction(counted)), made
    )
    assert passes == []
    for use in (lambda: table.images(torch.tensor([0])), lambda: table.embed(Counted([]))):
        with pytest.raises(PolyshotError, match="embeddings alone: give their images"):
            use()
    queries = Queries(table, torch.tensor([[4, 0], [1, 1]]))
    assert torch.equal(queries.query_of(counted), made[queries.query])
    assert torch.equal(queries.query_of(counted, torch.tensor([1])), made[queries.query[1:]])


# --- tasks


def test_positions_give_images_and_embeddings(counted: Counted) -> None:
    mask = uneven()
    tasks = random_tasks(mask=mask)
    assert (len(tasks), tasks.way, tasks.shot) == (3, 4, 3) and tasks.device == CPU
    assert tasks.table.take is not None
    every = normalise(tasks.table.take(torch.arange(tasks.table.count)))
    embedded = tasks.table.embed(counted)
    for rows in (None, torch.tensor([2, 0])):
        chosen = range(3) if rows is None else rows.tolist()
        support, query = tasks.support_of(counted, rows), tasks.query_of(counted, rows)
        pixels, questions = tasks.support_images(rows), tasks.query_images(rows)
        for place, e in enumerate(chosen):
            for c, s in mask[e].nonzero().tolist():
                position = int(tasks.support[e, c, s])
                assert torch.equal(support[place, c, s], embedded[position])
                assert torch.equal(pixels[place, c, s], every[position])
            for q, position in enumerate(tasks.query[e].tolist()):
                assert torch.equal(query[place, q], embedded[position])
                assert torch.equal(questions[place, q], every[position])
    together = tasks.embedded(counted)
    assert torch.equal(together[0], tasks.support_of(counted))
    assert torch.equal(together[1], tasks.query_of(counted))


def test_what_the_mask_hides_may_be_any_number(counted: Counted) -> None:
    tasks = random_tasks(mask=uneven())
    wild = replace(tasks, support=tasks.support.where(tasks.present, 10**9))
    assert torch.equal(wild.support_of(counted), tasks.support_of(counted))
    assert torch.equal(wild.support_images(), tasks.support_images())


def test_shots_and_truth() -> None:
    tasks = random_tasks(mask=uneven(), queries=2)
    assert tasks.shots.tolist() == [10 / 4, 2, 3]
    assert random_tasks().shots.tolist() == [3, 3, 3]
    assert tasks.truth.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]] * 3
    labels = torch.tensor([[1, -1], [0, 0], [3, 2]])
    assert replace(tasks, query=tasks.query[:, :2], labels=labels).truth is labels
    assert random_tasks().present.all() and torch.equal(tasks.present, uneven())


def test_parts_are_some_of_the_tasks() -> None:
    tasks = random_tasks(mask=uneven(), episodes=3)
    full = replace(tasks, labels=tasks.truth, classes=torch.arange(12).view(3, 4))
    for rows in (slice(1, 3), torch.tensor([2, 0])):
        part = full.part(rows)
        for name in ("support", "query", "mask", "labels", "classes"):
            assert torch.equal(getattr(part, name), getattr(full, name)[rows]), name
        assert part.table is full.table
    assert [len(part) for part in full.chunks(2)] == [2, 1]
    assert [len(part) for part in full.chunks(0)] == [1, 1, 1]
    assert random_tasks().part(slice(0, 1)).mask is None


def test_support_images_may_classify_others() -> None:
    tasks = random_tasks(mask=uneven())
    places = torch.tensor([[1], [0], [1], [0]]).expand(3, 4, 1)
    known = tasks.present & (torch.arange(3) != places)
    known[0, 1, 0] = True
    held = tasks.held_out(known, places)
    assert torch.equal(held.present, known) and held.query.shape == (3, 4)
    for e in (1, 2):
        expected = [int(tasks.support[e, c, places[e, c, 0]]) for c in range(4)]
        assert held.query[e].tolist() == expected
    assert held.truth.tolist() == [[0, 1, 2, 3]] * 3


def test_a_users_examples_are_one_task() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 2])
    tasks = Tasks.of_examples(Table.of(pictures(6), CPU), labels)
    assert (len(tasks), tasks.way, tasks.shot) == (1, 3, 3) and tasks.query.shape == (1, 0)
    found = [tasks.support[0, c][tasks.present[0, c]].tolist() for c in range(3)]
    assert found == [[1, 3], [2], [0, 4, 5]]  # in the order they were given


def test_picked_places() -> None:
    values = torch.randn(2, 3, 4, 5)
    places = torch.randint(0, 4, (2, 3, 2))
    found = pick(values, places)
    for e in range(2):
        for c in range(3):
            assert torch.equal(found[e, c], values[e, c, places[e, c]])
    assert torch.equal(pick(values[..., 0], places), found[..., 0])


def test_classes_without_support_and_masks_that_differ_are_refused() -> None:
    tasks = random_tasks(mask=uneven())
    mask = uneven()
    mask[2, 1] = False
    with pytest.raises(PolyshotError, match="no support image"):
        replace(tasks, mask=mask)
    with pytest.raises(PolyshotError, match="no support image"):
        replace(tasks, support=tasks.support[..., :0], mask=None)
    with pytest.raises(PolyshotError, match="mask must be"):
        replace(tasks, mask=mask[:, :, :1])


def test_episodes_of_a_pack_become_tasks(tmp_path: Path) -> None:
    (pack,) = draw_packs(tmp_path, ["signs"], size=SIZE, per_class=8, workers=1)
    sampler = EpisodeSampler(pack.domain, EpisodeShape(5, 2, 3), part="all", seed=7)
    episodes = sampler(0, 4)
    tasks = draw_tasks(Images([pack], "all", CPU), 0, sampler, 4)
    assert not tasks.table.frozen and tasks.table.count <= 4 * 5 * 5
    assert tasks.classes is not None and torch.equal(tasks.classes, episodes.classes)
    for e in range(4):
        wanted = pack.images[episodes.support[e].flatten().numpy()]
        expected = normalise(torch.from_numpy(np.array(wanted)))
        assert torch.equal(tasks.support_images()[e].flatten(0, 1), expected)
        wanted = pack.images[episodes.query[e].flatten().numpy()]
        assert torch.equal(tasks.query_images()[e], normalise(torch.from_numpy(np.array(wanted))))
        assert tasks.truth[e].tolist() == np.repeat(range(5), 3).tolist()
