"""The steps of a training as jobs of an engine: step 2 is one job a source, side by side."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from polyshot import engines
from polyshot.config import Config
from polyshot.data.pack import Pack
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.training.clusters import check_clusters
from polyshot.training.folder import check_place, check_sources
from polyshot.training.run import train
from polyshot.util.files import file_digest
from polyshot.util.progress import Progress

FILES = ("**",)
"""All of a run's folder travels."""
OF_MEMBER = ("steps/**", "*-metrics.jsonl")
"""What learning one modulator leaves."""
BAR = "steps"
"""Name of the progress of the whole training."""


def train_by(
    engine: engines.Engine,
    resources: engines.Resources,
    packs: Sequence[Pack],
    config: Config,
    out: Path,
    start: Path | None = None,
    report: Progress | None = None,
) -> Pool:
    """Train a pool by jobs: the base, then every modulator by a job of its own, then the selector.

    The outcome is that of `train` with as many threads, but for the metrics of modulators, which
    are in files of their own. Steps that are done are skipped.
    """
    check_sources(packs, config)
    check_clusters(packs, config)
    check_place(out, start)
    jobs = list(_jobs(packs, config, start, resources))
    done = 0
    with closing(engine.run(jobs, out, report)) as events:
        for event in events:
            if event.failed:
                raise PolyshotError(event.failed.message)
            done += event.ended
            if report:
                report(BAR, done, len(jobs))
    return Pool.load(out / "pool", "cpu")


def _jobs(
    packs: Sequence[Pack], config: Config, start: Path | None, resources: engines.Resources
) -> Iterator[engines.Job]:
    inputs = {pack.hash: pack.path for pack in packs}
    first = "" if start is None else file_digest(start)
    if start is not None:
        inputs[first] = start
    who = ([pack.hash for pack in packs], config, first)

    def job(step: str, only: str, needs: tuple[str, ...]) -> engines.Job:
        return engines.Job(
            f"train-{step}{only and '-'}{only}",
            _do,
            (*who, step, only),
            inputs,
            reads=FILES,
            outputs=OF_MEMBER if only else FILES,
            needs=needs,
            resources=resources,
        )

    yield job("base", "", ())
    names = [pack.domain.name for pack in packs]
    apart = not config.joint and config.modulator.members == 1
    members = [job("modulators", name, ("train-base",)) for name in names] if apart else []
    yield from members
    yield job("modulators", "", ("train-base", *(each.key for each in members)))
    yield job("selector", "", ("train-modulators",))


def _do(
    place: engines.Place, packs: Sequence[str], config: Config, start: str, step: str, only: str
) -> Iterator[Any]:
    """Do a step, wherever this process is."""
    opened = [Pack.open(place.inputs[each], verify=False) for each in packs]
    first = place.inputs[start] if start else None
    how = (step, place.device, place.report, first)
    train(opened, config, place.folder, *how, only=only)
    yield step
