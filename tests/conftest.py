"""Fixtures that tests share; what they build on is in helpers.py."""

import gc
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from polyshot.data import toy
from tests.helpers import picture

# A shell starts its background jobs deaf to Ctrl-C, and their children inherit that: tests of
# interrupts must not depend on how the suite was started.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    *("engines/test_ray.py", "golden/test_golden.py", "methods/test_conformance.py"),
    *("classifier/test_onnx.py", "test_cli_experiments.py", "test_cli_pool.py", "test_docs.py"),
    *("test_cli_pools.py", "test_shipping.py", "experiments/test_runner.py", "test_readme.py"),
    *("training/test_foreign.py", "data/test_import.py", "classifier/test_saved.py"),
    *("predict/test_tsa.py", "training/test_parallel.py", "training/test_run.py"),
    *("test_backbone_conformance.py", "classifier/test_classifier.py", "predict/test_predict.py"),
    *("test_outside.py", "serving/test_page.py", "serving/test_access.py", "test_examples.py"),
    *("test_hostile.py", "classifier/test_steps.py", "predict/test_none_of_these.py"),
    *("engines/test_local.py", "test_cli.py", "test_tables.py", "serving/test_kills.py"),
    *("serving/test_browser.py", "test_export_page.py", "experiments/test_added.py"),
    *("experiments/test_parts.py", "serving/test_api.py", "serving/test_safety.py"),
)
"""Files that take longest: at the end one would keep a single core busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; `make test` hands whole files to its processes."""
    place = {Path(__file__).parent / file: i for i, file in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="module", autouse=True)
def old_objects_stay() -> None:
    """Spare the garbage collector what lives as long as the suite: torch and its company.

    These are hundreds of thousands of objects, and grids collect garbage between their worlds.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes ``root/class/*.png`` with the classes and numbers given."""

    def make(name: str = "photos", **classes: int) -> Path:
        root = tmp_path / name
        for c, (label, count) in enumerate((classes or {"cat": 6, "dog": 7, "owl": 5}).items()):
            folder = root / label
            folder.mkdir(parents=True)
            for i in range(count):
                picture(100 * c + i).save(folder / f"{i:03}.png")
        return root

    return make


@pytest.fixture
def few_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let demos and examples draw as many images a class as their tasks need, not twice as many."""
    monkeypatch.setattr(toy, "draw_packs", partial(toy.draw_packs, per_class=15))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch work on one core: on small tensors several would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def wide_terminal() -> None:
    """Show whole lines of tables, and go on doing so, as test_cli.py has it."""
    from polyshot.cli import (
        display,  # not at the top: test_cli.py sets COLUMNS before it is imported
    )

    display.out.width = 200
