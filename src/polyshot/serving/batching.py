"""Concurrent requests are answered in batches: a network takes many images nearly as fast as few.

Images wait in one queue. While a batch is computed the next one gathers, so that nobody waits for
others who might come: a single client is answered at once, many share the work.
"""

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyshot.classifier import FewShotClassifier
from polyshot.errors import PolyshotError
from polyshot.serving.limits import Metrics, RefusedError

LARGEST = 64
"""Images in a batch; more gain nothing, and the first would wait for the last."""


@dataclass(frozen=True)
class Answer:
    """What a classifier says of one image."""

    probabilities: NDArray[np.float32]
    """One a class, in the order of `classes_`."""
    none_rate: float | None
    """From which share of false alarms on it is none of these; None where that is not known."""


@dataclass(eq=False)
class _Waiting:
    classifier: FewShotClassifier
    pixels: NDArray[np.uint8]
    answer: "Future[Answer]" = field(default_factory=Future)


class Batcher:
    """One thread that classifies; any other may ask it."""

    def __init__(self, most: int, metrics: Metrics, most_bytes: int = 1 << 30) -> None:
        """Let `most` images wait, of `most_bytes` bytes of pixels."""
        self.most, self.metrics, self.most_bytes = most, metrics, most_bytes
        self._bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(
        self, classifier: FewShotClassifier, images: list[NDArray[np.uint8]]
    ) -> "list[Future[Answer]]":
        """Let images ``[h, w, 3]`` be classified; refuses all of them where the queue is full."""
        asked = [_Waiting(classifier, pixels) for pixels in images]
        with self._changed:
            if not self._open:
                raise RefusedError(503, "The service is being stopped: ask again later.")
            size = sum(one.pixels.nbytes for one in asked)
            full = self._waiting and self._bytes + size > self.most_bytes
            if full or len(self._waiting) + len(asked) > self.most:
                raise RefusedError(
                    429, f"{len(self._waiting)} images wait to be classified: ask again later."
                )
            self._waiting.extend(asked)
            self._bytes += size
            self._changed.notify()
        return [one.answer for one in asked]

    def close(self) -> None:
        """Answer what waits, and end."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            # Who went away meanwhile is not answered.
            batch = [one for one in batch if one.answer.set_running_or_notify_cancel()]
            if not batch:
                continue
            try:
                chances, rates = batch[0].classifier.judge([one.pixels for one in batch])
            except Exception as error:  # of this batch alone: the next one may go well
                sentence = str(error) if isinstance(error, PolyshotError) else "It went wrong."
                for one in batch:
                    one.answer.set_exception(RefusedError(500, sentence))
                continue
            self.metrics.add("batches_total")
            self.metrics.add("images_total", len(batch))
            for i, one in enumerate(batch):
                rate = None if rates is None else float(rates[i])
                one.answer.set_result(Answer(chances[i], rate))

    def _next(self) -> list[_Waiting]:
        """Wait for images; return those for the same classifier as the first, up to `LARGEST`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            if not self._waiting:
                return []
            classifier = self._waiting[0].classifier
            batch: list[_Waiting] = []
            others: deque[_Waiting] = deque()
            while self._waiting and len(batch) < LARGEST:
                one = self._waiting.popleft()
                (batch if one.classifier is classifier else others).append(one)
            self._waiting.extendleft(reversed(others))
            self._bytes -= sum(one.pixels.nbytes for one in batch)
            return batch
