"""Pools trained on networks from elsewhere: by name as a whole, or one's own, domain by domain."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from polyshot.cli import app
from polyshot.config import FOREIGN, AdaptationConfig, Config, for_hash, override, preset, to_dict
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.methods.method import METHODS, find_methods
from polyshot.models.backbone import parameter_count
from polyshot.models.foreign import ForeignConfig
from polyshot.models.modulators import Kind
from polyshot.pool.pool import Pool
from polyshot.predict.predict import Adaptation, predict_tasks
from polyshot.predict.rules import RULES, rule
from polyshot.training.edit import merge
from polyshot.training.run import train
from polyshot.util.tensors import read_weights
from tests.helpers import (
    QUICK,
    SHAPE,
    TINY,
    Interrupt,
    files_of,
    make_run,
    saved_vit,
    step_files,
    tasks_of,
    thin_lite0,
    toy_packs,
    until_done,
)

OPTIONS = [
    "views=one",
    "adaptation.updates=2",
    "adaptation.rates=[0.05]",
    "modulator.rank=4",
    "modulator.strengths=[1.0]",
]
FEW = ["modulator.steps=3", "modulator.episodes=1", "selector.steps=5", "selector.tasks=10"]
FEW += ["validation_episodes=5", "modulator.validate_every=2"]
FEW += [f"{of}shape.{what}" for of in ("", "modulator.") for what in ("shot=2", "queries=3")]
ADAPTATIONS: Sequence[Adaptation] = get_args(Adaptation)
both_kinds = pytest.mark.parametrize("kind", get_args(Kind))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_vit(tmp_path_factory.mktemp("vit"))


def config_on(backbone: str, kind: Kind = "conv1x1") -> Config:
    return override(TINY, [*OPTIONS, f"modulator.kind={kind}", f"backbone={backbone}"])


@pytest.fixture(scope="module", params=get_args(Kind))
def run(
    request: pytest.FixtureRequest,
    vit: str,
    packs: list[Pack],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("run") / request.param
    train(packs, config_on(vit, request.param), out, device="cpu")
    return out


@pytest.fixture(scope="module")
def pool(run: Path) -> Pool:
    return Pool.load(run / "pool")


def every_answer(
    pool: Pool, pack: Pack, adaptations: Sequence[Adaptation] = ADAPTATIONS
) -> dict[str, Tensor]:
    """Probabilities of every rule that the pool knows, [rule, E, Q, W], by adaptation."""
    names = [name for name in RULES if name != "urt" or pool.urt is not None]
    rules = [rule(name, pool) for name in (*names, f"member:{pool.members[-1]}")]
    tasks = tasks_of(pack, SHAPE, count=2)
    return {each: predict_tasks(pool, tasks, rules, each).probabilities for each in adaptations}


def check_answers(pool: Pool, pack: Pack, adaptations: Sequence[Adaptation] = ADAPTATIONS) -> None:
    for found in every_answer(pool, pack, adaptations).values():
        assert found.isfinite().all()
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))


# --- a training by the name of the network


def test_a_whole_pool_is_trained(run: Path, pool: Pool, vit: str, packs: list[Pack]) -> None:
    assert pool.members == ("base", "signs", "textures")
    assert pool.selector is not None and pool.urt is not None
    assert list(pool.statistics) == ["signs", "textures"]
    assert isinstance(pool.config, ForeignConfig) and pool.config.name == vit
    assert (pool.size, pool.views) == (24, "one")
    assert pool.adaptation == replace(FOREIGN, updates=2, rates=(0.05,))
    weights, about = read_weights(run / "steps" / "base.safetensors")
    assert not weights and about == {"name": vit, "sha256": pool.config.sha256}
    base, member, _ = pool.embed(packs[0].images[:5])
    assert not torch.equal(base, member)
    shapes = [p.shape for n, p in pool.modulators["signs"].named_parameters() if n[-3:] == ".up"]
    assert shapes == [] if pool.kind == "channel" else {shape[1] for shape in shapes} == {4}
    assert 20 * parameter_count(pool.modulators["signs"]) > parameter_count(pool.base) > 0


def test_every_rule_and_adaptation_answers(pool: Pool, new: Pack) -> None:
    check_answers(pool, new)


def test_steps_that_are_done_are_skipped(run: Path, pool: Pool, packs: list[Pack]) -> None:
    before, config = files_of(run), config_on(pool.config.name, pool.kind)
    again = train(packs, config, run, device="cpu")
    assert files_of(run) == before and again.hash == pool.hash


def test_an_interrupted_training_ends_in_the_same_bits(
    run: Path, pool: Pool, packs: list[Pack], tmp_path: Path
) -> None:
    config, stop = config_on(pool.config.name, pool.kind), Interrupt(every=5)
    found, interruptions = until_done(lambda: train(packs, config, tmp_path, "all", "cpu", stop))
    assert interruptions > 2
    assert found.hash == pool.hash and step_files(tmp_path) == step_files(run)


def test_a_domain_is_added_and_removed(pool: Pool, new: Pack, packs: list[Pack]) -> None:
    grown = pool.add_domain(new, FEW)
    assert grown.members == (*pool.members, "flowers")
    assert grown.member_hashes()[:3] == pool.member_hashes()
    check_answers(grown, packs[0], ["none", "ridge"])
    back = grown.remove("flowers")
    assert back.members == pool.members and back.hash != grown.hash
    check_answers(back, new, ["none"])
    one, other = pool.remove("signs"), pool.remove("textures")
    merged = merge(other, one)
    assert dict(zip(merged.members, merged.member_hashes(), strict=True)) == dict(
        zip(pool.members, pool.member_hashes(), strict=True)
    )
    check_answers(merged, new, ["none"])


def test_a_pool_is_saved_and_loaded(pool: Pool, new: Pack, tmp_path: Path) -> None:
    pool.save(tmp_path / "pool")
    loaded = Pool.load(tmp_path / "pool")
    assert loaded.hash == pool.hash
    before, after = (every_answer(each, new, ["none", "tsa"]) for each in (pool, loaded))
    assert all(torch.equal(before[each], after[each]) for each in before)


def test_members_of_one_source_may_be_several(vit: str, packs: list[Pack], tmp_path: Path) -> None:
    config = override(config_on(vit), ["modulator.members=2"])
    found = train(packs[:1], config, tmp_path, device="cpu")
    assert found.members == ("base", "signs/1", "signs/2")


def test_the_command_trains_on_a_named_network(vit: str, packs: list[Pack], tmp_path: Path) -> None:
    command = ["train", str(packs[0].path.parent), "--out", str(tmp_path / "run")]
    quick = QUICK.replace("--set size=24", "").split()  # packs may be of any size
    quick += ["--preset", "tiny", "--set", f"backbone={vit}", "--set", "shape.shot=2"]
    quick += ["--set", "shape.queries=3", "--set", "modulator.shape.shot=2"]
    quick += ["--set", "modulator.shape.queries=3", "--sources", "signs"]
    found = CliRunner().invoke(app, command + quick)
    assert found.exit_code == 0, found.output
    loaded = Pool.load(tmp_path / "run" / "pool")
    made = CliRunner().invoke(app, ["card", str(tmp_path / "run" / "pool")]).output
    assert f"over one `{vit}`, taken as it is" in made and f"--set backbone={vit}" in made
    parts = loaded.base, *loaded.modulators.values()
    assert f"{parameter_count(*parts):,} parameters" in made and "adaptation." not in made
    assert (loaded.members, loaded.adaptation, loaded.views) == (
        ("base", "signs"),
        FOREIGN,
        "three",
    )


def test_the_backbone_brings_its_settings_along() -> None:
    for name in ("tiny", "paper", "strong"):
        found = override(preset(name), ["backbone=efficientnet-lite0"])
        assert (found.adaptation, found.views) == (replace(FOREIGN, ridge_power=0.5), "three")
        assert found.modulator.loss_metric == "euclidean"
        assert override(preset(name), ["backbone=timm:vit"]).adaptation == FOREIGN
    asked = ["views=five", "adaptation.updates=7", "backbone=efficientnet-lite0"]
    found = override(preset("tiny"), asked)
    assert (found.adaptation, found.views) == (
        replace(FOREIGN, updates=7, ridge_power=0.5),
        "five",
    )
    ours = override(preset("tiny"), ["backbone=resnet18"])
    assert ours == preset("tiny") and ours.adaptation == AdaptationConfig()
    assert "rank" not in for_hash(to_dict(ours))["modulator"]


# --- a network of one's own


@both_kinds
def test_a_network_of_ones_own_learns_domain_by_domain(
    kind: Kind, new: Pack, tmp_path: Path
) -> None:
    network = thin_lite0()
    alone = Pool.from_backbone(network, 24, views="one", kind=kind)
    alone = replace(alone, adaptation=replace(FOREIGN, updates=2, rates=(0.05,)))
    other = toy_packs(tmp_path / "packs", "signs", size=20)[0]  # packs of any size
    options = [*FEW, "modulator.rank=2", "modulator.strengths=[1.0]"]
    one = alone.add_domain(new, options)
    two = one.add_domain(other, options)
    assert alone.members == ("base",) and two.members == ("base", "flowers", "signs")
    assert one.selector is not None and two.selector is not None  # the first domain brings it
    check_answers(two, other)
    two.save(tmp_path / "pool")
    loaded = Pool.load(tmp_path / "pool", network=thin_lite0())
    assert loaded.hash == two.hash
    assert two.remove("flowers").members == ("base", "signs")
    joined = merge(one, alone.add_domain(other, options), selector=False)
    assert joined.member_hashes() == two.member_hashes()
    without = alone.add_domain(new, options, selector=False)
    assert without.selector is None and without.member_hashes() == one.member_hashes()


# --- what is refused


def test_what_cannot_be_trained_is_refused_before_a_run_is_made(
    vit: str, packs: list[Pack], new: Pack, tmp_path: Path
) -> None:
    out, config = tmp_path / "run", config_on(vit)

    def refused(message: str, changed: Config = config, start: Path | None = None) -> None:
        with pytest.raises(PolyshotError, match=message) as found:
            train(packs, changed, out, device="cpu", start=start)
        assert "\n" not in str(found.value) and not out.exists()

    refused("is taken as it is.* take backbone=resnet18", start=tmp_path / "file")
    with pytest.raises(PolyshotError, match=r"leave joint out, or take backbone=resnet18\."):
        override(config, ["joint=true"])
    with pytest.raises(PolyshotError, match="sites are those of a base from elsewhere"):
        override(TINY, ['sites=["layer1*"]'])
    refused("backbone", replace(config, backbone="efficientnet-lite9"))
    refused("no", replace(config, backbone="transformers:/no/such/folder"))
    refused("No layer of the network", replace(config, sites=("nothing*",)))
    packs = [*packs, toy_packs(tmp_path / "packs", "glyphs", size=20)[0]]
    refused("glyphs has images of 20 pixels, the training wants 16: import it with --size 16.")


def test_other_weights_under_the_same_name_are_refused(packs: list[Pack], tmp_path: Path) -> None:
    config = config_on(saved_vit(tmp_path / "vit"))
    train(packs, config, tmp_path / "run", "base", "cpu")
    saved_vit(tmp_path / "vit", seed=1)
    with pytest.raises(PolyshotError, match="has other weights"):
        train(packs, config, tmp_path / "run", device="cpu")


def test_a_function_takes_no_domain(new: Pack) -> None:
    pool = Pool.from_backbone(lambda images: images.mean((2, 3)), 16)
    with pytest.raises(PolyshotError, match="Modulators can act at no layer of this network"):
        pool.add_domain(new, FEW)
    with pytest.raises(PolyshotError, match="takes embeddings"):
        Pool.from_embeddings(8).add_domain(new)
    with pytest.raises(PolyshotError, match="The pool has decided that already"):
        Pool.from_backbone(thin_lite0(), 16).add_domain(new, ["backbone=resnet18"])


# --- rivals


RIVALS = (
    "base",
    "finetune",
    "finetune-all",
    "protonet",
    "feat",
    "protomaml",
    "tadam",
    "select",
    "average-channel",
)


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_stand_on_the_same_base(
    name: str, vit: str, packs: list[Pack], tmp_path_factory: pytest.TempPathFactory
) -> None:
    find_methods()
    worlds = tmp_path_factory.getbasetemp() / "worlds"
    world = make_run(packs, worlds, config=config_on(vit))
    own = METHODS[name]
    steps = {key: min(value, 2) for key, value in own.settings.items() if key.endswith("steps")}
    found = own.fit(world, {**own.settings, **steps}).predict(tasks_of(packs[0], SHAPE, 2))
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))


@pytest.mark.parametrize(
    ("name", "settings"), [("simple-avg", {}), ("protonet", {"from_scratch": 1})]
)
def test_what_starts_from_random_weights_is_refused(
    name: str, settings: dict[str, float], vit: str, packs: list[Pack], tmp_path: Path
) -> None:
    find_methods()
    world, own = make_run(packs, tmp_path, config=config_on(vit)), METHODS[name]
    with pytest.raises(PolyshotError, match=r"is taken as it is.* take backbone=resnet18"):
        own.fit(world, {**own.settings, **settings})
