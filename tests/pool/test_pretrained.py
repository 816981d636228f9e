"""Pools in the layout of the Hugging Face Hub, in folders and in its cache; nothing is fetched."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch

from polyshot.config import Config, to_dict
from polyshot.errors import PolyshotError
from polyshot.pool import pretrained
from polyshot.pool.pool import Pool
from polyshot.pool.pretrained import README, header
from tests.helpers import random_pool, run_here, saved_vit, thin_lite0

hub = pytest.importorskip("huggingface_hub")


def trained_pool() -> Pool:
    pool = random_pool()
    pool.about = {
        "config": to_dict(Config()),
        "packs": {"one": "0" * 64, "two": "1" * 64},
        "steps": {"base": {"validation": 0.8}, "modulator:one": {"validation": 0.71234}},
    }
    return pool


def test_a_folder_is_the_pool_with_a_readme_that_the_hub_reads(tmp_path: Path) -> None:
    pool = trained_pool()
    pool.save_pretrained(tmp_path / "hub", card="# Mine\n\nText.", licence="apache-2.0")
    assert (
        Pool.from_pretrained(tmp_path / "hub").hash == pool.hash == Pool.load(tmp_path / "hub").hash
    )
    card = hub.ModelCard.load(tmp_path / "hub" / README)
    assert card.data.license == "apache-2.0" and card.data.library_name == "polyshot"
    assert card.data.pipeline_tag == "image-classification" and "few-shot" in card.data.tags
    assert card.data.datasets == ["one", "two"] and card.data.metrics == ["accuracy"]
    (result,) = card.data.eval_results
    assert result.dataset_name == "one" and result.metric_value == 0.7123
    assert result.metric_name == "5-way 5-shot accuracy on validation classes"
    assert card.text.strip() == "# Mine\n\nText."


def test_a_pool_that_says_nothing_of_its_training_has_a_short_card(tmp_path: Path) -> None:
    pool = random_pool()
    pool.save_pretrained(str(tmp_path / "hub"), "six")
    card = hub.ModelCard.load(tmp_path / "hub" / README)
    assert card.data.license is None and card.data.eval_results is None
    assert "base, one, two, off" in card.text and pool.hash[:12] in card.text
    assert json.loads((tmp_path / "hub" / "pool.json").read_text())["precision"] == "six"


def test_a_base_of_another_library_is_named(tmp_path: Path) -> None:
    base = Pool.from_backbone(saved_vit(tmp_path / "vit"))
    assert "base_model" not in header(base), "a folder of this machine says nothing to others"
    base.config = base.base.config = type(base.config)(
        **{**vars(base.config), "name": "transformers:google/vit"}
    )
    assert 'base_model: "google/vit"' in header(base)
    own = Pool.from_backbone(thin_lite0(), 32)
    own.save_pretrained(tmp_path / "own")
    again = Pool.from_pretrained(tmp_path / "own", network=thin_lite0())
    assert again.hash == own.hash


def test_what_is_there_is_replaced_if_it_is_a_pool_and_no_checkout(tmp_path: Path) -> None:
    pool = random_pool()
    pool.save_pretrained(tmp_path / "hub")
    pool.save_pretrained(tmp_path / "hub", card="new")
    assert (tmp_path / "hub" / README).read_text().endswith("\nnew\n")
    (tmp_path / "hub" / ".git").mkdir()
    with pytest.raises(PolyshotError, match="is a git checkout, which would be replaced"):
        pool.save_pretrained(tmp_path / "hub")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(PolyshotError, match="is no pool"):
        pool.save_pretrained(tmp_path / "mine")


# --- ids


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, and no network."""
    folder = tmp_path / "cache"
    constants = import_module("huggingface_hub.constants")  # no attribute before it is imported
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


def test_an_id_is_found_in_the_cache(cache: Path, tmp_path: Path) -> None:
    pool, commit = random_pool(), "0123456789abcdef0123456789abcdef01234567"
    pool.save_pretrained(tmp_path / "hub")
    repository = cache / "models--me--pool"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(tmp_path / "hub", repository / "snapshots" / commit)
    for revision in (None, "main", commit):
        assert Pool.from_pretrained("me/pool", revision=revision).hash == pool.hash


def test_an_id_that_is_nowhere_is_one_line(cache: Path) -> None:
    with pytest.raises(
        PolyshotError, match="nothing is fetched unasked: allow the download"
    ) as one:
        Pool.from_pretrained("me/nowhere")
    with pytest.raises(PolyshotError, match=r"could not be fetched .*: check its id") as other:
        Pool.from_pretrained("me/nowhere", download=True)
    assert "\n" not in str(one.value) + str(other.value)


@pytest.mark.parametrize("name", ["a/b/c", "no spaces", "x" * 200, ""])
def test_what_is_no_id_is_one_line(cache: Path, name: str) -> None:
    with pytest.raises(PolyshotError) as refused:
        Pool.from_pretrained(name, download=True)
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_not_there_is_no_id(tmp_path: Path) -> None:
    for name in (tmp_path / "no", str(tmp_path / "no"), "./no", "~/no", Path("no")):
        with pytest.raises(PolyshotError, match="There is no folder"):
            Pool.from_pretrained(name)
    (tmp_path / "file").write_text("x")
    with pytest.raises(PolyshotError, match="There is no folder"):
        Pool.from_pretrained(tmp_path / "file")


def test_folders_need_no_extra_and_ids_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(pretrained, "import_module", missing)
    pool = random_pool()
    pool.save_pretrained(tmp_path / "hub")
    assert Pool.from_pretrained(str(tmp_path / "hub")).hash == pool.hash
    with pytest.raises(PolyshotError, match=r"pip install 'polyshot\[hub\]'"):
        Pool.from_pretrained("me/pool")


# --- the command


def test_the_command_writes_the_whole_card(tmp_path: Path) -> None:
    pool = trained_pool()
    pool.save(tmp_path / "pool")
    said = run_here("polyshot pool publish pool --out hub --licence cc-by-4.0", tmp_path)
    assert f"wrote hub: 4 members, hash {pool.hash[:12]}" in said and "hf upload" in said
    card = hub.ModelCard.load(tmp_path / "hub" / README)
    assert card.data.license == "cc-by-4.0" and card.text.strip().startswith("# Model card")
    assert torch.equal(
        Pool.from_pretrained(tmp_path / "hub").base.conv1.weight, pool.base.conv1.weight
    )
