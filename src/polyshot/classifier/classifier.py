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
from polyshot.data.images import Images, as_list, load_sizes
from polyshot.errors import PolyshotError, join_names
from polyshot.pool.pool import Pool
from polyshot.predict import none_of_these
from polyshot.predict.ensemble import AUTO, check_ensemble, chosen, fit_ensemble, mixed
from polyshot.predict.none_of_these import Nearness, Threshold
from polyshot.predict.predict import check_adaptation
from polyshot.predict.rules import rule as find_rule
from polyshot.tasks import Queries, Table, Tasks
from polyshot.util.device import forget
from polyshot.util.progress import Progress

LARGEST_WORK = 2**27
"""Logits that `estimate` may compute in learning heads: half a minute at 250 ns on one core."""


class FewShotClassifier:
    """Learns classes from a few images of each, by a pool, a rule and an adaptation.

    Several pools, each on a backbone of its own, answer together (`predict.ensemble`).

    After `fit`: `classes_` (the labels, sorted), `weights_` (one a member of the pool, or of all
    pools one after the other, sum 1), `adaptation_` (what `auto` chose, or the one that was asked
    for; of several pools that of the first), `adapted_` (whether it is used: `pa` and `tsa` are not
    with one image a class), `diverged_` (whether learning diverged, so that it is not used) and
    `threshold_` (below which an image is none of these; None where that was not asked for).
    """

    classes_: NDArray[Any]
    weights_: NDArray[np.float32]
    adaptation_: str
    adapted_: bool
    diverged_: bool
    threshold_: Threshold | None

    def __init__(
        self,
        pool: Pool | Sequence[Pool],
        rule: str = "auto",
        adaptation: str = AUTO,
        batch: int | None = None,
        none_rate: float | None = None,
    ) -> None:
        """Choose how to classify.

        Args:
            pool: what embeds the images: a pool, or several that answer together.
            rule: how members are weighed: one of `predict.rules.RULES`, or ``member:<domain>``.
            adaptation: `none` compares with prototypes, `head` learns a linear head, `ridge` one in
                closed form, `pa` a linear map of the embedding, `tsa` a network for these classes,
                which takes longest; `auto` is `tsa` up to 60 examples (5,000 on a GPU), and `ridge`
                with more, with one of each, on a base without layers to act at, on a network from
                elsewhere without a GPU, or where a GPU's memory is too small for `tsa`.
            batch: images that are embedded at once; as suits device and network if not given.
            none_rate: with it, images that are far from every class are answered `none of these`;
                the share of images of the classes themselves that may be, by mistake. 0.05 needs
                19 examples that have another of their class (`polyshot.predict.none_of_these`).
        """
        check_adaptation(adaptation, (AUTO,))
        none_of_these.check_rate(none_rate)
        self.pools = [pool] if isinstance(pool, Pool) else list(pool)
        check_ensemble(self.pools)
        for each in self.pools:
            mixes = find_rule(rule, each).mixes  # refuses a name that the pool does not know
            if not each.takes_images and (adaptation == "tsa" or mixes == "modulators"):
                raise PolyshotError(
                    f"'{adaptation if adaptation == 'tsa' else rule}' runs networks on images, but "
                    "this pool takes embeddings: take another rule or adaptation."
                )
        self.pool = self.pools[0]
        self.rule, self.adaptation, self.batch = rule, adaptation, batch
        self.none_rate = none_rate

    def fit(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from examples: paths, PIL images, arrays or tensors of any size.

        Labels are one an image, text or numbers (`data.images.load_sizes` says what images may
        be); at least two are different. `report` is told how many images were read, and how `tsa`
        comes along. A pool of embeddings takes these instead, here and everywhere: floats ``[n,
        d]``.
        """
        items = as_list(images) if self.pool.takes_images else self._embeddings(images)
        classes, indices = check_labels(labels, len(items))
        if self.none_rate is not None:
            none_of_these.check_classes(classes)
        tasks = [Tasks.of_examples(table, indices) for table in self._tables(items, report)]
        pairs = zip(self.pools, tasks, strict=True)
        adaptations = [chosen(pool, own, self.adaptation) for pool, own in pairs]
        try:
            self._learn(tasks, adaptations, report)
        except torch.OutOfMemoryError as error:
            if self.adaptation != AUTO or "tsa" not in adaptations:
                raise PolyshotError(
                    f"The GPU's memory does not hold what '{adaptations[0]}' learns from "
                    f"{len(items)} examples: take the adaptation 'ridge', fewer examples, or the "
                    "CPU."
                ) from None
            forget(error)
            self._learn(tasks, ["ridge"] * len(tasks), report)
        self.classes_ = classes
        return self

    def _learn(
        self, tasks: Sequence[Tasks], adaptations: Sequence[str], report: Progress | None
    ) -> None:
        """Learn from the examples; nothing of the classifier changes unless all of it is done."""
        rules = [find_rule(self.rule, pool) for pool in self.pools]
        fitted = fit_ensemble(self.pools, tasks, rules, adaptations, report)
        mixes = rules[0].mixes
        mask = tasks[0].present[0].cpu()  # [W, S]
        evidence = [
            [each._replace(support=each.support.cpu()) for each in one.evidence(own, mixes)]
            for one, own in zip(fitted.pools, tasks, strict=True)
        ]
        shares = fitted.weights[:, 0].tolist()
        nearness, threshold = None, None
        if self.none_rate is not None:
            pairs = zip(shares, evidence, strict=True)
            seen = [e._replace(weight=share * e.weight) for share, own in pairs for e in own]
            nearness = Nearness(seen, mask.unsqueeze(0), self.pool.metric)
            threshold = none_of_these.set_threshold(nearness.examples, self.none_rate)
        self._fitted, self._mixes, self._mask = fitted, mixes, mask
        self._evidence, self._nearness, self.threshold_ = evidence, nearness, threshold
        members = [s * one.weights[0][0] for s, one in zip(shares, fitted.pools, strict=True)]
        self.weights_ = torch.cat(members).numpy()
        self.adaptation_, self._adaptations = adaptations[0], list(adaptations)
        self.adapted_ = fitted.pools[0].adapted
        self.diverged_ = bool(fitted.diverged.any())

    def _tables(self, images: Images, report: Progress | None) -> list[Table]:
        """Read images once, for each pool in its size."""
        if not self.pool.takes_images:
            embeddings = self._embeddings(images)
            table = Table(None, len(embeddings), self.pool.device)
            table.keep(self.pool.network(0), embeddings)
            return [table]
        pixels = load_sizes(images, [pool.size for pool in self.pools], report)
        return [
            Table.of(pixels[pool.size], pool.device, pool.views, self.batch) for pool in self.pools
        ]

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

    def _queries(self, images: Images, report: Progress | None) -> list[Queries]:
        """Read queries; a pool may look at them less often than at examples."""
        return [
            Queries(table, torch.arange(table.count, device=table.device).unsqueeze(0)).viewed(
                pool.query_views or pool.views
            )
            for pool, table in zip(self.pools, self._tables(images, report), strict=True)
        ]

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
        pairs = zip(self._fitted.pools, queries, strict=True)
        seen = [each.cpu() for one, own in pairs for each in one.see(own, self._mixes)]
        return probabilities, self.threshold_.below(self._nearness.of(seen))

    def _probabilities(self, queries: Sequence[Queries]) -> NDArray[np.float32]:
        answers: Tensor = self._fitted.probabilities(queries)[0]  # [n, W]
        return answers.cpu().numpy()

    def explain(self) -> list[tuple[str, float]]:
        """Say which members classify this task, with what weight, the heaviest first."""
        self._check_fitted()
        names = list(self.pool.members)
        if len(self.pools) > 1:
            names = [f"{pool.backbone} {name}" for pool in self.pools for name in pool.members]
        named = zip(names, map(float, self.weights_), strict=True)
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
        would take minutes, and for `pa` and `tsa`, what they start from is measured in their place:
        ridge where `tsa` reads out by it, else the prototypes (`Estimate.of`).
        """
        self._check_fitted()
        mask = self._mask  # [W, S]
        places = (mask & (mask.sum(1, keepdim=True) > 1)).nonzero()  # [k, 2]: class, place in it
        if not self.can_estimate:
            raise PolyshotError(
                "The accuracy cannot be estimated from one image a class: give two or more."
            )
        measured = [self._estimated(i) for i in range(len(self.pools))]
        parts = [
            left_out_probabilities(
                *(own, mask, places, self._mixes, pool.metric, pool.adaptation, how)
            )
            for pool, own, how in zip(self.pools, self._evidence, measured, strict=True)
        ]
        answers = mixed([part.unsqueeze(0) for part in parts], self._fitted.weights)[0]
        right = answers.argmax(1) == places[:, 0]
        per_class = {
            self.classes_[c].item(): float(right[places[:, 0] == c].float().mean())
            for c in sorted(set(places[:, 0].tolist()))
        }
        low, high = wilson(int(right.sum()), len(right))
        accuracy = float(right.float().mean())
        of = "prototypes" if measured[0] == "none" else measured[0]
        return Estimate(accuracy, (high - low) / 2, low, high, len(right), per_class, of)

    def _estimated(self, number: int) -> str:
        """Say which adaptation of a pool `estimate` measures."""
        pool, own = self.pools[number], self._adaptations[number]
        way, slots = self._mask.shape
        logits_a_step = slots * way * way * slots * len(self._evidence[number])
        if own == "tsa":
            return "ridge" if pool.adaptation.tsa_readout == "ridge" else "none"
        if own == "head":
            return "head" if logits_a_step * pool.adaptation.steps <= LARGEST_WORK else "none"
        return own if own == "ridge" else "none"

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
