"""A classifier for a user's own images, from a handful of examples; scikit-learn's verbs.

E is 1 here: the user's task. W classes, S images of the largest class, d entries an embedding.
"""

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from polyshot.classifier.estimate import Estimate, wilson
from polyshot.classifier.single_task import SingleTask
from polyshot.classifier.support import Label, Members, Support, check_labels
from polyshot.data import loading
from polyshot.data.loading import Images, Progress, as_list, load_images
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.predict.none_of_these import (
    NONE,
    Threshold,
    check_classes,
    check_rate,
    set_threshold,
    with_none,
)
from polyshot.predict.readout import check_adaptation
from polyshot.predict.rules import rule as find_rule
from polyshot.util.memory import forget

AUTO = "auto"
"""The adaptation of who chooses none: `tsa`, where that is worth it and does not take long."""
TSA_IMAGES = {"cpu": 60, "cuda": 5000}
"""Examples from which `auto` learns by `tsa`: more would take longer than half a minute."""
LARGEST_WORK = 2**27
"""Logits that `estimate` may compute in learning heads: half a minute at 250 ns on one core."""


class FewShotClassifier:
    """Learns classes from a few images of each, by a pool, a rule and an adaptation.

    After `fit`: `classes_` (the labels, sorted), `weights_` (one a member of the pool, sum 1),
    `adaptation_` (what `auto` chose, or the one that was asked for), `adapted_` (whether it is
    used: `pa` and `tsa` are not with one image a class), `diverged_` (whether it ran away, so that
    it is not used) and `threshold_` (below which an image is none of these; None where that was not
    asked for).
    """

    classes_: NDArray[Any]
    weights_: NDArray[np.float32]
    adaptation_: str
    adapted_: bool
    diverged_: bool
    threshold_: Threshold | None

    def __init__(
        self,
        pool: Pool,
        rule: str = "auto",
        adaptation: str = AUTO,
        batch: int = 512,
        none_rate: float | None = None,
    ) -> None:
        """Choose how to classify.

        Args:
            pool: what embeds the images.
            rule: how members are weighed: one of `methods.rules.RULES`, or ``member:<domain>``.
            adaptation: `none` compares with prototypes, `head` learns a linear head, `pa` a linear
                map of the embedding, `tsa` a network for these classes, which takes longest; `auto`
                is `tsa` up to `TSA_IMAGES` examples, and `head` with more, with one of each, or
                where a GPU's memory is too small for `tsa`.
            batch: images that are embedded at once.
            none_rate: with it, images that are far from every class are answered `none of these`;
                the share of images of the classes themselves that may be, by mistake. 0.05 needs
                19 examples that have another of their class (`polyshot.predict.none_of_these`).
        """
        check_adaptation(adaptation, (AUTO,))
        check_rate(none_rate)
        find_rule(rule, pool)  # refuses a name that the pool does not know
        self.pool, self.rule, self.adaptation, self.batch = pool, rule, adaptation, batch
        self.none_rate = none_rate

    def fit(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from examples.

        Args:
            images: paths, PIL images, arrays or tensors of any size (`data.loading.load_images`).
            labels: one an image, text or numbers; at least two different ones.
            report: told how many images were read, and how `tsa` comes along.
        """
        items = as_list(images)
        classes, indices = check_labels(labels, len(items))
        if self.none_rate is not None:
            check_classes(classes)
        pixels = load_images(items, self.pool.size, report)
        support = Support(Members(self.pool, self.batch), pixels, indices)
        rule = find_rule(self.rule, self.pool)
        asks_none = self.none_rate is not None
        adaptation = self._choose(support)
        try:
            task = SingleTask(self.pool, support, rule, adaptation, asks_none, report)
        except torch.OutOfMemoryError as error:
            if self.adaptation != AUTO or adaptation != "tsa":
                raise PolyshotError(
                    f"The GPU's memory does not hold what '{adaptation}' learns from {len(items)} "
                    "examples: take the adaptation 'head', fewer examples, or the CPU."
                ) from None
            forget(error)
            adaptation = "head"
            task = SingleTask(self.pool, support, rule, adaptation, asks_none, report)
        threshold = None
        if task.nearness is not None and self.none_rate is not None:
            threshold = set_threshold(task.nearness.examples, self.none_rate)
        self._task, self.threshold_ = task, threshold
        self.classes_, self.weights_ = classes, task.weights.numpy()
        self.adaptation_, self.adapted_, self.diverged_ = adaptation, task.adapted, task.diverged
        return self

    def _choose(self, support: Support) -> str:
        if self.adaptation != AUTO:
            return self.adaptation
        few = len(support.images) <= TSA_IMAGES[self.pool.device.type]
        enough = support.mask.shape[-1] >= self.pool.adaptation.least_shots  # of the largest class
        return "tsa" if few and enough else "head"

    def predict(self, images: Images, report: Progress | None = None) -> NDArray[Any]:
        """Name the class of each image: labels ``[n]``; one image gives an array of one.

        With `none_rate`, some may be `none of these`; labels that are numbers then come as objects.
        """
        chances, none = self._answer(images, report)
        named: NDArray[Any] = self.classes_[chances.argmax(1)]
        return named if none is None else with_none(named, none)

    def predict_proba(self, images: Images, report: Progress | None = None) -> NDArray[np.float32]:
        """Give each class's probability: ``[n, classes]``, columns in the order of `classes_`.

        Only the members that the rule gave weight to are run; no image changes another's answer.
        They are the chances of an image that is of one of the classes, also with `none_rate`.
        """
        self._check_fitted()
        pixels = load_images(images, self.pool.size, report)
        return self._task.probabilities(pixels).numpy()

    def _answer(
        self, images: Images, report: Progress | None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Give probabilities ``[n, classes]``, and which images are none of these, ``[n]``."""
        if getattr(self, "threshold_", None) is None:
            return self.predict_proba(images, report), None
        chances, nearness = self._task.answer(load_images(images, self.pool.size, report))
        assert self.threshold_ is not None, "looked at above"
        return chances.numpy(), self.threshold_.below(nearness)

    def explain(self) -> list[tuple[str, float]]:
        """Say which members classify this task, with what weight, the heaviest first."""
        self._check_fitted()
        used = [
            (name, float(weight))
            for name, weight in zip(self.pool.members, self.weights_, strict=True)
            if weight
        ]
        return sorted(used, key=lambda one: -one[1])

    @property
    def can_estimate(self) -> bool:
        """Whether some class has two images, which `estimate` needs."""
        self._check_fitted()
        return self._task.mask.shape[-1] > 1

    def estimate(self) -> Estimate:
        """Estimate the accuracy on new images like the examples, by leaving each of them out.

        One of each class is left out at a time and classified by what the other examples teach;
        the members' weights stay. It is a little low, since an example is missing, and says nothing
        about images of another kind than the examples. Heads are learned anew each time. Where that
        would take minutes, and for `pa` and `tsa`, the prototypes are measured in their place
        (`Estimate.of`).
        """
        self._check_fitted()
        mask = self._task.mask[0]  # [W, S]
        places = (mask & (mask.sum(1, keepdim=True) > 1)).nonzero()  # [k, 2]: class, place in it
        if not self.can_estimate:
            raise PolyshotError(
                "The accuracy cannot be estimated from one image a class: give two or more."
            )
        way, slots = mask.shape
        logits_a_step = slots * way * way * slots * self._task.networks
        work = logits_a_step * self.pool.adaptation.steps
        heads = self.adaptation_ == "head" and work <= LARGEST_WORK
        chances = self._task.left_out(places, heads)
        right = chances.argmax(1) == places[:, 0]
        per_class = {
            self.classes_[c].item(): float(right[places[:, 0] == c].float().mean())
            for c in sorted(set(places[:, 0].tolist()))
        }
        low, high = wilson(int(right.sum()), len(right))
        accuracy = float(right.float().mean())
        of = "head" if heads else "prototypes"
        return Estimate(accuracy, (high - low) / 2, low, high, len(right), per_class, of)

    def _check_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise PolyshotError("The classifier knows no classes yet: call fit(images, labels).")


@dataclass(frozen=True)
class LabelledFile:
    """What one file shows."""

    path: Path
    label: str
    """A class, or `none of these`."""
    probability: float | None
    """Of this class among all; None for `none of these`, which has none."""
    runner_up: str
    """The next class; for `none of these` the likeliest one."""
    runner_up_probability: float


@dataclass(frozen=True)
class LabelledFiles:
    """Answers for some files, and how much they are worth."""

    rows: list[LabelledFile]
    members: list[tuple[str, float]]
    """Which members answered, with what weight."""
    estimate: Estimate | None
    """None where no class has two examples."""
    summary: str
    """One line: the expected accuracy, or why it is not known."""
    adaptation: str
    """What was learned on the examples."""
    threshold: Threshold | None = None
    """Of `none of these`, where that was asked for."""

    @property
    def none_summary(self) -> str:
        """One line: how many files are none of these; empty where that was not asked for."""
        if self.threshold is None:
            return ""
        count = sum(row.label == NONE for row in self.rows)
        # An odd example then hides foreign images that are nearer than it is.
        alone = (
            " The least near of these alone decides: more examples, or a higher rate, find more."
        )
        return (
            f"{NONE.capitalize()}: {count} of {len(self.rows)} images. Of images that are of your "
            f"classes about {self.threshold.rate:.1%} are expected to get this answer by mistake "
            f"(from leaving out each of {self.threshold.examples} examples)."
            f"{alone if self.threshold.rank == 1 else ''}"
        )

    def write_csv(self, path: Path) -> None:
        """Write a table with a row a file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(field.name for field in fields(LabelledFile))
                writer.writerows(astuple(row) for row in self.rows)
        except OSError as error:
            raise PolyshotError(f"{path} cannot be written: {error.strerror or error}.") from None


def label_files(
    pool: Pool,
    support: Path,
    queries: Sequence[Path],
    rule: str = "auto",
    adaptation: str = AUTO,
    report: Progress | None = None,
    none_rate: float | None = None,
) -> LabelledFiles:
    """Classify files by examples on disk.

    Args:
        pool: what embeds the images.
        support: a folder for each class, or a CSV file with the columns path and label.
        queries: files, or folders that are searched for images.
        rule: how members are weighed.
        adaptation: `auto`, `none`, `head`, `pa` or `tsa`.
        report: told how many images were read, and how `tsa` comes along.
        none_rate: share of false alarms at which files may be `none of these`.
    """
    paths = loading.read_queries(queries)  # a wrong name shows before any work
    examples, labels = loading.read_support(support)

    def of_examples(what: str, done: int, total: int) -> None:
        if report:  # a bar of their own: the queries are images, too
            report("examples" if what == "images" else what, done, total)

    classifier = FewShotClassifier(pool, rule, adaptation, none_rate=none_rate)
    classifier.fit(examples, labels, of_examples)
    estimate = classifier.estimate() if classifier.can_estimate else None
    chances, none = classifier._answer(paths, report)
    rows = []
    for i, (path, line) in enumerate(zip(paths, chances, strict=True)):
        second, first = line.argsort(kind="stable")[-2:]
        best, other = classifier.classes_[first], classifier.classes_[second]
        if none is not None and none[i]:
            rows.append(LabelledFile(path, NONE, None, best, float(line[first])))
        else:
            rows.append(LabelledFile(path, best, float(line[first]), other, float(line[second])))
    summary = str(estimate or "Expected accuracy: not known, no class has two images.")
    learned = classifier.adaptation_ if classifier.adapted_ else "none"
    members, threshold = classifier.explain(), classifier.threshold_
    return LabelledFiles(rows, members, estimate, summary, learned, threshold)
