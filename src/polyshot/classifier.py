"""A classifier for a user's own images, from a handful of examples; scikit-learn's verbs.

E is 1 here: the user's task. W classes, S images of the largest class, d entries an embedding.
"""

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyshot.data import loading
from polyshot.data.loading import Images, Progress, as_list, load_images
from polyshot.errors import PolyshotError
from polyshot.estimate import Estimate, wilson
from polyshot.methods.readout import check_adaptation
from polyshot.methods.rules import rule as find_rule
from polyshot.pool import Pool
from polyshot.single_task import SingleTask
from polyshot.support import Label, Members, Support, check_labels

LARGEST_WORK = 2**27
"""Logits that `estimate` may compute in learning heads: half a minute at 250 ns on one core."""


class FewShotClassifier:
    """Learns classes from a few images of each, by a pool, a rule and an adaptation.

    After `fit`: `classes_` (the labels, sorted), `weights_` (one a member of the pool, sum 1),
    `adapted_` (whether the adaptation is used: `pa` and `tsa` are not with one image a class) and
    `diverged_` (whether it ran away, so that it is not used).
    """

    classes_: NDArray[Any]
    weights_: NDArray[np.float32]
    adapted_: bool
    diverged_: bool

    def __init__(
        self, pool: Pool, rule: str = "auto", adaptation: str = "none", batch: int = 512
    ) -> None:
        """Choose how to classify.

        Args:
            pool: what embeds the images.
            rule: how members are weighed: one of `methods.rules.RULES`, or ``member:<domain>``.
            adaptation: `none` compares with prototypes, `head` learns a linear head, `pa` a linear
                map of the embedding, `tsa` a network for these classes, which takes longest.
            batch: images that are embedded at once.
        """
        check_adaptation(adaptation)
        find_rule(rule, pool)  # refuses a name that the pool does not know
        self.pool, self.rule, self.adaptation, self.batch = pool, rule, adaptation, batch

    def fit(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from examples.

        Args:
            images: paths, PIL images, arrays or tensors of any size (`data.loading.load_images`).
            labels: one an image, text or numbers; at least two different ones.
            report: told how many images were read, and how `tsa` comes along.
        """
        items = as_list(images)
        classes, indices = check_labels(labels, len(items))
        pixels = load_images(items, self.pool.size, report)
        support = Support(Members(self.pool, self.batch), pixels, indices)
        rule = find_rule(self.rule, self.pool)
        self._task = task = SingleTask(self.pool, support, rule, self.adaptation, report)
        self.classes_, self.weights_ = classes, task.weights.numpy()
        self.adapted_, self.diverged_ = task.adapted, task.diverged
        return self

    def predict(self, images: Images, report: Progress | None = None) -> NDArray[Any]:
        """Name the class of each image: labels ``[n]``; one image gives an array of one."""
        chances = self.predict_proba(images, report)
        named: NDArray[Any] = self.classes_[chances.argmax(1)]
        return named

    def predict_proba(self, images: Images, report: Progress | None = None) -> NDArray[np.float32]:
        """Give each class's probability: ``[n, classes]``, columns in the order of `classes_`.

        Only the members that the rule gave weight to are run; no image changes another's answer.
        """
        self._check_fitted()
        pixels = load_images(images, self.pool.size, report)
        return self._task.probabilities(pixels).numpy()

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
        heads = self.adaptation == "head" and work <= LARGEST_WORK
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
    probability: float
    runner_up: str
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
    adaptation: str = "none",
    report: Progress | None = None,
) -> LabelledFiles:
    """Classify files by examples on disk.

    Args:
        pool: what embeds the images.
        support: a folder for each class, or a CSV file with the columns path and label.
        queries: files, or folders that are searched for images.
        rule: how members are weighed.
        adaptation: `none`, `head`, `pa` or `tsa`.
        report: told how many images were read, and how `tsa` comes along.
    """
    paths = loading.read_queries(queries)  # a wrong name shows before any work
    examples, labels = loading.read_support(support)

    def of_examples(what: str, done: int, total: int) -> None:
        if report:  # a bar of their own: the queries are images, too
            report("examples" if what == "images" else what, done, total)

    classifier = FewShotClassifier(pool, rule, adaptation).fit(examples, labels, of_examples)
    estimate = classifier.estimate() if classifier.can_estimate else None
    chances = classifier.predict_proba(paths, report)
    rows = []
    for path, line in zip(paths, chances, strict=True):
        second, first = line.argsort(kind="stable")[-2:]
        best, other = classifier.classes_[first], classifier.classes_[second]
        rows.append(LabelledFile(path, best, float(line[first]), other, float(line[second])))
    summary = str(estimate or "Expected accuracy: not known, no class has two images.")
    return LabelledFiles(rows, classifier.explain(), estimate, summary)
