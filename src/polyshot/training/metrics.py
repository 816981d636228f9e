"""What a training tells: ``metrics.jsonl``, one JSON line a look, and TensorBoard if installed."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from polyshot.util.files import append_text, write_text


class Metrics:
    """Appends lines to a file; with no path, in processes that do not write, does nothing."""

    def __init__(self, path: Path | None):
        self.path = path
        self._board: Any = None

    def write(self, step: str, number: int, **values: Any) -> None:
        """Add the line of one update of a step; values that are None are left out."""
        if self.path is None:
            return
        known = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"step": step, "number": number, **known}, ensure_ascii=False)
        append_text(self.path, line + "\n")
        self._draw(self.path.parent / "tensorboard", step, number, known)

    def _draw(self, folder: Path, step: str, number: int, values: dict[str, Any]) -> None:
        """Add points to TensorBoard's curves; a run with nothing to do adds no file."""
        if importlib.util.find_spec("tensorboard") is None:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra)

            self._board = SummaryWriter(str(folder))
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{step}/{name}", value, number)

    def forget(self, step: str, after: int) -> None:
        """Drop the lines of updates that will be made again, because a run was killed."""
        if self.path is None or not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not _is_later(line, step, after)]
        if kept != lines:
            write_text(self.path, "".join(line + "\n" for line in kept))

    def close(self) -> None:
        """Write what TensorBoard still holds back."""
        if self._board is not None:
            self._board.close()


def _is_later(line: str, step: str, after: int) -> bool:
    try:
        about = json.loads(line)
    except ValueError:  # cut off by a kill
        return True
    return bool(about["step"] == step and about["number"] > after)
