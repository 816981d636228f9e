import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.errors import PolyshotError
from polyshot.models.selector import MemberAttention
from polyshot.pool.pool import Pool
from polyshot.predict.rules import rule
from polyshot.training.base import initial_base
from polyshot.training.run import train
from polyshot.training.selector import (
    Examples,
    Members,
    SelectorStep,
    Sights,
    UrtStep,
    fewer_tasks,
    fit_scale,
)
from polyshot.training.validation import validation_tasks
from tests.helpers import CPU, SIZE, Steps, from_table, random_pool, record_in, same_weights


def test_the_best_member_wins_by_accuracy_then_by_likelihood() -> None:
    accuracy = torch.tensor([[0.6, 0.8, 0.7], [0.8, 0.8, 0.8], [0.8, 0.2, 0.8]])
    likelihood = torch.tensor([[-0.1, -9.0, -0.2], [-0.5, -0.4, -0.6], [-2.0, 0.0, -1.0]])
    assert Examples(torch.zeros(3, 1), accuracy, likelihood).best().tolist() == [1, 1, 2]


@pytest.mark.parametrize("scale", [0.04, 1.0, 24.0])
def test_the_scale_of_the_answers_is_found(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(400, 1, 1, 5, generator=generator)  # logits of single queries
    answer = torch.distributions.Categorical(logits=true[:, 0, 0]).sample()
    # The class that is right moves to the way of its query.
    ways = (torch.arange(5) + answer[:, None]) % 5
    seen = true[:, 0, 0].gather(1, ways)[:, None, None]  # [E, 1, 1, 5], right is way 0
    assert fit_scale([seen / scale]) == pytest.approx(scale, rel=0.25)
    halves = [seen[:200] / scale, seen[200:] / scale]
    assert fit_scale(halves) == pytest.approx(fit_scale([seen / scale]))


def test_a_selector_learns_which_member_suits_a_kind_of_task(
    config: Config, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(1)
    kind = torch.randint(0, 3, (300,), generator=generator)
    tasks = torch.eye(3)[kind] + 0.1 * torch.randn(300, 3, generator=generator)
    accuracy = 0.5 + 0.3 * torch.eye(3)[kind]
    own = Examples(tasks, accuracy, torch.zeros(300, 3))
    learned, checked = (Examples(*(t[part] for t in own)) for part in (slice(200), slice(200, 300)))
    config = replace(
        config, selector=replace(config.selector, steps=150, learning_rate=0.02, batch=32)
    )
    step = SelectorStep(learned, checked, config)
    assert step.train(record_in(tmp_path))["validation"] > 0.78
    selector = step.module
    assert not selector.training
    assert (selector(checked.tasks).argmax(1) == kind[200:]).float().mean() > 0.95


def test_members_are_compared_on_the_same_tasks(packs: list[Pack], config: Config) -> None:
    sets = validation_tasks(Images(packs, "val", CPU), config)
    base = initial_base(config).eval()
    other = initial_base(replace(config, seed=1)).eval()
    calls: list[tuple[int, int]] = []
    members = Members(
        [base, other, base], [1.0, 1.0, 2.0], config, lambda _, d, t: calls.append((d, t))
    )
    found = members.examples(sets, "x")
    count = 2 * config.validation_episodes
    assert found.tasks.shape == (count, config.model.dim)
    assert torch.allclose(found.tasks.norm(dim=1), torch.ones(count))
    assert torch.equal(found.accuracy[:, 0], found.accuracy[:, 2])
    assert not torch.equal(found.likelihood[:, 0], found.likelihood[:, 2])
    assert not torch.equal(found.accuracy[:, 0], found.accuracy[:, 1])
    assert calls[-1][0] == calls[-1][1]


# --- URT: attention over the members


def test_weights_are_shares_of_any_number_of_members() -> None:
    torch.manual_seed(0)
    attention = MemberAttention(16)
    for members in (1, 3, 9):
        seen = F.normalize(torch.randn(4, members, 5, 16), dim=-1)
        weights = attention(seen)
        assert weights.shape == (4, members)
        torch.testing.assert_close(weights.sum(1), torch.ones(4))
        order = torch.randperm(members)
        torch.testing.assert_close(attention(seen[:, order]), weights[:, order])
        torch.testing.assert_close(attention(seen[:, :, [3, 1, 4, 0, 2]]), weights)


def made_up(members: int, seed: int) -> Sights:
    """Tasks in which one member is right; its prototypes say so, whichever it is."""
    draw = torch.Generator().manual_seed(seed)
    best = torch.randint(0, members, (120,), generator=draw)
    seen = torch.randn(120, members, 3, 16, generator=draw)
    seen[torch.arange(120), best, :, 0] += 4.0
    logits = torch.randn(120, members, 3, 4, 3, generator=draw)
    right = torch.eye(3)[:, None, :].expand(3, 4, 3)
    logits[torch.arange(120), best] += 6.0 * right
    return Sights(F.normalize(seen, dim=-1), logits)


def test_it_learns_whom_to_listen_to(tmp_path: Path, config: Config) -> None:
    own = replace(config.selector, steps=150, batch=32, learning_rate=0.01, validate_every=50)
    step = UrtStep(made_up(3, 0), made_up(3, 1), replace(config, selector=own))
    assert step.train(record_in(tmp_path))["validation"] > 0.85
    attention = step.module
    more = made_up(6, 2)  # a pool that has grown
    mixed = torch.einsum("tm,tmwqv->twqv", attention(more.prototypes), more.logits)
    assert (mixed.argmax(-1) == torch.arange(3)[:, None]).float().mean() > 0.6


def test_a_trained_pool_has_it_and_keeps_it(pool: Pool, tmp_path: Path) -> None:
    assert pool.urt is not None
    pool.save(tmp_path / "pool")
    loaded = Pool.load(tmp_path / "pool")
    assert loaded.hash == pool.hash
    assert loaded.urt is not None and same_weights(loaded.urt, pool.urt)
    assert pool.about["steps"]["urt"]["validation"] > 0
    without = replace(pool, urt=None)
    assert without.hash != pool.hash
    without.save(tmp_path / "without")
    assert Pool.load(tmp_path / "without").urt is None


def test_a_run_of_before_gets_it_without_training_the_rest_again(
    packs: list[Pack], config: Config, pool: Pool, whole: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "steps" / "urt.safetensors").unlink()
    replace(pool, urt=None).save(run / "pool")
    steps = Steps()
    again = train(packs, config, run, device="cpu", progress=steps)
    assert again.hash == pool.hash
    assert {name for name in steps.updates if not name.startswith("embed")} == {"urt"}


def test_the_rule_asks_for_unit_prototypes_of_the_images_present() -> None:
    pool, draw = random_pool(), torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, SIZE, SIZE), generator=draw).to(torch.uint8)
    support = torch.randint(0, 40, (5, 4, 3), generator=draw)
    mask = torch.rand(5, 4, 3, generator=draw) < 0.7
    mask[..., 0] = True
    tasks = from_table(images, support, support[:, :, 0], mask)
    assert pool.urt is not None
    found = rule("urt", pool).weights(pool, tasks)
    own = pool.embed(images)  # [M, n, d]
    for e in range(5):
        seen = torch.stack(
            [
                torch.stack(
                    [
                        F.normalize(own[m, support[e, c][mask[e, c]]], dim=-1).mean(0)
                        for c in range(4)
                    ]
                )
                for m in range(4)
            ]
        )
        expected = pool.urt(F.normalize(seen, dim=-1).unsqueeze(0))[0]
        torch.testing.assert_close(found[e], expected, atol=1e-5, rtol=1e-4)
    one = from_table(images, support[..., :1], support[:, :, 0])
    torch.testing.assert_close(rule("urt", pool).weights(pool, one).sum(1), torch.ones(5))


def test_a_pool_without_it_is_refused_in_words() -> None:
    pool = replace(random_pool(), urt=None)
    with pytest.raises(PolyshotError, match="'urt' asks: take 'auto', or train it"):
        rule("urt", pool)


def test_memory_bounds_the_number_of_tasks(config: Config) -> None:
    many = replace(config, selector=replace(config.selector, tasks=300), validation_episodes=90)
    for members, most in ((3, 100), (10_000, 10), (10_000_000, 2)):
        few = fewer_tasks(many, members * config.model.dim)
        assert few.selector.tasks == most
        assert few.validation_episodes == min(most, 90)
    assert fewer_tasks(config, 3 * config.model.dim) == config
