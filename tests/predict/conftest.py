"""Small tensors: two threads would only wait for each other."""

import pytest


@pytest.fixture(autouse=True)
def small_work(one_thread: None) -> None:
    """Work on one thread."""
