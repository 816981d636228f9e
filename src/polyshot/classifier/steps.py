"""Better step by step: a fitted or saved classifier that takes corrections, and asks for them.

Examples come and go; the members' weights, and whether the task is like those of the pool's
sources, stay as the first fit told them. What was embedded is not embedded again. So a classifier
that was loaded goes on exactly as the one that was saved would have.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.classifier.advice import (
    Curve,
    Suggestion,
    Suspect,
    find_suspects,
    learning_curve,
    order_to_label,
)
from polyshot.classifier.answering import networks_of
from polyshot.classifier.examples import Examples, Label, Pictures, check_labels, find_classes
from polyshot.classifier.fitted import Fitted
from polyshot.data.images import Images
from polyshot.errors import PolyshotError, did_you_mean, join_names, one_line
from polyshot.predict import none_of_these
from polyshot.tasks import Table, Tasks
from polyshot.util.progress import Progress

Example = int | str
"""An example by its number, in the order of `fit` and `add`, or by the name of its file."""


class StepByStep(Fitted):
    """What goes on from a classifier that has learned."""

    def add(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from further examples, of known classes or of new ones."""
        known = self._kept_examples()
        pools = self._answering.pools
        items = self._items(pools, images)
        every = [*self.example_labels(), *check_labels(labels, len(items))]
        rows = list(range(len(known)))
        return self._again(rows, check_labels(every, len(every)), items, report)

    def forget(
        self,
        label: Label | None = None,
        *,
        examples: Example | Sequence[Example] = (),
        report: Progress | None = None,
    ) -> Self:
        """Leave out a class with all of its examples, or single examples.

        Two classes must remain, and single examples must not be the last of their class.
        """
        self._kept_examples()
        labels = self.example_labels()
        if label is not None and label not in labels:
            known = sorted(map(str, set(labels)))
            raise PolyshotError(
                f"There is no class '{label}', only {join_names(known)}."
                f"{did_you_mean(str(label), known)}"
            )
        gone = set(self.find_examples(examples))
        if label is None and not gone:
            raise PolyshotError("Nothing is named to be forgotten: give a label, or examples.")
        rows = [i for i, own in enumerate(labels) if own != label and i not in gone]
        left = {labels[i] for i in rows}
        emptied = [one for one in dict.fromkeys(labels) if one not in left and one != label]
        if emptied:
            raise PolyshotError(
                f"That would leave '{emptied[0]}' without examples: keep one, add others first, or "
                f"leave the class out, forget({emptied[0]!r})."
            )
        if len(left) < 2:
            raise PolyshotError(
                f"Without '{label}' there is only '{next(iter(left))}' left: add another class "
                "first."
            )
        return self._again(rows, [labels[i] for i in rows], None, report)

    def relabel(
        self,
        examples: Example | Sequence[Example],
        labels: Label | Sequence[Label],
        report: Progress | None = None,
    ) -> Self:
        """Give examples other labels: one for all of them, or one each.

        A class that has no example left is gone.
        """
        known = self._kept_examples()
        numbers = self.find_examples(examples)
        if not numbers:
            raise PolyshotError("No examples are named: give their numbers, or names of files.")
        single = isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray | Tensor)
        given: Any = [labels] * len(numbers) if single else labels
        every = self.example_labels()
        for number, label in zip(numbers, check_labels(given, len(numbers)), strict=True):
            every[number] = label
        return self._again(list(range(len(known))), check_labels(every, len(every)), None, report)

    def revise(
        self,
        kept: Sequence[int],
        labels: Sequence[Label],
        images: Images | None = None,
        report: Progress | None = None,
    ) -> Self:
        """Go on with some examples, by number, and new ones behind them, under these labels.

        All corrections at once: labels are of the kept ones, in this order, then of the new images.
        """
        rows = self.find_examples(list(kept))
        items = None if images is None else self._items(self._answering.pools, images)
        count = len(rows) + (0 if items is None else len(items))
        return self._again(rows, check_labels(labels, count), items, report)

    def suspects(self) -> list[Suspect]:
        """Name the examples that look mislabelled, the clearest first.

        Each is left out in turn, as by `estimate`, and classified by the others: a suspect is one
        that these take for another class. It may as well be an odd one, or the others be wrong.
        """
        examples = self._kept_examples()
        self._check_two()
        return find_suspects(self._answering, examples)

    def next_to_label(
        self, images: Images, count: int | None = None, report: Progress | None = None
    ) -> list[Suggestion]:
        """Order unlabelled images by how much an answer would help, the most useful first.

        These are images of which the classifier is in doubt, and unlike those before them in the
        list (`advice.order_to_label` has the rule); with `count`, the first so many.
        """
        queries = self._queries(images, report)
        return order_to_label(self._answering, queries, count)

    def curve(self, seed: int = 0) -> Curve:
        """Measure the accuracy by the number of examples, and whether more would help.

        Classes learn from some of their examples and are tried on the others. It measures what
        `estimate` does, and says nothing about images of another kind than the examples.
        """
        examples = self._kept_examples()
        self._check_two()
        return learning_curve(self._answering, examples, seed)

    def _kept_examples(self) -> Examples:
        self._check_fitted()
        if self._examples is None:
            raise PolyshotError(
                "This classifier was saved without its examples: fit it anew, or save it with "
                "them to go on from there."
            )
        return self._examples

    def example_labels(self) -> list[Any]:
        """Return the label of each example, in the order of `fit` and `add`."""
        labels: list[Any] = self.classes_[self._kept_examples().labels.numpy()].tolist()
        return labels

    def example_pictures(self) -> Iterator[tuple[NDArray[np.uint8], Any, str]]:
        """Yield each example as it is kept: pixels ``[3, side, side]``, label, name of its file.

        Nothing where the classifier was saved without them, or learned from embeddings.
        """
        if self.keeps_examples and self._kept_examples().images:
            known = self._kept_examples()
            largest = known.images[max(known.images)].pixels
            yield from zip(largest, self.example_labels(), known.names, strict=True)

    @property
    def keeps_examples(self) -> bool:
        """Whether it has its examples, so that one can go on from there."""
        self._check_fitted()
        return self._examples is not None

    def find_examples(self, examples: Example | Sequence[Example]) -> list[int]:
        """Return the numbers of examples that are named by number or by file."""
        names, found = self._kept_examples().names, []
        named = [examples] if isinstance(examples, int | str | np.integer) else list(examples)
        for one in named:
            if isinstance(one, str):
                kept_as = one_line(one)  # as `names_of` keeps the name of a file
                numbers = [i for i, name in enumerate(names) if name == kept_as]
                if len(numbers) != 1:
                    many = "Several examples are" if numbers else "No example is"
                    how = "by its number" if numbers else "by its file's whole name, or its number"
                    raise PolyshotError(
                        f"{many} called '{one}': name it {how}, from 0 to {len(names) - 1}."
                        f"{'' if numbers else did_you_mean(one, names)}"
                    )
                found += numbers
            elif isinstance(one, int | np.integer) and 0 <= one < len(names):
                found.append(int(one))
            else:
                raise PolyshotError(
                    f"There is no example {one!r}: they count from 0 to {len(names) - 1}."
                )
        if len(set(found)) < len(found):
            raise PolyshotError("An example is named twice: name each once.")
        return found

    def _check_two(self) -> None:
        if not self.can_estimate:
            raise PolyshotError(
                "No class has two examples, so that none can be left out: add some."
            )

    def _again(
        self, rows: list[int], labels: Sequence[Any], items: Any, report: Progress | None
    ) -> Self:
        """Learn from some of the examples, and from new ones behind them."""
        known, answering = self._kept_examples(), self._answering
        pools, mixes = answering.pools, answering.mixes
        classes, indices = find_classes(labels)
        if self.none_rate is not None:
            none_of_these.check_classes(classes)
        tables: list[Table] = []
        pictures: dict[int, Pictures] = {}
        names: list[str] = []
        if items is not None:
            tables, pictures, names = self._tables(pools, items, report)
        examples = Examples(
            indices,
            [*(known.names[row] for row in rows), *names],
            [],
            {size: own.joined(rows, pictures.get(size)) for size, own in known.images.items()},
        )
        tasks = []
        for i, (pool, one) in enumerate(zip(pools, answering.fitted.pools, strict=True)):
            table = examples.table(pool, self.batch)
            if mixes != "modulators":  # a blend is mixed anew, and embeds the examples itself
                networks = networks_of(one, pool, mixes)
                for network, old in zip(networks, known.embeddings[i], strict=True):
                    parts = [old[rows].to(pool.device)]
                    if items is not None:
                        parts.append(tables[i].embed(network))
                    table.keep(network, torch.cat(parts))
            tasks.append(Tasks.of_examples(table, indices))
        self._learn(classes, answering.says, mixes, tasks, examples, report)
        return self
