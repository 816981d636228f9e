"""Labelling files: examples on disk, answers as rows of a table."""

import copy
import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from polyshot.classifier.classifier import FewShotClassifier
from polyshot.classifier.estimate import Estimate
from polyshot.classifier.estimator import Pools
from polyshot.classifier.examples import Label
from polyshot.classifier.fitted import EMBED
from polyshot.data.images import (
    BadImage,
    ReadImages,
    cannot_read,
    first_readable,
    load_images,
    read_images,
)
from polyshot.data.readers.queries import list_support, read_queries
from polyshot.errors import PolyshotError, as_utf8, join_names
from polyshot.pool.pool import Pool
from polyshot.predict.ensemble import AUTO
from polyshot.predict.none_of_these import NONE, Threshold
from polyshot.util.files import check_writable, write_text
from polyshot.util.progress import Progress

THUMB = 8
"""Pixels a side of images that are read only to see whether they can be."""
SHOWN = 5
"""Files of which a message says what is wrong."""


@dataclass(frozen=True)
class LabelledFile:
    """What one file shows."""

    path: Path | str
    """A file, or what names an image inside of one, or a URL."""
    label: str
    """A class, or `none of these`; empty where the file cannot be read."""
    probability: float | None
    """Of this class among all; None for `none of these`, which has none."""
    runner_up: str
    """The next class; for `none of these` the likeliest one."""
    runner_up_probability: float | None
    reason: str = ""
    """Why it has no label: what is wrong with the file."""


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
    left_out: tuple[BadImage, ...] = ()
    """Examples that cannot be read, or belong to no class."""

    @property
    def unread(self) -> list[LabelledFile]:
        """The files that cannot be read."""
        return [row for row in self.rows if row.reason]

    @property
    def unread_summary(self) -> str:
        """One line: which files cannot be read; empty where all can."""
        if not self.unread:
            return ""
        files = join_names(f"{row.path} ({row.reason})" for row in self.unread)
        return f"{len(self.unread)} of {len(self.rows)} images cannot be read: {files}."

    @property
    def none_summary(self) -> str:
        """One line: how many files are none of these; empty where that was not asked for."""
        if self.threshold is None:
            return ""
        count = sum(row.label == NONE for row in self.rows)
        asked = len(self.rows) - len(self.unread)
        # An odd example then hides foreign images that are nearer than it is.
        alone = (
            " The least near of these alone decides: more examples, or a higher rate, find more."
        )
        return (
            f"{NONE.capitalize()}: {count} of {asked} images. Of images that are of your "
            f"classes about {self.threshold.rate:.1%} are expected to get this answer by mistake "
            f"(from leaving out each of {self.threshold.examples} examples)."
            f"{alone if self.threshold.rank == 1 else ''}"
        )

    def write_csv(self, path: Path) -> None:
        """Write a table with a row a file."""
        write_text(path, as_csv(self.rows))


def label_files(
    pool: Pools,
    support: Path,
    queries: Sequence[Path],
    rule: str = "auto",
    adaptation: str = AUTO,
    report: Progress | None = None,
    none_rate: float | None = None,
    strict: bool = False,
) -> LabelledFiles:
    """Classify files by examples on disk: `FewShotClassifier` explains the options.

    `support` is a folder for each class, or a CSV file with the columns path and label; `queries`
    are files, or folders that are searched for images. `report` is told how many images were read,
    and how `tsa` comes along. A query that cannot be read becomes a row with the reason, such an
    example is left out; with `strict` either is an error, before anything is learned.
    """
    check_queries(queries, strict)
    classifier = FewShotClassifier(pool, rule, adaptation, none_rate=none_rate)
    left_out = fit_files(classifier, support, report, strict)
    return replace(label_by(classifier, queries, report, strict), left_out=left_out)


def check_queries(queries: Sequence[Path], strict: bool = False) -> list[Path]:
    """List the files to classify; refuses, before any work, where none is an image.

    With `strict`, every one has to be.
    """
    paths = read_queries(queries)
    if strict:
        load_images(paths, THUMB)
    elif first_readable(paths) is None:
        load_images(paths[:SHOWN], THUMB)  # says why
    return paths


def fit_files(
    classifier: FewShotClassifier,
    support: Path,
    report: Progress | None = None,
    strict: bool = False,
) -> tuple[BadImage, ...]:
    """Let a classifier learn from examples on disk; returns those that are left out.

    These cannot be read, which is an error with `strict`, or lie beside the class folders.
    """
    of_examples = _of_examples(report)
    images, labels, left_out = _read_examples(support, classifier.pools, of_examples, strict)
    classifier.fit(images, labels, of_examples)
    return left_out


def _of_examples(report: Progress | None) -> Progress:
    """Show examples on a bar of their own: the queries are images, too."""

    def told(what: str, done: int, total: int) -> None:
        if report:
            own = {"images": "examples", EMBED: f"{EMBED} examples"}
            report(own.get(what, what), done, total)

    return told


def _read_examples(
    support: Path, pools: Sequence[Pool], report: Progress, strict: bool
) -> tuple[ReadImages, list[str], tuple[BadImage, ...]]:
    """Read examples and their labels; of each class one at least can be.

    Those that cannot come last, with images that belong to no class.
    """
    paths, labels, beside = list_support(support)
    images = read_images(paths, [pool.size for pool in pools], report)
    kept = [labels[i] for i in images.places]
    gone = sorted(set(labels) - set(kept))
    if images.bad and (strict or gone):
        emptied = f", so that nothing is left of {join_names(gone)}" if gone else ""
        raise PolyshotError(
            f"{len(images.bad)} of {len(paths)} examples cannot be read{emptied}: "
            f"{join_names(map(str, images.bad.values()))}."
        )
    return images, kept, (*images.bad.values(), *beside)


def label_by(
    classifier: FewShotClassifier,
    queries: Sequence[Path],
    report: Progress | None = None,
    strict: bool = False,
) -> LabelledFiles:
    """Classify files, or folders that are searched for images, by a fitted classifier.

    What cannot be read becomes a row with the reason; with `strict` it is an error.
    """
    paths = read_queries(queries)
    estimate = classifier.estimate() if classifier.can_estimate else None
    images = classifier.read(paths, report)
    if images.bad and strict:
        raise cannot_read(images)
    rows = label_read(classifier, paths, images, report)
    summary = str(estimate or "Expected accuracy: not known, no class has two images.")
    learned = classifier.adaptation_ if classifier.adapted_ else "none"
    members, threshold = classifier.explain(), classifier.threshold_
    return LabelledFiles(rows, members, estimate, summary, learned, threshold)


def label_read(
    classifier: FewShotClassifier,
    names: Sequence[Path | str],
    images: ReadImages,
    report: Progress | None = None,
) -> list[LabelledFile]:
    """Classify images that were read, and give those a row, too, that could not be."""
    rows = {
        i: LabelledFile(names[i], "", None, "", None, bad.kind) for i, bad in images.bad.items()
    }
    if not len(images):
        return list(rows.values())
    chances, none = classifier.answer(images, report)
    for k, (i, line) in enumerate(zip(images.places, chances, strict=True)):
        second, first = line.argsort(kind="stable")[-2:]
        best, other = (str(classifier.classes_[each]) for each in (first, second))
        if none is not None and none[k]:
            rows[i] = LabelledFile(names[i], NONE, None, best, float(line[first]))
        else:
            chance = float(line[first])
            rows[i] = LabelledFile(names[i], best, chance, other, float(line[second]))
    return [rows[i] for i in range(len(names))]


def check_table(path: Path) -> None:
    """Refuse, before any work, what labels cannot be written to: they are a table in CSV."""
    if path.suffix.lower() not in ("", ".csv", ".txt"):
        raise PolyshotError(
            f"{path} cannot be written: labels are CSV, name a file such as "
            f"{path.with_suffix('.csv').name}, or a folder, which takes any number of images."
        )
    check_writable(path)


def as_csv(rows: Sequence[LabelledFile]) -> str:
    """Write rows as a table, in letters that UTF-8 has."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(field.name for field in fields(LabelledFile))
    writer.writerows(astuple(row) for row in rows)
    return as_utf8(text.getvalue())


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
    strict: bool = False,
) -> tuple[BadImage, ...]:
    """Correct a classifier as the command line says it: ``EXAMPLE=LABEL``, names or numbers.

    Nothing is changed unless all of it can be. Returns the further examples that are left out, as
    `fit_files` does.
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

    left_out: tuple[BadImage, ...] = ()
    made = copy.copy(classifier)  # what was learned is replaced, never changed
    if relabel:
        pairs = [_example_and_label(made, each) for each in relabel]
        made.relabel([number for number, _ in pairs], [label(each) for _, each in pairs], report)
    gone = made.find_examples([_example(each) for each in drop])
    if gone:
        made.forget(examples=gone, report=report)
    for each in forget:
        made.forget(label(each), report=report)
    if add is not None:
        of_examples, pools = _of_examples(report), made.pools
        images, labels, left_out = _read_examples(add, pools, of_examples, strict)
        made.add(images, [label(each) for each in labels], of_examples)
    classifier.__dict__.update(made.__dict__)
    return left_out


def _example_and_label(classifier: FewShotClassifier, text: str) -> tuple[int, str]:
    """Read ``EXAMPLE=LABEL``, both of which may hold a ``=``: the longest example that there is."""
    places = [i for i, letter in enumerate(text) if letter == "="]
    pairs = [(text[:i], text[i + 1 :].strip()) for i in reversed(places)]
    pairs = [(example, label) for example, label in pairs if example and label]
    if not pairs:
        raise PolyshotError(f"'{text}' is not EXAMPLE=LABEL, such as 3=dog.")
    refusals = []
    for example, label in pairs:
        try:
            return classifier.find_examples([_example(example)])[0], label
        except PolyshotError as error:
            refusals.append(error)
    # With one sign it is clear which example was meant; a number is before the first one.
    if len(pairs) == 1 or isinstance(_example(pairs[-1][0]), int):
        raise refusals[-1]
    raise PolyshotError(
        f"'{text}' begins with the name of no single example: take its number, which 'polyshot "
        "check' shows."
    )


def _example(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 10 else text
