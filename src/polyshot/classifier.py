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
from torch import Tensor

from polyshot.data import loading
from polyshot.data.loading import Images, Progress, as_list, load_images
from polyshot.errors import PolyshotError
from polyshot.estimate import Estimate, wilson
from polyshot.methods.adaptation import adapt_heads, head_logits
from polyshot.methods.readout import check_adaptation, prepared
from polyshot.methods.rules import rule as find_rule
from polyshot.models.heads import leave_one_out_logits, prototype_logits, prototypes
from polyshot.pool import Pool
from polyshot.support import Label, Members, Support, check_labels

LARGEST_WORK = 2**27
"""Logits that `estimate` may compute in learning heads: half a minute at 250 ns on one core."""
CHUNK = 2**24
"""Numbers of the support sets that are learned on at once."""


class FewShotClassifier:
    """Learns classes from a few images of each, by a pool, a rule and an adaptation.

    After `fit`: `classes_` (the labels, sorted) and `weights_` (one a member of the pool, sum 1).
    """

    classes_: NDArray[Any]
    weights_: NDArray[np.float32]

    def __init__(
        self, pool: Pool, rule: str = "select", adaptation: str = "none", batch: int = 512
    ) -> None:
        """Choose how to classify.

        Args:
            pool: what embeds the images.
            rule: how members are weighed: `select`, `average`, `base`, or ``member:<domain>``.
            adaptation: `none` compares with prototypes, `head` learns a linear head.
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
            report: told how many images were read.
        """
        items = as_list(images)
        classes, indices = check_labels(labels, len(items))
        members = Members(self.pool, self.batch)
        support = Support(members, load_images(items, self.pool.size, report), indices)
        weights = find_rule(self.rule, self.pool).weights(self.pool, support)[0]  # [M]
        learned = {
            member: self._learn(support.support_of(member), support.mask)
            for member in weights.nonzero().flatten().tolist()
        }
        members.keep(learned)
        self._members, self._support, self._learned = members, support, learned
        self.classes_, self.weights_ = classes, weights.numpy()
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
        result = torch.zeros(len(pixels), len(self.classes_))
        for member, query in self._members.embed(self._learned, pixels).items():  # [n, d]
            logits = self._logits(member, query.unsqueeze(0), self._learned[member])[0]  # [n, W]
            result += float(self.weights_[member]) * torch.softmax(logits, -1)
        return result.numpy()

    def explain(self) -> list[tuple[str, float]]:
        """Say which members classify this task, with what weight, the heaviest first."""
        self._check_fitted()
        used = [
            (self.pool.members[member], float(self.weights_[member])) for member in self._learned
        ]
        return sorted(used, key=lambda one: -one[1])

    @property
    def can_estimate(self) -> bool:
        """Whether some class has two images, which `estimate` needs."""
        self._check_fitted()
        return self._support.mask.shape[-1] > 1

    def estimate(self) -> Estimate:
        """Estimate the accuracy on new images like the examples, by leaving each of them out.

        Each is classified by what the other examples alone teach; the members' weights stay. It is
        a little low, since one example is missing, and says nothing about images of another kind
        than the examples. Heads are learned anew for each example; where that would take minutes,
        the prototypes are measured in their place (`Estimate.of`).
        """
        self._check_fitted()
        mask = self._support.mask[0]  # [W, S]
        places = (mask & (mask.sum(1, keepdim=True) > 1)).nonzero()  # [k, 2]: class, place in it
        if not self.can_estimate:
            raise PolyshotError(
                "The accuracy cannot be estimated from one image a class: give two or more."
            )
        way, slots = mask.shape
        logits_a_step = len(places) * way * way * slots * len(self._learned)
        work = logits_a_step * self.pool.adaptation.steps
        heads = self.adaptation == "head" and work <= LARGEST_WORK
        chances = torch.zeros(len(places), way)
        for member in self._learned:
            support = self._support.support_of(member)
            logits = self._left_out(member, support, places, heads)
            chances += float(self.weights_[member]) * torch.softmax(logits, -1)
        right = chances.argmax(1) == places[:, 0]
        per_class = {
            self.classes_[c].item(): float(right[places[:, 0] == c].float().mean())
            for c in sorted(set(places[:, 0].tolist()))
        }
        low, high = wilson(int(right.sum()), len(right))
        accuracy = float(right.float().mean())
        of = "head" if heads else "prototypes"
        return Estimate(accuracy, (high - low) / 2, low, high, len(right), per_class, of)

    def _left_out(self, member: int, support: Tensor, places: Tensor, heads: bool) -> Tensor:
        """Classify the support images at `places` [k, 2] by the others: logits [k, W]."""
        mask = self._support.mask
        rows, columns = places.unbind(1)
        if not heads:
            metric, scale = self.pool.metric, self.pool.scales[member]
            logits = leave_one_out_logits(prepared(support, metric), metric, scale, mask)
            return logits[0, rows, columns]
        without = mask.repeat(len(places), 1, 1)  # [k, W, S], one task for each image left out
        without[torch.arange(len(places)), rows, columns] = False
        queries = support[0, rows, columns].unsqueeze(1)  # [k, 1, d]
        step = max(1, CHUNK // support.numel())
        parts = []
        for start in range(0, len(places), step):
            chunk = without[start : start + step]
            learned = self._learn(support.expand(len(chunk), -1, -1, -1), chunk)
            parts.append(self._logits(member, queries[start : start + step], learned)[:, 0])
        return torch.cat(parts)

    def _learn(self, support: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Learn tasks from raw support embeddings [E, W, S, d]: prototypes, or weights and biases.

        As `methods.readout.predict` does, but once for all the queries to come.
        """
        if self.adaptation == "head":
            return adapt_heads(support, mask, self.pool.adaptation, self.pool.metric)
        return (prototypes(prepared(support, self.pool.metric), mask),)

    def _logits(self, member: int, query: Tensor, learned: tuple[Tensor, ...]) -> Tensor:
        """Classify raw embeddings [E, Q, d] by what `_learn` gave: logits [E, Q, W]."""
        if self.adaptation == "head":
            weight, bias = learned
            return head_logits(query, weight, bias, self.pool.adaptation, self.pool.metric)
        return prototype_logits(query, learned[0], self.pool.metric, self.pool.scales[member])

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
    rule: str = "select",
    adaptation: str = "none",
    report: Progress | None = None,
) -> LabelledFiles:
    """Classify files by examples on disk.

    Args:
        pool: what embeds the images.
        support: a folder for each class, or a CSV file with the columns path and label.
        queries: files, or folders that are searched for images.
        rule: how members are weighed.
        adaptation: `none` or `head`.
        report: told how many images were read.
    """
    paths = loading.read_queries(queries)  # a wrong name shows before any work
    classifier = FewShotClassifier(pool, rule, adaptation).fit(*loading.read_support(support))
    estimate = classifier.estimate() if classifier.can_estimate else None
    chances = classifier.predict_proba(paths, report)
    rows = []
    for path, line in zip(paths, chances, strict=True):
        second, first = line.argsort(kind="stable")[-2:]
        best, other = classifier.classes_[first], classifier.classes_[second]
        rows.append(LabelledFile(path, best, float(line[first]), other, float(line[second])))
    summary = str(estimate or "Expected accuracy: not known, no class has two images.")
    return LabelledFiles(rows, classifier.explain(), estimate, summary)
