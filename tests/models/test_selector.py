import pytest
import torch

from polyshot.models.selector import Selector, task_embedding


@pytest.mark.parametrize(("outputs", "count"), [(8, 66_696), (9, 66_825)])
def test_parameter_counts_of_the_paper(outputs: int, count: int) -> None:
    assert sum(p.numel() for p in Selector(512, outputs).parameters()) == count


def test_scores_are_a_two_layer_perceptron() -> None:
    selector = Selector(6, 3, hidden=5)
    tasks = torch.randn(4, 6)
    hidden = torch.relu(tasks @ selector.hidden.weight.T + selector.hidden.bias)
    expected = hidden @ selector.output.weight.T + selector.output.bias
    torch.testing.assert_close(selector(tasks), expected)


def test_standardisation_is_kept_with_the_weights() -> None:
    selector, tasks = Selector(6, 3), 5 + 3 * torch.randn(50, 6)
    tasks[:, 2] = 4.0  # an entry that never varies
    tasks[:, 3] = 4.0 + 1e-3 * torch.randn(50)  # and one that hardly does
    selector.standardise(tasks)
    standard = (tasks - selector.mean) / selector.std
    torch.testing.assert_close(standard.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    spread = torch.ones(6)
    spread[2:4] = tasks[:, 2:4].std(0, correction=0)  # only centred
    torch.testing.assert_close(standard.std(0, correction=0), spread)
    again = Selector(6, 3)
    again.load_state_dict(selector.state_dict())
    assert torch.equal(again(tasks), selector(tasks))


def test_one_task_is_enough_to_standardise() -> None:
    selector = Selector(6, 3)
    selector.standardise(torch.randn(1, 6))
    assert selector(torch.randn(2, 6)).isfinite().all()


def test_dropout_only_in_training() -> None:
    selector, tasks = Selector(6, 3, dropout=0.5), torch.randn(4, 6)
    assert not torch.equal(selector(tasks), selector(tasks))
    selector.eval()
    assert torch.equal(selector(tasks), selector(tasks))


def test_task_embedding_counts_every_image_once() -> None:
    support = torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(task_embedding(support)[1], support[1].reshape(12, 6).mean(0))
    mask = torch.rand(2, 3, 4) < 0.5
    mask[:, :, 0] = True
    expected = torch.stack([support[e][mask[e]].mean(0) for e in range(2)])
    torch.testing.assert_close(
        task_embedding(support.masked_fill(~mask[..., None], torch.nan), mask), expected
    )
