"""A pool grows by one domain: the rest stays to the bit, and nothing is forgotten."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyshot.config import Config
from polyshot.data.augment import STRONG
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.pool.statistics import KEPT, SourceTasks, TaskSample
from polyshot.predict.predict import predict_tasks
from polyshot.predict.rules import rule
from polyshot.training.growth import add_domain, growth_config, known_examples, own_config
from polyshot.training.run import train
from polyshot.training.selector import SelectorStep
from tests.helpers import SHAPE, TINY, Interrupt, record_in, tasks_of, toy_packs, until_done


@pytest.fixture(scope="module")
def grown(pool: Pool, new: Pack) -> Pool:
    torch.set_num_threads(1)
    return pool.add_domain(new)


def test_old_members_stay_to_the_bit(pool: Pool, grown: Pool, new: Pack) -> None:
    assert grown.members == (*pool.members, "flowers")
    assert grown.member_hashes()[:3] == pool.member_hashes()
    assert grown.scales[:3] == pool.scales
    images = new.images[:20]
    assert torch.equal(grown.embed(images)[:3], pool.embed(images))


def test_the_old_pool_is_left_alone(pool: Pool, new: Pack) -> None:
    before, about = pool.hash, repr(pool.about)
    pool.add_domain(new).to("cpu")
    assert (pool.hash, repr(pool.about)) == (before, about)
    assert pool.members == ("base", "signs", "textures")
    assert list(pool.statistics) == ["signs", "textures"]


def test_the_new_member_is_chosen_among_and_described(grown: Pool, new: Pack) -> None:
    assert grown.selector is not None and grown.selector.output.out_features == 4
    assert grown.task_weights(torch.rand(2, 32)).shape == (2, 4)
    assert grown.scales[3] > 0
    assert grown.about["packs"]["flowers"] == new.hash
    assert grown.about["steps"]["modulator:flowers"]["strength"] == grown.strengths["flowers"]
    assert len(grown.about["steps"]["selector"]["labels"]) == 4
    assert "modulator.steps: 4 and 15" in grown.about["added"]["flowers"]["config"]


def test_statistics_know_all_members_on_new_tasks_and_the_old_ones_on_old_tasks(
    grown: Pool, pool: Pool
) -> None:
    assert list(grown.statistics) == ["signs", "textures", "flowers"]
    for source, both in grown.statistics.items():
        for kept in both:
            unknown = kept.accuracy.isnan().all(0).tolist()
            assert unknown == [False, False, False, source != "flowers"]
            assert torch.equal(kept.accuracy.isnan(), kept.likelihood.isnan())
    for old, now in zip(pool.statistics["signs"], grown.statistics["signs"], strict=True):
        assert torch.equal(old.accuracy, now.accuracy[:, :3])


def test_what_is_kept_stays_small(tmp_path: Path) -> None:
    from polyshot.pool.statistics import sample, to_tensors

    tasks, answers = torch.rand(300, 512), torch.rand(300, 9)
    kept = SourceTasks(
        sample("train", tasks, answers, answers), sample("val", tasks, answers, answers)
    )
    assert [len(each.tasks) for each in kept] == [KEPT["train"], KEPT["val"]]
    size = sum(t.numel() * t.element_size() for t in to_tensors({"x": kept}).values())
    assert size < 200_000


def test_a_second_domain_can_follow(grown: Pool, packs: list[Pack], tmp_path: Path) -> None:
    again = toy_packs(tmp_path, "glyphs")[0]
    more = grown.add_domain(again, ["selector.steps=2", "modulator.steps=1"])
    assert more.members == (*grown.members, "glyphs")
    more.save(tmp_path / "pool")
    loaded = Pool.load(tmp_path / "pool")
    assert loaded.hash == more.hash
    for name, both in loaded.statistics.items():
        for one, other in zip(both, more.statistics[name], strict=True):
            for a, b in zip(one, other, strict=True):
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)) and a.dtype == b.dtype


@pytest.mark.parametrize("every", [1, 3])
def test_an_addition_interrupted_again_and_again_ends_with_the_same_bits(
    every: int, pool: Pool, grown: Pool, new: Pack, tmp_path: Path
) -> None:
    progress = Interrupt(every)
    made, times = until_done(lambda: pool.add_domain(new, work=tmp_path, report=progress))
    assert times > 2
    assert made.hash == grown.hash


def test_a_new_member_is_trained_longer_and_harder_and_may_have_full_strength(
    pool: Pool, config: Config
) -> None:
    own = growth_config(pool)
    assert own.modulator.steps == 15 and config.modulator.steps == 4
    assert own.modulator.augment == STRONG
    assert 1.0 in own.modulator.strengths
    assert growth_config(pool, ["modulator.steps=9"]).modulator.steps == 9
    weak = replace(pool, about={"config": {"modulator": {"strengths": [0.5]}}})
    assert growth_config(weak).modulator.strengths == (0.5, 1.0)


def test_a_pool_of_unknown_training_takes_the_strong_preset(pool: Pool) -> None:
    for about in ({}, {"config": {"no such field": 1}}, {"config": 3}):
        config = own_config(replace(pool, about=about))
        assert config.preset == "strong" and config.modulator.steps == 400
        assert (config.model, config.size, config.metric) == (pool.config, 16, pool.metric)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("base.steps=3", r"base\.steps: 7 and 3.*only options of modulator"),
        ("modulator.kind=channel", r"modulator\.kind: conv1x1 and channel"),
        ("size=20", r"size: 16 and 20"),
        ("selector.standardise=false", r"selector\.standardise"),
        ("modulator.stepz=3", "Did you mean 'steps'"),
    ],
)
def test_options_that_the_pool_has_decided_are_refused(
    option: str, said: str, pool: Pool, new: Pack
) -> None:
    with pytest.raises(PolyshotError, match=said):
        pool.add_domain(new, [option])


def with_name(pack: Pack, name: str) -> Pack:
    return replace(pack, domain=replace(pack.domain, name=name))


def test_names_that_are_taken_are_refused(pool: Pool, new: Pack) -> None:
    for name, said in (
        ("signs", r"has the domain 'signs' already.*another name.*pool remove"),
        ("SIGNS", "differ only by case"),
        ("base", "cannot be called 'base'"),
    ):
        with pytest.raises(PolyshotError, match=said):
            pool.add_domain(with_name(new, name))
    clustered = replace(
        pool,
        modulators={"x/1": pool.modulators["signs"], "x/2": pool.modulators["textures"]},
        strengths={},
    )
    with pytest.raises(PolyshotError, match=r"'x' already \(its members x/1, x/2\)"):
        clustered.add_domain(with_name(new, "x"))


def test_packs_that_cannot_be_trained_on_are_refused(pool: Pool, new: Pack, tmp_path: Path) -> None:
    other = toy_packs(tmp_path, "flowers", each=2, size=20)[0]
    with pytest.raises(PolyshotError, match="of 20 pixels, the pool wants 16: import it again"):
        pool.add_domain(other)
    split = replace(new.domain.split, val=())
    blind = replace(new, domain=new.domain.with_split(split))
    with pytest.raises(PolyshotError, match="flowers cannot be a source: its validation classes"):
        pool.add_domain(blind)


def test_a_pool_without_statistics_keeps_its_selector_or_grows_without(
    pool: Pool, new: Pack
) -> None:
    old = replace(pool, statistics={})
    with pytest.raises(PolyshotError, match=r"keeps no statistics.*polyshot train.*--no-selector"):
        old.add_domain(new)
    bare = old.add_domain(new, ["modulator.steps=1"], selector=False)
    assert bare.selector is None and bare.statistics == {}
    assert bare.members[-1] == "flowers"
    # A pool that never had one needs no flag.
    again = replace(pool, statistics={}, selector=None).add_domain(new, ["modulator.steps=1"])
    assert again.selector is None


def test_a_modulator_that_does_not_help_is_the_base(pool: Pool, new: Pack) -> None:
    made = add_domain(pool, new, ["modulator.steps=0"])
    assert made.strengths["flowers"] == 0.0
    assert made.scales[3] == pytest.approx(made.scales[0])
    assert made.member_hash(3) == made.member_hash(0)


def remembered(kind: int, generator: torch.Generator) -> SourceTasks:
    """Tasks near one corner of the space, on which one of three members is best."""

    def kept(count: int) -> TaskSample:
        noise = 0.1 * torch.randn(count, 3, generator=generator)
        accuracy = (0.5 + 0.3 * torch.eye(3)[[kind] * count]).half()
        return TaskSample((torch.eye(3)[kind] + noise).half(), accuracy, accuracy.log())

    return SourceTasks(kept(60), kept(30))


def test_a_retrained_selector_forgets_nothing_and_knows_the_new(
    config: Config, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(3)
    statistics = {f"s{kind}": remembered(kind, generator) for kind in range(3)}
    # The third member came later: it was never asked on the tasks of the first two sources.
    for name in ("s0", "s1"):
        statistics[name] = statistics[name].with_members([0, 1, None])
    learned, checked = known_examples(statistics)
    assert learned.best().tolist() == [0] * 60 + [1] * 60 + [2] * 60
    assert learned.accuracy[:120, 2].eq(0).all() and checked.accuracy.isfinite().all()
    config = replace(
        config, selector=replace(config.selector, steps=150, learning_rate=0.02, batch=32)
    )
    step = SelectorStep(learned, checked, config)
    about = step.train(record_in(tmp_path))
    picked = step.module(checked.tasks).argmax(1)
    assert (picked == torch.arange(3).repeat_interleave(30)).float().mean() > 0.97
    assert about["labels"] == [60, 60, 60] and about["validation"] > 0.77


@given(
    st.integers(1, 5).flatmap(
        lambda m: st.tuples(
            st.just(m), st.lists(st.one_of(st.none(), st.integers(0, m - 1)), min_size=1)
        )
    )
)
def test_members_are_picked_by_their_columns(case: tuple[int, list[int | None]]) -> None:
    count, columns = case
    answers = torch.arange(2 * count).view(2, count).half()
    made = TaskSample(torch.zeros(2, 3).half(), answers, -answers).with_members(columns)
    assert made.accuracy.shape == made.likelihood.shape == (2, len(columns))
    for place, column in enumerate(columns):
        if column is None:
            assert made.accuracy[:, place].isnan().all() and made.likelihood[:, place].isnan().all()
        else:
            assert torch.equal(made.accuracy[:, place], answers[:, column])
            assert torch.equal(made.likelihood[:, place], -answers[:, column])


def test_a_run_of_a_version_without_statistics_gets_them(
    packs: list[Pack], pool: Pool, whole: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(whole, tmp_path / "run")
    selector = (own / "steps" / "selector.safetensors").stat().st_mtime_ns
    (own / "steps" / "task_statistics.safetensors").unlink()
    replace(pool, statistics={}).save(own / "pool")
    again = train(packs, TINY, own, device="cpu")
    assert list(again.statistics) == ["signs", "textures"] and again.hash == pool.hash
    assert (own / "steps" / "selector.safetensors").stat().st_mtime_ns == selector


def test_a_run_does_not_overwrite_a_pool_that_was_changed(
    packs: list[Pack], pool: Pool, whole: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(whole, tmp_path / "run")
    pool.remove("signs").save(own / "pool")
    with pytest.raises(PolyshotError, match=r"was changed by 'polyshot pool'.*move it away"):
        train(packs, TINY, own, device="cpu")


def test_statistics_that_do_not_fit_are_refused(pool: Pool) -> None:
    kept = pool.statistics["signs"]
    with pytest.raises(PolyshotError, match="tasks of 'signs' do not fit a pool of 3 members"):
        replace(pool, statistics={"signs": kept.with_members([0, 1])})


def test_pools_of_the_first_format_are_read_and_damaged_statistics_are_not(
    pool: Pool, tmp_path: Path
) -> None:
    folder = tmp_path / "pool"
    pool.save(folder)
    about = json.loads((folder / "pool.json").read_text())
    later = ("task_statistics", "checksum")
    old = {name: value for name, value in about.items() if name not in later}
    (folder / "pool.json").write_text(json.dumps(old | {"format": 1}))
    assert Pool.load(folder).statistics == {} and Pool.load(folder).hash == pool.hash
    (folder / "pool.json").write_text(json.dumps(old | {"task_statistics": ["signs", "x"]}))
    with pytest.raises(PolyshotError, match=r"damaged task_statistics\.safe.*x\.train\.tasks"):
        Pool.load(folder)
    (folder / "pool.json").write_text(json.dumps(about))
    (folder / "task_statistics.safetensors").unlink()
    with pytest.raises(PolyshotError, match="lacks its file task_statistics"):
        Pool.load(folder)


def test_members_of_a_grown_pool_answer_as_before(pool: Pool, grown: Pool, new: Pack) -> None:
    tasks = tasks_of(new, SHAPE, count=5)
    names = ("base", "member:signs", "member:textures")
    before, now = (
        predict_tasks(each, tasks, [rule(name, each) for name in names]).probabilities
        for each in (pool, grown)
    )
    assert before.shape == (3, 5, 15, 5)
    assert torch.equal(before, now)
