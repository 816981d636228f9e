"""Images and domains that tests share."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyshot.data.pack import Domain
from polyshot.data.splits import ClassSplit

# A shell starts its background jobs deaf to Ctrl-C, and their children inherit that: tests of
# interrupts must not depend on how the suite was started.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth random picture: noise would compress badly and resize to grey."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BILINEAR)


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


def make_domain(sizes: list[int], group_size: int = 0, name: str = "d") -> Domain:
    """A domain without pixels whose classes, all of them test classes, have the sizes given."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.arange(len(labels)) // group_size if group_size else None
    if groups is not None:  # a group lies within one class
        groups = np.unique(np.stack([labels, groups]), axis=1, return_inverse=True)[1].astype(
            np.int64
        )
    names = tuple(f"class {i}" for i in range(len(sizes)))
    split = ClassSplit((), (), tuple(range(len(sizes))), rule="file")
    return Domain(name, names, labels.astype(np.int64), groups, split=split)


SHARED = Path(__file__).parents[1].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the real images of ../shared/data are not on this machine"
)


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
