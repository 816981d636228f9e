"""What the routes stand on: projects, decoding, learning and answering, in one place."""

import asyncio
import csv
import io
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polyshot.classifier import FewShotClassifier
from polyshot.predict.none_of_these import NONE
from polyshot.serving.batching import LARGEST, Answer, Batcher
from polyshot.serving.decoding import Decoder
from polyshot.serving.learning import Learner
from polyshot.serving.limits import Limits, Memory, Metrics, RefusedError
from polyshot.serving.records import Kept, Picture, Project
from polyshot.serving.schemas import AnswerInfo, ClassInfo, ProjectInfo, Upload
from polyshot.serving.store import Store

NEXT = 300
"""Images without a label, the latest, that are answered to say which to label next."""
DOUBTFUL = 48
"""Of them, those in most doubt, among which such are sought that are unlike each other."""
SHOWN = 5
"""Classes of which an answer tells the probability, where all are not asked for."""


@dataclass(eq=False)
class _Answered:
    """What a project's classifier, known by its file, says of images that are kept."""

    file: str
    answers: dict[int, AnswerInfo] = field(default_factory=dict)
    order: tuple[frozenset[int], list[int]] = (frozenset(), [])
    """Of some images, which to label next."""


class Service:
    """One folder of projects, and what works on it."""

    def __init__(
        self, folder: Path, make: Callable[[], FewShotClassifier], limits: Limits | None = None
    ) -> None:
        """Open a folder; `make` returns classifiers that have learned nothing yet."""
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.store = Store(folder, self.limits)
        self.decoder = Decoder(self.limits)
        self.memory = Memory(self.limits.memory_bytes)
        self.batcher = Batcher(self.limits.queue, self.metrics, self.limits.queue_bytes)
        self.learner = Learner(self.store, make, self.metrics, self.memory)
        self.streams = 0
        """Who listens to events."""
        self._answered: OrderedDict[str, _Answered] = OrderedDict()

    def close(self) -> None:
        """Finish what runs, and end."""
        self.learner.close()
        self.batcher.close()
        self.decoder.close()
        self.store.close()

    def about(self, project: Project) -> ProjectInfo:
        """Describe a project."""
        labelled, unlabelled = self.store.counts(project.id)
        return ProjectInfo(
            id=project.id,
            name=project.name,
            version=project.version,
            classes=[
                ClassInfo(name=name, examples=count)
                for name, count in self.store.classes(project.id).items()
            ],
            labelled=labelled,
            unlabelled=unlabelled,
            fitted=self.learner.report(project.id),
            job=self.learner.find(project.id),
        )

    def delete(self, project: str) -> None:
        """Forget a project."""
        self.store.delete_project(project)
        self.learner.forget(project)
        self._answered.pop(project, None)

    def picture(self, upload: Upload) -> Picture:
        """Read an image that is to be kept, in another process."""
        with self._counting():
            return self.decoder.picture(upload.data, upload.file)

    async def answer_upload(self, classifier: FewShotClassifier, upload: Upload) -> Answer:
        """Classify an image as soon as it is decoded, while others of its request are not yet."""
        with self._counting():
            pixels = await asyncio.to_thread(self.decoder.pixels, upload.data, upload.file)
        return (await self.answer(classifier, [pixels]))[0]

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except RefusedError:
            self.metrics.add("refused_images_total")
            raise

    async def answer(
        self, classifier: FewShotClassifier, images: Sequence[NDArray[np.uint8]]
    ) -> list[Answer]:
        """Classify images ``[h, w, 3]``, in batches with those of others."""
        waiting = [
            asyncio.wrap_future(one) for one in self.batcher.submit(classifier, list(images))
        ]
        try:
            return await asyncio.wait_for(asyncio.gather(*waiting), self.limits.answer_seconds)
        except TimeoutError:
            raise RefusedError(503, "It takes too long to classify: ask again later.") from None

    async def answer_kept(self, project: str, images: Sequence[Kept]) -> list[AnswerInfo]:
        """Classify images of a project; what is known already is not asked again."""
        classifier, known = await self._known(project)
        new = [one for one in images if one.id not in known.answers]
        step = max(1, min(LARGEST, self.limits.queue // 4))  # others want a place in the queue
        for start in range(0, len(new), step):
            some = new[start : start + step]
            pixels = await asyncio.to_thread(self._pixels, project, some)
            found = await self.answer(classifier, pixels)
            for one, each in zip(some, found, strict=True):
                known.answers[one.id] = described(classifier, each, one.file, one.id)
        return [known.answers[one.id] for one in images]

    async def next_to_label(self, project: str, count: int) -> list[int]:
        """Order those images without a label of which the classifier is in doubt.

        Among all that were answered, or the latest `NEXT` where these are more.
        """
        classifier, known = await self._known(project)
        images = await asyncio.to_thread(self.store.images, project, False)
        if len(classifier.classes_) < 2 or not images:
            return [one.id for one in images[:count]]
        asked = [one for one in images if one.id in known.answers]
        if len(asked) < min(NEXT, len(images)):
            asked = images[-NEXT:]
        found = await self.answer_kept(project, asked)
        order = np.argsort([sure(one) for one in found], kind="stable")[:DOUBTFUL]
        some = [asked[i] for i in order]
        those = frozenset(one.id for one in some)
        if known.order[0] != those:
            files = await asyncio.to_thread(lambda: [self.store.read(project, one) for one in some])
            wanted = await asyncio.to_thread(classifier.next_to_label, files)
            known.order = those, [some[each.image].id for each in wanted]
        return known.order[1][:count]

    async def _known(self, project: str) -> tuple[FewShotClassifier, _Answered]:
        """Return a project's classifier, and what it said already; of a few projects at once."""
        classifier, file = await asyncio.to_thread(self.learner.loaded, project)
        known = self._answered.get(project)
        if known is None or known.file != file:
            known = self._answered[project] = _Answered(file)
        self._answered.move_to_end(project)
        while len(self._answered) > self.limits.models:
            self._answered.popitem(last=False)
        return classifier, known

    def _pixels(self, project: str, images: Sequence[Kept]) -> list[NDArray[np.uint8]]:
        made = []
        for one in images:
            with Image.open(io.BytesIO(self.store.read(project, one))) as image:
                made.append(np.asarray(image.convert("RGB")))
        return made

    async def labels_csv(self, project: str) -> str:
        """Write all images of a project with their labels: given by the user, or answered."""
        images = await asyncio.to_thread(self.store.images, project)
        unlabelled = [one for one in images if one.label is None]
        answers: dict[int, AnswerInfo] = {}
        if unlabelled and self.store.fit_of(project) is not None:
            found = await self.answer_kept(project, unlabelled)
            answers = {one.id: each for one, each in zip(unlabelled, found, strict=True)}
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(("file", "label", "labelled_by", "probability"))
        for one in images:
            if one.label is not None:
                writer.writerow((_cell(one.file), _cell(one.label), "you", ""))
            elif one.id in answers:
                own = answers[one.id]
                chance = f"{own.probability:.4f}"
                writer.writerow((_cell(one.file), _cell(own.label), "classifier", chance))
            else:
                writer.writerow((_cell(one.file), "", "", ""))
        return text.getvalue()


def described(
    classifier: FewShotClassifier,
    answer: Answer,
    file: str,
    image: int | None = None,
    none_rate: float | None = None,
    shown: int = SHOWN,
) -> AnswerInfo:
    """Put an answer into words, the likeliest classes first."""
    order = np.argsort(-answer.probabilities, kind="stable")[:shown]
    chances = {str(classifier.classes_[i]): float(answer.probabilities[i]) for i in order}
    label = next(iter(chances))
    made = AnswerInfo(
        image=image,
        file=file,
        label=label,
        probability=chances[label],
        probabilities=chances,
        none_rate=answer.none_rate,
    )
    return at_rate(made, none_rate)


def at_rate(answer: AnswerInfo, none_rate: float | None) -> AnswerInfo:
    """Call an answer none of these where it is, at a rate of false alarms."""
    if none_rate is None or answer.none_rate is None or answer.none_rate > none_rate:
        return answer
    return answer.model_copy(update={"label": NONE})


def sure(answer: AnswerInfo) -> float:
    """Return how far the likeliest class lies before the next."""
    first, *others = answer.probabilities.values()
    return first - max(others, default=0.0)


def _cell(text: str) -> str:
    """Keep spreadsheets from taking a name for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "@", "\t")) else text
