"""What a classifier has learned, and what it answers.

W classes, n images to classify, d entries an embedding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.classifier.answering import Answering, Kept, Say, learn
from polyshot.classifier.estimate import Estimate, estimate_accuracy
from polyshot.classifier.estimator import not_fitted
from polyshot.classifier.examples import Examples, Pictures, check_embeddings, rows_of
from polyshot.data.images import Images, ReadImages, as_list, load_sizes, names_of, read_images
from polyshot.errors import PolyshotError
from polyshot.pool.pool import Pool
from polyshot.predict import none_of_these
from polyshot.predict.ensemble import AUTO, chosen
from polyshot.predict.none_of_these import Nearness, Threshold
from polyshot.predict.rules import Mix
from polyshot.tasks import Queries, Table, Tasks
from polyshot.util.device import forget
from polyshot.util.progress import Progress

EMBED = "embed"
"""What progress is called while networks look at images."""


class Fitted:
    """A classifier once something was learned; `FewShotClassifier` says what there is then."""

    adaptation: str
    batch: int | None
    none_rate: float | None
    precision: Kept
    classes_: NDArray[Any]
    weights_: NDArray[np.float32]
    adaptation_: str
    adapted_: bool
    diverged_: bool
    threshold_: Threshold | None
    _answering: Answering
    _examples: Examples | None
    _estimate: Estimate | None
    _judged: tuple[Answering, Nearness, Tensor] | None = None
    """Whose nearness `judge` has learned, and what it is: it is asked again and again."""

    def predict(self, images: Images, report: Progress | None = None) -> NDArray[Any]:
        """Name the class of each image: labels ``[n]``; one image gives an array of one.

        With `none_rate`, some may be `none of these`; labels that are numbers then come as objects.
        """
        probabilities, none = self.answer(images, report)
        named: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return named if none is None else none_of_these.with_none(named, none)

    def predict_proba(self, images: Images, report: Progress | None = None) -> NDArray[np.float32]:
        """Give each class's probability: ``[n, classes]``, columns in the order of `classes_`.

        Only the members that the rule gave weight to are run; no image changes another's answer.
        They are the chances of an image that is of one of the classes, also with `none_rate`.
        """
        queries = self._queries(images, report)
        return self._answering.probabilities(queries)

    def answer(
        self, images: Images, report: Progress | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Give probabilities ``[n, classes]``, and which images are none of these, ``[n]``.

        The latter is None where that was not asked for. A network that `tsa` has learned does not
        tell how near an image is to the classes: the others are asked as well.
        """
        queries = self._queries(images, report)
        return self._answering.probabilities(queries), self._answering.none(queries)

    def judge(
        self, images: Images, report: Progress | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Give probabilities ``[n, classes]``, and from which `none_rate` on an image is none.

        The rates ``[n]`` let a user move the threshold afterwards: an image is none of these at
        every `none_rate` that is not below its own. None where the examples are not kept, or where
        no class has two.
        """
        queries = self._queries(images, report)
        answering, examples = self._answering, self._examples
        chances = answering.probabilities(queries)
        if examples is None or examples.task.shot < 2:
            return chances, None
        if self._judged is None or self._judged[0] is not answering:
            supports = [examples.support(i) for i in range(len(queries))]
            self._judged = (answering, *answering.learn_nearness(supports, examples.task.present))
        _, nearness, left_out = self._judged
        near = nearness.of(answering.seen(queries))
        return chances, none_of_these.rates(left_out, near)

    def read(self, images: Images, report: Progress | None = None) -> ReadImages:
        """Read images as the classifier looks at them; what cannot be read comes with a reason.

        Those that were read may be handed on to `answer`, `predict`, `judge` and the others.
        """
        self._check_fitted()
        return read_images(images, [pool.size for pool in self._answering.pools], report)

    def explain(self) -> list[tuple[str, float]]:
        """Say which members classify this task, with what weight, the heaviest first."""
        self._check_fitted()
        says = self._answering.says
        names = [name for say in says for name in say.names]
        if len(says) > 1:
            names = [f"{say.pool.backbone} {name}" for say in says for name in say.names]
        named = zip(names, map(float, self.weights_), strict=True)
        return sorted((one for one in named if one[1]), key=lambda one: -one[1])

    @property
    def can_estimate(self) -> bool:
        """Whether some class has two images, which `estimate` needs."""
        self._check_fitted()
        if self._examples is None:
            return self._estimate is not None
        return self._examples.task.shot > 1

    def estimate(self) -> Estimate:
        """Estimate the accuracy on new images like the examples, by leaving each of them out.

        One of each class is left out at a time and classified by what the other examples teach;
        the members' weights stay. It is a little low, since an example is missing, and says nothing
        about images of another kind than the examples. Heads are learned anew each time. Where that
        would take minutes, and for `pa` and `tsa`, what they start from is measured in their place:
        ridge where `tsa` reads out by it, else the prototypes (`Estimate.of`).
        """
        if not self.can_estimate:
            raise PolyshotError(
                "The accuracy cannot be estimated from one image a class: give two or more."
            )
        if self._estimate is None:
            assert self._examples is not None
            self._estimate = estimate_accuracy(self._answering, self._examples)
        return self._estimate

    def _learn(
        self,
        classes: NDArray[Any],
        says: Sequence[Say],
        mixes: Mix,
        tasks: Sequence[Tasks],
        examples: Examples,
        report: Progress | None,
    ) -> None:
        """Learn from the examples; nothing of the classifier changes unless all of it is done."""
        pairs = zip(says, tasks, strict=True)
        adaptations = [chosen(say.pool, own, self.adaptation) for say, own in pairs]
        options = (self.none_rate, self.precision, report)
        try:
            made, evidence = learn(classes, says, mixes, tasks, adaptations, *options)
        except torch.OutOfMemoryError as error:
            if self.adaptation != AUTO or "tsa" not in adaptations:
                raise PolyshotError(
                    f"The GPU's memory does not hold what '{adaptations[0]}' learns from "
                    f"{len(examples)} examples: take the adaptation 'ridge', fewer examples, or "
                    "the CPU."
                ) from None
            forget(error)
            ridge = ["ridge"] * len(tasks)
            made, evidence = learn(classes, says, mixes, tasks, ridge, *options)
        examples.embeddings = [
            [rows_of(each.support, own) for each in seen]
            for seen, own in zip(evidence, tasks, strict=True)
        ]
        self._take(made, examples, None)

    def _take(
        self, answering: Answering, examples: Examples | None, estimate: Estimate | None
    ) -> None:
        """Answer from now on by what was learned."""
        self._answering, self._examples, self._estimate = answering, examples, estimate
        self.classes_, self.threshold_ = answering.classes, answering.threshold
        self.weights_, self.adaptation_ = answering.weights, answering.adaptations[0]
        self.adapted_ = answering.fitted.pools[0].adapted
        self.diverged_ = bool(answering.fitted.diverged.any())
        if not answering.pools[0].takes_images:
            self.n_features_in_ = answering.pools[0].config.dim

    @staticmethod
    def _items(pools: Sequence[Pool], images: Images) -> Any:
        """List images, or check embeddings where these are what the pool takes."""
        pool = pools[0]
        if not pool.takes_images:
            return check_embeddings(images, pool.config.dim)
        return images if isinstance(images, ReadImages) else as_list(images)

    def _tables(
        self, pools: Sequence[Pool], items: Any, report: Progress | None
    ) -> tuple[list[Table], dict[int, Pictures], list[str]]:
        """Read images once, for each pool in its size; returns also the names of their files."""
        if not pools[0].takes_images:
            table = Table(None, len(items), pools[0].device)
            table.keep(pools[0].network(0), items)
            return [table], {}, [""] * len(items)
        sizes = [pool.size for pool in pools]
        if isinstance(items, ReadImages):
            pixels, names = items.of_sizes(sizes), items.names
        else:
            pixels, names = load_sizes(items, sizes, report), names_of(items)
        tables = [
            Table.of(pixels[pool.size], pool.device, pool.views, self.batch, report)
            for pool in pools
        ]
        for table in tables:
            table.name = EMBED  # reading them was shown before
        return tables, {size: Pictures(size, own) for size, own in pixels.items()}, names

    def _queries(self, images: Images, report: Progress | None) -> list[Queries]:
        """Read queries; a pool may look at them less often than at examples."""
        self._check_fitted()
        pools = self._answering.pools
        tables, *_ = self._tables(pools, self._items(pools, images), report)
        return [
            Queries(table, torch.arange(table.count, device=table.device).unsqueeze(0)).viewed(
                pool.query_views or pool.views
            )
            for pool, table in zip(pools, tables, strict=True)
        ]

    def _check_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise not_fitted("The classifier knows no classes yet: call fit(images, labels).")
