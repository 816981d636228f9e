"""A classifier for a user's own images, from a handful of examples; scikit-learn's verbs.

The user's examples are a batch of one task, so that what `evaluate` measures is what runs here. W
classes, S images of the largest class, n images to classify, d entries an embedding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from polyshot.classifier import saved
from polyshot.classifier.answering import Answering, Kept, Say, as_kept, learn, weigh
from polyshot.classifier.estimate import Estimate, Label, estimate_accuracy
from polyshot.classifier.examples import Examples, Pictures, rows_of
from polyshot.classifier.inputs import check_embeddings, check_labels, find_classes
from polyshot.classifier.onnx import Exported, write_onnx
from polyshot.classifier.saved import OPTIONS, Saved
from polyshot.data.images import Images, as_list, load_sizes
from polyshot.errors import PolyshotError, unknown
from polyshot.pool.pool import Pool
from polyshot.predict import none_of_these
from polyshot.predict.ensemble import AUTO, check_ensemble, chosen
from polyshot.predict.none_of_these import Threshold
from polyshot.predict.predict import check_adaptation
from polyshot.predict.rules import Mix
from polyshot.predict.rules import rule as find_rule
from polyshot.tasks import Queries, Table, Tasks
from polyshot.util.device import forget
from polyshot.util.progress import Progress


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
        precision: Kept = "auto",
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
            precision: of the weights, from `fit` on, so that a saved classifier answers as before:
                `full`, `half`, `eight` or `six` bits; `auto` leaves a pool of ours as it is, rounds
                networks from elsewhere that the file has to hold (EfficientNet-Lite0) to half
                precision, and what `pa` and `tsa` learn to six bits.

        """
        self.pool = pool
        self.rule, self.adaptation, self.batch = rule, adaptation, batch
        self.none_rate, self.precision = none_rate, precision
        self._check_options()

    @property
    def pools(self) -> list[Pool]:
        """What embeds the images, as a list."""
        return [self.pool] if isinstance(self.pool, Pool) else list(self.pool)

    def _check_options(self) -> None:
        check_adaptation(self.adaptation, (AUTO,))
        none_of_these.check_rate(self.none_rate)
        if self.precision not in get_args(Kept):
            raise unknown("precision", self.precision, get_args(Kept))
        check_ensemble(self.pools)
        for each in self.pools:
            mixes = find_rule(self.rule, each).mixes  # refuses a name that the pool does not know
            if not each.takes_images and (self.adaptation == "tsa" or mixes == "modulators"):
                what = self.adaptation if self.adaptation == "tsa" else self.rule
                raise PolyshotError(
                    f"'{what}' runs networks on images, but this pool takes embeddings: take "
                    "another rule or adaptation."
                )

    def fit(self, images: Images, labels: Sequence[Label], report: Progress | None = None) -> Self:
        """Learn from examples: paths, PIL images, arrays or tensors of any size.

        Labels are one an image, text or numbers (`data.images.load_sizes` says what images may
        be); at least two are different. `report` is told how many images were read, and how `tsa`
        comes along. A pool of embeddings takes these instead, here and everywhere: floats ``[n,
        d]``.
        """
        self._check_options()
        pools = [as_kept(pool, self.precision) for pool in self.pools]
        items = self._items(pools, images)
        classes, indices = find_classes(check_labels(labels, len(items)))
        if self.none_rate is not None:
            none_of_these.check_classes(classes)
        tables, pictures = self._tables(pools, items, report)
        rules = [find_rule(self.rule, pool) for pool in pools]
        tasks = [Tasks.of_examples(table, indices) for table in tables]
        says = [
            weigh(pool, own, rule, self.adaptation)
            for pool, own, rule in zip(pools, tasks, rules, strict=True)
        ]
        names = [str(item) if isinstance(item, str | Path) else "" for item in items]
        examples = Examples(indices, names, [], pictures)
        self._learn(classes, says, rules[0].mixes, tasks, examples, report)
        return self

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

    @staticmethod
    def _items(pools: Sequence[Pool], images: Images) -> Any:
        """List images, or check embeddings where these are what the pool takes."""
        pool = pools[0]
        return as_list(images) if pool.takes_images else check_embeddings(images, pool.config.dim)

    def _tables(
        self, pools: Sequence[Pool], items: Any, report: Progress | None
    ) -> tuple[list[Table], dict[int, Pictures]]:
        """Read images once, for each pool in its size."""
        if not pools[0].takes_images:
            table = Table(None, len(items), pools[0].device)
            table.keep(pools[0].network(0), items)
            return [table], {}
        pixels = load_sizes(items, [pool.size for pool in pools], report)
        tables = [
            Table.of(pixels[pool.size], pool.device, pool.views, self.batch) for pool in pools
        ]
        return tables, {size: Pictures(size, own, ()) for size, own in pixels.items()}

    def _queries(self, images: Images, report: Progress | None) -> list[Queries]:
        """Read queries; a pool may look at them less often than at examples."""
        self._check_fitted()
        pools = self._answering.pools
        tables, _ = self._tables(pools, self._items(pools, images), report)
        return [
            Queries(table, torch.arange(table.count, device=table.device).unsqueeze(0)).viewed(
                pool.query_views or pool.views
            )
            for pool, table in zip(pools, tables, strict=True)
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
        return self._answering.probabilities(self._queries(images, report))

    def answer(
        self, images: Images, report: Progress | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Give probabilities ``[n, classes]``, and which images are none of these, ``[n]``.

        The latter is None where that was not asked for. A network that `tsa` has learned does not
        tell how near an image is to the classes: the others are asked as well.
        """
        queries = self._queries(images, report)
        return self._answering.probabilities(queries), self._answering.none(queries)

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

    def save(self, path: Path | str, examples: bool = True) -> None:
        """Write the classifier as one file, which needs neither the examples nor the pool.

        With `examples`, their embeddings and small images are kept in it, so that one can go on
        from it: `add`, `forget`, `relabel`, `suspects`. What it needs to be loaded, and what is
        promised about the file, is in docs/keep.md.
        """
        saved.write(Path(path), self._saved(examples))

    @classmethod
    def load(
        cls,
        path: Path | str,
        device: torch.device | str = "cpu",
        backbone: Any = None,
        download: bool = False,
    ) -> Self:
        """Read a classifier that `save` wrote; it answers to the bit as it did.

        A network of a user's own, which is not in the file, is given as `backbone`; likewise the
        new name of one that its library loads (``timm:...``), which `download` allows to fetch.
        """
        return cls._of(saved.read(Path(path), device, backbone, download))

    def export(self, path: Path | str, half: bool = False) -> Exported:
        """Write the classifier as an ONNX file, for programs without Polyshot or PyTorch.

        It takes images uint8 ``[n, side, side, 3]`` and gives probabilities ``[n, classes]``; what
        else is in it, and how it is used, is in docs/export.md. With `half` its networks compute in
        half precision. It is written only where ONNX Runtime answers as PyTorch does: how far they
        lie apart on the examples (or on drawn images, where none were kept) is returned.
        """
        self._check_fitted()
        own: FewShotClassifier = self
        if self._answering.pools[0].device.type != "cpu":
            own = type(self).__new__(type(self))
            own.__setstate__(self.__getstate__())  # what a pickle holds is on the CPU
        return write_onnx(own._answering, own._examples, Path(path), half)

    def _saved(self, examples: bool) -> Saved:
        self._check_fitted()
        options = {name: getattr(self, name) for name in OPTIONS}
        estimate = self.estimate() if self.can_estimate else None
        return Saved(options, self._answering, estimate, self._examples if examples else None)

    @classmethod
    def _of(cls, kept: Saved) -> Self:
        made = cls.__new__(cls)  # a pool without its selector would be refused by some rules
        pools = kept.answering.pools
        made.pool = pools[0] if len(pools) == 1 else pools
        for name, value in kept.options.items():
            setattr(made, name, value)
        made._take(kept.answering, kept.examples, kept.estimate)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: the file, and the networks that it does not hold."""
        if not hasattr(self, "classes_"):
            return dict(self.__dict__)
        kept = self._saved(examples=True)
        return {"file": saved.as_bytes(kept), "networks": saved.networks_beside(kept)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" not in state:
            self.__dict__.update(state)
            return
        kept = saved.read(state["file"], "cpu", state["networks"], download=False)
        self.__dict__.update(self._of(kept).__dict__)

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Copy the classifier; networks and what was learned never change, and are shared."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def _check_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise PolyshotError("The classifier knows no classes yet: call fit(images, labels).")
