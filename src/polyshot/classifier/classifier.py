"""A classifier for a user's own images, from a handful of examples; scikit-learn's verbs.

The user's examples are a batch of one task, so that what `evaluate` measures is what runs here. W
classes, S images of the largest class, n images to classify, d entries an embedding.
"""

from collections.abc import Sequence
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyshot.classifier.estimate import Estimate, Label, left_out_probabilities, wilson
from polyshot.data.images import Images, as_list, load_images
from polyshot.errors import PolyshotError, join_names
from polyshot.models.backbone import sites_of
from polyshot.pool.pool import Pool
from polyshot.predict import none_of_these
from polyshot.predict.none_of_these import Nearness, Threshold
from polyshot.predict.predict import check_adaptation, fit_tasks
from polyshot.predict.rules import rule as find_rule
from polyshot.tasks import Queries, Table, Tasks
from polyshot.util.device import forget
from polyshot.util.progress import Progress

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
    used: `pa` and `tsa` are not with one image a class), `diverged_` (whether learning diverged, so
    that it is not used) and `threshold_` (below which an image is none of these; None where that
    was not asked for).
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
            rule: how members are weighed: one of `predict.rules.RULES`, or ``member:<domain>``.
            adaptation: `none` compares with prototypes, `head` learns a linear head, `pa` a linear
                map of the embedding, `tsa` a network for these classes, which takes longest; `auto`
                is `tsa` up to `TSA_IMAGES` examples, and `head` with more, with one of each, on
                a base without layers to act at, or where a GPU's memory is too small for `tsa`.
            batch: images that are embedded at once.
            none_rate: with it, images that are far from every class are answered `none of these`;
                the share of images of the classes themselves that may be, by mistake. 0.05 needs
                19 examples that have another of their class (`polyshot.predict.none_of_these`).
        """
        check_adaptation(adaptation, (AUTO,))
        none_of_these.check_rate(none_rate)
        mixes = find_rule(rule, pool).mixes  # refuses a name that the pool does not know
        if not pool.takes_images and (adaptation == "tsa" or mixes == "modulators"):
            raise PolyshotError(
                f"'{adaptation if adaptation == 'tsa' else rule}' runs networks on images, but "
                "this pool takes embeddings: take another rule or adaptation."
            )
        self.pool, self.rule, self.adaptation, self.batch = pool, rule, adaptation, batch
        self.none_rate = none_rate

    def fit(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from examples: paths, PIL images, arrays or tensors of any size.

        Labels are one an image, text or numbers (`data.images.load_images` says what images may
        be); at least two are different. `report` is told how many images were read, and how `tsa`
        comes along. A pool of embeddings takes these instead, here and everywhere: floats ``[n,
        d]``.
        """
        items = as_list(images) if self.pool.takes_images else self._embeddings(images)
        classes, indices = check_labels(labels, len(items))
        if self.none_rate is not None:
            none_of_these.check_classes(classes)
        tasks = Tasks.of_examples(self._table(items, report), indices)
        adaptation = self._choose(tasks)
        try:
            self._learn(tasks, adaptation, report)
        except torch.OutOfMemoryError as error:
            if self.adaptation != AUTO or adaptation != "tsa":
                raise PolyshotError(
                    f"The GPU's memory does not hold what '{adaptation}' learns from {len(items)} "
                    "examples: take the adaptation 'head', fewer examples, or the CPU."
                ) from None
            forget(error)
            self._learn(tasks, "head", report)
        self.classes_ = classes
        return self

    def _learn(self, tasks: Tasks, adaptation: str, report: Progress | None) -> None:
        """Learn from the examples; nothing of the classifier changes unless all of it is done."""
        rule = find_rule(self.rule, self.pool)
        fitted = fit_tasks(self.pool, tasks, [rule], adaptation, report)
        mask = tasks.present[0].cpu()  # [W, S]
        evidence = [
            each._replace(support=each.support.cpu()) for each in fitted.evidence(tasks, rule.mixes)
        ]
        nearness, threshold = None, None
        if self.none_rate is not None:
            nearness = Nearness(evidence, mask.unsqueeze(0), self.pool.metric)
            threshold = none_of_these.set_threshold(nearness.examples, self.none_rate)
        self._fitted, self._mixes, self._mask = fitted, rule.mixes, mask
        self._evidence, self._nearness, self.threshold_ = evidence, nearness, threshold
        self.weights_ = fitted.weights[0][0].numpy()
        self.adaptation_, self.adapted_ = adaptation, fitted.adapted
        self.diverged_ = bool(fitted.diverged.any())

    def _choose(self, tasks: Tasks) -> str:
        if self.adaptation != AUTO:
            return self.adaptation
        if not sites_of(self.pool.base):  # embeddings, or a function: nothing to act at
            return "head"
        few = tasks.table.count <= TSA_IMAGES[self.pool.device.type]
        enough = tasks.shot >= self.pool.adaptation.least_shots  # of the largest class
        return "tsa" if few and enough else "head"

    def _table(self, images: Images, report: Progress | None) -> Table:
        pool = self.pool
        if pool.takes_images:
            pixels = load_images(images, pool.size, report)
            return Table.of(pixels, pool.device, pool.views, self.batch)
        embeddings = self._embeddings(images)
        table = Table(None, len(embeddings), pool.device)
        table.keep(pool.network(0), embeddings)
        return table

    def _embeddings(self, given: Any) -> Tensor:
        """Return embeddings ``[n, d]`` as float32; refuses what are none of the pool's length."""
        dim = self.pool.config.dim
        try:
            if isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
                given = torch.stack(list(given))
            made = torch.as_tensor(np.asarray(given) if isinstance(given, list | tuple) else given)
        except (TypeError, ValueError, RuntimeError):  # paths, pictures, rows of many lengths
            raise PolyshotError(
                f"This pool takes embeddings, one array of floats [n, {dim}], not a "
                f"{type(given).__name__} of something else."
            ) from None
        made = made.unsqueeze(0) if made.ndim == 1 and len(made) == dim else made
        if made.ndim != 2 or made.shape[1] != dim or made.dtype == torch.bool or made.is_complex():
            raise PolyshotError(
                f"This pool takes embeddings [n, {dim}], not {list(made.shape)} of "
                f"{str(made.dtype).removeprefix('torch.')}."
            )
        made = made.detach().float()
        if not len(made):
            raise PolyshotError("There are no embeddings: give at least one.")
        if strange := (~made.isfinite().all(1)).nonzero().flatten().tolist():
            raise PolyshotError(
                f"Embeddings are finite numbers, but not those of rows {join_names(strange)}."
            )
        return made

    def _queries(self, images: Images, report: Progress | None) -> Queries:
        table = self._table(images, report)
        return Queries(table, torch.arange(table.count, device=table.device).unsqueeze(0))

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
        self._check_fitted()
        return self._probabilities(self._queries(images, report))

    def answer(
        self, images: Images, report: Progress | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Give probabilities ``[n, classes]``, and which images are none of these, ``[n]``.

        The latter is None where that was not asked for. A network that `tsa` has learned does not
        tell how near an image is to the classes: the others are asked as well.
        """
        self._check_fitted()
        queries = self._queries(images, report)
        probabilities = self._probabilities(queries)
        if self._nearness is None or self.threshold_ is None:
            return probabilities, None
        seen = [each.cpu() for each in self._fitted.see(queries, self._mixes)]
        return probabilities, self.threshold_.below(self._nearness.of(seen))

    def _probabilities(self, queries: Queries) -> NDArray[np.float32]:
        answers: Tensor = self._fitted.probabilities(queries)[0, 0]  # [n, W]
        return answers.cpu().numpy()

    def explain(self) -> list[tuple[str, float]]:
        """Say which members classify this task, with what weight, the heaviest first."""
        self._check_fitted()
        named = zip(self.pool.members, map(float, self.weights_), strict=True)
        return sorted((one for one in named if one[1]), key=lambda one: -one[1])

    @property
    def can_estimate(self) -> bool:
        """Whether some class has two images, which `estimate` needs."""
        self._check_fitted()
        return self._mask.shape[-1] > 1

    def estimate(self) -> Estimate:
        """Estimate the accuracy on new images like the examples, by leaving each of them out.

        One of each class is left out at a time and classified by what the other examples teach;
        the members' weights stay. It is a little low, since an example is missing, and says nothing
        about images of another kind than the examples. Heads are learned anew each time. Where that
        would take minutes, and for `pa` and `tsa`, the prototypes are measured in their place
        (`Estimate.of`).
        """
        self._check_fitted()
        mask = self._mask  # [W, S]
        places = (mask & (mask.sum(1, keepdim=True) > 1)).nonzero()  # [k, 2]: class, place in it
        if not self.can_estimate:
            raise PolyshotError(
                "The accuracy cannot be estimated from one image a class: give two or more."
            )
        pool, (way, slots) = self.pool, mask.shape
        logits_a_step = slots * way * way * slots * len(self._evidence)
        work = logits_a_step * pool.adaptation.steps
        heads = self.adaptation_ == "head" and work <= LARGEST_WORK
        answers = left_out_probabilities(
            self._evidence, mask, places, self._mixes, pool.metric, pool.adaptation, heads
        )
        right = answers.argmax(1) == places[:, 0]
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


def check_labels(labels: Sequence[Label] | None, images: int) -> tuple[NDArray[Any], Tensor]:
    """Return the sorted classes and each label's place among them; refuses what is no labelling."""
    if images == 0:
        raise PolyshotError("There are no images: give at least one of each class.")
    if labels is None:
        raise PolyshotError("Labels are missing: give one for each image.")
    listed: list[Any] = [labels] if isinstance(labels, str) else list(labels)
    values = [one.item() if getattr(one, "ndim", None) == 0 else one for one in listed]
    if len(values) != images:
        raise PolyshotError(
            f"There are {len(values)} labels for {images} images: give one for each image."
        )
    # NaN, a table's empty cell, differs from itself.
    empty = [
        i
        for i, one in enumerate(values)
        if one is None
        or (isinstance(one, str) and not one.strip())
        or (isinstance(one, Real) and one != one)  # noqa: PLR0124
    ]
    if empty:
        raise PolyshotError(f"Labels are missing for images[{join_names(map(str, empty))}].")
    strange = {type(one).__name__ for one in values if not isinstance(one, str | Real)}
    if strange or len({isinstance(one, str) for one in values}) > 1:
        what = join_names(sorted(strange)) if strange else "both"
        raise PolyshotError(f"Labels are all text or all numbers, not {what}.")
    classes, indices = np.unique(np.asarray(values), return_inverse=True)
    if len(classes) < 2:
        raise PolyshotError(
            f"All images have the label '{classes[0]}': give images of at least two classes."
        )
    return classes, torch.from_numpy(indices.astype(np.int64))
