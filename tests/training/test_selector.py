from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.data.table import Images
from polyshot.training.base import initial_base
from polyshot.training.metrics import Metrics
from polyshot.training.selector import Examples, examples, fit_scale, train_selector
from polyshot.training.validation import validation_tasks

from ..helpers import CPU


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
    files = tmp_path / "c.pt", Metrics(tmp_path / "m.jsonl")
    selector, best = train_selector(learned, checked, config, *files)
    assert best.value > 0.78
    assert not selector.training
    assert (selector(checked.tasks).argmax(1) == kind[200:]).float().mean() > 0.95


def test_members_are_compared_on_the_same_tasks(packs: list[Pack], config: Config) -> None:
    sets = validation_tasks(Images(packs, "val", CPU), config)
    base = initial_base(config).eval()
    other = initial_base(replace(config, seed=1)).eval()
    calls: list[tuple[int, int]] = []
    found = examples(
        sets,
        [base, other, base],
        [1.0, 1.0, 2.0],
        config,
        "x",
        lambda _, d, t: calls.append((d, t)),
    )
    count = 2 * config.validation_episodes
    assert found.tasks.shape == (count, config.model.dim)
    assert torch.allclose(found.tasks.norm(dim=1), torch.ones(count))
    assert torch.equal(found.accuracy[:, 0], found.accuracy[:, 2])
    assert not torch.equal(found.likelihood[:, 0], found.likelihood[:, 2])
    assert not torch.equal(found.accuracy[:, 0], found.accuracy[:, 1])
    assert calls[-1][0] == calls[-1][1]
