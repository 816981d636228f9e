"""Results: one JSON line a cell. Tables and reports read these lines and nothing else."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from polyshot.errors import PolyshotError
from polyshot.util.files import append_text


@dataclass(frozen=True)
class Result:
    """Accuracy of one method on one target."""

    method: str
    """A rule's or a rival's name."""
    target: str
    """The domain's name."""
    seen: bool | None
    """Whether the target was a source; None where nobody said."""
    way: int
    shot: int
    queries: int
    """Of each class."""
    part: str
    """Part of the class split: ``test``, ``val``, ``train`` or ``all``."""
    adaptation: str
    """``none`` or ``head``."""
    seed: int
    episodes: int
    group_disjoint: bool
    """Whether support and query were kept from sharing a group (no domain without groups is)."""
    fingerprint: str
    """Hash of the episodes: results with the same one may be paired."""
    mean: float
    half_width: float
    """Of the 95 % interval."""
    per_episode: list[float]
    """Accuracy of each episode, rounded to four digits."""
    pool: str
    """Hash of the pool."""
    pack: str
    """Hash of the target's pack."""
    version: str
    """Of Polyshot."""
    draw: str = ""
    """Identity of the row of episodes: results with the same one share their first episodes."""
    protocol: str = ""
    """The experiment it belongs to: ``seen``, ``unseen``, ``sources-2``."""
    preset: str = ""
    sources: list[str] = field(default_factory=list)
    """Domains that the method was trained on."""
    added: str = ""
    """The last of them, where it was added to a pool that was trained on the others."""
    added_seconds: float | None = None
    """To add it; None where the addition was interrupted."""
    added_on: str = ""
    """The device on which it was added."""
    train_seed: int | None = None
    settings: dict[str, float] = field(default_factory=dict)
    """The method's own settings, where it has any."""
    note: str = ""
    """What a reader should know: from which weights it started, whether it converged."""
    parameters: int | None = None
    """Numbers that the trained method holds."""
    multiply_adds: int | None = None
    """To solve one task."""
    seconds: float | None = None
    """To solve one task, in batches, on `device`."""
    device: str = ""
    shape: str = ""
    """``meta-dataset`` where ways and shots vary (then way, shot and queries are 0)."""
    calibration_error: float | None = None
    """How far probabilities are from shares of right answers (`evaluation.calibration`), over all
    queries; None in results that were written before it was measured."""

    def to_json(self) -> str:
        """Write the result as one line."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Append results to a file, one line each, in one write."""
    append_text(path, "".join(f"{result.to_json()}\n" for result in results))


def read_results(path: Path) -> list[Result]:
    """Read all results of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PolyshotError(f"{path} cannot be read: {error.strerror}.") from None
    results = []
    for number, line in enumerate(lines, 1):
        try:
            results.append(Result(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise PolyshotError(f"{path}, line {number}, is no result: {error}.") from None
    return results
