"""Labelling files: examples on disk, answers as rows of a table."""

import copy
import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from polyshot.classifier.classifier import FewShotClassifier
from polyshot.classifier.estimate import Estimate, Label
from polyshot.data.readers.examples import read_queries, read_support
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import AUTO
from polyshot.predict.none_of_these import NONE, Threshold
from polyshot.util.files import write_text
from polyshot.util.progress import Progress


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
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(field.name for field in fields(LabelledFile))
        writer.writerows(astuple(row) for row in self.rows)
        write_text(path, text.getvalue())


def label_files(
    pool: Pool | Sequence[Pool],
    support: Path,
    queries: Sequence[Path],
    rule: str = "auto",
    adaptation: str = AUTO,
    report: Progress | None = None,
    none_rate: float | None = None,
) -> LabelledFiles:
    """Classify files by examples on disk: `FewShotClassifier` explains the options.

    `support` is a folder for each class, or a CSV file with the columns path and label; `queries`
    are files, or folders that are searched for images. `report` is told how many images were read,
    and how `tsa` comes along.
    """
    read_queries(queries)  # a wrong name shows before any work
    classifier = FewShotClassifier(pool, rule, adaptation, none_rate=none_rate)
    return label_by(fit_files(classifier, support, report), queries, report)


def fit_files(
    classifier: FewShotClassifier, support: Path, report: Progress | None = None
) -> FewShotClassifier:
    """Let a classifier learn from examples on disk; returns it."""
    examples, labels = read_support(support)

    def of_examples(what: str, done: int, total: int) -> None:
        if report:  # a bar of their own: the queries are images, too
            report("examples" if what == "images" else what, done, total)

    return classifier.fit(examples, labels, of_examples)


def label_by(
    classifier: FewShotClassifier, queries: Sequence[Path], report: Progress | None = None
) -> LabelledFiles:
    """Classify files, or folders that are searched for images, by a fitted classifier."""
    paths = read_queries(queries)
    estimate = classifier.estimate() if classifier.can_estimate else None
    chances, none = classifier.answer(paths, report)
    rows = []
    for i, (path, line) in enumerate(zip(paths, chances, strict=True)):
        second, first = line.argsort(kind="stable")[-2:]
        best, other = (str(classifier.classes_[each]) for each in (first, second))
        if none is not None and none[i]:
            rows.append(LabelledFile(path, NONE, None, best, float(line[first])))
        else:
            rows.append(LabelledFile(path, best, float(line[first]), other, float(line[second])))
    summary = str(estimate or "Expected accuracy: not known, no class has two images.")
    learned = classifier.adaptation_ if classifier.adapted_ else "none"
    members, threshold = classifier.explain(), classifier.threshold_
    return LabelledFiles(rows, members, estimate, summary, learned, threshold)


def count_examples(classifier: FewShotClassifier) -> dict[Label, int]:
    """Count the examples of each class."""
    labels = classifier.example_labels()
    return {name: labels.count(name) for name in classifier.classes_.tolist()}


def correct_by_files(
    classifier: FewShotClassifier,
    relabel: Sequence[str] = (),
    drop: Sequence[str] = (),
    forget: Sequence[str] = (),
    add: Path | None = None,
    report: Progress | None = None,
) -> FewShotClassifier:
    """Correct a classifier as the command line says it: ``EXAMPLE=LABEL``, names or numbers.

    Nothing is changed unless all of it can be. Returns the classifier.
    """
    if not (relabel or drop or forget or add):
        raise PolyshotError("Nothing is to be corrected: say what to relabel, drop, forget or add.")
    known = {str(name): name for name in classifier.classes_.tolist()}
    is_text = isinstance(classifier.classes_[0].item(), str)

    def label(text: str) -> Label:
        """Read a label, a number where the classes are numbers."""
        if text in known or is_text:
            found: Label = known.get(text, text)
            return found
        try:
            return float(text) if "." in text else int(text)
        except ValueError:
            raise PolyshotError(f"Labels are numbers here, which '{text}' is not.") from None

    made = copy.copy(classifier)  # what was learned is replaced, never changed
    if relabel:
        pairs = [each.rpartition("=") for each in relabel]
        if wrong := [each for each in pairs if not each[0] or not each[2].strip()]:
            raise PolyshotError(f"'{''.join(wrong[0])}' is not EXAMPLE=LABEL, such as 3=dog.")
        numbers = made.find_examples([_example(each[0]) for each in pairs])
        made.relabel(numbers, [label(each[2].strip()) for each in pairs], report)
    gone = made.find_examples([_example(each) for each in drop])
    if gone:
        made.forget(examples=gone, report=report)
    for each in forget:
        made.forget(label(each), report=report)
    if add is not None:
        images, labels = read_support(add)
        made.add(images, [label(each) for each in labels], report)
    classifier.__dict__.update(made.__dict__)
    return classifier


def _example(text: str) -> int | str:
    return int(text) if text.isdigit() else text
