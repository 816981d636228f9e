"""Fits as jobs: one at a time, with progress, until done, failed or cancelled.

A project's classifier lies beside its images; it is replaced when the next one is whole. Up to
`AFRESH` examples all is learned anew, members' weights included; with more, only new images are
embedded.
"""

import copy
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from queue import SimpleQueue
from typing import Any, Literal

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from polyshot.serving.limits import Memory, Metrics, RefusedError
from polyshot.serving.records import Fit, Kept
from polyshot.serving.store import Store

AFRESH = 100
CURVE = 2_000
"""Examples up to which it is measured whether more would help, and which look wrong."""
State = Literal["waiting", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class JobInfo:
    """How far a fit is."""

    number: int
    state: State
    step: str
    done: int
    total: int
    message: str
    """What went wrong, for people."""


class _CancelledError(Exception):
    """The user has seen enough."""


class Learner:
    """One thread that fits, and the classifiers of all projects."""

    def __init__(
        self,
        store: Store,
        make: Callable[[], FewShotClassifier],
        metrics: Metrics,
        memory: Memory,
    ) -> None:
        """Learn with what `make` returns, a classifier that has learned nothing yet."""
        self.store, self._make, self.metrics, self.memory = store, make, metrics, memory
        memory.give_up = self.give_up
        self._jobs: dict[str, JobInfo] = {}
        self._cancelled: set[int] = set()
        self._loaded: OrderedDict[str, tuple[FewShotClassifier, str]] = OrderedDict()
        self._lock = threading.RLock()
        self._loading = threading.Lock()
        self._count = 0
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="fits", daemon=True)
        self._thread.start()

    def start(self, project: str) -> JobInfo:
        """Let a project learn; if it waits to do so already, that is the same job."""
        known = self.store.project(project)
        if known.source and not any(self.store.counts(project)) and self.store.fit_of(project):
            raise RefusedError(
                409, "This classifier came without its examples: it answers, and cannot learn."
            )
        usable = [name for name, count in self.store.classes(project).items() if count]
        if len(usable) < 2:
            raise RefusedError(409, "There is nothing to tell apart: give examples of two classes.")
        with self.memory.reserve(self._needed(project)):
            pass  # whether it could be had now; it is taken when its turn comes
        with self._lock:
            job = self._jobs.get(project)
            if job is not None and job.state == "waiting":
                return job
            if self._running() >= self.store.limits.jobs:
                raise RefusedError(429, "Many fits are waiting: ask again later.")
            self._count += 1
            made = JobInfo(self._count, "waiting", "", 0, 0, "")
            if job is not None and job.state == "running":  # its examples are not the latest
                self._cancelled.add(job.number)
            self._jobs[project] = made
            self._queue.put(project)
            return made

    def cancel(self, project: str) -> JobInfo:
        """Stop a project's job at its next step; what was learned before stays."""
        with self._lock:
            job = self.job(project)
            if job.state not in ENDED:
                self._cancelled.add(job.number)
                if job.state == "waiting":
                    self._set(project, replace(job, state="cancelled"))
            return self._jobs[project]

    def job(self, project: str) -> JobInfo:
        """Return the latest job of a project."""
        job = self._jobs.get(project)
        if job is None:
            raise RefusedError(404, "Nothing was learned since the service was started.")
        return job

    def find(self, project: str) -> JobInfo | None:
        """Return the latest job of a project, if there is one."""
        return self._jobs.get(project)

    def forget(self, project: str) -> None:
        """Leave a deleted project alone."""
        with self._lock:
            job = self._jobs.pop(project, None)
            if job is not None:
                self._cancelled.add(job.number)
            self._loaded.pop(project, None)

    def classifier(self, project: str) -> FewShotClassifier:
        """Return what a project has learned last."""
        return self.loaded(project)[0]

    def loaded(self, project: str) -> tuple[FewShotClassifier, str]:
        """Return what a project has learned last, from its file if need be, and the file's name."""
        self.store.project(project)
        with self._loading:  # once, however many ask
            known = self._loaded.get(project)
            if known is None:
                fit = self.store.fit_of(project)
                if fit is None:
                    raise RefusedError(409, "The project has learned nothing yet: fit it first.")
                path = self.store.folder_of(project) / fit.file
                known = FewShotClassifier.load(path, self._make().pools[0].device), fit.file
                self._keep(project, *known)
            self._loaded.move_to_end(project)
            return known

    def give_up(self) -> None:
        """Forget what lies in files, too, but for the classifier that was asked last."""
        with self._loading:
            while len(self._loaded) > 1:
                self._loaded.popitem(last=False)

    def report(self, project: str) -> dict[str, Any] | None:
        """Return what the last fit found out, and of which version of the examples it is."""
        fit = self.store.fit_of(project)
        return None if fit is None else {"version": fit.version, **json.loads(fit.report)}

    def close(self) -> None:
        """Finish the fit that runs, and those that wait."""
        self._queue.put(None)
        self._thread.join()

    def _running(self) -> int:
        return sum(job.state not in ENDED for job in self._jobs.values())

    def _keep(self, project: str, classifier: FewShotClassifier, file: str) -> None:
        self._loaded[project] = classifier, file
        self._loaded.move_to_end(project)
        while len(self._loaded) > self.store.limits.models:
            self._loaded.popitem(last=False)

    def _set(self, project: str, job: JobInfo) -> None:
        with self._lock:
            now = self._jobs.get(project)
            if now is not None and now.number == job.number:
                self._jobs[project] = job

    def _work(self) -> None:
        while (project := self._queue.get()) is not None:
            with self._lock:
                job = self._jobs.get(project)
            if job is None or job.state != "waiting":  # cancelled or deleted
                continue
            job = replace(job, state="running", step="reading")
            self._set(project, job)
            try:
                self._fit(project, job)
                end = replace(job, state="done")
            except _CancelledError:
                end = replace(job, state="cancelled")
            except (PolyshotError, RefusedError) as error:
                end = replace(job, state="failed", message=str(error))
            except Exception as error:  # the thread must live; whoever asked is told
                reason = f"Learning went wrong ({type(error).__name__}): add or drop examples."
                end = replace(job, state="failed", message=reason)
            self.metrics.add("fits_total", label=f'outcome="{end.state}"')
            self._set(project, replace(end, step=""))

    def _fit(self, project: str, job: JobInfo) -> None:
        def report(step: str, done: int, total: int) -> None:
            if job.number in self._cancelled:
                raise _CancelledError
            self._set(project, replace(job, step=step, done=done, total=total))

        version = self.store.project(project).version
        examples = self.store.images(project, labelled=True)
        report("images", 0, len(examples))
        with self.memory.reserve(self._needed(project)):
            made, order = self._learned(project, examples, report)
            report("checking", 0, 1)
            found = findings(made, order)
        report("checking", 1, 1)
        self.store.project(project)  # not deleted meanwhile
        self.keep(project, made, version, order, found)

    def keep(
        self,
        project: str,
        made: FewShotClassifier,
        version: int,
        order: Sequence[Kept],
        found: Mapping[str, Any],
    ) -> None:
        """Let a project answer by a classifier from now on.

        Each has a file name of its own, so that the note of its examples is never another's.
        """
        file = f"{secrets.token_hex(8)}.polyshot"
        made.save(self.store.folder_of(project) / file)
        examples = json.dumps([one.sha256 for one in order])
        self.store.keep_fit(project, Fit(version, file, examples, json.dumps(found)))
        with self._loading:
            self._keep(project, made, file)

    def _learned(
        self, project: str, examples: Sequence[Kept], report: Callable[[str, int, int], None]
    ) -> tuple[FewShotClassifier, list[Kept]]:
        """Learn from all examples; also returns them in the classifier's order."""
        fit = self.store.fit_of(project)
        if fit is not None and len(examples) > AFRESH:
            known = {sha256: i for i, sha256 in enumerate(json.loads(fit.examples))}
            old = [one for one in examples if one.sha256 in known]
            new = [one for one in examples if one.sha256 not in known]
            if len(old) > len(new):
                rows = [known[one.sha256] for one in old]
                order = old + new
                labels, files = [_label(one) for one in order], self._files(project, new) or None
                made = copy.copy(self.classifier(project))  # who asks meanwhile has the old one
                return made.revise(rows, labels, files, report), order
        made = self._make()
        made.fit(self._files(project, examples), [_label(one) for one in examples], report)
        return made, list(examples)

    def _needed(self, project: str) -> int:
        """Estimate what a fit takes: the files, and three copies of their pixels."""
        count, size = self.store.example_bytes(project)
        sides = {pool.size for pool in self._make().pools if pool.takes_images}
        return size + 3 * count * sum(3 * side * side for side in sides)

    def _files(self, project: str, images: Sequence[Kept]) -> list[bytes]:
        """Read images; as bytes, so that the classifier's file names no path."""
        return [self.store.read(project, one) for one in images]


def _label(image: Kept) -> str:
    assert image.label is not None
    return image.label


def findings(made: FewShotClassifier, order: Sequence[Kept]) -> dict[str, Any]:
    """Say what a fit found out about itself and about its examples."""
    found: dict[str, Any] = {
        "classes": [str(name) for name in made.classes_],
        "members": [{"name": name, "weight": weight} for name, weight in made.explain()],
        "adaptation": made.adaptation_ if made.adapted_ else "none",
        "examples": len(order),
        "estimate": None,
        "curve": None,
        "suspects": [],
    }
    if not made.can_estimate:
        return found
    estimate = made.estimate()
    found["estimate"] = {
        "accuracy": estimate.accuracy,
        "low": estimate.low,
        "high": estimate.high,
        "images": estimate.images,
        "text": str(estimate),
        "per_class": {str(name): value for name, value in estimate.per_class.items()},
    }
    if made.keeps_examples and len(order) <= CURVE:
        curve = made.curve()
        found["curve"] = {
            "more_would_help": curve.more_would_help,
            "gain": curve.gain,
            "text": str(curve),
        }
        found["suspects"] = [
            {"image": order[one.example].id, **_plain(asdict(one), "example", "name")}
            for one in made.suspects()[:50]
        ]
    return found


def _plain(found: Mapping[str, Any], *without: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in without}
