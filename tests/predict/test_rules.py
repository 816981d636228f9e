import pytest
import torch
import torch.nn.functional as F

from polyshot.errors import PolyshotError
from polyshot.predict.rules import RULES, rule
from tests.helpers import embedded_tasks, random_pool, shared_pool


@pytest.mark.parametrize("name", [*RULES, "member:two"])
def test_weights_are_shares_of_the_members(name: str) -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool)
    found = rule(name, pool)
    weights = found.weights(pool, tasks)
    assert found.name == name and found.about
    assert weights.shape == (5, 4)
    torch.testing.assert_close(weights.sum(1), torch.ones(5))
    unused = [m for m in range(4) if m not in found.members(pool)]
    assert found.mixes == "modulators" or not weights[:, unused].any()


def test_select_asks_the_selector_about_the_mean_of_the_support_images_present() -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool)
    assert tasks.mask is not None and pool.selector is not None
    for e, weights in enumerate(rule("select", pool).weights(pool, tasks)):
        mean = tasks.support_of(pool.network(0))[e][tasks.mask[e]].mean(0)
        logits = pool.selector(F.normalize(mean, dim=0)[None])[0]
        assert torch.equal(weights, F.one_hot(logits.argmax(), 4).float())


def test_average_and_single_members() -> None:
    pool = shared_pool()
    tasks = embedded_tasks(pool)
    assert torch.equal(rule("average", pool).weights(pool, tasks), torch.full((5, 4), 0.25))
    assert rule("base", pool).weights(pool, tasks).argmax(1).tolist() == [0] * 5
    assert rule("member:two", pool).weights(pool, tasks).argmax(1).tolist() == [2] * 5
    assert rule("member:two", pool).members(pool) == [2]


def test_names_that_are_no_rules_are_refused_with_a_hint() -> None:
    pool = shared_pool()
    with pytest.raises(PolyshotError, match="Did you mean 'select'"):
        rule("selct", pool)
    with pytest.raises(PolyshotError, match=r"no member 'tow', only one, two, off\. Did you mean"):
        rule("member:tow", pool)


def test_a_pool_without_selector_refuses_to_select() -> None:
    pool = random_pool(selector=False)
    with pytest.raises(PolyshotError, match=r"no selector.*take 'average' or 'base'"):
        rule("select", pool)
    rule("average", pool)
