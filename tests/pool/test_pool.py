import json
import math
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from polyshot.config import AdaptationConfig
from polyshot.errors import PolyshotError
from polyshot.models.modulators import Kind, fold
from polyshot.models.selector import Selector
from polyshot.models.views import normalise
from polyshot.pool.description import FORMAT
from polyshot.pool.files import check_domains, modulator_file
from polyshot.pool.pool import Pool
from polyshot.util.checks import sealed
from tests.helpers import (
    SIZE,
    SMALL,
    answers,
    assert_near,
    embedded_tasks,
    fresh_modulator,
    pictures,
    random_pool,
    random_tasks,
)

both_kinds = pytest.mark.parametrize("kind", get_args(Kind))


@both_kinds
def test_embed_is_every_member_with_its_strength(kind: Kind) -> None:
    pool, images = random_pool(kind), pictures()
    made = pool.embed(images, batch=3)
    assert made.shape == (4, 7, SMALL.dim) and made.dtype == torch.float32
    x = normalise(torch.from_numpy(images))
    with torch.no_grad():
        assert_near(made[0], pool.base(x), 1e-4)
        assert_near(made[1], fold(pool.base, pool.modulators["one"])(x), 1e-4)
        assert_near(made[2], fold(pool.base, pool.modulators["two"], 0.5)(x), 1e-4)
    assert torch.equal(made[3], made[0])
    assert (made[1] - made[0]).abs().max() > 1e-2
    assert_near(pool.embed(images, [2, 0], ids=np.array([5, 1])), made[[2, 0]][:, [5, 1]], 1e-5)


def test_embed_takes_tensors_and_floats_and_reports_its_progress() -> None:
    pool, images = random_pool(), torch.from_numpy(pictures())
    seen: list[tuple[str, int, int]] = []
    made = pool.embed(images, [3, 1, 0], batch=4, report=lambda *all: seen.append(all))
    assert [done for _, done, _ in seen] == [4, 7, 11, 14, 21]  # the base runs once, for two
    assert {(name, total) for name, _, total in seen} == {("embed", 21)}
    assert_near(pool.embed(images.float() / 255, [3, 1, 0]), made, 1e-5)


def test_embed_leaves_the_pool_as_it_was_and_no_gradients() -> None:
    pool = random_pool()
    before = pool.hash
    assert not pool.embed(pictures()).requires_grad
    assert pool.hash == before
    assert not pool.base.training
    assert not any(p.requires_grad for m in (pool.base, pool.selector) for p in m.parameters())
    with torch.enable_grad():  # the embedding's inference mode must not leak
        assert torch.ones(1, requires_grad=True).mul(2).requires_grad


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(PolyshotError, match="16 x 16"):
        random_pool().embed(np.zeros((2, 3, 20, 20), dtype=np.uint8))


@both_kinds
def test_saved_and_loaded_pools_predict_the_same_bits(kind: Kind, tmp_path: Path) -> None:
    config = AdaptationConfig(start="random", steps=3, pull=0.01)
    pool, images = random_pool(kind, "euclidean", config), pictures()
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool")
    assert torch.equal(again.embed(images), pool.embed(images))
    for adaptation in ("none", "head"):
        both = [answers(p, embedded_tasks(p), "select", adaptation) for p in (pool, again)]
        assert torch.equal(*both)
    assert again.hash == pool.hash
    assert again.members == ("base", "one", "two", "off")
    for name in ("config", "size", "kind", "metric", "strengths", "scales", "adaptation", "about"):
        assert getattr(again, name) == getattr(pool, name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pool"]
    assert not any("pickle" in p.name or p.suffix == ".pt" for p in tmp_path.rglob("*"))


def test_others_may_read_a_pool_as_they_may_read_other_files(tmp_path: Path) -> None:
    random_pool().save(tmp_path / "pool")
    (tmp_path / "other").touch()
    modes = {file.stat().st_mode for file in (tmp_path / "pool").rglob("*") if file.is_file()}
    assert modes == {(tmp_path / "other").stat().st_mode}


def test_a_pool_of_the_base_alone_round_trips(tmp_path: Path) -> None:
    full = random_pool()
    pool = Pool(SMALL, SIZE, "conv1x1", "cosine", full.base)
    assert pool.scales == [1.0] and pool.members == ("base",)
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool")
    assert again.selector is None and again.hash == pool.hash


def test_less_precision_makes_files_smaller_and_hardly_changes_embeddings(tmp_path: Path) -> None:
    pool, images = random_pool(), pictures()
    pool.save(tmp_path / "whole")
    for precision, share, error in (("half", 0.75, 0.02), ("eight", 0.6, 0.05), ("six", 0.5, 0.2)):
        pool.save(tmp_path / precision, precision)
        whole, small = (
            sum(f.stat().st_size for f in (tmp_path / name).rglob("*.safetensors"))
            for name in ("whole", precision)
        )
        assert small < share * whole
        again = Pool.load(tmp_path / precision)
        assert next(again.base.parameters()).dtype == torch.float32
        assert_near(again.embed(images), pool.embed(images), error)
        assert again.hash != pool.hash and again.members == pool.members


def test_hashes_follow_weights_and_settings() -> None:
    pool = random_pool()
    hashes, whole = pool.member_hashes(), pool.hash
    assert hashes[3] == hashes[0] and len(set(hashes)) == 3
    assert random_pool().hash == whole
    pool.modulators["two"].get_parameter("layer1.0.conv1.bias").data[0] += 0.1
    assert pool.member_hashes()[2] != hashes[2]
    assert [pool.member_hash(i) for i in (0, 1, 3)] == [hashes[i] for i in (0, 1, 3)]
    changed = {whole, pool.hash}
    pool.scales[1] = 3.0
    changed.add(pool.hash)
    assert pool.selector is not None
    pool.selector.output.bias.data[0] += 1
    changed.add(pool.hash)
    pool.strengths["one"] = 0.25
    changed.add(pool.hash)
    assert len(changed) == 5
    pool.base.bn1.running_mean[0] += 1
    assert all(a != b for a, b in zip(pool.member_hashes(), hashes, strict=True))


def test_saving_replaces_a_pool_and_nothing_else(tmp_path: Path) -> None:
    pool = random_pool()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(PolyshotError, match="is no pool: it is not overwritten"):
        pool.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(PolyshotError, match="is no pool"):
        pool.save(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    pool.save(tmp_path / "empty")
    pool.scales[0] = 99.0
    del pool.modulators["off"], pool.strengths["off"]
    pool.scales.pop()
    pool.selector = None
    pool.save(tmp_path / "empty")
    assert Pool.load(tmp_path / "empty").scales[0] == 99.0
    assert not (tmp_path / "empty" / modulator_file("off")).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "mine"]


def test_a_save_that_fails_leaves_the_old_pool(tmp_path: Path) -> None:
    pool = random_pool()
    pool.save(tmp_path / "pool")
    before = pool.hash
    pool.about = {"not": {"json"}}
    with pytest.raises(TypeError):
        pool.save(tmp_path / "pool")
    assert Pool.load(tmp_path / "pool").hash == before
    assert [p.name for p in tmp_path.iterdir()] == ["pool"]


def edit(folder: Path, **changes: object) -> None:
    file = folder / "pool.json"
    file.write_text(json.dumps(sealed(json.loads(file.read_text()) | changes)))


def reshape(folder: Path, name: str) -> None:
    """Cut a tensor and put the right hash of the wrong file into pool.json."""
    import hashlib

    tensors = load_file(folder / name)
    key = next(k for k, t in tensors.items() if t.ndim == 1)
    save_file(tensors | {key: tensors[key][:-1].clone()}, folder / name)
    about = json.loads((folder / "pool.json").read_text())
    about["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "pool.json").write_text(json.dumps(sealed(about)))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no description": (lambda p: (p / "pool.json").unlink(), "is no pool"),
    "damaged json": (lambda p: (p / "pool.json").write_text("{"), "damaged pool.json"),
    "json of something else": (lambda p: (p / "pool.json").write_text("[1]"), "damaged pool.json"),
    "newer format": (
        lambda p: edit(p, format=FORMAT + 1),
        f"format {FORMAT + 1}, this Polyshot reads up to {FORMAT}",
    ),
    "strange format": (lambda p: edit(p, format="x"), "upgrade"),
    "missing base": (lambda p: (p / "base.safetensors").unlink(), "lacks its file base"),
    "missing modulator": (lambda p: (p / modulator_file("two")).unlink(), "lacks its file mod"),
    "missing selector": (lambda p: (p / "selector.safetensors").unlink(), "lacks its file sel"),
    "changed weights": (lambda p: flip(p / "base.safetensors"), "does not match its hash"),
    "wrong base": (lambda p: reshape(p, "base.safetensors"), "wrong shapes"),
    "wrong modulator": (lambda p: reshape(p, modulator_file("one")), "'one' .* wrong shapes"),
    "wrong selector": (lambda p: reshape(p, "selector.safetensors"), "selector .* wrong shapes"),
    "other width": (lambda p: edit(p, architecture={"name": "resnet18", "width": 8}), "shapes"),
    "other network": (lambda p: edit(p, architecture={"name": "vit"}), "unknown architecture"),
    "other normalisation": (
        lambda p: edit(p, normalisation={"mean": [0, 0, 0], "std": [1, 1, 1]}),
        "normalises images in another way",
    ),
    "no such metric": (lambda p: edit(p, metric="manhattan"), "damaged pool.json"),
    "too few scales": (lambda p: edit(p, scales=[1.0]), "as many scales"),
    "too few strengths": (lambda p: edit(p, strengths=[1.0]), "damaged pool.json"),
    "unlisted file": (lambda p: edit(p, files={}), "does not match its hash"),
    "no list of files": (lambda p: edit(p, files=None), "damaged pool.json"),
    "a way out": (lambda p: edit(p, domains=["../../x", "two", "off"]), "that is no path"),
    "not a number": (lambda p: edit(p, scales=[1.0, math.nan, 1, 1]), r"scales\[1\] is nan"),
    "wild strengths": (lambda p: edit(p, strengths=[1e9, 1, 1]), "strengths.* too large"),
    "wild rates": (lambda p: edit(p, adaptation={"rates": [1e9]}), "rates.* too large"),
    "a giant number": (lambda p: edit(p, scales=[10**400, 1, 1, 1]), r"scales\[0\]"),
    "a giant size": (lambda p: edit(p, size=10**6), "size=1000000 is too large"),
    "a giant network": (
        lambda p: edit(p, architecture={"name": "resnet18", "width": 10**6}),
        "its width is 1000000",
    ),
    "nesting": (lambda p: (p / "pool.json").write_text("[" * 10**5), "damaged pool.json"),
    "a name twice": (lambda p: edit(p, domains=["two", "two", "off"]), "names one twice"),
    "missing setting": (lambda p: edit(p, adaptation={"steps": "many"}), "damaged pool.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    random_pool().save(folder)
    Pool.load(folder)
    damage, message = FAULTS[fault]
    damage(folder)
    with pytest.raises(PolyshotError, match=message) as caught:
        Pool.load(folder)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_safetensors_and_folders_that_are_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    random_pool().save(folder)
    (folder / "base.safetensors").write_bytes(b"pickle")
    edit(folder, files={"base.safetensors": _sha(folder / "base.safetensors")})
    with pytest.raises(PolyshotError, match="is no safetensors file"):
        Pool.load(folder)
    for nowhere in (tmp_path / "nowhere", tmp_path, folder / "pool.json"):
        with pytest.raises(PolyshotError, match="is no pool"):
            Pool.load(nowhere)


def _sha(file: Path) -> str:
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "name",
    ["a/b", ".hidden", "CON:*?", "flüchtig 花", "a%2Fb", "base", "imagenet/1", "..."],
)
def test_any_name_of_a_domain_makes_a_file_in_the_folder(name: str, tmp_path: Path) -> None:
    full = random_pool()
    pool = Pool(SMALL, SIZE, "conv1x1", "cosine", full.base, {name: full.modulators["one"]})
    pool.save(tmp_path / "pool")
    assert len(list((tmp_path / "pool" / "modulators").iterdir())) == 1
    assert not list((tmp_path / "pool" / "modulators").glob(".*"))
    again = Pool.load(tmp_path / "pool")
    assert list(again.modulators) == [name] and again.hash == pool.hash


def test_names_that_cannot_be_files_are_refused() -> None:
    check_domains(["a b", "a_b", "ä", "Ä"])
    with pytest.raises(PolyshotError, match="'dtd' and 'DTD' differ only by case"):
        check_domains(["dtd", "x", "DTD"])
    for name in ("", "x" * 201, "花" * 100):
        with pytest.raises(PolyshotError, match="empty or too long"):
            check_domains([name])
    paths = ("../up", ".", "..", "a/../b", "/root", "a/", "a\\..\\b", "nul\0", "a\nb", "\x1b[1m")
    for name in paths:
        with pytest.raises(PolyshotError, match="a name that is no path is wanted"):
            check_domains([name])


@pytest.mark.parametrize("name", ["con", "Aux", "nul", "com1.x", "LPT9", "a:b", "a*?", ".x", "x."])
def test_names_that_other_systems_do_not_allow_are_escaped(tmp_path: Path, name: str) -> None:
    """Windows knows devices by these names, whatever the ending, and forbids some letters."""
    pool = random_pool()
    pool.modulators = {name: pool.modulators["one"]}
    pool.strengths, pool.scales, pool.selector = {name: 1.0}, pool.scales[:2], None
    pool.save(tmp_path / "pool")
    assert Pool.load(tmp_path / "pool").hash == pool.hash
    (file,) = (tmp_path / "pool" / "modulators").iterdir()
    assert not set(file.name) & set('<>:"/\\|?*') and not file.name.startswith(".")
    assert not PureWindowsPath(file.name).is_reserved()


def test_parts_that_do_not_belong_together_are_refused() -> None:
    full = random_pool()
    with pytest.raises(PolyshotError, match="selector chooses among 3 members, the pool has 1"):
        Pool(SMALL, SIZE, "conv1x1", "cosine", full.base, selector=Selector(SMALL.dim, 3))
    with pytest.raises(PolyshotError, match="odd: not conv1x1"):
        Pool(
            SMALL, SIZE, "conv1x1", "cosine", full.base, {"odd": fresh_modulator(SMALL, "channel")}
        )


def test_task_weights_use_the_unit_norm_and_sum_to_one() -> None:
    pool, means = random_pool(), torch.rand(6, SMALL.dim)
    weights = pool.task_weights(means)
    assert weights.shape == (6, 4)
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    torch.testing.assert_close(pool.task_weights(7 * means), weights)
    pool.unit_input = False
    assert (pool.task_weights(7 * means) - weights).abs().max() > 1e-3
    pool.selector = None
    with pytest.raises(PolyshotError, match="no selector"):
        pool.task_weights(means)


def test_a_save_killed_between_two_renames_is_mended(tmp_path: Path) -> None:
    pool = random_pool()
    pool.save(tmp_path / "pool")
    (tmp_path / "pool").rename(tmp_path / ".pool.old")
    (tmp_path / ".pool.partial").mkdir()  # another that was killed
    pool.save(tmp_path / "pool")
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]
    assert Pool.load(tmp_path / "pool").hash == pool.hash


def test_another_look_at_images_is_another_pool(tmp_path: Path) -> None:
    pool = random_pool()
    wide = pool.with_views("five")
    assert pool.with_views(None) is pool and pool.views == "one" and wide.views == "five"
    assert wide.hash != pool.hash and wide.member_hash(0) != pool.member_hash(0)
    wide.save(tmp_path / "pool")
    loaded = Pool.load(tmp_path / "pool")
    assert loaded.views == "five" and loaded.hash == wide.hash
    images = torch.randint(0, 256, (3, 3, SIZE, SIZE), dtype=torch.uint8)
    torch.testing.assert_close(loaded.embed(images), wide.embed(images))
    assert not torch.allclose(wide.embed(images), pool.embed(images))
    with pytest.raises(PolyshotError, match=r"no views .fife.*five"):
        pool.with_views("fife")


def test_a_pools_networks_follow_its_weights() -> None:
    pool = random_pool()
    images = pictures(3)
    first = pool.embed(images)
    assert pool.network(1) is pool.network(1)
    assert pool.network(3) is pool.network(0), "a modulator of strength 0 is the base"
    with torch.no_grad():
        pool.modulators["one"].get_parameter("layer1.0.conv1.bias").add_(0.3)
    changed = pool.embed(images)
    assert torch.equal(changed[[0, 2, 3]], first[[0, 2, 3]])
    assert not torch.allclose(changed[1], first[1])
    pool.strengths["two"] = 1.0
    assert not torch.allclose(pool.embed(images)[2], first[2])
    with torch.no_grad():
        pool.base.bn1.running_mean.add_(0.5)
    for one, other in zip(pool.embed(images), changed, strict=True):
        assert not torch.allclose(one, other)


def test_a_pool_made_for_inference_predicts() -> None:
    with torch.inference_mode():
        pool = random_pool()
        found = answers(pool, random_tasks(), "auto")
    torch.testing.assert_close(found, answers(random_pool(), random_tasks(), "auto"))
