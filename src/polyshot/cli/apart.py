"""Keeps a library's cache out of the user's home."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def matplotlib_apart() -> Iterator[None]:
    """Give matplotlib, where a command imports it, a folder that goes when the command ends.

    It would write a list of the system's fonts into the home; ours come along with it.
    """
    with ExitStack() as stack:
        finder = _BeforeMatplotlib(stack)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


class _BeforeMatplotlib(MetaPathFinder):
    """Finds nothing, but prepares for matplotlib when it is looked for."""

    def __init__(self, stack: ExitStack):
        self.stack, self.done = stack, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        wanted = fullname in ("matplotlib", "matplotlib.font_manager")
        if wanted and not self.done and "MPLCONFIGDIR" not in os.environ:
            from polyshot.util.scratch import scratch_folder

            self.done = True
            folder = self.stack.enter_context(scratch_folder())
            os.environ["MPLCONFIGDIR"] = str(folder)
            os.environ["MPL_IGNORE_SYSTEM_FONTS"] = "1"
            for name in ("MPLCONFIGDIR", "MPL_IGNORE_SYSTEM_FONTS"):
                self.stack.callback(os.environ.pop, name, None)
        return None
